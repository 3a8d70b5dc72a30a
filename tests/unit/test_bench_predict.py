import pytest

from benchmarks import predict
from workflow_scripts.study.grid import expand
from workflow_scripts.study.ladders import ladders_of
from workflow_scripts.study.study_file import load_study

WHOLE = {
    "g/vllm/tiny-llama-57m/chat/a": {
        "output_tokens_per_s": 110.0,
        "output_tokens_per_s_low": 95.0,
        "output_tokens_per_s_high": 120.0,
        "ttft_s_p50": 1.0,
        "speed_source": "calibrated",
    },
    "g/vllm/smollm-135m/chat/a": {"output_tokens_per_s": 40.0, "ttft_s_p50": 1.0, "speed_source": "calibrated"},
    "g/vllm-serve/tiny-llama-57m/calls/rate2": {"output_tokens_per_s": 8.0, "ttft_s_p50": 0.12},
    "g/vllm/tiny-llama-57m/chat/refused": {"output_tokens_per_s": None},
}
VALUES = {
    "g/vllm/tiny-llama-57m/chat/a": (100.0, 2.0),
    "g/vllm/smollm-135m/chat/a": (50.0, 1.0),
    "g/vllm-serve/tiny-llama-57m/calls/rate2": (10.0, 0.1),
}


@pytest.mark.parametrize("gpus", [["cpu-1core"], ["cpu-1core", "cpu-all"]])
def test_it_is_the_demo_with_another_model(tmp_path, gpus):
    study = load_study(predict.study_file(tmp_path, gpus))
    cells = expand(study)
    assert {cell.gpu for cell in cells} == set(gpus)
    assert {cell.model for cell in cells} == {predict.MODEL, predict.OTHER}
    assert {name.split("/")[2] for name in ladders_of(study, cells)} == {predict.MODEL, predict.OTHER}


def test_it_prints_each_figure_beside_its_goal(capsys):
    cross = {"g/vllm/smollm-135m/chat/a": {"output_tokens_per_s": 55.0, "ttft_s_p50": 1.0}}
    predict.show(WHOLE, cross, VALUES)
    printed = " ".join(capsys.readouterr().out.split())
    for words in ("+10.0", "-50.0", "10.0 %, 1 of 3 cells", "100 % of 1", *predict.GOALS, "20.0 % at most, 1 cells"):
        assert words in printed
    assert predict.within_band(WHOLE, {"g/vllm/tiny-llama-57m/chat/a": (130.0, 1.0)}) == [False]
