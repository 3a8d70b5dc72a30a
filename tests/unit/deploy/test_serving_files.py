"""How to serve a promised setting: each file is checked with what its reader accepts."""

import shutil
import subprocess

import pytest

from tests.unit.deploy.promises import deployment, on_cpu, promise
from workflow_scripts.deploy.export import written
from workflow_scripts.study.study import StudyError


@pytest.fixture
def cpu(tmp_path):
    return deployment(tmp_path, on_cpu())


def test_the_slurm_job_serves_with_the_file_and_needs_a_key(cpu, tmp_path):
    vllm = tmp_path / "vllm"
    vllm.write_text('#!/bin/sh\necho "$VLLM_CPU_KVCACHE_SPACE" "$@"\n')
    vllm.chmod(0o755)
    script = tmp_path / "serve.sbatch"
    script.write_text(written("serve.sbatch", cpu))
    bash = shutil.which("bash")
    assert bash
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "VLLM_API_KEY": "key"}
    done = subprocess.run([bash, script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "1 serve --config results/promised/deploy/vllm.yaml --port 8000"
    keyless = subprocess.run([bash, script], env={"PATH": environment["PATH"]}, capture_output=True, text=True)
    assert keyless.returncode != 0
    assert "VLLM_API_KEY: set a key" in keyless.stderr


def test_a_promise_of_another_grid_is_refused(tmp_path):
    with pytest.raises(StudyError, match="study 'promised' has no cell 'h200/vllm/other'"):
        deployment(tmp_path, promise(cell_id="h200/vllm/other"))
