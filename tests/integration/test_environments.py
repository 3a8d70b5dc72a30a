"""Cells in other environments: one that cannot be imported and then works, and an old version from its lock."""

import subprocess
import sys

import pytest

from tests.integration.conftest import BLOCKS, CHECKOUT, STUDY, TINY, outcome_of
from tests.integration.served_study import Listeners
from workflow_scripts.common.files import read_jsonl
from workflow_scripts.study.outcome import Outcome

NAME = "transformers-5.23.0"
CELL = f"cpu-all/hf-continuous@{NAME}/tiny-llama-57m/short/continuous-page32-blocks64-tokens128"
OLD = "vllm-0.11.0.post2"  # of October 2025
EVIDENCE = ("requests", "steps", "metrics")


def test_a_cell_ends_with_the_reason_and_is_measured_once_its_environment_works(
    tmp_path, monkeypatch, environment, snakemake, write_study
):
    python = tmp_path / f".venv-{NAME}-cpu/bin/python"
    python.parent.mkdir(parents=True)
    # Without site-packages there is no engine to import.
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o700)
    monkeypatch.setitem(environment, "KVSWEEP_ENVIRONMENTS", str(tmp_path))
    results = tmp_path / "results"
    (continuous,) = (sweep for sweep in STUDY["sweeps"] if sweep["name"] == "hf-continuous")
    place = {**continuous, "environment": NAME}
    study = write_study(tmp_path, sweeps=[place], cell_time_limit_s=600)
    done = snakemake(study, results, str(outcome_of(results, CELL)))
    assert done.returncode == 0, done.stderr
    broken = Outcome.read(outcome_of(results, CELL))
    assert (broken.outcome, broken.phases_s, broken.provenance["engine_version"]) == ("invalid", {}, None)
    assert "ModuleNotFoundError" in (broken.reason or "")

    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')

    def kvsweep(*command: str) -> "subprocess.CompletedProcess[str]":
        words = [sys.executable, "-m", "workflow_scripts", *command]
        return subprocess.run(words, cwd=CHECKOUT, env=environment, capture_output=True, text=True)

    # The environment's own Python is asked.
    checked = kvsweep("check-engines", "--study", str(study))
    assert checked.returncode == 0, checked.stderr
    assert "no setting refused" in checked.stdout
    command = ["measure-cell", "--study", str(study), "--results", str(results), "--cell", CELL]
    again = kvsweep(*command)
    assert again.returncode == 0, again.stderr
    measured = Outcome.read(outcome_of(results, CELL))
    assert (measured.outcome, measured.start.start, measured.cell_id) == ("ok", 1, CELL)
    assert measured.definition["environment"] == NAME
    # As the Python says that ran, whatever the environment is called.
    assert str(measured.provenance["engine_version"]).startswith("transformers")
    assert measured.provenance["lock"] is None


@pytest.fixture(scope="module")
def old(tmp_path_factory, environment, snakemake, write_study):
    """The folders of three cells of the old version: offline, with a knob that it lacks, and a server. They listen for
    no other host."""
    folder = tmp_path_factory.mktemp("old")
    alike = {**TINY, "environment": OLD, "workload": "short"}
    sweeps = [
        {**alike, "name": "offline", "engine": "vllm", "knobs": BLOCKS},
        {**alike, "name": "lacking", "engine": "vllm", "knobs": {**BLOCKS, "attention_backend": "CPU_ATTN"}},
        {**alike, "name": "server", "engine": "vllm-serve", "knobs": {**BLOCKS, "users": 2}},
    ]
    defaults = STUDY["engine_defaults"]["vllm"]
    study = write_study(
        folder, sweeps=sweeps, engine_defaults={"vllm": defaults, "vllm-serve": defaults}, cell_time_limit_s=600
    )
    settings = "bs32-seqs4-len512-eager1-{}cpukv1{}"
    engines = (("vllm", "", ""), ("vllm", "attnCPU_ATTN-", ""), ("vllm-serve", "", "-users2"))
    cells = [f"cpu-all/{name}@{OLD}/tiny-llama-57m/short/{settings.format(*words)}" for name, *words in engines]
    outcomes = [outcome_of(folder / "results", cell) for cell in cells]
    with Listeners(environment["TMPDIR"]) as listeners:
        done = snakemake(study, folder / "results", *map(str, outcomes))
    assert done.returncode == 0, done.stderr
    assert {ip for ip, _ in listeners.seen} == {"127.0.0.1"}, listeners.seen
    return [outcome.parent for outcome in outcomes]


def test_an_old_version_is_installed_from_its_lock_and_measured_or_refused(old):
    offline, lacking, server = (Outcome.read(folder / "outcome.json") for folder in old)
    said = [(outcome.outcome, outcome.reason) for outcome in (offline, lacking, server)]
    assert [outcome for outcome, _ in said] == ["ok", "infeasible", "ok"], said
    assert "attention_backend" in (lacking.reason or "")
    for outcome in (offline, server):
        assert outcome.provenance["engine_version"] == "vllm 0.11.0.post2+cpu"
        assert outcome.provenance["lock"] == f"{OLD}-cpu.txt"
        assert [outcome.effective[name] for name in ("block_size", "max_num_seqs", "num_gpu_blocks")] == [32, 4, 4096]


def test_an_old_versions_requests_have_their_times_and_what_it_does_not_count_is_absent(old):
    for folder, engine in zip((old[0], old[2]), ("offline", "server"), strict=True):
        requests, steps, metrics = (list(read_jsonl(folder / f"raw/{name}.jsonl")) for name in EVIDENCE)
        assert len(requests) == 12
        assert all(r["queued_s"] < r["first_token_s"] <= r["last_token_s"] for r in requests)
        assert {r["preemptions"] for r in requests} == {None}
        assert steps
        assert not any("recomputed_tokens" in step for step in steps)
        counted = metrics[-1]["after"]
        assert counted["vllm:generation_tokens"] > metrics[-1]["before"]["vllm:generation_tokens"]
        assert not any(name.startswith("vllm:estimated_") for name in counted)
        if engine == "offline":
            tokens = sum(step["generation_tokens"] for step in steps)
            assert tokens == sum(r["output_tokens"] for r in requests)
            assert all(r["queued_s"] <= r["scheduled_s"] <= r["first_token_s"] for r in requests)
