"""A cell in another environment: one that cannot be imported, and the same one once it works."""

import subprocess
import sys

from tests.integration.conftest import CHECKOUT, SHORT, STUDY, outcome_of
from workflow_scripts.study.outcome import read_outcome

NAME = "vllm-0.25.1"


def test_a_cell_ends_with_the_reason_and_is_measured_once_its_environment_works(
    tmp_path, monkeypatch, environment, snakemake, write_study
):
    python = tmp_path / f".venv-{NAME}-cpu/bin/python"
    python.parent.mkdir(parents=True)
    # Without site-packages there is no engine to import.
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o700)
    monkeypatch.setitem(environment, "KVSWEEP_ENVIRONMENTS", str(tmp_path))
    cell, results = SHORT.replace("/vllm/", f"/vllm@{NAME}/"), tmp_path / "results"
    place = {**STUDY["sweeps"][0], "environment": NAME, "gpu": "cpu-all"}
    study = write_study(tmp_path, sweeps=[place], cell_time_limit_s=600)
    (tmp_path / "asked").mkdir()
    done = snakemake(study, results, str(outcome_of(results, cell)))
    assert done.returncode == 0, done.stderr
    broken = read_outcome(outcome_of(results, cell))
    assert (broken.outcome, broken.phases_s, broken.provenance["engine_version"]) == ("invalid", {}, None)
    assert "ModuleNotFoundError" in (broken.reason or "")

    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')

    def kvsweep(*command: str) -> "subprocess.CompletedProcess[str]":
        words = [sys.executable, "-m", "workflow_scripts", *command]
        return subprocess.run(words, cwd=CHECKOUT, env=environment, capture_output=True, text=True)

    # The environment's own Python is asked.
    asked = write_study(tmp_path / "asked", sweeps=[{**place, "knobs": {"tensor_parallel_size": [1, 3]}}])
    checked = kvsweep("check-engines", "--study", str(asked))
    assert checked.returncode == 2, checked.stdout
    assert "tensor_parallel_size=3: " in checked.stderr
    command = ["measure-cell", "--study", str(study), "--results", str(results), "--cell", cell]
    again = kvsweep(*command)
    assert again.returncode == 0, again.stderr
    measured = read_outcome(outcome_of(results, cell))
    assert (measured.outcome, measured.start.start, measured.cell_id) == ("ok", 1, cell)
    assert measured.definition["environment"] == NAME
    # As the Python says that ran, whatever the environment is called.
    assert str(measured.provenance["engine_version"]).startswith("vllm")
    assert measured.provenance["lock"] is None
