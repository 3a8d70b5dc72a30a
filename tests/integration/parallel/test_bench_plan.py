"""The benchmark of planning, on small sizes."""

from benchmarks import plan


def test_it_prints_what_planning_costs_and_how_it_grows(capsys):
    assert plan.main(["--requests", "100", "300", "--cells", "100"]) == 0
    printed = capsys.readouterr().out
    for words in ("300 requests", "3 times as many take", "plan", "dry run, here", "dry run, in batches", "100 cells"):
        assert words in printed


def test_planning_takes_milliseconds_a_cell():
    for way, cost in plan.costs_of_study(1000).items():
        assert cost.seconds < 120, way  # wall time, maybe of a busy machine
        assert cost.peak_bytes < 1e9, way
