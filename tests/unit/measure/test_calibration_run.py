"""The starts of a calibration, the order of its passes, and a wrong node."""

import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from tests.unit.predict.planned import study, sweep
from workflow_scripts.catalog.gpus_and_models import get_model
from workflow_scripts.device.device_check import WrongDeviceError
from workflow_scripts.measure import calibration_run
from workflow_scripts.measure.calibration_run import (
    CalibrationRun,
    calibrate,
    order,
)
from workflow_scripts.study.calibrations import (
    CalibrationRecord,
    calibrated_definition,
    calibrations_of,
)
from workflow_scripts.study.definition import model_key, resolved_models
from workflow_scripts.study.grid import expand
from workflow_scripts.study.outcome import Measured
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study import Study


def put_model(study: Study, name: str, paths: StudyPaths) -> None:
    config = paths.model(name, model_key(resolved_models(study)[name])) / "config.json"
    config.parent.mkdir(parents=True)
    shutil.copy(get_model(name).config, config)


@pytest.mark.parametrize("points", [1, 4, 18])
def test_every_point_that_was_reached_is_passed_twice(points):
    for passes in (order(range(points)), order(range(points), backwards=True)):
        assert {passes.count(point) for point in range(points)} == {5}
        for reached in range(2, 2 * points + 1, 2):  # the time may be over after any of these passes
            assert {passes[:reached].count(point) for point in passes[:reached]} == {2}
    # Two starts that get through half of the points reach all of them.
    half = 2 * ((points + 1) // 2)
    assert {*order(range(points))[:half], *order(range(points), backwards=True)[:half]} == {*range(points)}


@pytest.mark.parametrize(("gpu", "starts"), [("h200", 1), ("cpu-all", 2)])
def test_a_cpu_starts_the_engine_twice(tmp_path, monkeypatch, gpu, starts):
    planned = study(tmp_path, sweeps=[sweep(gpu=gpu, knobs={"block_size": 16, "max_num_seqs": 8})])
    (wanted,) = calibrations_of(planned, expand(planned)).values()
    put_model(planned, wanted.cell.model, StudyPaths(tmp_path, planned.name))
    run = CalibrationRun(planned, wanted, StudyPaths(tmp_path, planned.name))
    session = SimpleNamespace(serve=lambda *_: (0, Measured(outcome="ok")), close=lambda: None)
    monkeypatch.setattr(calibration_run, "Session", lambda _: session)
    monkeypatch.setattr(CalibrationRun, "_passes", lambda *_: [])
    monkeypatch.setattr(calibration_run, "device_lock", nullcontext)
    calibrate([run])
    record = CalibrationRecord.read(StudyPaths(tmp_path, planned.name).calibration(wanted.name))
    assert [start.layers for start in record.starts] == [32] * starts


def test_cells_that_search_the_highest_load_are_calibrated_without_a_search(tmp_path):
    searching = sweep(gpu="h200", engine="vllm-serve", knobs={"find": "highest_rate", "max_num_seqs": 16})
    planned = study(tmp_path, sweeps=[searching], slo={"ttft_s": 1.0})
    (wanted,) = calibrations_of(planned, expand(planned)).values()
    definition = calibrated_definition(planned, wanted.cell)
    assert (definition.slo, definition.knobs.set_values()) == (None, {"max_num_seqs": 16})


def test_a_node_with_another_gpu_is_noted_for_the_next_attempt(tmp_path, monkeypatch, capsys):
    def wrong(*_: object) -> None:
        raise WrongDeviceError("h200 was requested, but the GPU here is 'L4'")

    monkeypatch.setattr(calibration_run, "CalibrationRun", lambda *_: None)
    monkeypatch.setattr(calibration_run, "calibrate", wrong)
    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    study = ["--study", "config/studies/what_if.yaml", "--gpu", "h200"]
    assert calibration_run.main([*study, "--results", str(tmp_path)]) == 1
    assert (tmp_path / "what_if/wrong_nodes/h200/node7").read_text() == "h200 was requested, but the GPU here is 'L4'\n"
    assert "the GPU here is 'L4'" in capsys.readouterr().err
