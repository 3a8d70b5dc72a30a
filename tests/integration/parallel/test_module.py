"""The workflow from other folders: by its Snakefile, and as a module of the workflow that snakedeploy writes."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.integration.conftest import CHECKOUT


@pytest.fixture
def call(environment):
    def snakemake(folder: Path, *words: str) -> str:
        command = [sys.executable, "-m", "snakemake", "--cores", "2", *words]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return snakemake


def test_snakedeploy_writes_a_workflow_that_draws_the_report_of_the_two_gpus(call, two_gpus):
    """Other tests read what it has drawn."""
    mine = two_gpus.parents[1]
    assert {path.name for path in mine.iterdir()} & {"workflow", "rules", "workflow_scripts"} == {"workflow"}
    assert (two_gpus / "report.html").stat().st_size > 100_000
    again = call(mine, "--config", "study=config/studies/two_gpus.yaml", "partial=1", "--", "figures")
    assert "Nothing to be done" in again


def test_the_snakefile_plans_from_an_empty_folder_with_its_profile_and_an_own_study(call, tmp_path):
    study = (CHECKOUT / "config/studies/demo.yaml").read_text().replace("name: demo", "name: mine")
    (tmp_path / "mine.yaml").write_text(study)
    for snakefile in (CHECKOUT / "Snakefile", CHECKOUT / "workflow/Snakefile"):  # the second prints what the first made
        said = call(tmp_path, "-s", str(snakefile), "--config", "study=mine.yaml", "--", "plan")
        assert "mine: 11 cells, all numbers are predicted" in said
    plan = pd.read_parquet(tmp_path / "results/mine/plan/plan.parquet")
    assert set(plan["source"]) == {"predicted"}
    # Nothing but the plan is made: no model, no workload, no engine.
    assert {path.name for path in (tmp_path / "results/mine").iterdir()} <= {"plan", "logs"}
    assert "profiles/default" in call(tmp_path, "-s", str(CHECKOUT / "Snakefile"), "--dry-run", "--", "plan")
