import pytest

from tests.unit.made_rates import made_rates
from tests.unit.predict.calibration_records import HERE, calibration_with
from workflow_scripts.catalog.gpus_and_models import get_gpu, get_model, load_models
from workflow_scripts.common.files import sha256_of
from workflow_scripts.physics.step_time import StepCosts
from workflow_scripts.predict.calibrated import AskedSpeed, default_speed, speed_for

COSTS = StepCosts(weight_bytes=1 / 12e9, kv_bytes=1 / 6e9, matrix_flops=1 / 60e9, sequences=1e-4, overlap=False)
RATES = made_rates(1e10, 1e11)
OWN = "cpu-1core/vllm/tiny-llama-57m/eager1.json"


def wanted(**changes):
    known = {"gpu": get_gpu("cpu-1core"), "device": HERE, "rates": None, "engine": "vllm", "model": "tiny-llama-57m"}
    return AskedSpeed(**known | {"dtype": "float32", "variant": "eager1"} | changes)


def named(model):
    known = model in load_models()
    return {"model": model, "config_sha256": sha256_of(get_model(model).config) if known else "0"}


def written(folder, name=OWN, record=None, **changes):
    (record or calibration_with(COSTS, **changes)).write(folder / name)
    return folder


def test_the_calibration_of_the_device_goes_before_a_project_file_and_serves_only_what_it_was_measured_for(tmp_path):
    calibrations, project = written(tmp_path / "calibrations"), written(tmp_path / "project", host="elsewhere")
    speed = speed_for(wanted(), calibrations, project)
    assert (speed.source, speed.error_pct, speed.ttft_error_pct) == ("calibrated", 10, 10)
    assert speed_for(wanted(), tmp_path / "none", project).source == "project file"
    assert speed_for(wanted(), None, tmp_path / "none") is None
    calibrations = written(tmp_path)
    others = [{"device": {**HERE, "processor": "another CPU"}}, {"device": {**HERE, "cores": [0, 1]}}]
    for changes in (*others, {"engine": "hf-static"}, {"variant": "default"}, {"gpu": get_gpu("cpu-all")}):
        assert speed_for(wanted(**changes), calibrations, tmp_path / "none") is None, changes


def test_a_start_takes_what_it_took_in_the_devices_own_calibration_of_the_model(tmp_path):
    record, phases = calibration_with(COSTS, depths=(1, 2, 1)), [{"start": 1.5, "stop": 0.1}, {}, {"stop": 0.2}]
    starts = [one.model_copy(update={"phases_s": of}) for one, of in zip(record.starts, phases, strict=True)]
    calibrations = written(tmp_path, record=record.model_copy(update={"starts": starts}))
    assert speed_for(wanted(), calibrations, tmp_path / "none").around_s == (1.5, 0.1)
    assert speed_for(wanted(), None, tmp_path).around_s is None  # of another host
    assert speed_for(wanted(), written(tmp_path / "old"), tmp_path / "none").around_s is None  # of an earlier version


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"protocol": 0}, "was measured with protocol 0, which is now "),
        ({"device": {**HERE, "processor": "another CPU"}}, "is of another processor or number of cores"),
        ({"config_sha256": "0"}, "is of another configuration of the model"),
        ({"starts": [], "failure": "the engine broke:\nlog\nno memory"}, "has no steps: the engine broke: no memory"),
    ],
)
def test_why_a_calibration_is_not_used_is_said_beside_the_rates(tmp_path, changes, why):
    calibrations = written(tmp_path, record=calibration_with(COSTS).model_copy(update=changes))
    assert speed_for(wanted(), calibrations, tmp_path / "none") is None
    speed = speed_for(wanted(rates=RATES), calibrations, tmp_path / "none")
    assert (speed.source, f"; its calibration {why}" in speed.how) == ("measured rates", True)


@pytest.mark.parametrize(
    ("model", "knobs"),
    [("gpt-oss-120b", {"speculative_method": "ngram", "num_speculative_tokens": 2}), ("no-such-model", {})],
)
def test_a_calibration_of_another_model_to_which_nothing_can_be_fitted_stops_no_plan(tmp_path, model, knobs):
    record = calibration_with(COSTS)
    record = record.model_copy(update=named(model) | {"knobs": {**record.knobs, **knobs}})
    calibrations = written(tmp_path, f"cpu-1core/vllm/{model}/eager1.json", record)
    assert speed_for(wanted(), calibrations, tmp_path / "none") is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"ranks": 2}, "number of ranks"), ({"model": "smollm-135m", "dtype": "bfloat16"}, "57m and type float32")],
)
def test_several_ranks_or_another_model_of_the_device_have_no_band(tmp_path, changes, named):
    speed = speed_for(wanted(**changes), written(tmp_path), tmp_path / "none")
    assert (speed.source, speed.error_pct, speed.ttft_error_pct) == ("calibrated", None, None)
    assert f"{named}; no band: no public run of this kind" in speed.how


def test_a_version_without_a_calibration_of_its_own_is_predicted_by_the_defaults_without_a_band(tmp_path):
    old, none = "vllm-0.25.1", tmp_path / "none"
    calibrations = written(tmp_path)
    speed = speed_for(wanted(environment=old), calibrations, none)
    assert (speed.source, speed.error_pct) == ("calibrated", None)
    assert "which is another version; no band" in speed.how
    own = calibration_with(COSTS).model_copy(update={"environment": old})
    written(tmp_path, OWN.replace("/vllm/", f"/vllm@{old}/"), own)
    assert speed_for(wanted(environment=old), calibrations, none).error_pct == 10
    # The default environment has its own alone.
    (tmp_path / OWN).unlink()
    assert speed_for(wanted(), calibrations, none) is None


# --- without a calibration -------------------------------------------------------------------------------------------


def test_a_gpu_that_nobody_calibrated_gets_shares_of_its_data_sheet_and_no_band():
    speed = default_speed(get_gpu("h200"), "bfloat16")
    assert (speed.source, speed.error_pct, speed.ttft_error_pct) == ("data sheet", None, None)
    assert 1 / speed.costs.weight_bytes == pytest.approx(0.85 * 4.8e12)
    assert 1 / speed.costs.attention_flops == pytest.approx(0.6 * 989.5e12)
    assert speed.costs.steps == 1e-3
    assert speed.how.startswith("uncalibrated: 85% of bandwidth and 60% of arithmetic of the data sheet")


def test_measured_rates_go_before_the_data_sheet_and_make_a_cpu_known():
    cpu = get_gpu("cpu-all")
    assert default_speed(cpu, "float32") is None
    speed = default_speed(cpu, "float32", rates=made_rates(20e9, 100e9), ahead=False)
    assert speed.costs.launch is None
    assert (speed.source, speed.costs.overlap, speed.costs.steps) == ("measured rates", False, 2e-3)
    assert 1 / speed.costs.kv_bytes == pytest.approx(17e9)
