"""The unattended run on a lent host, with a measuring command that writes outcomes at once."""

import os
import subprocess
import sys
import tarfile
import time
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu_host import probe, run
from benchmarks.gpu_host.evidence import pack
from tests.unit.made_studies import end_cell, fixed, write_study
from workflow_scripts.measure.cell import WRONG_DEVICE, find_cell
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.paths import PARTIAL, StudyPaths
from workflow_scripts.study.rounds import CellStart
from workflow_scripts.study.study_file import load_study

STUDY = run.CHECKOUT / "config/studies/two_gpus.yaml"
CELLS = [cell.id for cell in expand(load_study(STUDY)) if cell.gpu == "h200"]
CALIBRATIONS = (
    "vllm/opt-125m/default",
    "vllm/llama-3.1-8b-instruct/default",
    "hf-static/llama-3.1-8b-instruct/cachedynamic",
)


class Host:
    """Stands in for `subprocess.run`: notes each measuring command and does what `answers` says, else measures."""

    def __init__(self, paths: StudyPaths) -> None:
        self.paths = paths
        self.study = load_study(STUDY)
        self.asked: list[str] = []
        self.commands: list[list[str]] = []
        self.limits_s: list[float] = []
        self.answers: dict[str, list[int | str | Exception]] = {}
        self.calibrates = True

    def __call__(self, command: list[str], **options: Any) -> SimpleNamespace:
        if command[0] == "nvidia-smi":
            return SimpleNamespace(stdout="NVIDIA H200")
        if command[0] == "git":
            return SimpleNamespace(stdout="")
        self.commands.append(command)
        if command[2] == "benchmarks.gpu_host.compare":
            return SimpleNamespace(returncode=0)
        assert command[:3] == [sys.executable, "-m", "workflow_scripts"]
        if command[3] == "calibrate":
            self.asked.append(f"calibrations of {command[-1]}")
            return SimpleNamespace(returncode=self.calibrate())
        assert command[3] == "measure-cell"
        assert command[-4:] == ["--attempt", "1", "--attempts", "2"]
        cell_id, start, round_number = (command[command.index(f"--{o}") + 1] for o in ("cell", "start", "round"))
        assert start == round_number
        self.asked.append(cell_id if start == "1" else f"{cell_id}, start {start}")
        self.limits_s.append(options["timeout"])
        answer = self.answers[cell_id].pop(0) if self.answers.get(cell_id) else 0
        if isinstance(answer, Exception):
            engine_log = self.paths.cell(cell_id) / PARTIAL / "engine.log"
            engine_log.parent.mkdir(exist_ok=True)
            engine_log.write_text("".join(f"line {i}\n" for i in range(40)), encoding="utf-8")
            raise answer
        if answer == 0 or isinstance(answer, str):
            self.measure(find_cell(self.study, cell_id), answer or "ok", int(start))
            answer = 0
        return SimpleNamespace(returncode=answer)

    def measure(self, cell: Cell, outcome: Any = "ok", start: int = 1) -> None:
        reason = None if outcome == "ok" else f"the engine said {outcome}"
        end_cell(self.study, self.paths, cell, start, outcome=outcome, reason=reason)

    def calibrate(self) -> int:
        """Write the calibration records, unless that shall fail."""
        for name in CALIBRATIONS if self.calibrates else ():
            record = self.paths.calibration(f"h200/{name}")
            record.parent.mkdir(parents=True, exist_ok=True)
            record.write_text("{}", encoding="utf-8")
        return 0 if self.calibrates else 1


@pytest.fixture
def host(tmp_path, monkeypatch):
    host = Host(StudyPaths(tmp_path / "results", "two_gpus"))
    host.calibrate()  # so that only tests of the calibration meet it
    monkeypatch.setattr(run.subprocess, "run", host)
    monkeypatch.setattr(run, "RETRY_S", 0.0)
    return host


def visit(host: Host, seconds: float = 10_000, cell_s: float = 60, **options: Any) -> run.Visit:
    return run.Visit(STUDY, host.study, host.paths, "h200", time.monotonic() + seconds, cell_s, **options)


def measure(host: Host, **options: Any) -> None:
    run.measure_until(visit(host, **options))


def test_no_cell_is_started_without_time_for_it(host, capsys):
    measure(host, seconds=59)
    assert host.asked == []
    assert f"{len(CELLS)} starts remain" in capsys.readouterr().out


def test_a_cell_that_runs_out_of_time_is_measured_by_the_next_call_after_the_new_ones(host):
    host.answers[CELLS[0]] = [subprocess.TimeoutExpired("measure", 1)]
    host.answers[CELLS[-1]] = [1]
    measure(host)
    assert not host.paths.outcome(CELLS[0]).exists()
    assert host.asked == CELLS
    host.paths.log(CELLS[-1]).unlink()  # as if it had not been tried
    measure(host)
    assert host.asked == [*CELLS, CELLS[-1], CELLS[0]]


