"""The workflow from other folders: by its Snakefile, and as a module of another workflow as snakedeploy writes it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import CHECKOUT

# What `snakedeploy deploy-workflow` writes beside copies of config/ and profiles/, but for the place of the Snakefile.
DEPLOYED = f"""
configfile: "config/config.yaml"

module kvsweep:
    snakefile: "{CHECKOUT}/workflow/Snakefile"
    config: config

use rule * from kvsweep
"""


@pytest.fixture
def call(environment):
    def snakemake(folder: Path, *words: str) -> str:
        command = [sys.executable, "-m", "snakemake", "--cores", "2", *words]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return snakemake


def test_a_deployed_workflow_draws_the_report_of_the_two_gpus_in_its_folder(call, two_gpus_evidence, tmp_path):
    for name in ("config", "profiles"):
        ignored = shutil.ignore_patterns("calibration", "models", "published", "reference", "schemas")
        shutil.copytree(CHECKOUT / name, tmp_path / name, ignore=ignored)
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow/Snakefile").write_text(DEPLOYED)
    shutil.copytree(two_gpus_evidence, tmp_path / "results/two_gpus")
    call(tmp_path, "--configfile", "config/studies/two_gpus.yaml", "--", "partial_report")
    assert (tmp_path / "results/two_gpus/report.html").stat().st_size > 100_000
    assert "Nothing to be done" in call(tmp_path, "--config", "study=config/studies/two_gpus.yaml", "--", "figures")


def test_the_snakefile_runs_from_an_empty_folder_with_its_profile_and_an_own_study(call, tmp_path):
    study = (CHECKOUT / "config/studies/demo.yaml").read_text().replace("name: demo", "name: mine")
    (tmp_path / "mine.yaml").write_text(study)
    for snakefile in (CHECKOUT / "Snakefile", CHECKOUT / "workflow/Snakefile"):
        said = call(tmp_path, "-s", str(snakefile), "--dry-run", "--config", "study=mine.yaml", "--", "plan")
        assert "results/mine/plan" in said
    assert "profiles/default" in call(tmp_path, "-s", str(CHECKOUT / "Snakefile"), "--dry-run", "--", "plan")
