"""The plan of a further round, from what was measured and how long it took."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from tests.unit.questions.made import made
from tests.unit.questions.measured_study import SECONDS, MeasuredStudy
from tests.unit.questions.synthetic_cells import cell, starts_table, write_measurements
from workflow_scripts.common.files import write_json
from workflow_scripts.questions.knobs.decide_round import (
    ALL_DECIDED,
    NO_START,
    NONE_DECIDABLE,
    TOO_LITTLE_TIME,
    TOO_MANY_STARTS,
    main,
    open_comparisons,
)
from workflow_scripts.questions.predictions.table import SCHEMA as PREDICTIONS
from workflow_scripts.statistics.further_starts import Looks
from workflow_scripts.study.rounds import CellStart, RoundPlan
from workflow_scripts.tables.typed_tables import write_table

# Starts of two alike cells that vary by 2 %, and of a third that is four times as fast.
RATES = {1: 100.0, 4: 100.0, 16: 400.0}
NOISE = dict(zip(RATES, 0.02 * np.array([[1, -1, 0.5, -0.5], [-1, 1, -0.5, 0.5], [1, 1, -1, -1]]), strict=True))


@pytest.fixture
def three(tmp_path):
    """A study with three cells, each of which has ended in three starts; its fields may be changed."""

    def made(**starts):
        study = MeasuredStudy(
            tmp_path,
            {"max_num_seqs": list(RATES)},
            lambda one, start: RATES[one.knobs.max_num_seqs] * np.exp(NOISE[one.knobs.max_num_seqs][start - 1]),
            equivalence_margin_pct=5.0,
            starts={"at_least": 2, "at_most": 5, **starts},
        )
        study.end(product(study.cells, (1, 2, 3)))
        return study

    return made


def called(study: MeasuredStudy, number: int, *more: str, code: int = 0) -> RoundPlan | None:
    """The plan that the command writes for a round; the tables are beside the study."""
    folder = study.file.parent
    words = ["--study", study.file, "--results", study.paths.results, "--gpus", "h200", "--number", number]
    words += ["--tables", folder, "--out", folder / "plan.json"]
    assert main([*map(str, words), *more]) == code
    return None if code else RoundPlan.read(folder / "plan.json")


def test_only_cells_of_open_comparisons_are_measured_again_each_in_its_next_start(three):
    study = three()
    ids = list(study.cells)
    plan = study.decide(4)
    assert set(plan.starts) == {CellStart(cell_id, 4) for cell_id in ids[:2]}
    assert (plan.round, plan.ended, plan.decided) == (4, None, 2)
    (opened,) = plan.undecided
    assert set(opened.cells) == set(ids[:2])
    assert plan.spent_s == 9 * SECONDS
    assert plan.left_s >= 2 * SECONDS


@pytest.mark.parametrize(
    ("starts", "given_up"),
    [({"at_most": 3}, TOO_MANY_STARTS), ({"budget_min": (9 * SECONDS + 60) / 60}, TOO_LITTLE_TIME)],
)
def test_measuring_ends_when_the_starts_or_the_minutes_are_used_up(three, starts, given_up):
    plan = three(**starts).decide(4)
    assert (plan.starts, plan.ended) == ((), NONE_DECIDABLE)
    assert {one.given_up for one in plan.not_decidable} == {given_up}


def test_a_cell_that_was_lost_is_not_measured_again_before_the_next_call(three, tmp_path):
    study = three()
    lost, other, _ = study.cells
    study.end([(other, 4)])  # the first cell has no outcome of its fourth start
    write_measurements(study.table(), tmp_path)
    assert set(called(study, 5).starts) == {CellStart(lost, 4), CellStart(other, 5)}
    lists = [tmp_path / f"{number}.json" for number in (1, 4)]
    for path, content in zip(lists, ({lost: {}}, {f"{lost}/start-4": None}), strict=True):
        write_json(path, content)
    plan = called(study, 5, "--measured", *map(str, lists))
    # What is compared with it alone is not measured again either: that would decide nothing.
    assert (plan.starts, plan.undecided, plan.ended) == ((), (), NONE_DECIDABLE)
    assert [(set(one.cells), one.given_up) for one in plan.not_decidable] == [({lost, other}, NO_START)]


def test_a_cell_that_is_faster_than_its_device_can_be_decides_nothing(three, tmp_path):
    study = three()
    impossible, other, _ = study.cells
    write_measurements(study.table(), tmp_path)
    assert {one.cell for one in called(study, 4).starts} == {impossible, other}
    rows = study.table()
    write_measurements(rows.assign(outcome=rows["outcome"].mask(rows["cell_id"] == impossible, "invalid")), tmp_path)
    plan = called(study, 4)
    assert (plan.starts, plan.undecided, plan.ended) == ((), (), ALL_DECIDED)


@pytest.mark.parametrize(("at_most", "verdict"), [(3, "flat"), (20, "not decided")])
def test_the_effects_of_a_study_share_its_error_over_its_rounds(three, tmp_path, at_most, verdict):
    study = three(at_least=3, at_most=at_most)
    noise = np.array([[0.02, -0.02, 0.0], [-0.02, 0.0, 0.02]])
    table = starts_table(*(cell({"max_num_seqs": n}, 100 * np.exp(of)) for n, of in zip((1, 4), noise, strict=True)))
    write_measurements(table, tmp_path)
    write_table(pd.DataFrame(columns=list(PREDICTIONS.columns)), tmp_path / "predictions.parquet")
    effects = made(study.file, tmp_path, "comparisons")
    assert (set(effects["verdict"]), set(effects["margin_pct"])) == ({verdict}, {5.0})


def test_a_fixed_number_of_starts_leaves_nothing_to_decide(three, capsys):
    assert called(three(at_most=2), 3, code=2) is None
    assert "nothing to decide" in capsys.readouterr().err


# --- which comparisons are open

DRAWN = np.random.default_rng(20261122).normal(0, 1, (8, 8))
DRAWN -= DRAWN.mean(axis=1, keepdims=True)


def seqs(rates, starts=3, sd=0.025, **columns):
    """Cells of one engine that differ in `max_num_seqs`, with starts that vary by `sd` around these rates."""
    noise = DRAWN[: len(rates), :starts] - DRAWN[: len(rates), :starts].mean(axis=1, keepdims=True)
    of_cells = zip(rates.items(), noise, strict=True)
    return [cell({"max_num_seqs": n}, rate * np.exp(sd * of), **columns) for (n, rate), of in of_cells]


def opened(cells, at_most=8, margin_pct=5.0, seconds=None, **options):
    """The cells of each open comparison with why it is given up, the number of decided ones, and the seconds left."""
    table = cells if isinstance(cells, pd.DataFrame) else starts_table(*cells)
    cost = dict.fromkeys(table["cell_id"], 10.0) | (seconds or {})
    found, decided, left_s = open_comparisons(table, margin_pct, Looks(2, at_most), cost, **options)
    return [(one.cells, one.given_up, one.further_starts) for one in found], decided, left_s


def test_only_what_is_not_decided_is_open():
    assert opened(seqs({1: 100, 4: 100, 16: 400}, sd=0.001)) == ([], 3, 0)
    assert opened(seqs({1: 100})) == ([], 0, 0)
    # Of single starts, others tell how much they vary.
    ((_, given_up, further),), _, left_s = opened(seqs({1: 100, 4: 100}, starts=1), margin_pct=0.5)
    assert given_up is None
    assert left_s == 20 * further > 60
    ((ids, given_up, further),), decided, left_s = opened(seqs({1: 100, 4: 100, 16: 400, 64: 700}))
    assert ([cell_id.rsplit("/", 1)[1] for cell_id in ids], given_up, decided) == (["seqs1", "seqs4"], None, 5)
    assert left_s == 20 * further > 0
    # Starts that failed are no starts.
    cells = starts_table(*seqs({1: 100, 4: 100}, starts=8, sd=0.05))
    cells.loc[cells["start"] > 3, "outcome"] = "engine_error"
    assert [given_up for _, given_up, _ in opened(cells)[0]] == [None]


def test_the_cheapest_come_first_and_a_budget_pays_for_these():
    places = [*seqs({1: 100, 4: 100}), *seqs({1: 100, 4: 100}, workload="long")]
    ids = [of_cell[0]["cell_id"] for of_cell in places]
    for cheap, dear in ((ids[:2], ids[2:]), (ids[2:], ids[:2])):
        seconds = dict.fromkeys(cheap, 5.0) | dict.fromkeys(dear, 50.0)
        found, _, all_s = opened(places, seconds=seconds)
        assert [of[:2] for of in found] == [(tuple(cheap), None), (tuple(dear), None)]
        found, _, left_s = opened(places, seconds=seconds, budget_s=all_s - 1)
        assert [given_up for _, given_up, _ in found] == [None, TOO_LITTLE_TIME]
        assert left_s < all_s
        # Cells that are not started again take no time.
        found, _, left_s = opened(places, seconds=seconds, budget_s=all_s - 1, no_start=cheap)
        assert [given_up for _, given_up, _ in found] == [NO_START, None]


@pytest.mark.parametrize(
    ("rates", "sd", "at_most", "given_up", "is_known"),
    [
        ({1: 100, 4: 100}, 0.2, 8, TOO_MANY_STARTS, True),
        ({1: 100, 4: 105}, 0.1, 8, TOO_MANY_STARTS, False),
        ({1: 100, 4: 107}, 0.03, 30, None, True),
    ],
)
def test_what_takes_more_starts_than_allowed_is_given_up_with_what_it_would_take(
    rates, sd, at_most, given_up, is_known
):
    ((_, found, further),), _, _ = opened(seqs(rates, sd=sd), at_most)
    assert (found, further is not None and further > 5) == (given_up, is_known)
