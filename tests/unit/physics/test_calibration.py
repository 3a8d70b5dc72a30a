import numpy as np
import pytest

from workflow_scripts.catalog.gpus_and_models import get_gpu, load_models
from workflow_scripts.device.device_rates import DeviceRates, Samples
from workflow_scripts.physics.calibration import (
    CALIBRATIONS,
    Calibration,
    CalibrationError,
    EngineCalibration,
    FitQuality,
    read_calibration,
    speed_of,
)
from workflow_scripts.physics.step_time import StepConstants

CONSTANTS = StepConstants(memory_bytes_per_s=1e12, flop_per_s=1e14, step_overhead_s=1e-3)


def calibration(p90=12.0, dtype="bfloat16"):
    quality = FitQuality(fitted={"a": 0.1}, held_out={"b": -12.0}, median_error_pct=12.0, p90_error_pct=p90)
    engine = EngineCalibration(model="m", dtype=dtype, constants=CONSTANTS, quality=quality, repeat_sd=0.02)
    return Calibration(gpu="l40s", source="made up", engines={"vllm": engine})


def rates(bandwidth, flop_per_s):
    return DeviceRates(
        gpu="cpu-all",
        copy_bytes_per_s=bandwidth / 2,
        copy_bytes_per_s_median=bandwidth / 2,
        read_bytes_per_s=bandwidth,
        read_bytes_per_s_median=bandwidth,
        matmul_flop_per_s={"fp32": flop_per_s},
        matmul_flop_per_s_median={"fp32": flop_per_s},
        last_level_cache_bytes=None,
        device={},
        threads=2,
        host="here",
        torch_version="2",
        host_load={},
        measured_at="today",
        samples={"copy": Samples(amount=1, shape=[1], calls_per_run=1, call_s=[1])},
    )


def test_a_gpu_that_nobody_calibrated_gets_shares_of_its_data_sheet():
    speed = speed_of(get_gpu("h200"), "vllm", "m", "bfloat16")
    assert speed.source == "default"
    assert speed.constants.memory_bytes_per_s == pytest.approx(0.85 * 4.8e12)
    assert speed.constants.flop_per_s == pytest.approx(0.6 * 989.5e12)
    assert speed.constants.step_overhead_s == 1e-3
    assert speed.error_pct == 40
    assert "85% of bandwidth and 60% of arithmetic of the data sheet's rates" in speed.how


def test_without_graphs_each_layer_costs_more_on_a_gpu():
    eager = speed_of(get_gpu("h200"), "vllm", "m", "bfloat16", eager_layers=32)
    assert eager.constants.step_overhead_s == pytest.approx(1e-3 + 32 * 0.2e-3)


def test_measured_rates_go_before_the_data_sheet_and_make_a_cpu_known():
    cpu = get_gpu("cpu-all")
    assert speed_of(cpu, "vllm", "m", "float32") is None
    speed = speed_of(cpu, "vllm", "m", "float32", rates=rates(20e9, 100e9), eager_layers=8)
    assert (speed.source, speed.constants.overlap) == ("measured rates", False)
    assert speed.constants.memory_bytes_per_s == pytest.approx(17e9)
    assert speed.constants.step_overhead_s == 2e-3


def test_a_calibration_goes_before_everything_with_the_error_that_it_was_tested_to_have():
    speed = speed_of(get_gpu("l40s"), "vllm", "m", "bfloat16", calibration=calibration())
    assert (speed.source, speed.constants, speed.error_pct, speed.repeat_sd) == ("calibrated", CONSTANTS, 12, 0.02)
    assert speed_of(get_gpu("l40s"), "vllm", "m", "bfloat16", calibration=calibration(p90=2.0)).error_pct == 10


def test_constants_of_another_engine_count_as_tested_where_they_were():
    made = calibration()
    quality = FitQuality(fitted={}, held_out={"c": 18.0}, median_error_pct=18.0, p90_error_pct=18.0)
    other = made.engines["vllm"].model_copy(update={"constants_of": "vllm", "quality": quality})
    both = made.model_copy(update={"engines": {**made.engines, "hf-static": other}})
    speed = speed_of(get_gpu("l40s"), "hf-static", "m", "bfloat16", calibration=both)
    assert (speed.constants, speed.error_pct, speed.how) == (CONSTANTS, 18, "fitted to 1 cells of m: made up")


@pytest.mark.parametrize(("engine", "model"), [("hf-static", "m"), ("vllm", "another")])
def test_what_was_not_tested_keeps_the_default_band(engine, model):
    speed = speed_of(get_gpu("l40s"), engine, model, "bfloat16", calibration=calibration())
    assert (speed.constants, speed.error_pct) == (CONSTANTS, 40)
    assert f"not tested for {engine} and {model}" in speed.how


def test_another_type_is_as_much_faster_as_the_data_sheet_says():
    # An RTX 4090 has 330.3e12 in fp16 and 165.2e12 in bf16.
    gpu = get_gpu("rtx4090")
    speed = speed_of(gpu, "vllm", "m", "float16", calibration=calibration())
    assert speed.constants.flop_per_s == pytest.approx(1e14 * 330.3 / 165.2)
    of_a_cpu = speed_of(get_gpu("cpu-all"), "vllm", "m", "float32", calibration=calibration())
    assert of_a_cpu is None


def test_it_is_written_and_read(tmp_path):
    path = tmp_path / "l40s.yaml"
    calibration().write(path)
    assert read_calibration(path) == calibration()


@pytest.mark.parametrize(("text", "said"), [("[", "no calibration"), ("gpu: x", "engines"), (None, "No such file")])
def test_what_is_no_calibration_is_said_so(tmp_path, text, said):
    path = tmp_path / "x.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CalibrationError, match=f"{path}.*{said}"):
        read_calibration(path)


def test_those_of_the_project_can_be_read_and_met_what_they_were_not_fitted_to():
    paths = sorted(CALIBRATIONS.glob("*.yaml"))
    assert paths
    for path in paths:
        found = read_calibration(path)
        assert found.gpu == path.stem == get_gpu(found.gpu).name
        assert all(engine.model in load_models() for engine in found.engines.values())
        # Three constants per device, whatever runs on it, and all cells of all engines that it was tested on.
        assert len({engine.constants for engine in found.engines.values()}) == 1
        assert sum(len(engine.quality.fitted) for engine in found.engines.values()) <= 5
        held_out = np.abs([error for engine in found.engines.values() for error in engine.quality.held_out.values()])
        assert np.median(held_out) <= 10
        assert np.percentile(held_out, 90) <= 25
        assert all(engine.quality.p90_error_pct <= 25 for engine in found.engines.values())


def test_that_of_the_demo_was_tested_on_all_that_is_predicted_there():
    assert set(read_calibration(CALIBRATIONS / "cpu-all.yaml").engines) == {"vllm", "hf-static"}
