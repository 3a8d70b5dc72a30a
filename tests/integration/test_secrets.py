"""Secrets in the environment, and markup in a study, followed through real cells up to the report."""

import json
import re
import threading
import time
import uuid
from pathlib import Path

import psutil
import pytest

from tests.integration.conftest import CHECKOUT
from workflow_scripts.common.files import read_json

SCRIPT = "<script>alert('from a study')</script>"
SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "VLLM_API_KEY", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY")
CPU = {"gpu": "cpu-all", "model": "tiny-llama-57m", "workload": "w"}
VLLM = {"max_model_len": 256, "enforce_eager": True, "cpu_kv_cache_gib": 1, "block_size": 32, "max_num_seqs": 2}
DRAFTED = {"speculative_method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}


class Listeners:
    """Addresses on which any process of the tests' own folder listens, looked at twice a second."""

    def __init__(self, place: Path) -> None:
        self.seen: set[tuple[str, str]] = set()
        self._place, self._stop = str(place), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Listeners":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.5):
            for process in psutil.process_iter():
                try:
                    if process.environ().get("TMPDIR") == self._place:
                        for c in process.net_connections("inet"):
                            if c.status == psutil.CONN_LISTEN:
                                self.seen.add((c.laddr.ip, process.name()))
                except (psutil.Error, OSError):
                    continue


@pytest.fixture(scope="module")
def run(tmp_path_factory, snakemake, write_study, environment, own_tmpdir):
    """Results folder, secrets, what was printed, and who listened, of a study of three engines up to its report."""
    folder = tmp_path_factory.mktemp("secrets")
    secrets = {name: f"planted-{uuid.uuid4().hex}" for name in SECRETS}
    study = write_study(
        folder,
        question=f"Does anything leak? {SCRIPT}",
        repeats=1,
        cell_time_limit_s=400,
        workloads={"w": {"kind": "fixed", "num_prompts": 4, "prompt_tokens": 32, "output_tokens": 24}},
        engine_defaults={"vllm": VLLM, "vllm-serve": VLLM},
        sweeps=[
            {"name": "vllm", "engine": "vllm", **CPU, "knobs": DRAFTED},
            {"name": "served", "engine": "vllm-serve", **CPU, "knobs": {"users": 2}},
            {"name": "hf", "engine": "hf-static", **CPU, "knobs": {"batch_size": 2}},
        ],
    )
    began = time.time()
    environment.update(secrets)
    try:
        with Listeners(own_tmpdir) as listeners:
            done = snakemake(study, folder / "results")
    finally:
        for name in secrets:
            del environment[name]
    assert done.returncode == 0, done.stderr  # type: ignore[attr-defined]
    own_logs = [p for p in (CHECKOUT / ".snakemake" / "log").glob("*.log") if p.stat().st_mtime >= began]
    printed = done.stdout + done.stderr  # type: ignore[attr-defined]
    printed += "".join(path.read_text(encoding="utf-8", errors="replace") for path in own_logs)
    return folder / "results", secrets, printed, listeners.seen


def test_no_secret_is_in_anything_that_was_written_or_printed(run):
    results, secrets, printed, _ = run
    files = [path for path in results.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"outcome.json", "engine.log", "measure.log", "facts.parquet", "cells.csv", "report.html"} <= names
    outcomes = [read_json(path) for path in files if path.name == "outcome.json"]
    assert {o["outcome"] for o in outcomes} == {"ok"}, [o["reason"] for o in outcomes]
    assert len(outcomes) == 3
    for name, value in secrets.items():
        assert value not in printed, name
        assert [p for p in files if value.encode() in p.read_bytes()] == [], name


def test_a_study_cannot_put_markup_into_the_report(run):
    page = (run[0] / "small" / "report.html").read_text(encoding="utf-8")
    assert SCRIPT not in page
    assert "&lt;script&gt;alert(&#39;from a study&#39;)&lt;/script&gt;" in page


def test_snakemakes_own_report_shows_each_figure_with_its_caption(run, snakemake):
    results, page = run[0], run[0] / "snakemake.html"
    done = snakemake(results.parent / "small.yaml", results, f"--report={page}")
    assert done.returncode == 0, done.stderr  # type: ignore[attr-defined]
    records = re.search(r'^ *var results = ({".*});$', page.read_text(encoding="utf-8"), re.MULTILINE)
    assert records
    shown = {record["labels"]["figure"]: record["caption"] for record in json.loads(records[1]).values()}
    assert set(shown) == {path.stem for path in (results / "small" / "figures").glob("*.png")}
    assert len(shown) > 5
    for name, caption in shown.items():
        own = (results / "small" / "figures" / f"{name}.rst").read_text(encoding="utf-8")
        assert f"<p>{' '.join(own.split()[:6])}" in caption


def test_servers_listen_on_loopback_alone(run):
    addresses = {ip for ip, _ in run[3]}
    assert "127.0.0.1" in addresses
    # Gloo, which the ranks of an engine speak, takes the address of the host's name, which may be another.
    assert addresses.isdisjoint({"0.0.0.0", "::"}), run[3]


def test_accepted_drafts_are_in_the_cells_table_and_call_nothing_impossible(run):
    import pandas as pd

    cells = pd.read_parquet(run[0] / "small" / "tables" / "cells.parquet").set_index("engine")
    assert cells["outcome"].to_list() == ["ok"] * 3
    drafted = cells.loc["vllm"]
    # Random weights repeat themselves, so n-grams are found, and greedy decoding accepts what it would have made.
    assert 0 < drafted["accepted_draft_tokens"] <= drafted["draft_tokens"]
    assert 1 < drafted["tokens_per_draft_mean"] <= 5
    assert cells.drop(index="vllm")["draft_tokens"].isna().all()
    # A server's queues are looked at about once a second, which says too little of a short run.
    known = cells[["kv_bytes_reserved_peak", "kv_bytes_used_mean"]].drop(index="vllm-serve")
    assert (known["kv_bytes_reserved_peak"] >= known["kv_bytes_used_mean"]).all()
    steps = pd.read_parquet(run[0] / "small" / "parsed" / "cpu-all" / "steps.parquet")
    made = steps[steps["cell_id"].str.contains("/vllm/")]["generation_tokens"]
    assert made.sum() == 4 * 24
    assert made.max() > 2  # two sequences at once, and more than a token for one of them
