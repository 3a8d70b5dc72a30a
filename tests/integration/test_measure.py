"""Cells measured by the real engines, and what remains after a failure."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.integration.conftest import CHECKOUT, SHORT, outcome_of, snakemake_command
from tests.integration.served_study import Listeners
from tests.processes import is_session_gone, measuring, wait_for
from tests.unit.made_rates import made_rates
from workflow_scripts.catalog.gpus_and_models import get_model
from workflow_scripts.common.files import read_jsonl
from workflow_scripts.common.ownership import temporary_folder
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.engines.steps import SchedulerSettings
from workflow_scripts.engines.vllm.adapter import LAYOUT
from workflow_scripts.measure.forkserver import begin
from workflow_scripts.physics.model_facts import read_model_facts
from workflow_scripts.predict.predictions import lengths_of
from workflow_scripts.predict.schedule import RequestLengths
from workflow_scripts.predict.scheduler import make_schedule
from workflow_scripts.predict.step_fit import scheduled
from workflow_scripts.study.calibrations import CalibrationRecord
from workflow_scripts.study.definition import Definition
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.rounds import RoundPlan, last_plan
from workflow_scripts.study.study_file import load_study

REFUSED = SHORT.replace("bs32", "bs16")
ENDLESS = SHORT.replace("short", "endless")
HF = "cpu-all/hf-static/tiny-llama-57m/short/static-batch4-cache"
CONTINUOUS = "cpu-all/hf-continuous/tiny-llama-57m/short/continuous-page32-blocks64-tokens128"
RANKS = "cpu-all/vllm/tiny-llama-57m/short/bs32-seqs4-len512-tp2-eager1-attnFLASH_ATTN-cpukv1"
INT8 = "cpu-all/vllm/tiny-llama-57m-w8a8/short/bs32-seqs4-len512-eager1-attnFLASH_ATTN-cpukv1"
STATE = "tests.integration.process_state"
GROWN = ("generation_tokens", "prefix_cache_hits")
PREFIX = "cpu-all/vllm/tiny-llama-57m/prefix/bs32-seqs1-len512-pc{}-eager1-cpukv1"

TRACE = "cpu-all/vllm/tiny-llama-57m/trace/bs32-seqs2-len512-eager1-cpukv1-pool{}"


class Measured:
    """The cells that one run of snakemake has measured. The evidence is that of the cell that was asked for last."""

    def __init__(self, results: Path) -> None:
        self.results, self._raw = results, results

    def __call__(self, cell: str, ended: str = "ok") -> Outcome:
        outcome = Outcome.read(outcome_of(self.results, cell))
        assert outcome.outcome == ended, outcome.reason
        self._raw = outcome_of(self.results, cell).parent / "raw"
        return outcome

    def lines(self, name: str) -> list[dict[str, Any]]:
        return list(read_jsonl(self._raw / f"{name}.jsonl"))

    def text(self, name: str) -> str:
        return (self._raw / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def measured(tmp_path_factory, environment, snakemake, write_study):
    """One run of snakemake over a few cells, none of which listens for other hosts."""
    folder = tmp_path_factory.mktemp("measured")
    cells = [SHORT, SHORT.replace("cpu-all", "cpu-1core"), REFUSED]
    cells += [HF + "dynamic", HF + "static", CONTINUOUS, PREFIX.format(1), PREFIX.format(0), RANKS, INT8]
    cells += [TRACE.format(17), TRACE.format(257)]
    outcomes = (str(outcome_of(folder / "results", cell)) for cell in cells)
    with Listeners(environment["TMPDIR"]) as listeners:
        done = snakemake(write_study(folder), folder / "results", *outcomes)
    assert done.returncode == 0, done.stderr
    assert {ip for ip, _ in listeners.seen} == {"127.0.0.1"}, listeners.seen
    return Measured(folder / "results")


def steps_of(record: CalibrationRecord, effective: dict[str, Any], lengths: list[tuple[int, int]]) -> int:
    """Steps that the schedule has for these requests, with an engine's own settings."""
    facts = read_model_facts(get_model(record.model).config, effective["dtype"])
    requests = RequestLengths(*(np.array(column) for column in zip(*lengths, strict=True)))
    return int(scheduled(requests, record, effective, facts, True)[0].segments.steps.sum())


