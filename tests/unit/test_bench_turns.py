"""A benchmark's time beside that of its last run on the same processor, and of another commit."""

import pytest

from benchmarks import turns


@pytest.fixture
def times(monkeypatch, tmp_path):
    """Seconds and CPU seconds of the runs to come, in order; those of another checkout are twice as long."""
    of_runs = iter([(10.0, 8.0), (5.0, 6.0), (5.0, 6.0), (7.0, 6.0)])

    def timed(checkout, words):
        seconds = next(of_runs)
        return seconds if checkout == turns.CHECKOUT else tuple(2 * value for value in seconds)

    monkeypatch.setattr(turns, "timed", timed)
    monkeypatch.setattr(turns, "STORED", tmp_path / "benchmarks.jsonl")
    monkeypatch.setattr(turns, "checked", lambda words: "")


def ratios(capsys, *words):
    assert turns.main(words) == 0
    return [line.split(": ")[-1] for line in capsys.readouterr().out.splitlines()]


def test_a_run_is_compared_with_the_last_one_of_the_same_options(times, capsys):
    assert ratios(capsys, "plan") == []
    assert ratios(capsys, "plan", "--cells", "100") == []
    assert ratios(capsys, "plan") == ["0.500 times", "0.750 times"]


def test_two_commits_are_compared_in_turns(times, capsys):
    assert ratios(capsys, "plan", "--against", "905e3dda", "--turns", "2") == ["0.625 times", "0.583 times"]
