import pytest

from tests.unit.predict.climbed import HERE, climbed
from workflow_scripts.catalog.gpus_and_models import get_gpu
from workflow_scripts.physics.step_time import StepCosts
from workflow_scripts.predict.calibrated import Wanted, speed_for

COSTS = StepCosts(weight_bytes=1 / 12e9, kv_bytes=1 / 6e9, matrix_flops=1 / 60e9, sequences=1e-4, overlap=False)
OWN = "cpu-1core/vllm/tiny-llama-57m/eager1.json"


def wanted(**changes):
    values = {
        "gpu": get_gpu("cpu-1core"),
        "device": HERE,
        "rates": None,
        "engine": "vllm",
        "model": "tiny-llama-57m",
        "dtype": "float32",
        "variant": "eager1",
        **changes,
    }
    return Wanted(**values)


def written(folder, name=OWN, record=None, **changes):
    (record or climbed(COSTS, **changes)).write(folder / name)
    return folder


def test_the_ladder_of_the_device_goes_before_a_project_file(tmp_path):
    ladders, project = written(tmp_path / "ladders"), written(tmp_path / "project", host="elsewhere")
    speed = speed_for(wanted(), ladders, project)
    assert (speed.source, speed.error_pct, speed.ttft_error_pct) == ("calibrated", 10, 10)
    assert "steps of tiny-llama-57m in float32, vllm 1, on here, today" in speed.how
    assert speed_for(wanted(), tmp_path / "none", project).source == "project file"
    assert speed_for(wanted(), None, tmp_path / "none") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"device": {**HERE, "processor": "another CPU"}},
        {"device": {**HERE, "cores": [0, 1]}},
        {"engine": "hf-static"},
        {"variant": "default"},
        {"gpu": get_gpu("cpu-all")},
    ],
    ids=["processor", "cores", "engine", "kernels", "name"],
)
def test_a_ladder_serves_nothing_that_it_was_not_climbed_for(tmp_path, changes):
    assert speed_for(wanted(**changes), written(tmp_path), tmp_path / "none") is None


def test_one_of_another_protocol_is_not_used(tmp_path):
    assert speed_for(wanted(), written(tmp_path, protocol=0), tmp_path / "none") is None


def test_another_model_of_the_device_is_used_without_a_band_and_said_so(tmp_path):
    speed = speed_for(wanted(model="smollm-135m", dtype="bfloat16"), written(tmp_path), tmp_path / "none")
    assert (speed.source, speed.error_pct, speed.ttft_error_pct) == ("calibrated", None, None)
    assert speed.how.startswith("uncalibrated for this: fitted to")
    assert speed.how.endswith("which is another model tiny-llama-57m and type float32")


def test_another_card_of_the_type_is_named(tmp_path):
    card = {"name": "NVIDIA H200", "uuid": "GPU-1", "driver_version": "580"}
    record = climbed(COSTS.model_copy(update={"overlap": True}), gpu="h200", device=card)
    ladders = written(tmp_path, "h200/vllm/tiny-llama-57m/eager1.json", record)
    here = wanted(gpu=get_gpu("h200"), device=card)
    assert "of this type's" not in speed_for(here, ladders, tmp_path / "none").how
    other = speed_for(wanted(gpu=get_gpu("h200"), device={**card, "uuid": "GPU-2"}), ladders, tmp_path / "none")
    assert (other.source, "of this type's NVIDIA H200 GPU-1, driver 580" in other.how) == ("calibrated", True)


def test_a_ladder_on_which_the_engine_broke_leaves_the_rates_and_says_so(tmp_path):
    broken = climbed(COSTS, depths=()).model_copy(update={"failure": "no memory", "gpu": "h200"})
    ladders = written(tmp_path, "h200/vllm/tiny-llama-57m/eager1.json", broken)
    speed = speed_for(wanted(gpu=get_gpu("h200"), device={}), ladders, tmp_path / "none")
    assert speed.source == "data sheet"
    assert speed.how.endswith("; its ladder has no steps: no memory")
