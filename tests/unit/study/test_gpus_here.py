"""Which cells find their GPUs on this machine; NVML is a stand-in, also for a whole workflow in its dry run."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pynvml
import pytest

from tests.unit import made_studies
from tests.unit.made_studies import end_cell
from workflow_scripts.cluster.batches import main as list_ended
from workflow_scripts.engines.registry import load_engines
from workflow_scripts.study.definition import cell_definition, definition_sha256, resolved_models
from workflow_scripts.study.gpus_here import cells_without_gpu, gpus_here, unmeasurable
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.outcome import is_outcome_of
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study_file import load_study

CHECKOUT = Path(__file__).parents[3]
H200, L40S = "NVIDIA H200", "NVIDIA L40S"


@pytest.fixture
def host(monkeypatch):
    """The names of a host's GPUs."""
    names = [H200, L40S, L40S]
    nvml = ModuleType("pynvml")
    vars(nvml).update(
        NVMLError=pynvml.NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(names),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: names[handle],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return names


@pytest.mark.usefixtures("host")
def test_the_gpus_are_those_that_the_process_may_see(monkeypatch):
    assert gpus_here() == [H200, L40S, L40S]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0,7")  # what CUDA does not find ends its list
    assert gpus_here() == [L40S, H200]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "NoDevFiles")  # as Slurm sets it for a job without a GPU
    assert gpus_here() == []


@pytest.mark.usefixtures("host")
def test_without_a_driver_there_are_none(monkeypatch):
    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(sys.modules["pynvml"], "nvmlInit", no_driver)
    assert gpus_here() == []


def cell(gpu: str, engine: str = "vllm", **knobs: object) -> Cell:
    return Cell(gpu, engine, "opt-125m", "w", load_engines()[engine].knobs.model_validate(knobs), ("s",))


def write_study(folder: Path, starts: int = 1, gpu: Sequence[str] = ("cpu-1core", "h200"), **knobs: object) -> Path:
    endpoints = {"there": {"base_url": "http://there:8000", "served_model": "m"}}
    knobs = {"max_num_seqs": [1, 2], **knobs}
    sweep = {"gpu": [*gpu], "model": "tiny-llama-57m", "knobs": knobs}
    workloads = {"w": made_studies.fixed()}
    return made_studies.write_study(
        folder, sweep, name="mixed", starts=starts, workloads=workloads, endpoints=endpoints
    )


def test_a_cell_needs_as_many_gpus_of_its_type_as_it_has_ranks(tmp_path):
    study = load_study(write_study(tmp_path))
    alone, pair, of_cpu = cell("l40s"), cell("l40s", tensor_parallel_size=2), cell("cpu-all")
    served = cell("h200", "openai", endpoint="there", users=1)
    cells = [alone, pair, of_cpu, served, cell("h200")]
    assert [*cells_without_gpu(study, cells, [L40S])] == [pair, cell("h200")]
    assert [*cells_without_gpu(study, cells, [L40S, L40S])] == [cell("h200")]
    # A cell takes the first GPUs that it sees.
    assert [*cells_without_gpu(study, cells, [H200, L40S])] == [alone, pair]


NO_DRIVER = "class NVMLError(Exception): pass\ndef nvmlInit(): raise NVMLError('no driver')\n"
ONE_H200 = f"""
class NVMLError(Exception): pass
nvmlInit = nvmlShutdown = lambda: None
nvmlDeviceGetCount = lambda: 1
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetName = lambda handle: {H200!r}
"""