def test_a_calibrations_passes_have_the_steps_of_their_schedule(measured, environment):
    study = measured.results.parent / "small.yaml"
    options = ["--study", study, "--results", measured.results, "--gpu", "cpu-1core", "--seconds", "3"]
    command = [sys.executable, "-m", "workflow_scripts", "calibrate", *map(str, options)]
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = (measured.results / "small/prepared/calibrations").rglob("*.json")
    record = CalibrationRecord.read(path)
    assert (path.stem, record.engine, record.model, record.failure) == ("eager1", "vllm", "tiny-llama-57m", None)
    assert [one.layers for one in record.starts] == [8, 8]
    assert record.device["processor"]
    for one in record.starts:
        assert one.passes
        for each in one.passes:
            assert len(each.step_ends_s) == steps_of(record, one.effective, each.requests)
            assert each.start_s < each.step_ends_s[0] <= each.step_ends_s[-1] <= each.end_s


@pytest.mark.parametrize("cell", [HF + "dynamic", CONTINUOUS])
def test_huggingface_runs_the_steps_that_are_predicted(measured, cell):
    outcome = measured(cell)
    told = Definition.model_validate(outcome.definition)
    record = CalibrationRecord.model_construct(
        gpu=cell.partition("/")[0], engine=told.engine, model=told.model.name, knobs=told.knobs.set_values()
    )
    steps, requests = (measured.lines(name) for name in ("steps", "requests"))
    lengths = [(r["prompt_tokens"], r["output_tokens"]) for r in requests if r["repeat"] == 0]
    assert len([step for step in steps if step["repeat"] == 0]) == steps_of(record, outcome.effective, lengths)


@pytest.mark.parametrize("blocks", [17, 257])
def test_hits_of_a_trace_are_those_of_the_schedule_with_and_without_evicted_blocks(measured, blocks):
    outcome = measured(TRACE.format(blocks))
    workload = load_study(measured.results.parent / "small.yaml").workloads["trace"]
    requests = replace(lengths_of(workload, 24)[0], arrival_s=None)  # all at once
    took = outcome.effective
    names = ("max_num_seqs", "max_num_batched_tokens", "block_size", "max_model_len")
    settings = SchedulerSettings(*(took[name] for name in names), took["num_gpu_blocks"], async_scheduling=False)
    schedule = make_schedule(requests, settings)
    assert bool(schedule.evicted_blocks) == (blocks == 17)
    counted = measured.lines("metrics")
    assert len(counted) == 2
    for of in counted:
        names = ("vllm:prefix_cache_hits", "vllm:prefix_cache_queries")
        grown = [of["after"][name] - of["before"][name] for name in names]
        assert grown == [schedule.cached_tokens.sum(), requests.prompt_tokens.sum()]


def test_vllm_serves_every_request_with_the_tokens_it_asked_for(measured):
    outcome = measured(SHORT)
    assert [r.repeat for r in outcome.repeats] == [0, 1]
    assert outcome.effective["block_size"] == 32
    assert outcome.effective["max_num_seqs"] == 4
    # The type that `native` comes to on this host, from what its processor says of itself.
    of_half = {"avx512_bf16", "amx_bf16"} & set(outcome.device["instruction_sets"])
    assert outcome.effective["dtype"] == ("bfloat16" if of_half else "float32")
    assert outcome.provenance["processor"] == outcome.device["processor"]
    assert outcome.warmup is not None
    assert outcome.warmup.requests == 5  # four run, and one waits
    assert 2 <= len(outcome.warmup.passes_s) <= 6
    job = outcome.definition
    requests = measured.lines("requests")
    assert len(requests) == 2 * job["num_prompts"]
    for r in requests:
        start_s, end_s = outcome.repeats[r["repeat"]].start_monotonic_s, outcome.repeats[r["repeat"]].end_monotonic_s
        assert start_s <= r["queued_s"] <= r["scheduled_s"] <= r["first_token_s"] <= r["last_token_s"] <= end_s
        assert r["output_tokens"] >= 2
    # Both repeats did the same work.
    assert [r["output_tokens"] for r in requests[:6]] == [r["output_tokens"] for r in requests[6:]]
    steps = measured.lines("steps")
    assert max(s["running"] for s in steps) == 4
    assert sum(s["generation_tokens"] for s in steps) == sum(r["output_tokens"] for r in requests)
    assert "Avg generation throughput" in measured.text("engine.log")


def test_the_trace_covers_the_timed_window(measured):
    outcome = measured(SHORT)
    header, *samples = measured.lines("device_trace")
    assert header["schema"] == "device_trace/1"
    times = [s["time_monotonic_s"] for s in samples]
    assert times[0] < outcome.repeats[0].start_monotonic_s
    assert times[-1] > outcome.repeats[-1].end_monotonic_s
    assert all(s["process_memory_bytes"] > 100e6 for s in samples)