def test_a_cell_that_hangs_loses_three_minutes_and_gets_more_in_the_next_call(host):
    host.answers[CELLS[0]] = [subprocess.TimeoutExpired("measure", 1)]
    measure(host)
    assert max(host.limits_s) == run.FIRST_TRY_S == 180
    measure(host, seconds=500)
    assert 490 < host.limits_s[-1] <= 500
    host.limits_s.clear()
    host.paths.outcome(CELLS[1]).unlink()
    host.paths.log(CELLS[1]).unlink()
    measure(host, seconds=100)
    assert host.limits_s[-1] <= 100


@pytest.fixture
def environment(monkeypatch):
    """Takes back what the runner sets for its commands."""
    for name in (*run.ENVIRONMENT, "PYTHONPATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))


@pytest.mark.usefixtures("environment")
def test_the_host_is_probed_before_anything_else(host, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # the study and its folder of results are found from anywhere
    monkeypatch.setattr(run, "measure_device", lambda gpu, record, limit_s: print(f"rates of {gpu}, {limit_s:g} s"))
    monkeypatch.setattr(run, "pack", lambda paths, gpu, folder: [])
    options = ["--study", str(STUDY), "--evidence", str(tmp_path), "--results", str(tmp_path / "results")]
    assert run.main([*options, "--budget-s", "30"]) == 2
    assert "h200, h100-sxm" in capsys.readouterr().err
    assert run.main([*options, "--budget-s", "30", "--gpu", "h200"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in told[: len(probe.QUESTIONS)]] == list(probe.QUESTIONS)
    assert {"nvidia-smi: NVIDIA H200", "pidfd_open: yes"} <= set(told)
    assert told[len(probe.QUESTIONS)] == "rates of h200, 60 s"


def test_a_device_that_is_not_free_yet_is_asked_for_once_more(host):
    host.answers[CELLS[0]] = [WRONG_DEVICE]
    measure(host)
    assert host.asked == [CELLS[0], *CELLS]


def test_it_ends_when_nothing_succeeds(host, capsys):
    host.answers = {cell: ["infeasible", 1, "engine_error"][i % 3 : i % 3 + 1] for i, cell in enumerate(CELLS)}
    host.answers |= {CELLS[6]: [1]}
    measure(host)
    assert host.asked == CELLS[:7]
    assert "3 cells in a row" in capsys.readouterr().out


def test_an_engine_that_failed_is_tried_again_by_the_next_call_last(host):
    host.answers[CELLS[0]] = ["engine_error"]
    host.answers[CELLS[1]] = [1]
    host.answers[CELLS[2]] = ["infeasible"]
    measure(host)
    assert host.asked == CELLS
    host.asked.clear()
    measure(host)
    assert host.asked == [CELLS[1], CELLS[0]]


@pytest.mark.parametrize(("ended", "after", "place"), [(0, 3, 3), (2, 3, 1), (5, 3, 0), (0, 99, 19)])
def test_calibrations_follow_the_first_cells_and_are_made_once(host, ended, after, place):
    for name in CALIBRATIONS:
        host.paths.calibration(f"h200/{name}").unlink()
    for cell in CELLS[:ended]:
        host.measure(find_cell(host.study, cell))
    measure(host, calibrate_after=after)
    assert host.asked.index("calibrations of h200") == place
    host.asked.clear()
    measure(host, calibrate_after=after)
    assert host.asked == []


def test_a_calibration_that_fails_costs_no_cell_and_is_tried_once_a_call(host, capsys):
    host.paths.calibration(f"h200/{CALIBRATIONS[0]}").unlink()
    host.calibrates = False
    measure(host, seconds=119)
    assert "calibrations of h200" not in host.asked  # there was no time
    host.asked.clear()
    host.paths.outcome(CELLS[5]).unlink()
    measure(host)
    assert host.asked == ["calibrations of h200", CELLS[5]]
    assert "exit 1" in capsys.readouterr().out


def test_second_starts_of_chosen_cells_come_in_the_second_round_after_all_others(host):
    chosen = ["*/chat/bs16-seqs1-*", "*/chat-300/*"]
    host.answers[CELLS[3]] = [1]
    measure(host, again=chosen)
    again = [f"{cell}, start 2" for cell in CELLS if "/chat/bs16-seqs1-" in cell or "/chat-300/" in cell]
    assert len(again) == 2
    assert host.asked == [*CELLS, *again]
    host.asked.clear()
    measure(host, again=chosen)
    assert host.asked == [CELLS[3]]


def test_evidence_is_packed_in_small_archives_with_no_cell_cut(host, tmp_path):
    measure(host)
    host.paths.outcome(CELLS[0]).unlink()
    for cell in CELLS:
        host.paths.log(cell).write_text("measured\n", encoding="utf-8")
    host.measure(find_cell(host.study, CELLS[1]), start=2)
    host.paths.log(CELLS[1], 2).write_text("measured again\n", encoding="utf-8")
    archives = pack(host.paths, "h200", tmp_path / "out", full_bytes=1)
    names: list[list[str]] = []
    for archive in archives:
        with tarfile.open(archive) as tar:
            names.append(tar.getnames())
    assert names[0] == ["two_gpus/host-h200.json"]
    assert "NVIDIA H200" in (host.paths.root / "host-h200.json").read_text(encoding="utf-8")
    assert f"two_gpus/cells/{CELLS[0]}/measure.log" in names[-1]  # it has no outcome, so it comes last
    packed = [name for of_archive in names for name in of_archive]
    assert len(packed) == len(set(packed))
    assert sum(name.endswith("/outcome.json") for name in packed) == len(CELLS) - 1 + 1
    assert sum("/calibrations/" in name for name in packed) == len(CALIBRATIONS)
    assert len(pack(host.paths, "h200", tmp_path / "one")) == 1


def test_the_host_needs_few_packages():
    modules = ["benchmarks.gpu_host.run", "benchmarks.gpu_host.compare"]
    names = ("device_speed", "calibration_run", "run", "trace", "vllm_offline", "hf_static")
    modules += [f"workflow_scripts.measure.{name}" for name in names]
    loaded = f"import sys, {', '.join(modules)}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    names = subprocess.run([sys.executable, "-c", loaded], check=True, capture_output=True, text=True).stdout.split()
    carried = {"pydantic", "yaml", "filelock", "psutil"}  # benchmarks/gpu_host/README.md names them
    with_them = {"cython_runtime", "pydantic_core", "typing_extensions", "typing_inspection", "annotated_types"}
    ours = {"benchmarks", "workflow_scripts"}
    # A host may load a sitecustomize of its own at every start of Python.
    foreign = {name for name in names if not name.startswith("_")} - set(sys.stdlib_module_names) - {"sitecustomize"}
    assert carried <= foreign
    assert foreign - ours - carried - with_them - {"numpy"} == set()  # which the engines bring


# In place of Python: measures a cell at once, as the runner's own commands do, but for one that hangs in its first try.
MEASURES = f"""#!{sys.executable}
import sys, time
from pathlib import Path

if "--cell" not in sys.argv:
    sys.exit()
option = lambda name: sys.argv[sys.argv.index(name) + 1]
study = Path(option("--results")) / "rehearsal"
if option("--cell").endswith("seqs1") and not (study / "tried").exists():
    (study / "tried").touch()
    log = study / "cells" / option("--cell") / "raw.partial/engine.log"
    log.parent.mkdir()
    log.write_text("compiling\\n")
    time.sleep(600)

from tests.unit.test_bench_gpu_host import Host
from workflow_scripts.measure.cell import find_cell
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study_file import load_study

host = Host(StudyPaths(Path(option("--results")), "rehearsal"))
host.study = load_study(Path(option("--study")))
host.measure(find_cell(host.study, option("--cell")))
"""
REHEARSAL = {"gpu": "cpu-all", "model": "tiny-llama-57m", "knobs": {"max_num_seqs": [4, 1, 2]}}


@pytest.mark.usefixtures("environment")
def test_a_call_goes_on_from_the_evidence_of_the_one_before(tmp_path, monkeypatch, capsys):
    """A cell that hangs is killed; on another host, with nothing but what came back, it alone is measured."""
    python = tmp_path / "python"
    python.write_text(MEASURES, encoding="utf-8")
    python.chmod(0o755)
    study = write_study(tmp_path, REHEARSAL, name="rehearsal", workloads={"short": fixed(4, 8, 4)})
    monkeypatch.setattr(run.sys, "executable", str(python))
    measure_one = run._measure

    def in_time(visit: run.Visit, one: CellStart, left_s: float) -> int | None:
        hangs = one.cell.endswith("seqs1") and not (visit.paths.root / "tried").exists()
        return measure_one(visit, one, 4.0 if hangs else 300.0)

    monkeypatch.setattr(run, "_measure", in_time)

    def call(results: str, budget_s: float) -> tuple[int, list[str]]:
        options = {"--study": study, "--results": tmp_path / results, "--evidence": tmp_path / "out"}
        words = [str(word) for pair in options.items() for word in pair]
        status = run.main([*words, "--budget-s", str(budget_s), "--cell-s", "1"])
        return status, [line for line in capsys.readouterr().out.splitlines() if "cpu-all/vllm" in line or "|" in line]

    status, told = call("one", 500)
    assert status == 1
    assert [line.split()[-1].rsplit("/", 1)[-1] for line in told] == ["seqs4", "seqs1", "compiling", "seqs2"]
    assert "no outcome" in told[1]
    with tarfile.open(tmp_path / "out" / "evidence-00.tar.gz") as archive:
        archive.extractall(tmp_path / "two", filter="data")
    (tmp_path / "two/rehearsal/tried").touch()
    status, told = call("two", 500)
    assert (status, [line.rsplit("/", 1)[-1] for line in told]) == (0, ["seqs1"])
    assert "[1/1]" in told[0]
