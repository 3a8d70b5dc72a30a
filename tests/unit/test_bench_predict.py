import pytest

from benchmarks import predict
from workflow_scripts.study.calibrations import calibrations_of
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study_file import load_study

WHOLE = {"g/vllm/tiny-llama-57m/chat/a": {"output_tokens_per_s": 110.0, "ttft_s_p50": 1.0}}
BAND = {"output_tokens_per_s_low": 95.0, "output_tokens_per_s_high": 120.0, "speed_source": "calibrated"}


@pytest.mark.parametrize("gpus", [["cpu-1core"], ["cpu-1core", "cpu-all"]])
def test_it_is_the_demo_with_another_model(tmp_path, gpus):
    study = load_study(predict.study_file(tmp_path, gpus))
    cells = expand(study)
    assert {cell.gpu for cell in cells} == set(gpus)
    assert {cell.model for cell in cells} == {predict.MODEL, predict.OTHER}
    assert {name.split("/")[2] for name in calibrations_of(study, cells)} == {predict.MODEL, predict.OTHER}


@pytest.mark.parametrize(("measured", "within"), [(100.0, True), (130.0, False)])
def test_a_band_holds_what_was_measured_or_not(measured, within):
    (cell, predicted), *_ = WHOLE.items()
    assert predict.within_band({cell: predicted | BAND}, {cell: (measured, 2.0)}) == [within]
