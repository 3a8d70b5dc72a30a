"""Rounds of a study with `measure`, from its first decision to its last."""

import math
from collections.abc import Collection
from pathlib import Path

import pandas as pd
import pytest

from tests.unit.questions.measured_study import SECONDS, MeasuredStudy
from workflow_scripts.predict.prediction_record import FIELDS, Band, Prediction
from workflow_scripts.questions.choose.choose_cells import ALL_ANSWERED, HOURS_SPENT, estimates_and_questions
from workflow_scripts.questions.choose.estimate_tables import main as table_estimates
from workflow_scripts.questions.choose.estimates import check_cells
from workflow_scripts.study.grid import Cell
from workflow_scripts.study.rounds import RoundPlan
from workflow_scripts.tables.measurements import write_measurements

MOST_ROUNDS = 30


def predicted_rate(one: Cell) -> float:
    return 100 * one.knobs.max_num_seqs**0.8


class Grid(MeasuredStudy):
    """A grid of 18 cells, whose rate grows with max-num-seqs and does not depend on the block size, as predicted, with
    0.5 % noise."""

    def __init__(self, folder: Path, gpu: str | list[str] = "h200", **changes: object) -> None:
        knobs = {"block_size": [16, 32, 64], "max_num_seqs": [4, 8, 16, 32, 64, 128]}
        known = {"equivalence_margin_pct": 10.0, "starts": {"at_least": 2, "at_most": 2}, "measure": {}}
        super().__init__(folder, knobs, self.noisy, gpu, **known | changes)
        rows = [
            Prediction(
                *(one.id, one.gpu, one.engine, one.model, one.workload, one.knobs.slug()),
                output_tokens_per_s=Band(rate := predicted_rate(one), rate / 1.1, rate * 1.1),
                preemptions=0,
                cell_s=SECONDS,
                gpus=1,
            ).row()
            for one in self.cells.values()
        ]
        self.predicted = pd.DataFrame(rows, columns=list(FIELDS))
        self.check = check_cells(self.predicted, 10, "try")

    def noisy(self, one: Cell, start: int) -> float:
        return predicted_rate(one) * math.exp(0.005 * (-1) ** (list(self.cells).index(one.id) + start))

    def run(self, gpus: Collection[str] = ("h200",)) -> list[RoundPlan]:
        """All rounds on a machine with these devices, until measuring ends there."""
        plans = [self.decide(1, gpus=gpus)]
        while not plans[-1].ended and len(plans) < MOST_ROUNDS:
            self.end(plans[-1].starts, plans[-1].round)
            plans.append(self.decide(len(plans) + 1, plans[-1], gpus))
        return plans


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A grid of which everything was measured that its questions need, and the plans of its rounds."""
    grid = Grid(tmp_path_factory.mktemp("finished"))
    return grid, grid.run()


def test_fewer_cells_are_measured_until_every_question_is_answered(finished):
    grid, plans = finished
    assert set(grid.check) <= {start.cell for start in plans[0].starts}
    assert (plans[-1].ended, plans[-1].starts, plans[-1].questions) == (ALL_ANSWERED, (), ())
    # One setting to serve with, and what each of two knobs changes.
    assert {plan.asked for plan in plans} == {3}
    assert set(grid.started().values()) == {2}
    assert set(grid.check) < set(grid.started())
    assert len(grid.started()) < len(grid.cells)
    # The same again decides the same: nothing is measured by another call.
    assert grid.decide(len(plans)).ended == ALL_ANSWERED


def test_the_tables_say_what_was_measured_and_what_each_question_is_answered_by(tmp_path, finished):
    grid, _ = finished
    grid.predicted.to_parquet(tmp_path / "plan.parquet")
    write_measurements(grid.table(), tmp_path)
    named = {"study": grid.file, "plan": tmp_path / "plan.parquet", "tables": tmp_path}
    named |= {"out": tmp_path / "estimates.parquet", "questions-out": tmp_path / "questions.parquet"}
    assert table_estimates([str(word) for name, path in named.items() for word in (f"--{name}", path)]) == 0
    estimates = pd.read_parquet(tmp_path / "estimates.parquet").set_index("cell_id")
    measured = set(grid.started())
    assert set(estimates.index[estimates["measured"].notna()]) == measured
    assert set(estimates.index[estimates["state"] == "predicted"]) == set(grid.cells) - measured
    assert set(estimates.index[estimates["state"] == "check"]) == set(grid.check)
    assert set(estimates.index[estimates["error_pct"].notna()]) == set(grid.check)
    assert estimates["error_pct"].abs().max() < 5
    rates = estimates.index.to_series().map(lambda name: predicted_rate(grid.cells[name]))
    assert estimates["measured"].dropna().to_dict() == pytest.approx(rates[list(measured)].to_dict(), rel=0.006)
    others = estimates["state"] == "predicted"
    assert rates[others].between(estimates.loc[others, "low"], estimates.loc[others, "high"]).all()
    questions = pd.read_parquet(tmp_path / "questions.parquet").set_index(["kind", "subject"])
    assert questions["is_answered"].all()
    assert questions.loc[("knobs", "max_num_seqs"), "answer"] == "changes"
    assert questions.loc[("knobs", "block_size"), "answer"] == "flat"
    assert grid.cells[questions.loc["recommendation", "answer"].item()].knobs.max_num_seqs == 128


def test_measuring_ends_with_the_device_hours_and_says_what_is_open(tmp_path):
    grid = Grid(tmp_path, measure={"device_hours": 4 * SECONDS / 3600})
    plans = grid.run()
    assert (plans[-1].ended, plans[-1].starts) == (HOURS_SPENT, ())
    assert plans[-1].spent_s >= 4 * SECONDS
    assert 0 < len(plans[-1].questions) <= plans[-1].asked
    # Only the questions that are named are asked.
    assert Grid(tmp_path, measure={"decide": ["recommendation"]}).decide(1).asked == 1


def test_a_cell_that_failed_is_not_started_again_by_the_same_call(tmp_path):
    grid = Grid(tmp_path)
    first = grid.decide(1)
    lost, *_ = grid.check
    grid.end([start for start in first.starts if start.cell != lost], first.round)
    second = grid.decide(2, first)
    assert second.failed == (lost,)
    assert lost not in {start.cell for start in second.starts}
    assert lost in {start.cell for start in grid.decide(2).starts}  # by another call it is


def test_each_machine_measures_the_cells_of_its_devices_until_both_have_answered(tmp_path):
    grid = Grid(tmp_path, ["h200", "l40s"])
    for place, gpu in enumerate(("h200", "l40s")):
        plans = grid.run([gpu])
        started = {grid.cells[start.cell].gpu for plan in plans for start in plan.starts}
        assert started == {gpu}
        assert plans[-1].ended
        # One setting to serve with and two knobs for each device, and their ratio.
        assert plans[-1].asked == 7
        assert bool(plans[-1].questions) == (place == 0)
    assert plans[-1].ended == ALL_ANSWERED
    assert len(grid.started()) < len(grid.cells)


def test_runs_that_were_measured_elsewhere_change_no_estimate(finished):
    grid, _ = finished
    own = grid.table()
    elsewhere = {"source": "imported", "workload": "sharegpt", "knob_gpu_memory_utilization": 0.8}
    rows = own.assign(cell_id="imported/" + own["cell_id"], outcome="ok", output_tokens_per_s=9.0, **elsewhere)
    (alone, asked, check), (beside, asked_beside, check_beside) = (
        estimates_and_questions(grid.study, grid.study.measure, grid.predicted, table)
        for table in (own, pd.concat([own, rows], ignore_index=True))
    )
    pd.testing.assert_frame_equal(beside.table, alone.table)
    assert [(q.subject, q.answer) for q in asked_beside] == [(q.subject, q.answer) for q in asked]
    assert check_beside == check
