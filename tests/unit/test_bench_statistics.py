import numpy as np
import pytest

from benchmarks import coverage, statistics
from workflow_scripts.statistics.comparisons import CHANGES, FASTER, FLAT, NOT_DECIDED, SLOWER


def test_a_verdict_is_false_beside_the_truth():
    truth = np.tile(statistics.TRUTH, (2, 1))
    verdict = np.full((2, len(statistics.A)), NOT_DECIDED)
    difference = np.abs(truth[0][statistics.A] - truth[0][statistics.B])
    verdict[0] = np.where(difference > statistics.MARGIN, CHANGES, FLAT)
    assert statistics.false_verdicts(verdict, truth) == (0, 0)
    verdict[1] = np.where(difference > statistics.MARGIN, FLAT, CHANGES)
    assert statistics.false_verdicts(verdict, truth) == (0.5, 0.5)


def test_a_direction_is_false_beside_the_truth():
    truth = np.tile(statistics.TRUTH, (2, 1))
    difference = truth[0][statistics.ENGINE_A] - truth[0][statistics.ENGINE_B]
    assert 0 in difference  # two engines that are equally fast: neither direction is true
    right = np.select([difference > 0, difference < 0], [FASTER, SLOWER], NOT_DECIDED)
    assert statistics.false_directions(np.stack([right, right]), truth) == 0
    for wrong in (FASTER, SLOWER):
        assert statistics.false_directions(np.stack([right, np.full_like(right, wrong)]), truth) == 0.5


def test_another_run_of_the_same_studies_has_the_same_truth_but_for_the_occasion():
    rng = np.random.default_rng(1)
    for kind in (statistics.Kind("quiet"), statistics.Kind("shared", occasion=0.06)):
        studies = statistics.made_up(kind, 20, rng)
        one, other = studies.run(3, rng), studies.run(3, rng)
        assert one.samples.log.shape == (20, len(statistics.TRUTH), 3)
        assert (one.truth == other.truth).all() == (kind.occasion == 0)


def test_the_fixed_count_that_decides_as_much():
    assert statistics.starts_of_same_power(0.5, {2: 0.4, 4: 0.6}) == pytest.approx(3)


def test_under_hard_conditions_intervals_cover_and_verdicts_are_rarely_false(monkeypatch):
    """Small versions of the benchmark's rows: single starts, a noisy cell, unseen occasions, many cells."""
    monkeypatch.setattr(coverage, "STUDIES", 200)
    monkeypatch.setattr(coverage, "LARGE_STUDIES", 20)
    rows = [
        row
        for name in ("gpus", "one_device", "sessions", "noisy", "many")
        for row in coverage.ROWS[name](np.random.default_rng(5))
    ]
    assert {row.name: row.observed for row in rows if row.goal.startswith(">=") and row.observed < 0.91} == {}
    assert {row.name: row.observed for row in rows if "false" in row.name and not row.fits} == {}
