"""Cells of an old version of vLLM, installed from its lock; broken environments are in the tests on Slurm."""

import pytest

from tests.integration.conftest import BLOCKS, STUDY, TINY, outcome_of
from tests.integration.served_study import Listeners
from workflow_scripts.common.files import read_jsonl
from workflow_scripts.study.outcome import Outcome

OLD = "vllm-0.11.0.post2"  # of October 2025
EVIDENCE = ("requests", "steps", "metrics")


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
        # A processor without bfloat16 computes in float32, which takes twice the bytes per token.
        blocks = 4096 if outcome.effective["dtype"] == "bfloat16" else 2048
        assert [outcome.effective[name] for name in ("block_size", "max_num_seqs", "num_gpu_blocks")] == [32, 4, blocks]


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
