import numpy as np
import pytest

from benchmarks.statistics import CPU, GPU, MARGIN, adaptive, missed, row, runs, settings_of, slower_seen, wrong
from workflow_scripts.statistics.comparisons import CHANGES, FLAT


def test_a_change_is_wrong_beside_the_truth():
    truth = np.array([0.0, MARGIN, 2 * MARGIN, -2 * MARGIN, 2 * MARGIN])
    shown = np.array([1.0, 1.0, 1.0, 1.0, 1.0])
    verdict = np.array([CHANGES] * 4 + [FLAT])
    assert wrong(verdict, shown, truth).tolist() == [True, True, False, True, False]


def test_a_further_run_has_the_same_settings_on_another_day():
    one, other = (of for of, _ in zip(runs(GPU, 30, 3, np.random.default_rng(1)), range(2), strict=False))
    assert one.samples.log.shape == (30, 8, 3)
    assert (one.settings == other.settings).all()
    moved = (one.truth - other.truth).std()
    assert 0.01 < moved < 0.04
    assert len(settings_of(GPU)[1]) == 28


@pytest.mark.parametrize("kind", [GPU, CPU], ids=["gpu", "cpu"])
def test_rows_of_the_benchmark_meet_their_goals(kind):
    """Small versions, with the margin of chance that 100 studies have."""
    found = row(kind, 3, 100, seed=1)
    assert missed(kind, found) == []
    assert found["50 %"] > 65
    low = found | {"rate": 80.0, "false": 20.0}
    assert missed(kind, low) == ["rate", "false"]


def test_a_slower_cell_is_seen_and_adaptive_starts_are_rarely_wrong():
    seen = dict(slower_seen(100, seed=1))
    assert seen["20 % slower seen"] > 50
    assert seen["false alarms"] <= 2
    taken, decided, false = adaptive(GPU, 20, seed=1)
    assert 2 < taken < 8
    assert decided > 70
    assert false <= 5
