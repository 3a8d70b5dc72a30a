from dataclasses import replace

import numpy as np
import pytest

from benchmarks.replay import Grid, compared, replay, synthetic, truth_of
from tests.unit.analyse.choose.small_grid import IDS, POINTS, cells, law, plan
from workflow_scripts.analyse.choose.estimates import estimate
from workflow_scripts.analyse.choose.questions import ask
from workflow_scripts.predict.prediction_record import FIELDS


def test_the_synthetic_grid_has_surprises_that_its_plan_does_not_have():
    grid = synthetic(*map(np.random.default_rng, (1, 2)))
    assert (len(grid.plan), tuple(grid.plan.columns)) == (700, FIELDS)
    rates = truth_of(grid).rates.reindex(grid.plan["cell_id"]).to_numpy()
    error = rates - np.log(grid.plan["output_tokens_per_s"].to_numpy())
    assert np.median(np.abs(error)) < 0.1
    assert (error < np.median(error) - 0.1).mean() > 0.03
    assert set(grid.plan["preemptions"]) == {0}
    assert 0 < (grid.cells["preemptions"] > 0).mean() < 0.05


@pytest.fixture(scope="module")
def small():
    def rate(point):
        return law(point) * (0.7 if point[0] == "l40s" and point[2] == 8 else 1.0)

    grid = Grid(plan(), cells(POINTS, rate), 5.0, 5, 2)
    return grid, truth_of(grid)


def test_the_truth_is_what_the_tables_say(small):
    _, truth = small
    verdicts = {(place.split(",")[0], knob): verdict for (place, knob), verdict in truth.verdicts.items()}
    assert verdicts == {
        ("h200", "block_size"): "flat",
        ("l40s", "block_size"): "changes",
        ("h200", "max_num_seqs"): "changes",
        ("l40s", "max_num_seqs"): "changes",
    }
    assert [round(np.exp(ratio), 1) for ratio in truth.ratios.values()] == [4.5]


def test_a_replay_measures_a_part_and_answers_like_the_whole(small):
    replayed = replay(*small, seed=1, time_share=1.0)
    assert replayed.all_same
    assert (replayed.wrong, replayed.answered) == (0, replayed.asked)
    assert replayed.time_share < 1
    without_time = replay(*small, seed=1, time_share=0.0)
    assert (without_time.rounds, without_time.all_same) == (0, False)


def test_a_shown_answer_that_contradicts_the_tables_is_wrong(small):
    grid, truth = small
    estimates = estimate(grid.plan, grid.cells, ())
    questions = ask(estimates, grid.plan, grid.cells, grid.margin_pct)
    assert compared(grid, truth, questions, estimates, 1.0, 0, 0.0).wrong == 0
    slow = IDS["l40s", 1, 8]
    false = [
        replace(q, answer={"recommendation": slow, "knobs": "flat"}.get(q.kind, ""), values=q.values + 0.1)
        for q in questions
        if "l40s" in q.place + q.subject
    ]
    found = compared(grid, truth, false, estimates, 1.0, 0, 0.0)
    assert (found.wrong, len(false)) == (4, 4)
    assert set(found.same.values()) == {0.0}
