import pytest

from tests.unit.made_rates import made_rates
from workflow_scripts.catalog.gpus_and_models import get_gpu
from workflow_scripts.physics.calibration import default_speed, peak_flop_per_s


def test_a_gpu_that_nobody_calibrated_gets_shares_of_its_data_sheet_and_no_band():
    speed = default_speed(get_gpu("h200"), "bfloat16")
    assert (speed.source, speed.error_pct, speed.ttft_error_pct) == ("data sheet", None, None)
    assert 1 / speed.costs.weight_bytes == pytest.approx(0.85 * 4.8e12)
    assert 1 / speed.costs.attention_flops == pytest.approx(0.6 * 989.5e12)
    assert speed.costs.steps == 1e-3
    assert speed.how.startswith("uncalibrated: 85% of bandwidth and 60% of arithmetic of the data sheet's rates")


def test_an_engine_that_waits_for_each_step_launches_all_layers_one_by_one():
    ahead, waits = (default_speed(get_gpu("h200"), "bfloat16", ahead=ahead).costs.launch for ahead in (True, False))
    assert (ahead.ahead, waits.ahead, waits.piecewise_layers) == (True, False, 0)
    # For the 32 layers of Llama-3.1-8B, 18 ms were seen with one sequence, and 24 to 25 ms with 16 of unequal length.
    for sequences, seconds in ((1, 18.2e-3), (16, 24.5e-3)):
        found = waits.steps + sequences * waits.sequences + 32 * waits.eager_layers
        assert found == pytest.approx(seconds, rel=0.05)


def test_measured_rates_go_before_the_data_sheet_and_make_a_cpu_known():
    cpu = get_gpu("cpu-all")
    assert default_speed(cpu, "float32") is None
    speed = default_speed(cpu, "float32", rates=made_rates(20e9, 100e9), ahead=False)
    assert speed.costs.launch is None
    assert (speed.source, speed.costs.overlap, speed.costs.steps) == ("measured rates", False, 2e-3)
    assert 1 / speed.costs.kv_bytes == pytest.approx(17e9)


def test_another_type_is_as_much_faster_as_the_data_sheet_or_the_measurement_says():
    # An RTX 4090 has 330.3e12 in fp16 and 165.2e12 in bf16.
    assert peak_flop_per_s(get_gpu("rtx4090"), "float16") == pytest.approx(330.3e12)
    assert peak_flop_per_s(get_gpu("cpu-all"), "float32") is None
    assert peak_flop_per_s(get_gpu("cpu-all"), "float32", made_rates(20e9, 100e9)) == 100e9