def test_one_core_means_one_core(measured):
    outcome = measured(SHORT.replace("cpu-all", "cpu-1core"))
    assert len(outcome.device["cores"]) == 1
    _, *samples = measured.lines("device_trace")
    timed = [
        s["process_cpu_pct"]
        for s in samples
        if outcome.repeats[0].start_monotonic_s < s["time_monotonic_s"] < outcome.repeats[-1].end_monotonic_s
    ]
    assert sum(timed) / len(timed) < 115


def test_a_refused_block_size_is_an_outcome_in_the_engines_own_words(measured):
    outcome = measured(REFUSED, "infeasible")
    assert "No common block size for 16" in str(outcome.reason)
    assert "No common block size for 16" in measured.text("engine.log")
    assert outcome.repeats == []


def test_ranks_share_the_cores_and_each_holds_a_part_of_the_keys_and_values(measured):
    blocks = measured(SHORT).effective["num_gpu_blocks"]
    outcome = measured(RANKS)
    assert outcome.effective["tensor_parallel_size"] == 2
    # As many bytes for each rank, and half the heads in it.
    assert outcome.effective["num_gpu_blocks"] == 2 * blocks
    log = measured.text("engine.log")
    bound = {
        line.partition("core ids=")[2] for line in log.splitlines() if "local_rank=" in line and "core ids=" in line
    }
    assert len(bound) == min(2, len(outcome.device["cores"]))


def test_a_backend_that_the_engine_replaces_is_recorded_as_it_is(measured):
    outcome = measured(INT8)
    assert outcome.effective["quantization"] == "compressed-tensors"
    assert outcome.definition["knobs"]["attention_backend"] == "FLASH_ATTN"
    assert outcome.effective["attention_backend"] == "CPU_ATTN"


def test_a_shared_prefix_is_found_in_the_cache_and_a_repeat_starts_without_it(measured):
    measured(PREFIX.format(0))
    without = measured.lines("requests")
    measured(PREFIX.format(1))
    cached = measured.lines("requests")
    assert [r["cached_prompt_tokens"] for r in without] == [0] * 8
    # One at a time: the first request of each repeat fills the cache with two blocks of 32, the others find them.
    assert [r["cached_prompt_tokens"] for r in cached] == [0, 64, 64, 64] * 2


@pytest.fixture
def state_of(own_tmpdir, environment, tmp_path, monkeypatch):
    """What a process has in which an engine is measured."""
    monkeypatch.setattr(tempfile, "tempdir", str(own_tmpdir))

    def state(engine: str) -> Any:
        log = tmp_path / f"{engine}.log"
        preload = get_engine(engine).preload
        with closing(begin(STATE, [], log, environment, preload)) as child:
            assert child.wait(60) == 0, log.read_text()
        return json.loads(log.read_text(encoding="utf-8"))

    return state


def test_transformers_is_measured_in_a_process_as_its_users_have_it(state_of, environment):
    state = state_of("hf-static")
    own = environment | {"TMPDIR": str(temporary_folder())}
    plain = subprocess.run([sys.executable, "-m", STATE], cwd=CHECKOUT, env=own, stdout=subprocess.PIPE, check=True)
    assert state == json.loads(plain.stdout)
    assert state["imported"] == ["torch", "transformers"]
    assert get_engine("hf-continuous").preload == get_engine("hf-static").preload


# --- vLLM's layout on a GPU: its core in a process of its own ------------------------------------------------------


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, snakemake, write_study):
    """A study whose inputs are prepared, for several tests."""
    folder = tmp_path_factory.mktemp("inputs")
    study, results = write_study(folder), folder / "results"
    done = snakemake(study, results, "prepare")
    assert done.returncode == 0, done.stderr
    return study, results


