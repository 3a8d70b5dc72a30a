"""GPUs that are not in the catalogue, in every place that takes one."""

import json

import pytest
import yaml

from workflow_scripts.catalog.gpus_and_models import CONFIG, get_gpu, get_model
from workflow_scripts.engines.vllm.capacity import main as capacity
from workflow_scripts.physics.model_facts import read_model_facts
from workflow_scripts.predict.predictions import predict_cells
from workflow_scripts.questions.claims.audit import main as audit
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study import StudyError
from workflow_scripts.study.study_file import load_study

NUMBERS = ["--gpu-memory-gib=32", "--bandwidth-tb-s=1.79", "--tflops=209"]
MODEL = ["--model", "llama-3.1-8b-instruct"]
SIZES = ["--block-size=16", "--gpu-memory-utilization=0.9", "--max-model-len=4096", "--json"]


def test_capacity_of_a_gpu_by_its_memory(capsys):
    assert capacity([*MODEL, NUMBERS[0], *SIZES]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["gpu"], record["budget"]["value"]) == ("own-gpu", pytest.approx(0.9 * 32 * 2**30))


@pytest.mark.parametrize(
    ("text", "options"), [("c,tok/s\n1,900\n", []), ("GPU,c,tok/s\nMy card,1,900\n", ["--gpu=My card"])]
)
def test_audit_by_the_bandwidth(text, options, tmp_path, capsys):
    table = tmp_path / "rates.csv"
    table.write_text(text)
    assert audit([str(table), *MODEL, "--tokens-per-request=200,200", *NUMBERS, *options, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    weights = read_model_facts(get_model(MODEL[1]).config).decode_weight_bytes
    assert row["predicted_ceiling_tokens_per_s"] == pytest.approx(2 * 1.79e12 / weights, rel=0.01)


def test_a_study_has_its_own(tmp_path):
    study = yaml.safe_load((CONFIG / "studies/paged_attention.yaml").read_text())
    sweep = {"name": "one", "gpu": ["mine", "rtx5090"], "engine": "vllm", "model": MODEL[1], "workload": "one"}
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


@pytest.mark.parametrize(
    ("words", "message"),
    [([], "give --gpu, a name in config/gpus.yaml, or --gpu-memory-gib"), (NUMBERS[1:], "with --gpu-memory-gib")],
)
def test_a_gpu_that_is_not_described_is_refused(words, message, capsys):
    assert capacity([*MODEL, *SIZES, *words]) == 2
    assert message in capsys.readouterr().err
    for value in ("0", "-1", "nan", "inf", "x"):
        with pytest.raises(SystemExit, match="2"):
            capacity([*MODEL, *SIZES, f"--gpu-memory-gib={value}"])
