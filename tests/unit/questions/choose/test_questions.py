import math
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.questions.choose.small_grid import IDS, POINTS, cells, law, plan
from workflow_scripts.questions.choose.estimates import estimate
from workflow_scripts.questions.choose.open_questions import DEVICES, KNOBS, MEMORY, RECOMMENDATION, ask
from workflow_scripts.questions.knobs.table import knob_effects
from workflow_scripts.questions.recommendations.table import recommendations

MARGIN_PCT = 5.0


def slow_block(point):
    return law(point) * (0.6 if point[0] == "l40s" and point[2] == 8 else 1.0)


def asked(whole, table, check=(), **options):
    return ask(estimate(whole, table, check), whole, table, MARGIN_PCT, **options)


def of(questions, kind):
    return {(q.place.split(",")[0], q.subject): q for q in questions if q.kind == kind}


def test_a_whole_grid_has_the_verdicts_and_recommendations_of_the_tables():
    table = cells(POINTS, slow_block)
    questions = asked(plan(), table)
    verdicts = {(place, knob): q.answer for (place, knob), q in of(questions, KNOBS).items()}
    effects = knob_effects(table, MARGIN_PCT)
    effects = effects[effects["comparison"] == "overall"].groupby(["gpu", "knob"])["verdict"].agg(set)
    assert verdicts == {
        ("h200", "block_size"): "flat",
        ("l40s", "block_size"): "changes",
        ("h200", "max_num_seqs"): "changes",
        ("l40s", "max_num_seqs"): "changes",
    }
    assert {place: verdict in effects[place] for place, verdict in verdicts.items()} == dict.fromkeys(verdicts, True)
    best = recommendations(table, MARGIN_PCT, {}).query("role == 'best_throughput'").set_index("gpu")["cell_id"]
    rates = table.groupby("cell_id")["output_tokens_per_s"].mean()
    for (gpu, _), question in of(questions, RECOMMENDATION).items():
        assert question.is_answered
        assert rates[question.answer] >= rates[best[gpu]] / 1.05


def test_another_version_has_its_own_verdicts_on_knobs_and_no_recommendation():
    whole, table = (
        of.assign(engine=of["engine"].where(of["gpu"].eq("h200"), "vllm@vllm-0.25.1"))
        for of in (plan(), cells(POINTS, slow_block))
    )
    questions = asked(whole, table)
    verdicts = {place_and_knob: q.answer for place_and_knob, q in of(questions, KNOBS).items()}
    assert (verdicts["h200", "block_size"], verdicts["l40s", "block_size"]) == ("flat", "changes")
    assert [place for place, _ in of(questions, RECOMMENDATION)] == ["h200"]


def test_the_ratio_of_devices_is_the_mean_over_the_cells_that_both_have():
    table = cells(POINTS, slow_block)
    (question,) = of(asked(plan(), table, decide=[DEVICES]), DEVICES).values()
    assert question.is_answered
    assert question.subject == "h200 / l40s"
    assert np.exp(question.values.mean()) == pytest.approx(4 / 0.6 ** (1 / 3), rel=0.01)


@pytest.mark.parametrize(("measured", "verdict"), [([], "not decided"), ([("l40s", 1, 16)], "changes")])
def test_a_check_cell_far_from_estimates_beside_it_shows_no_change_but_beside_a_measured_cell(measured, verdict):
    far = ("l40s", 1, 8)
    table = cells([far, *measured], lambda point: law(point) * (0.7 if point == far else 1.0))
    found = estimate(plan(), table, [IDS[far]])
    sure = np.log([law(point) * (0.7 if point == far else 1.0) for point in POINTS]) + np.zeros_like(found.draws)
    questions = of(ask(replace(found, draws=sure), plan(), table, MARGIN_PCT), KNOBS)
    assert questions["l40s", "block_size"].answer == verdict
    pair = sorted(POINTS.index(point) for point in (far, ("l40s", 1, 16)))
    assert pair in np.sort(questions["l40s", "block_size"].pairs.T).tolist()


def test_a_flat_plan_within_a_wide_band_answers_nothing_and_a_recommended_setting_must_be_measured():
    questions = asked(plan(band_pct=20), cells([]))
    assert [q.answer for q in questions if q.kind == KNOBS and q.subject == "block_size"] == ["not decided"] * 2
    assert not any(q.is_answered for q in questions if q.kind in (RECOMMENDATION, DEVICES) or q.subject == "block_size")
    before, after = (
        next(iter(of(asked(plan(band_pct=1), cells(POINTS[:measured])), RECOMMENDATION).values()))
        for measured in (0, 12)
    )
    assert (before.probability, len(before.needs)) == (0, 1)
    assert after.answer in {IDS["h200", 64, block] for block in (8, 16, 32)}
    assert (after.is_answered, after.needs) == (True, ())


@pytest.mark.parametrize(("seqs_per_s", "chosen"), [(1000, "seqs16"), (20, "seqs1")])
def test_a_recommended_setting_keeps_the_latency_as_measured_or_as_predicted(seqs_per_s, chosen):
    # Up to 16 sequences were measured; 64 would not keep it by the plan.
    table = cells(POINTS[:9], tpot_s_p99=lambda point: point[1] / seqs_per_s)
    whole = plan(tpot_s_p99=lambda point: point[1] / 100)
    (found, *_) = of(asked(whole, table, tpot_p99_s=0.1), RECOMMENDATION).values()
    assert chosen in found.answer
    assert found.needs == ()


def test_both_sides_of_a_limit_of_memory_are_measured_where_they_cost_least():
    def preemptions(point):
        return float(point[0] == "l40s" and point[1] > 16)

    whole = plan(preemptions=preemptions)
    (open_,) = asked(whole, cells([]), decide=[MEMORY])
    assert (open_.place.split(",")[0], open_.answer, open_.is_answered) == ("l40s", "16 to 64", False)
    assert {cell.rsplit("seqs", 1)[1] for cell in open_.needs} == {"16", "64"}
    sides = [("l40s", 16, 8), ("l40s", 64, 8)]
    (closed,) = asked(whole, cells(sides, preemptions=preemptions), decide=[MEMORY])
    assert (closed.answer, closed.is_answered, closed.needs) == ("16 to 64", True, ())
    # Where the limit was expected there is none; with another block size it may still be.
    none = asked(whole, cells(sides), decide=[MEMORY])
    assert not any(question.is_answered for question in none)


def test_a_refused_cell_is_a_limit_and_no_part_of_other_questions():
    whole = plan(infeasible=lambda point: "too large" if point[1] == 64 else None)
    questions = asked(whole, cells([]))
    assert {subject.split(":")[0] for _, subject in of(questions, MEMORY)} == {"max_num_seqs"}
    assert all(not math.isnan(q.values.mean()) for q in questions)
    (recommended, *_) = of(questions, RECOMMENDATION).values()
    assert "seqs16" in recommended.needs[0]


@pytest.mark.parametrize("slower", [1.0, 0.88])
def test_a_ratio_of_devices_is_not_answered_by_the_plan_if_their_rounds_leave_it_open(slower):
    table = cells(POINTS)
    table = table[table["start"] <= 2].copy()
    table.loc[table["gpu"].eq("h200") & table["start"].eq(1), "output_tokens_per_s"] *= slower
    (question,) = of(asked(plan(), table, decide=[DEVICES]), DEVICES).values()
    assert question.is_answered == (slower == 1)