def test_a_core_in_a_process_of_its_own_is_measured_as_one_in_the_same(inputs, environment):
    measured = measured_alone(*inputs, PREFIX.format(1), environment | {LAYOUT: "1"})
    outcome = measured(PREFIX.format(1))
    assert outcome.effective["multiprocessing"] is True
    assert outcome.effective["num_gpu_blocks"] > 100
    assert "(EngineCore pid=" in measured.text("engine.log")
    requests, steps, metrics = map(measured.lines, ("requests", "steps", "metrics"))
    # The cache is emptied over there before each repeat.
    assert [r["cached_prompt_tokens"] for r in requests] == [0, 64, 64, 64] * 2
    for repeat, counted in zip(outcome.repeats, metrics, strict=True):
        mine = [r for r in requests if r["repeat"] == repeat.repeat]
        tokens = sum(r["output_tokens"] for r in mine)
        told = [s for s in steps if s["repeat"] == repeat.repeat]
        assert sum(s["generation_tokens"] for s in told) == tokens
        grown = {name: counted["after"][f"vllm:{name}"] - counted["before"][f"vllm:{name}"] for name in GROWN}
        assert grown == {"generation_tokens": tokens, "prefix_cache_hits": 3 * 64}
        # Steps and requests have the same times: those of the core.
        times_s = {s["time_s"] for s in told}
        assert {r[name] for r in mine for name in ("first_token_s", "last_token_s")} <= times_s
        assert repeat.start_monotonic_s <= min(times_s) <= max(times_s) <= repeat.end_monotonic_s


def test_a_core_killed_in_mid_run_fails_its_job_and_leaves_nothing(inputs, environment):
    study, results = inputs
    command = start_cell(study, results, ENDLESS, environment | {LAYOUT: "1"})
    engine = engine_process(results, sign="Successfully reset prefix cache")
    session = os.getsid(engine.pid)
    log = outcome_of(results, ENDLESS).parent / "raw.partial/engine.log"
    core = re.search(r"\(EngineCore pid=(\d+)\)", log.read_text(encoding="utf-8"))
    assert core is not None
    assert int(core[1]) != engine.pid
    os.kill(int(core[1]), signal.SIGKILL)
    output, _ = command.communicate(timeout=60)
    assert command.returncode == 1, output
    assert "EngineDeadError" in output
    assert session_is_gone(session)
    assert list(outcome_of(results, ENDLESS).parent.iterdir()) == []


# --- faults ------------------------------------------------------------------------------------------------------


def start_cell(study: Path, results: Path, cell: str, environment: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "workflow_scripts", "measure-cell"),
            *("--study", str(study), "--cell", cell, "--results", str(results)),
        ],
        cwd=CHECKOUT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def measured_alone(study: Path, results: Path, cell: str, environment: dict[str, str]) -> Measured:
    command = start_cell(study, results, cell, environment)
    output, _ = command.communicate(timeout=300)
    assert command.returncode == 0, output
    return Measured(results)


def engine_process(results: Path, timeout_s: float = 120, sign: str = "init engine") -> psutil.Process:
    """The child that measures a cell of `results`, once there is a sign in its log."""

    def look() -> psutil.Process | None:
        logs = results.glob("small/cells/*/*/*/*/*/raw.partial/engine.log")
        is_up = any(sign in log.read_text(encoding="utf-8", errors="replace") for log in logs)
        return measuring(results) if is_up else None

    found = wait_for(look, timeout_s, "an engine")
    assert found is not None
    return found


def session_is_gone(session: int) -> bool:
    return wait_for(lambda: is_session_gone(session), what=f"the end of session {session}")


@pytest.fixture
def prepared(tmp_path, inputs, write_study):
    """A study of one test alone, whose inputs are prepared and of which no cell is measured."""
    results = tmp_path / "results"
    shutil.copytree(inputs[1] / "small" / "prepared", results / "small" / "prepared")
    return write_study(tmp_path), results


def test_an_engine_killed_in_mid_run_fails_its_job_and_a_second_call_repeats_it_alone(prepared, snakemake, environment):
    study, results = prepared
    other = REFUSED
    assert snakemake(study, results, str(outcome_of(results, other))).returncode == 0
    measured = outcome_of(results, other).read_bytes()
    assert snakemake(study, results, "--force", str(outcome_of(results, other))).returncode == 0
    assert outcome_of(results, other).read_bytes() == measured
    further = Outcome.read(outcome_of(results, other).parent / "start-2/outcome.json")
    assert (further.outcome, further.start.start, further.start.round) == ("infeasible", 2, 2)
    before = outcome_of(results, other).stat().st_mtime_ns
    targets = [str(outcome_of(results, cell)) for cell in (ENDLESS, other)]
    first = subprocess.Popen(
        snakemake_command(study, results, *targets), cwd=CHECKOUT, env=environment, stderr=subprocess.PIPE, text=True
    )
    engine = engine_process(results)
    session = os.getsid(engine.pid)
    os.kill(engine.pid, signal.SIGKILL)
    _, errors = first.communicate(timeout=150)
    assert first.returncode != 0
    assert "killed by signal 9" in errors
    assert session_is_gone(session)
    folder = outcome_of(results, ENDLESS).parent
    assert sorted(p.name for p in folder.iterdir()) == ["measure.log"]
    planned = snakemake(study, results, "-n", *targets).stdout
    assert f"output: {outcome_of(results, ENDLESS)}" in planned
    assert f"output: {outcome_of(results, other)}" not in planned
    assert outcome_of(results, other).stat().st_mtime_ns == before


