"""The workflow from other folders: by its Snakefile, and as a module of the workflow that snakedeploy writes."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import CHECKOUT
from tests.integration.installing import run, uv

HOSTED = "https://github.com/kvsweep/kvsweep"


@pytest.fixture
def call(environment):
    def snakemake(folder: Path, *words: str) -> str:
        command = [sys.executable, "-m", "snakemake", "--cores", "2", *words]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return snakemake


def test_snakedeploy_writes_a_workflow_that_draws_the_report_of_the_two_gpus(
    call, two_gpus_evidence, environment, monkeypatch, tmp_path
):
    # The last commit of this checkout, instead of a repository of the network.
    settings = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{CHECKOUT}.insteadOf", "GIT_CONFIG_VALUE_0": HOSTED}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(environment, name, value)
    commit = run("git", "rev-parse", "HEAD").strip()
    words = ("deploy-workflow", HOSTED, tmp_path / "mine", "--commit", commit)
    uv("tool", "run", "--from", "snakedeploy==0.17.1", "snakedeploy", *words)
    shutil.copytree(two_gpus_evidence, tmp_path / "mine/results/two_gpus")
    call(tmp_path / "mine", "--configfile", "config/studies/two_gpus.yaml", "--", "partial_report")
    assert (tmp_path / "mine/results/two_gpus/report.html").stat().st_size > 100_000
    again = call(tmp_path / "mine", "--config", "study=config/studies/two_gpus.yaml", "--", "figures")
    assert "Nothing to be done" in again


def test_the_snakefile_runs_from_an_empty_folder_with_its_profile_and_an_own_study(call, tmp_path):
    study = (CHECKOUT / "config/studies/demo.yaml").read_text().replace("name: demo", "name: mine")
    (tmp_path / "mine.yaml").write_text(study)
    for snakefile in (CHECKOUT / "Snakefile", CHECKOUT / "workflow/Snakefile"):
        said = call(tmp_path, "-s", str(snakefile), "--dry-run", "--config", "study=mine.yaml", "--", "plan")
        assert "results/mine/plan" in said
    assert "profiles/default" in call(tmp_path, "-s", str(CHECKOUT / "Snakefile"), "--dry-run", "--", "plan")
