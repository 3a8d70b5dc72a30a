"""A study that measures only the cells that can change its answer, run from its file to its report."""

import re

import pandas as pd
import pytest

from tests.unit.made_studies import fixed
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.rounds import last_plan

pytestmark = pytest.mark.timeout(1200)


def test_some_cells_are_measured_the_others_predicted_and_nothing_again(tmp_path, snakemake, write_study):
    sweep = {"name": "grid", "gpu": "cpu-all", "engine": "vllm", "model": "tiny-llama-57m", "workload": "short"}
    study = write_study(
        tmp_path,
        sweeps=[sweep | {"knobs": {"block_size": [32, 64], "max_num_seqs": [1, 2, 4, 8, 16]}}],
        workloads={"short": fixed(32, 8, 4)},
        repeats=1,
        # So wide that the fastest cells of a machine under load are as good as each other.
        equivalence_margin_pct=50,
        measure={"decide": ["recommendation"]},
    )
    results = tmp_path / "results"
    done = snakemake(study, results)
    assert done.returncode == 0, done.stderr
    paths = StudyPaths(results, "small")
    plan = last_plan(paths)
    assert plan.ended
    assert (plan.asked, plan.questions) == (1, ())

    estimates = pd.read_parquet(paths.tables / "estimates.parquet").set_index("cell_id")
    measured = estimates["measured"].notna()
    assert set(estimates.index[measured]) == {cell for cell in estimates.index if paths.outcome(cell).exists()}
    assert 4 <= measured.sum() < len(estimates) == 10
    assert (estimates["state"] == "check").sum() == 3
    assert set(estimates.loc[~measured, "state"]) == {"predicted"}
    assert (estimates["low"] < estimates["high"]).all()
    (question,) = pd.read_parquet(paths.tables / "questions.parquet").to_dict("records")
    assert question["is_answered"]
    assert measured[question["answer"]]
    page = paths.report.read_text(encoding="utf-8")
    assert f"{(~measured).sum()} predicted within" in page
    assert 'id="measured-or-predicted"' in page

    again = snakemake(study, results, "--dry-run")
    assert again.returncode == 0, again.stderr
    assert not re.search(r"^(?:local)?(?:rule|checkpoint) \w+:$", again.stdout + again.stderr, re.MULTILINE)
