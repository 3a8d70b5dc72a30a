"""A small study on the real engines, and fixtures to run its cells."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.browser import browser
from tests.conftest import evidence_of
from tests.integration import served_study
from tests.unit.made_studies import fixed, study_content
from workflow_scripts.page.report import REPORT
from workflow_scripts.present.page_script import joined

CHECKOUT = Path(__file__).resolve().parents[2]
# The last commit of this checkout stands in for a repository of the network.
HOSTED = "https://github.com/kvsweep/kvsweep"
HOSTED_HERE = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{CHECKOUT}.insteadOf", "GIT_CONFIG_VALUE_0": HOSTED}

TINY = {"gpu": "cpu-all", "model": "tiny-llama-57m"}
BLOCKS = {"block_size": 32, "max_num_seqs": 4}
FLASH = {"attention_backend": "FLASH_ATTN"}
SWEEPS: dict[str, dict[str, Any]] = {
    "vllm": {
        **{"gpu": ["cpu-1core", "cpu-all", "h200"], "workload": ["short", "endless"]},
        "knobs": {"block_size": [16, 32], "max_num_seqs": 4},
    },
    "prefix": {"workload": "prefix", "knobs": {**BLOCKS, "max_num_seqs": 1, "enable_prefix_caching": [True, False]}},
    "traces": {"workload": "trace", "knobs": {**BLOCKS, "max_num_seqs": 2, "num_gpu_blocks_override": [17, 257]}},
    "ranks": {"knobs": {**BLOCKS, **FLASH, "tensor_parallel_size": 2}},
    "int8": {"model": "tiny-llama-57m-w8a8", "knobs": {**BLOCKS, **FLASH}},
    "hf-static": {"engine": "hf-static", "knobs": {"batch_size": 4, "cache_implementation": ["dynamic", "static"]}},
    "hf-continuous": {
        "engine": "hf-continuous",
        "knobs": {"page_size": 32, "num_blocks": 64, "max_batch_tokens": 128},
    },
}
STUDY = study_content(
    *({**TINY, "name": name, **sweep} for name, sweep in SWEEPS.items()),
    name="small",
    question="do the engines run?",
    repeats=2,
    cell_time_limit_s=400,  # ranks wait for each other on cores that others use
    workloads={
        "short": {
            "kind": "synthetic",
            "num_prompts": 6,
            "prompt_tokens": {"median": 16, "sigma": 0.5, "minimum": 4, "maximum": 48},
            "output_tokens": {"median": 8, "sigma": 0.5, "minimum": 2, "maximum": 16},
        },
        "endless": fixed(64, 16, 400),
        "prefix": fixed(4, 8, 2, kind="shared_prefix", prefix_tokens=64),
        "trace": {
            "kind": "trace",
            "num_prompts": 24,
            "file": "tests/fixtures/traces/mooncake.jsonl",
            "sha256": "bad6b303fc77d08f45bd1c57e33868627a1ed5739f8a3167dd842fe722f601dd",
            "hash_block_tokens": 32,
        },
    },
    engine_defaults={"vllm": {"max_model_len": 512, "enforce_eager": True, "cpu_kv_cache_gib": 1}},
)


@pytest.fixture(scope="session")
def own_tmpdir(tmp_path_factory):
    """A TMPDIR of the tests' own: their fork server meets no other session's."""
    place = tmp_path_factory.mktemp("t")
    yield place
    for process in psutil.process_iter(["cmdline"]):
        if any(str(place) in part for part in process.info["cmdline"] or []):
            process.kill()


@pytest.fixture(scope="session")
def environment(own_tmpdir):
    changed = {"TMPDIR": str(own_tmpdir), "XDG_CACHE_HOME": str(own_tmpdir / "cache"), **HOSTED_HERE}
    # Threads of one test that wait leave the cores to another test.
    changed["OMP_WAIT_POLICY"] = "PASSIVE"
    # Wheels of environments are gigabytes, which uv keeps for all runs.
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    changed["UV_CACHE_DIR"] = os.environ.get("UV_CACHE_DIR", f"{cache}/uv")
    return {**os.environ, **changed}


@pytest.fixture(scope="session")
def write_study():
    """Write the small study, changed as asked, into a folder."""

    def write(folder: Path, **changes: object) -> Path:
        path = folder / "small.yaml"
        path.write_text(yaml.safe_dump({**STUDY, **changes}, sort_keys=False), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def snakemake(environment):
    """Call snakemake in the checkout on a study, with results in a folder of the test."""

    def call(study: Path, results: Path, *arguments: str, partial: bool = False) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            snakemake_command(study, results, *arguments, partial=partial),
            cwd=CHECKOUT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=1800,
        )

    return call


def snakemake_command(study: Path, results: Path, *arguments: str, partial: bool = False) -> list[str]:
    options = [a for a in arguments if a.startswith("-")]
    targets = [a for a in arguments if not a.startswith("-")]
    return [
        *(sys.executable, "-m", "snakemake", "--cores", "2", "--nolock", *options),
        *("--config", f"study={study}", f"results={results}", *["partial=1"] * partial, "--", *targets),
    ]


SHORT = "cpu-all/vllm/tiny-llama-57m/short/bs32-seqs4-len512-eager1-cpukv1"


def outcome_of(results: Path, cell: str) -> Path:
    return results / "small" / "cells" / cell / "outcome.json"


@pytest.fixture(scope="session")
def drawn(once, snakemake):
    """Draw the report of a study of config/reference/, a minute; its folder."""

    def draw(folder: Path) -> None:
        evidence_of(folder.name, folder.parent)
        done = snakemake(CHECKOUT / f"config/studies/{folder.name}.yaml", folder.parent, partial=True)
        assert done.returncode == 0, done.stderr

    return lambda study: once(study, draw)


@pytest.fixture(scope="session")
def two_gpus(once, environment):
    """The folder of the study two_gpus with its tables and report, drawn by the workflow that snakedeploy writes."""
    from tests.integration.installing import run, uv

    def draw(folder: Path) -> None:
        commit = run("git", "rev-parse", "HEAD").strip()
        words = ("snakedeploy", "deploy-workflow", HOSTED, folder / "mine", "--commit", commit)
        uv("tool", "run", "--from", "snakedeploy==0.17.1", *words, **HOSTED_HERE)
        evidence_of("two_gpus", folder / "mine/results")
        study = ("--configfile", "config/studies/two_gpus.yaml", "--config", "partial=1")
        run(sys.executable, "-m", "snakemake", "--cores", "2", *study, cwd=folder / "mine", **environment)

    return once("two_gpus", draw) / "mine/results/two_gpus"


@pytest.fixture(scope="session")
def h200_later(drawn):
    """The folder of the study h200_later with its tables and its report."""
    return drawn("h200_later")


@pytest.fixture(scope="session")
def slurm_h100(drawn):
    """The folder of the study slurm_h100, of which two cells were measured, with its tables and its report."""
    return drawn("slurm_h100")


@pytest.fixture(scope="session")
def planted(environment):
    """The environment of a user who has secrets in it."""
    return {**environment, **served_study.SECRETS}


@pytest.fixture(scope="session")
def served_run(tmp_path_factory, planted):
    """The study of servers, with every cell measured and the report written."""
    return served_study.made(tmp_path_factory.mktemp("served"), served_study.study(), planted, "all")


@pytest.fixture(scope="session")
def served(served_run):
    return served_run.folder


@pytest.fixture(scope="session")
def one_tab(tmp_path_factory):
    """A tab of one browser that all tests of the page share."""
    with browser(tmp_path_factory.mktemp("browser") / "profile") as tab:
        yield tab


@pytest.fixture
def tab(one_tab):
    """The tab; whatever a test did, the console must have stayed silent and nothing was requested."""
    yield one_tab
    one_tab.evaluate("1")
    assert one_tab.complaints == []


@pytest.fixture
def in_page(one_tab):
    """Evaluate an expression in a browser, with what a module of the page exports as `m`."""

    def evaluate(module: str, expression: str) -> Any:
        return one_tab.evaluate(f"((m) => ({expression}))({joined(REPORT / 'page', module).strip().removesuffix(';')})")

    return evaluate


@pytest.fixture(scope="session")
def report(synthetic):
    """The page of made-up results, with its figures beside it."""
    return synthetic / "report.html"