def dry_run(study: Path, results: Path, *targets: str, nvml: str = NO_DRIVER, status: int = 0) -> str:
    """What a call would do on a machine without NVIDIA's driver, or with another `nvml`, and what it says."""
    stand_in = results / "pynvml.py"
    stand_in.parent.mkdir(parents=True, exist_ok=True)
    stand_in.write_text(nvml)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "snakemake", *targets, "--nolock", "--dry-run", "--printshellcmds"),
            *("--config", f"study={study}", f"results={results}"),
        ],
        cwd=CHECKOUT,
        env=os.environ | {"XDG_CACHE_HOME": str(results / "cache"), "PYTHONPATH": str(results)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def measured_in(planned: str) -> list[set[str]]:
    """The cells of each round that a dry run would measure, as GPU and knobs."""
    keys = re.findall(r"rule measure_round:(?:\n.+)*?\n +wildcards: key=(.+)", planned)
    told = re.findall(r"^Round (\d+), batch (\w+) of here:\n((?: {4}\S+, start \d+\n)+)", planned, re.MULTILINE)
    assert sorted(keys) == sorted(key for _, key, _ in told)
    cells = {int(number): re.findall(r"(\S+), start", lines) for number, _, lines in told}
    return [{f"{one.split('/')[0]} {one.split('/')[4]}" for one in cells[number]} for number in sorted(cells)]


def test_cells_without_their_gpu_are_named_and_left_missing_and_the_others_measured(tmp_path):
    study_file, results = write_study(tmp_path), tmp_path / "results"
    planned = dry_run(study_file, results)
    assert "2 need h200." in planned
    assert measured_in(planned) == [{"cpu-1core seqs1", "cpu-1core seqs2"}]
    assert "prepared/devices/cpu-1core.json" in planned
    assert "prepared/devices/h200.json" not in planned
    # The call ends with the same words, after the report.
    assert "> " + str(tmp_path / "results/mixed/logs/all.log") + "; exit 1" in planned


def test_a_call_measures_if_one_of_its_targets_does(tmp_path):
    study_file, results = write_study(tmp_path), tmp_path / "results"
    both = {"cpu-1core seqs1", "cpu-1core seqs2"}
    for targets, measured in ((["prepare"], []), (["plan"], []), (["all", "plan"], [both])):
        planned = dry_run(study_file, results, *targets)
        assert measured_in(planned) == measured
        # The plan's files are outputs of a job, so that Snakemake locks them; a plan alone measures no device.
        assert ("rule predict_cells:" in planned) == (targets != ["prepare"])
        assert ("rule prepare_device:" in planned) == bool(measured)


def test_a_study_with_a_gpu_that_no_machine_can_measure_is_planned_only(tmp_path):
    study_file, results = write_study(tmp_path, gpu=("cpu-1core", "mi300x")), tmp_path / "results"
    for targets in (["prepare", "all"], ["calibrate"]):
        refused = dry_run(study_file, results, *targets, status=1)
        assert "study 'mixed': mi300x: " in refused
        assert "rule " not in refused
    assert "rule predict_cells:" in dry_run(study_file, results, "partial_report")
    # A server elsewhere may run on any device.
    study = load_study(study_file)
    assert unmeasurable(study, [cell("mi300x", "openai", endpoint="there", users=1)]) is None


def test_a_cell_that_was_measured_elsewhere_is_not_left_out(tmp_path):
    study_file, results = write_study(tmp_path), tmp_path / "results"
    study = load_study(study_file)
    paths = StudyPaths(results, study.name)
    first, second = (c for c in expand(study) if c.gpu == "h200")
    end_cell(study, paths, first, phases_s={"start": 1.0})
    assert "1 needs h200." in dry_run(study_file, results)
    end_cell(study, paths, second, phases_s={"start": 1.0})
    planned = dry_run(study_file, results)
    assert "left out" not in planned
    assert "exit 1" not in planned


def test_every_start_of_the_cells_is_a_round_of_its_own(tmp_path):
    study_file, results = write_study(tmp_path, starts=3), tmp_path / "results"
    study = load_study(study_file)
    paths = StudyPaths(results, study.name)
    both = {"cpu-1core seqs1", "cpu-1core seqs2"}  # and none of the GPU that is not here
    assert measured_in(dry_run(study_file, results)) == [both] * 3
    here = [c for c in expand(study) if c.gpu == "cpu-1core"]
    for start in (1, 2, 3):
        for one in here:
            end_cell(study, paths, one, start, start={"start": start, "round": start})
    assert measured_in(dry_run(study_file, results)) == []
    # A start that is missing, for whatever reason, is measured; nothing else is.
    paths.outcome(here[0], 3).unlink()
    assert measured_in(dry_run(study_file, results)) == [{f"cpu-1core {here[0].knobs.slug()}"}]


def test_the_devices_here_are_calibrated(tmp_path):
    study_file, results = write_study(tmp_path, tensor_parallel_size=[1, 2]), tmp_path / "results"
    # A pair is missing, but a calibration needs one GPU.
    planned = dry_run(study_file, results, "calibrate", nvml=ONE_H200)
    assert "calibrations/h200.done" in planned
    assert "calibrations/cpu-1core.done" in planned
    # All cells of the missing GPU were measured elsewhere, so none is left out.
    study = load_study(study_file)
    for one in expand(study):
        end_cell(study, StudyPaths(results, study.name), one, phases_s={"start": 1.0})
    planned = dry_run(study_file, results, "calibrate")
    assert "calibrations/h200.done" not in planned
    assert "calibrations/cpu-1core.done" in planned
    # Devices that are this machine's CPU are calibrated in turns by one job.
    both = write_study(tmp_path, gpu=("cpu-1core", "cpu-all"))
    assert "calibrations/cpu-1core+cpu-all.done" in dry_run(both, results, "calibrate")


def test_a_further_start_that_was_measured_by_hand_is_parsed(tmp_path):
    study_file, results = write_study(tmp_path), tmp_path / "results"
    study = load_study(study_file)
    paths = StudyPaths(results, study.name)
    for one in expand(study):
        end_cell(study, paths, one)
    listing = re.compile(r"^rule ended_cells:(?:\n.+)*?\n +wildcards: gpu=h200$", re.MULTILINE)
    called = ["--study", str(study_file), "--results", str(results), "--gpu", "h200"]
    assert listing.search(dry_run(study_file, results))
    assert list_ended([*called, "--out", str(paths.ended("h200"))]) == 0
    assert not listing.search(dry_run(study_file, results))
    first = json.loads(paths.ended("h200").read_text())
    again = next(one for one in expand(study) if one.gpu == "h200")
    end_cell(study, paths, again, 2)
    assert listing.search(dry_run(study_file, results))
    assert list_ended([*called, "--out", str(paths.ended("h200"))]) == 0
    assert json.loads(paths.ended("h200").read_text()).keys() - first.keys() == {f"{again.id}/start-2"}


def test_a_former_record_of_a_cell_that_never_ran_is_no_outcome(tmp_path):
    study_file, results = write_study(tmp_path), tmp_path / "results"
    study = load_study(study_file)
    paths = StudyPaths(results, study.name)
    wrong = next(c for c in expand(study) if c.gpu == "h200")
    end_cell(study, paths, wrong, outcome="invalid", reason="h200 was requested, but there is no NVIDIA GPU here")
    definition = definition_sha256(cell_definition(study, wrong, resolved_models(study)))
    assert not is_outcome_of(paths.outcome(wrong), definition)
    assert "2 cells are left out" in dry_run(study_file, results)
    at_hand = next(c for c in expand(study) if c.gpu == "cpu-1core")
    end_cell(study, paths, at_hand, outcome="invalid", reason="cpu-1core needs 1 cores")
    planned = dry_run(study_file, results)
    assert "1 cells were measured" in planned
    assert f"cpu-1core {at_hand.knobs.slug()}" in measured_in(planned)[0]
    # One that ran and was found wrong afterwards has ended.
    end_cell(study, paths, wrong, outcome="invalid", reason="other tokens", phases_s={"start": 1.0})
    assert is_outcome_of(paths.outcome(wrong), definition)
