"""The benchmark of planning, on small sizes."""

import pytest

from benchmarks import plan


def test_it_prints_what_planning_costs_and_how_it_grows(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(["--requests", "100", "300", "--cells", "100"]) == 0
    printed = capsys.readouterr().out
    for words in ("300 requests", "3 times as many take", "a job a cell", "in batches", "100 cells", "goal: "):
        assert words in printed


def test_a_dry_run_takes_milliseconds_a_cell() -> None:
    for way, cost in plan.dry_runs(1000).items():
        assert cost.seconds < 120, way  # wall time, maybe of a busy machine
        assert cost.peak_bytes < 1e9, way