def test_a_hang_ends_as_timeout_with_its_whole_process_group_gone(prepared, write_study, environment):
    _, results = prepared
    study = write_study(results.parent, cell_time_limit_s=40)
    command = start_cell(study, results, ENDLESS, environment)
    # Stopped early, so that a slow start does not use the time up by itself.
    engine = engine_process(results, sign="LLM engine")
    session = os.getsid(engine.pid)
    os.kill(engine.pid, signal.SIGSTOP)
    output, _ = command.communicate(timeout=150)
    assert command.returncode == 0, output
    outcome = Outcome.read(outcome_of(results, ENDLESS))
    assert outcome.outcome == "timeout"
    assert "not done after 40 s" in str(outcome.reason)
    assert session_is_gone(session)
    assert "LLM engine" in (outcome_of(results, ENDLESS).parent / "raw/engine.log").read_text(encoding="utf-8")


@pytest.mark.parametrize(("signal_number", "layout"), [(signal.SIGTERM, "0"), (signal.SIGKILL, "1")])
def test_a_killed_command_takes_its_engine_with_it(inputs, environment, signal_number, layout):
    study, results = inputs
    command = start_cell(study, results, ENDLESS, environment | {LAYOUT: layout})
    engine = engine_process(results)
    session = os.getsid(engine.pid)
    command.send_signal(signal_number)
    command.communicate(timeout=150)
    assert session_is_gone(session)
    assert not outcome_of(results, ENDLESS).exists()


def test_cells_are_measured_in_rounds_and_those_that_are_not_decided_once_more(tmp_path, snakemake, write_study):
    sweep = {"name": "static", "gpu": "cpu-all", "engine": "hf-static", "model": "tiny-llama-57m", "workload": "short"}
    two_cells = {"sweeps": [sweep | {"knobs": {"batch_size": [2, 4]}}], "repeats": 1}
    results = tmp_path / "results"
    made_rates(1e13, 1e16).write(results / "small/prepared/devices/cpu-all.json")

    def measure(*options: str, **changes: object) -> str:
        study = write_study(tmp_path, **two_cells, **changes)
        done = snakemake(study, results, "--until=parse", *options)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def starts() -> list[tuple[int, int, int | None]]:
        found = [Outcome.read(path).start for path in results.glob("small/cells/**/outcome.json")]
        return sorted((start.round, start.start, start.position) for start in found)

    measure(starts=2)
    twice = [(n, n, place) for n in (1, 2) for place in (1, 2)]
    assert starts() == twice
    nothing = re.compile(r"^total +0$|^Nothing to be done", re.MULTILINE)
    assert nothing.search(measure("--dry-run", starts=2))
    # Rates that one further start of each would decide, whatever this machine did.
    paths = StudyPaths(results, "small")
    for cell_dir, walls in zip(
        sorted(results.glob("small/cells/*/*/*/*/*")), ((1.0, 1.01), (1.01, 1.002)), strict=True
    ):
        for outcome, wall_s in zip(
            paths.outcomes(cell_dir.relative_to(paths.root / "cells").as_posix()).values(), walls, strict=True
        ):
            record = json.loads(outcome.read_text())
            record["repeats"][0]["end_monotonic_s"] = record["repeats"][0]["start_monotonic_s"] + wall_s
            outcome.write_text(json.dumps(record))
    as_needed = {"starts": {"at_least": 2, "at_most": 3}, "equivalence_margin_pct": 35.0}
    measure(**as_needed)
    assert starts() == [*twice, (3, 3, 1), (3, 3, 2)]
    third, fourth = (RoundPlan.read(paths.round_plan("cpu-all", number)) for number in (3, 4))
    assert (third.ended, len(third.starts), len(third.undecided)) == (None, 2, 1)
    assert fourth.ended is not None
    assert last_plan(paths, 2) == fourth
    assert nothing.search(measure("--dry-run", **as_needed))
    # The plan of the fourth round is there, but it was decided on another margin.
    assert re.search(r"^decide +1$", measure("--dry-run", **as_needed | {"equivalence_margin_pct": 30.0}), re.M)
