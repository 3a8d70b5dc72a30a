"""`snakemake plan` on a study, called as a user would call it."""

import pandas as pd

from tests.unit.predict.planned import write_study


def test_a_plan_is_printed_each_time_and_kept(tmp_path, snakemake):
    study = write_study(tmp_path)
    for _ in range(2):
        said = snakemake(study, tmp_path / "results", "plan")
        assert said.returncode == 0, said.stderr
        assert "planned: 18 cells, all numbers are predicted" in said.stdout
    folder = tmp_path / "results" / "planned"
    table = pd.read_parquet(folder / "plan" / "plan.parquet")
    assert set(table["source"]) == {"predicted"}
    # Nothing but the plan is made: no model, no workload, no engine.
    assert {path.name for path in folder.iterdir()} <= {"plan", "logs"}
