import numpy as np
import pytest

from tests.unit.made_rates import made_rates
from tests.unit.predict.calibration_records import SETTINGS, calibration_with, facts_of, requests_of
from workflow_scripts.catalog.gpus_and_models import get_gpu
from workflow_scripts.physics.step_time import LaunchCosts, StepCosts, single_steps
from workflow_scripts.predict.calibrated import default_speed
from workflow_scripts.predict.step_fit import FitError, fit_calibration, fit_sums, scheduled
from workflow_scripts.predict.timing import time_schedule

OWN = {"kv_bytes": 1 / 6e9, "attention_flops": 1 / 30e9, "sequences": 6e-5, "prompts": 4e-4, "requests": 2e-4}
CPU = StepCosts.of_rates(12e9, 60e9, 2e-3, overlap=False).model_copy(update=OWN)
# Requests as no point has them: more of them, and other lengths.
OTHERS = requests_of(np.random.default_rng(3).integers((4, 2), (300, 40), (40, 2)).tolist())


def fitted(record, *guide):
    return fit_calibration(record, facts_of("tiny-llama-57m"), True, *guide)


def error_pct(costs, true, model="tiny-llama-57m"):
    """Error of the wall time of `OTHERS`, and of their median TTFT."""
    schedule, work = scheduled(OTHERS, calibration_with(true, depths=()), SETTINGS, facts_of(model), not true.overlap)
    found, real = (time_schedule(schedule, work, one, OTHERS) for one in (costs, true))
    pairs = (found.wall_s, real.wall_s), (np.median(found.ttft_s), np.median(real.ttft_s))
    return [abs(100 * (a / b - 1)) for a, b in pairs]


def test_the_steps_of_a_calibration_or_what_a_client_sees_predict_other_requests():
    found = fitted(calibration_with(CPU))
    assert max(error_pct(found.costs, CPU)) < 2
    assert found.costs.overlap is False
    assert found.band.throughput == pytest.approx(1, abs=0.05)
    assert found.passes == found.measured_passes
    assert found.most["sequences"] == 16
    record = calibration_with(CPU, engine="vllm-serve", knobs={"block_size": 32})
    for start in record.starts:
        start.passes[:] = [one.model_copy(update={"step_ends_s": []}) for one in start.passes]
    assert max(error_pct(fitted(record).costs, CPU)) < 5


def steps_of(rng, costs):
    """Work of many steps, and times that scatter by 30 % around what they cost."""
    record = calibration_with(costs, depths=())
    drawn = rng.integers((4, 2), (300, 20), (60, 2)).tolist()
    rows = single_steps(scheduled(requests_of(drawn), record, SETTINGS, facts_of("tiny-llama-57m"), True)[1])
    expected = rows @ costs.seconds
    return rows, expected, expected * rng.gamma(1 / 0.3**2, 0.3**2, len(rows))


def test_slow_steps_count_as_much_as_fast_ones_and_a_disturbed_one_little():
    rows, expected, times = steps_of(np.random.default_rng(5), CPU)
    found = fit_sums(np.tile(rows, (20, 1)), np.tile(times, 20))
    # By shares of the measured times it would be 13 % less.
    assert (rows @ found.seconds).sum() == pytest.approx(times.sum(), rel=0.06)
    assert times.sum() == pytest.approx(expected.sum(), rel=0.05)
    rows, expected, _ = steps_of(np.random.default_rng(5), CPU)
    times = expected.copy()
    times[3] *= 30
    assert rows @ fit_sums(rows, times).seconds == pytest.approx(expected, rel=0.05)


def test_the_host_and_the_reads_of_huggingface_on_a_gpu_are_fitted():
    guide = default_speed(get_gpu("h200"), "bfloat16", ahead=False, rates=made_rates(4e12, 8e14, "bf16")).costs
    # A host of twice the speed, whose time depends less on the sequences, and kernels that move more.
    launch = LaunchCosts(steps=3e-3, sequences=5e-5, eager_layers=0.25e-3, ahead=False)
    device = {"activation_bytes": 2 * guide.activation_bytes, "layers": 5e-5, "steps": 0.0}
    true = guide.model_copy(update={"launch": launch, **device})
    told = {"gpu": "h200", "engine": "hf-static", "knobs": {"batch_size": 16}, "dtype": "bfloat16"}
    record = calibration_with(true, "llama-3.1-8b-instruct", noise=0.02, **told)
    found = fit_calibration(record, facts_of("llama-3.1-8b-instruct", "bfloat16"), False, guide)
    assert (found.passes, found.band.points >= 9) == (found.measured_passes, True)
    schedule, work = scheduled(OTHERS, record, SETTINGS, facts_of("llama-3.1-8b-instruct", "bfloat16"), False)
    by_default, fitted, real = (time_schedule(schedule, work, one, OTHERS).wall_s for one in (guide, found.costs, true))
    assert fitted == pytest.approx(real, rel=0.03)
    assert by_default > 1.3 * real
    assert found.costs.launch.eager_layers == pytest.approx(launch.eager_layers, rel=0.2)


def with_passes(passes):
    """The first start of a calibration alone, with these of its passes."""
    record = calibration_with(CPU)
    start = record.starts[0]
    return record.model_copy(update={"starts": [start.model_copy(update={"passes": list(passes(start.passes))})]})


UNUSABLE = {
    "of the first round": lambda: calibration_with(CPU, rounds=1),
    "of a second depth alone": lambda: with_passes(lambda passes: ()),
    "without their steps": lambda: with_passes(
        lambda passes: (one.model_copy(update={"step_ends_s": one.step_ends_s[1:]}) for one in passes)
    ),
}


@pytest.mark.parametrize("record", UNUSABLE.values(), ids=UNUSABLE)
def test_passes_that_do_not_count(record):
    with pytest.raises(FitError, match="no requests were served twice"):
        fitted(record())


def test_another_model_follows_from_two_depths_and_the_rates():
    # Rates are known within 15 %; what is left open by the steps of one model is decided by them.
    guide = StepCosts.of_rates(12e9 * 1.15, 60e9 * 0.85, 2e-3, overlap=False)
    found = fitted(calibration_with(CPU), guide)
    assert max(error_pct(found.costs, CPU, "smollm-135m")) < 15
    alone = fitted(calibration_with(CPU, depths=(1,)))
    assert error_pct(alone.costs, CPU)[0] < 2


def test_the_band_is_what_held_out_points_and_other_starts_show():
    quiet, loud = (fitted(calibration_with(CPU, noise=noise)) for noise in (0.02, 0.2))
    assert 1 < quiet.band.throughput < 1.1 < loud.band.throughput < 2
    assert quiet.band.ttft < loud.band.ttft
    steady, drifts = (fitted(calibration_with(CPU, depths=(1, 2, 1), slower=by)) for by in (1.0, 1.2))
    assert steady.band.throughput < 1.05
    assert drifts.band.throughput == pytest.approx(1.2**2, rel=0.15)
    # The costs are those of all starts together: the third is 44 % slower than the first.
    assert 15 < error_pct(drifts.costs, CPU)[0] < 30


@pytest.mark.parametrize("points", [1, 8])
def test_with_fewer_than_nine_points_there_is_no_band(points):
    few = with_passes(lambda passes: (one for one in passes if one.point < points))
    found = fitted(few)
    assert (found.band.points, found.band.throughput, found.band.ttft) == (points, None, None)
