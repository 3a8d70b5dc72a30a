"""The second depth of a calibration, the order of its passes, and a wrong node."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.unit.predict.planned import study, sweep
from workflow_scripts.catalog.gpus_and_models import get_model
from workflow_scripts.common.files import write_json
from workflow_scripts.device.device_check import WrongDeviceError
from workflow_scripts.measure import calibration_run
from workflow_scripts.measure.calibration_run import (
    CalibrationRun,
    CalibrationRunError,
    RefusedError,
    Within,
    calibrate,
    calibrate_within,
    order,
    shallower,
)
from workflow_scripts.measure.session import Job
from workflow_scripts.study.calibrations import CalibrationRecord, Pass, calibrations_of, due_in_session, planned_starts
from workflow_scripts.study.definition import Definition, cell_definition, model_key, resolved_models
from workflow_scripts.study.grid import expand
from workflow_scripts.study.outcome import Measured
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study import Study


def put_model(study: Study, name: str, paths: StudyPaths) -> None:
    config = paths.model(name, model_key(resolved_models(study)[name])) / "config.json"
    config.parent.mkdir(parents=True)
    shutil.copy(get_model(name).config, config)


def test_settings_of_single_layers_are_cut_with_the_layers():
    config = json.loads(get_model("gpt-oss-120b").config.read_text(encoding="utf-8"))
    whole, half, of_half = shallower(config)
    assert (whole, half, of_half["num_hidden_layers"]) == (36, 18, 18)
    assert of_half["layer_types"] == config["layer_types"][:18]
    changed = {name for name in config if of_half[name] != config[name]}
    assert changed == {"num_hidden_layers", "layer_types"}


@pytest.mark.parametrize("config", [{"text_config": {"vocab_size": 2}}, {"vocab_size": 2}])
def test_a_model_that_does_not_say_how_deep_it_is_is_not_calibrated(config):
    with pytest.raises(CalibrationRunError, match="one of num_hidden_layers, n_layer"):
        shallower(config)


@pytest.mark.parametrize("refused", [1, 3])
def test_a_refused_cell_gives_way_to_another_one(refused, tmp_path, monkeypatch):
    planned = study(tmp_path, sweeps=[sweep(knobs={"block_size": [16, 32, 64, 128]})])
    paths = StudyPaths(tmp_path, planned.name)
    (wanted,) = calibrations_of(planned, expand(planned)).values()
    put_model(planned, wanted.cell.model, paths)
    asked: list[int] = []

    def forked(_: CalibrationRun, definition: Definition, __: Path, evidence: Path, *___: object) -> Measured:
        evidence.mkdir(parents=True)
        asked.append(definition.knobs.set_values()["block_size"])
        if len(asked) <= refused:
            raise RefusedError("infeasible: no backend")
        return Measured(outcome="ok", effective={}, repeats=[])

    monkeypatch.setattr(CalibrationRun, "_forked", forked)
    monkeypatch.setattr(CalibrationRun, "_passes", lambda *_: [])
    calibrated = CalibrationRun(planned, wanted, paths)
    record = calibrated.measure_start(True, 1.0, backwards=False)
    if refused == 1:
        assert (asked, record.failure, record.knobs["block_size"]) == ([16, 32], None, 32)
        assert len(calibrated.measure_start(False, 1.0, backwards=False).starts) == 2
        assert asked == [16, 32, 32]
    else:
        assert (asked, record.failure, record.starts) == ([16, 32, 64], "infeasible: no backend", [])


@pytest.mark.parametrize("points", [1, 4, 18])
def test_every_point_that_was_reached_is_passed_twice(points):
    for passes in (order(range(points)), order(range(points), backwards=True)):
        assert {passes.count(point) for point in range(points)} == {5}
        for reached in range(2, 2 * points + 1, 2):  # the time may be over after any of these passes
            assert {passes[:reached].count(point) for point in passes[:reached]} == {2}
    # Two starts that get through half of the points reach all of them.
    half = 2 * ((points + 1) // 2)
    assert {*order(range(points))[:half], *order(range(points), backwards=True)[:half]} == {*range(points)}


def test_a_gpu_starts_each_engine_once_with_half_of_the_layers(tmp_path):
    knobs = {"max_num_seqs": 16, "kv_cache_dtype": ["auto", "fp8"]}
    on_cpu = sweep(name="cpu", gpu="cpu-all", knobs={"block_size": 32, "enforce_eager": [True, False]})
    planned = study(tmp_path, sweeps=[sweep(gpu=["h200", "l40s"], knobs=knobs), on_cpu])
    starts = planned_starts([*calibrations_of(planned, expand(planned)).values()])
    whole = {name: [is_whole for is_whole, _ in of] for name, of in starts.items()}
    for gpu in ("h200", "l40s"):
        assert sorted(of for name, of in whole.items() if name.startswith(gpu)) == [[True], [True, False]]
    assert [of for name, of in whole.items() if name.startswith("cpu")] == [[True, False, True]] * 2


@pytest.mark.parametrize(
    ("gpu", "missing", "layers"), [("h200", 0, [32]), ("h200", 1, [32, 16]), ("cpu-all", 0, [32, 16, 32])]
)
def test_a_gpu_needs_half_of_the_layers_only_if_the_model_did_not_get_through_all_points(
    tmp_path, monkeypatch, gpu, missing, layers
):
    planned = study(tmp_path, sweeps=[sweep(gpu=gpu, knobs={"block_size": 16, "max_num_seqs": 8})])
    (wanted,) = calibrations_of(planned, expand(planned)).values()
    put_model(planned, wanted.cell.model, StudyPaths(tmp_path, planned.name))
    run = CalibrationRun(planned, wanted, StudyPaths(tmp_path, planned.name))
    made = Pass(point=0, requests=[], start_s=0.0, end_s=1.0, step_ends_s=[], ttft_s=[])
    monkeypatch.setattr(CalibrationRun, "_forked", lambda *_: Measured(outcome="ok"))
    monkeypatch.setattr(CalibrationRun, "_passes", lambda self, *_: [made] * (2 * len(self._points) - missing))
    monkeypatch.setattr(calibration_run, "device_lock", nullcontext)
    calibrate([run], planned_starts([wanted]))
    record = CalibrationRecord.read(StudyPaths(tmp_path, planned.name).calibration(wanted.name))
    assert [start.layers for start in record.starts] == layers


def test_a_variant_is_calibrated_in_the_first_session_of_its_cells_once_its_device_is(tmp_path, monkeypatch):
    of_server = {"request_rate_per_s": [1.0, 2.0], "max_num_seqs": [8, 16], "kv_cache_dtype": ["auto", "fp8"]}
    planned = study(tmp_path, sweeps=[sweep(gpu="h200", engine="vllm-serve", knobs=of_server)])
    paths, models = StudyPaths(tmp_path, planned.name), resolved_models(planned)
    cells = expand(planned)
    first, variant = calibrations_of(planned, cells).values()
    assert (first.cell.knobs.kv_cache_dtype, variant.cell.knobs.kv_cache_dtype) == ("auto", "fp8")

    def due() -> set[str]:
        return {c.id for c in cells if due_in_session(planned, cell_definition(planned, c, models), paths)}

    assert due() == set()
    write_json(paths.calibration(first.name), {})
    # At both rates, which share a start, with most sequences.
    assert due() == {c.id for c in cells if (c.knobs.kv_cache_dtype, c.knobs.max_num_seqs) == ("fp8", 16)}
    put_model(planned, variant.cell.model, paths)
    served: list[Job] = []

    class Serving:
        goes_on = True

        def serve(self, job: Job, _: float) -> tuple[int, Measured]:
            served.append(job)
            return 0, Measured(outcome="infeasible" if refuses else "ok")

    monkeypatch.setattr(CalibrationRun, "_passes", lambda *_: [])
    for refuses in (False, True):  # no other settings are tried in a session
        within = Within(Serving(), tmp_path / "last", tmp_path / "following")
        assert calibrate_within(CalibrationRun(planned, variant, paths), within)
        record = CalibrationRecord.read(paths.calibration(variant.name))
        assert (len(record.starts), record.failure is None) == ((0, False) if refuses else (1, True))
    assert [(job.session, job.following) for job in served] == [(tmp_path / "last", tmp_path / "following")] * 2
    assert due() == set()


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
