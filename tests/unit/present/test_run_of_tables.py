"""A run: what it holds of the tables."""

import math
from collections import Counter

import pandas as pd
import pytest

from tests.unit.present.synthetic import SCRIPT, STUDY, cells_table, write_study
from workflow_scripts.questions.compare.run import read_run, run_of
from workflow_scripts.statistics.variation import known_elsewhere
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.measurements import joined, read_measurements, split


@pytest.fixture(scope="module")
def run(synthetic):
    return read_run(synthetic)


@pytest.fixture
def cells(synthetic):
    return read_measurements(synthetic / "tables")


def test_every_cell_is_there_with_what_it_measured(run, cells):
    assert [cell.id for cell in run.cells] == list(cells["cell_id"].drop_duplicates())
    assert Counter(cell.outcome for cell in run.cells) == Counter(cells.drop_duplicates("cell_id")["outcome"])
    rates = cells[cells["outcome"] == "ok"].groupby("cell_id")["output_tokens_per_s"]
    known = known_elsewhere(is_cpu=False)
    for cell in run.cells:
        if cell.outcome != "ok":
            assert cell.means == []
            continue
        measures = {mean.measure: mean for mean in cell.means}
        others = {"ttft_s_p50", "tpot_s_p50", "energy_j_per_output_token"}
        if "/vllm-serve/" in cell.id:
            # Requests arrive at a rate, so the throughput is that rate.
            assert set(measures) <= others
            continue
        assert set(measures) <= {"output_tokens_per_s", *others}
        mean = measures["output_tokens_per_s"]
        logs = rates.get_group(cell.id).astype(float).map(math.log)
        assert mean.log_mean == pytest.approx(logs.mean())
        # A single start varies as in other studies, and its round and repeats vary too.
        expected = (known.starts**2, known.rounds**2, logs.var() / 3)
        assert sum(expected) < mean.squared_error < 30 * sum(expected)
        assert 0 < mean.df < 30


def test_it_says_what_was_asked_and_with_what_it_was_measured(run):
    cell = next(cell for cell in run.cells if cell.outcome == "infeasible")
    assert SCRIPT in str(cell.reason)
    assert cell.content["workload"]["name"] in STUDY["workloads"]  # type: ignore[index,call-overload]
    assert "knobs" not in cell.content
    assert cell.environment["host"] == ["node-1"]
    assert (run.study, run.margin_pct) == ("synthetic", 2)


def test_a_start_by_an_earlier_definition_says_nothing_of_how_a_cell_was_measured(tmp_path):
    study = load_study(write_study(tmp_path))
    cells = cells_table(study)
    ok = cells[cells["outcome"] == "ok"]
    place = ok.index[ok["cell_id"] == ok["cell_id"].iloc[0]][0]
    before = ok.loc[[place]].assign(start=2, comparable=False, protocol="0", started_at="2020-01-01T00:00:00+00:00")

    def cell_of(rows: pd.DataFrame) -> tuple[object, ...]:
        found = run_of(joined(**split(rows)), tmp_path)
        cell = next(cell for cell in found.cells if cell.id == ok.loc[place, "cell_id"])
        return cell.comparable, cell.began, cell.environment

    assert cell_of(pd.concat([before, cells], ignore_index=True)) == cell_of(cells)
