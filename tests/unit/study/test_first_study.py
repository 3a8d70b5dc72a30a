"""`kvsweep init` writes a study for the GPUs that NVML finds, which `kvsweep check` takes."""

import re

import pytest

from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.engines import description
from workflow_scripts.predict.predictions import predict_study
from workflow_scripts.study import first_study
from workflow_scripts.study.check import main as check
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study_file import load_study

NAMED = {gpu: facts.nvml_names[0].replace("(NVIDIA )?", "") for gpu, facts in load_gpus().items() if facts.nvml_names}


OTHER, TWO = ["NVIDIA Unknown"], ["NVIDIA H200"] * 2


@pytest.mark.parametrize(("here", "gpu"), [([], "cpu-all"), (OTHER, "cpu-all"), (TWO, "h200")])
def test_the_study_is_for_what_is_here_and_passes_the_check(here, gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(first_study, "gpus_here", lambda: here)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.yaml"
    assert first_study.main([str(path)]) == 0
    said = capsys.readouterr().out
    assert ("note: NVIDIA Unknown" in said) == (here == OTHER)
    # From a folder without it, the Snakefile is named.
    assert f"snakemake -s {CHECKOUT}/Snakefile --cores all --configfile" in said
    capsys.readouterr()
    assert check([str(path)]) == 0
    assert "note" not in capsys.readouterr().out
    monkeypatch.setattr(description, "installed_version", lambda package: None)
    assert check([str(path)]) == 0
    (note,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("note: vllm"))
    assert f"ENV={'cpu' if gpu == 'cpu-all' else 'cuda'}" in note
    study = load_study(path)
    assert (study.name, {cell.gpu for cell in expand(study)}) == ("mine", {gpu})
    before = path.read_bytes()
    assert (first_study.main([str(path)]), first_study.main([str(tmp_path / "a b.yaml")])) == (2, 2)
    assert path.read_bytes() == before
    assert not (tmp_path / "a b.yaml").exists()


def test_the_complete_study_of_the_readme_passes_the_check(tmp_path, capsys):
    (text,) = re.findall(r"```yaml\n(.*?)```", (CHECKOUT / "README.md").read_text(), re.DOTALL)
    path = tmp_path / "my-study.yaml"
    path.write_text(text)
    assert check([str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{path}: 9 cells on h200"]


@pytest.mark.parametrize("gpu", NAMED)
def test_its_model_fits_every_gpu_of_the_catalogue(gpu, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(first_study.first_study("mine", [NAMED[gpu]]))
    cells = expand(load_study(path))
    assert {cell.gpu for cell in cells} == {gpu}
    assert [one.value("feasible") for one in predict_study(cells)] == [True] * 12


WORKLOAD = "{kind: fixed, num_prompts: 4, prompt_tokens: 16, output_tokens: 8}"
STUDY = """
schema_version: 1
name: doubtful
question: Does it?
workloads: {{short: {workload}}}
models: {{tiny-llama-57m: {{load_format: dummy}}}}
engine_defaults: {{vllm: {{max_model_len: {length}}}}}
sweeps: [{{name: one, gpu: {gpu}, engine: vllm, model: tiny-llama-57m, workload: short, knobs: {{{knobs}}}}}]
"""


@pytest.mark.parametrize(
    ("changed", "noted"),
    [
        ({}, None),
        ({"knobs": "max_num_seqs: [1, 16]"}, ("short", "4 requests", "32")),
        ({"length": "4096"}, ("tiny-llama-57m", "4096", "2048")),
        ({"length": "64, cpu_kv_cache_gib: 1", "gpu": "h200"}, ("cpu_kv_cache_gib", "CPU")),
        ({"knobs": "block_size: [16], max_num_seqs: [1, 2]"}, ("one", "block_size")),
    ],
)
def test_a_study_that_cannot_show_its_answer_is_told_so(changed, noted, tmp_path, capsys):
    path = tmp_path / "doubtful.yaml"
    values = {"workload": WORKLOAD, "length": "64", "gpu": "cpu-all", "knobs": "max_num_seqs: [1, 2]"} | changed
    path.write_text(STUDY.format(**values))
    assert check([str(path)]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert len(notes) == (noted is not None)
    assert all(word in notes[0] for word in noted or ())
