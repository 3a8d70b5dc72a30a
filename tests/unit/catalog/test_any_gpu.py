"""GPUs that are not in the catalogue."""

import pytest
import yaml

from workflow_scripts.catalog.gpus_and_models import CONFIG, get_gpu
from workflow_scripts.predict.predictions import predict_cells
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study import StudyError
from workflow_scripts.study.study_file import load_study


def test_a_study_has_its_own(tmp_path):
    study = yaml.safe_load((CONFIG / "studies/paged_attention.yaml").read_text())
    sweep = {
        "name": "one",
        "gpu": ["mine", "rtx5090"],
        "engine": "vllm",
        "model": "llama-3.1-8b-instruct",
        "workload": "one",
    }
    study |= {"gpus": {"mine": {"memory_gib": 32, "bandwidth_tb_s": 1.79, "tflops": 209}}, "claims": []}
    workload = {"kind": "fixed", "num_prompts": 300, "prompt_tokens": 100, "output_tokens": 20}
    study |= {"workloads": {"one": workload}, "sweeps": [sweep | {"knobs": {"max_num_seqs": 1, "max_model_len": 4096}}]}
    study.pop("engine_defaults", None)
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(study))
    loaded = load_study(path)
    own, known = (record.output_tokens_per_s for record in predict_cells(loaded, expand(loaded), None, tmp_path))
    assert own.value == pytest.approx(known.value, rel=0.01)
    assert not get_gpu("mine").is_called("NVIDIA H200")
    path.write_text(yaml.safe_dump(study | {"gpus": {"h200": {"memory_gib": 1}}}))
    with pytest.raises(StudyError, match=r"gpus.h200: config/gpus.yaml has a GPU of this name"):
        load_study(path)
    path.write_text(yaml.safe_dump(study | {"gpus": {"mine": {"memory_gib": 0}}}))
    with pytest.raises(StudyError, match=r"gpus.mine.memory_gib: .*greater than 0"):
        load_study(path)
