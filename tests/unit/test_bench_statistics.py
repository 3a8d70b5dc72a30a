"""Small versions of the simulated studies meet the goals of `make bench-statistics`."""

import pytest

from benchmarks.statistics import CPU, GPU, adaptive, missed, row, slower_seen


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
