import numpy as np

from tests.unit.analyse.synthetic_cells import cell, starts_table
from workflow_scripts.analyse.intervals.further_starts import Looks
from workflow_scripts.analyse.settings.decide_round import (
    ALL_DECIDED,
    NONE_DECIDABLE,
    TOO_LITTLE_TIME,
    TOO_MANY_STARTS,
    TWO_MODES,
    next_round,
)

NOISE = np.random.default_rng(20261122).normal(0, 1, (8, 8))
NOISE -= NOISE.mean(axis=1, keepdims=True)


def seqs(rates, starts=3, sd=0.01, **columns):
    """Cells of one engine that differ in `max_num_seqs`, with starts that vary by `sd` around these rates."""
    noise = [row[:starts] - row[:starts].mean() for row in NOISE]
    return [
        cell({"max_num_seqs": n}, rate * np.exp(sd * of_cell), **columns)
        for (n, rate), of_cell in zip(rates.items(), noise, strict=False)
    ]


def names(found):
    return [cell_id.rsplit("/", 1)[1] for cell_id in found]


def decide(cells, margin_pct=5.0, at_least=2, at_most=8, seconds=10.0, **options):
    table = starts_table(*cells)
    cost = dict.fromkeys(table["cell_id"], seconds) if isinstance(seconds, float) else seconds
    return next_round(table, margin_pct, Looks(at_least, at_most), seconds_per_start=cost, **options)


def test_a_study_ends_when_every_comparison_is_decided_or_there_is_none():
    found = decide(seqs({1: 100, 4: 100, 16: 400}, sd=0.001))
    assert (found.cells, found.undecided, found.not_decidable) == ((), (), ())
    assert (found.decided, found.left_s, found.ended) == (3, 0.0, ALL_DECIDED)
    nothing = decide(seqs({1: 100}))
    assert (nothing.decided, nothing.ended) == (0, ALL_DECIDED)
    assert decide(seqs({1: 100, 4: 100}, starts=1)).left_s == 20  # one start takes a second


def test_only_cells_of_undecided_comparisons_are_measured_again():
    found = decide(seqs({1: 100, 4: 100, 16: 400, 64: 700}, sd=0.025))
    assert set(names(found.cells)) == {"seqs1", "seqs4"}
    assert found.decided == 5
    assert found.ended is None
    (open_,) = found.undecided
    assert (open_.knob, names(open_.cells), open_.given_up) == ("max_num_seqs", ["seqs1", "seqs4"], None)
    assert open_.further_starts >= 1
    assert found.left_s >= 20


TWO_PLACES = [*seqs({1: 100, 4: 100}, sd=0.025), *seqs({1: 100, 4: 100}, sd=0.025, workload="long")]
IDS = [of_cell[0]["cell_id"] for of_cell in TWO_PLACES]


def test_those_come_first_that_decide_most_per_second():
    for cheap, dear in ((IDS[:2], IDS[2:]), (IDS[2:], IDS[:2])):
        found = decide(TWO_PLACES, seconds=dict.fromkeys(cheap, 5.0) | dict.fromkeys(dear, 50.0))
        assert found.cells == (*cheap, *dear)


def test_a_budget_pays_for_the_first_and_the_others_are_not_decidable():
    seconds = dict.fromkeys(IDS[:2], 5.0) | dict.fromkeys(IDS[2:], 50.0)
    all_s = decide(TWO_PLACES, seconds=seconds).left_s
    found = decide(TWO_PLACES, seconds=seconds, budget_s=all_s - 1)
    assert found.cells == tuple(IDS[:2])
    assert [(open_.cells, open_.given_up) for open_ in found.not_decidable] == [(tuple(IDS[2:]), TOO_LITTLE_TIME)]
    assert found.left_s < all_s
    nothing = decide(TWO_PLACES, seconds=seconds, budget_s=1.0)
    assert (nothing.cells, nothing.ended) == ((), NONE_DECIDABLE)


def test_what_takes_more_starts_than_allowed_is_given_up_with_what_it_would_take():
    found = decide(seqs({1: 100, 4: 100}, sd=0.1))
    assert (found.cells, found.ended) == ((), NONE_DECIDABLE)
    (open_,) = found.not_decidable
    assert open_.given_up == TOO_MANY_STARTS
    assert open_.further_starts > 5
    (hopeless,) = decide(seqs({1: 100, 4: 105}, sd=0.1)).not_decidable
    assert hopeless.further_starts is None
    # On the margin itself nothing would decide, but three starts do not show that it lies there.
    found = decide(seqs({1: 100, 4: 105}, sd=0.03), at_most=20)
    assert names(found.cells) == ["seqs1", "seqs4"]
    assert found.undecided[0].further_starts is None
    # Starts that failed are no starts.
    cells = starts_table(*seqs({1: 100, 4: 100}, starts=8, sd=0.05))
    cells.loc[cells["start"] > 3, "outcome"] = "engine_error"
    found = next_round(cells, 20.0, Looks(2, 8), seconds_per_start=dict.fromkeys(cells["cell_id"], 1.0))
    assert len(found.cells) == 2


def test_cells_of_other_rounds_take_more_starts_than_the_study_allows_if_they_vary():
    def of_other_rounds(sd, at_most):
        apart = starts_table(*seqs({1: 100, 4: 100}, starts=3, sd=sd))
        apart.loc[apart["cell_id"].str.endswith("seqs4"), "round"] += 3
        cost = dict.fromkeys(apart["cell_id"], 10.0)
        return next_round(apart, 5.0, Looks(2, at_most), seconds_per_start=cost)

    found = of_other_rounds(0.01, 8)
    assert (len(found.cells), found.left_s) == (2, 60)
    given_up = of_other_rounds(0.03, 4).not_decidable
    assert [open_.given_up for open_ in given_up] == [TOO_MANY_STARTS]


def test_a_cell_with_two_modes_is_not_measured_again():
    cells = seqs({1: 100, 2: 100, 4: 100}, starts=6, sd=0.001)
    split = cell({"max_num_seqs": 8}, 300 * np.exp(0.001 * NOISE[4, :6] + 0.3 * np.array([0, 1, 0, 1, 1, 0])))
    found = decide([*cells, split])
    assert (found.cells, found.decided) == ((), 3)
    assert {open_.given_up for open_ in found.not_decidable} == {TWO_MODES}
