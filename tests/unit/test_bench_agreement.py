"""The printing of `make bench-agreement`, on made-up results with changed numbers; nothing is measured."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import agreement
from tests.unit.analyse.digests import cell, digest, mean, pair
from workflow_scripts.analyse.comparison import comparison
from workflow_scripts.analyse.digest import Digest
from workflow_scripts.study.paths import StudyPaths


def run_of(*verdicts: str, ratio: float = 1.5, rate: float = 100.0, name: str = "demo") -> Digest:
    cells = [cell(f"bs{place}", mean(rate)) for place in range(len(verdicts) + 1)]
    pairs = [
        pair(ratio, 0.95 * ratio, 1.05 * ratio, verdict, cell=place + 1, baseline=0)
        for place, verdict in enumerate(verdicts)
    ]
    return digest(*cells, pairs=pairs, study=name)


def reached(a: Digest, b: Digest) -> list[bool]:
    return [goal.is_reached for goal in agreement.goals(comparison(a, b))]


@pytest.mark.parametrize(
    ("b", "missed"),
    [
        (run_of("changes", "changes", ratio=1.52), set()),
        (run_of("changes", "changes", ratio=1.6), {0}),
        (run_of("changes", "changes", rate=900), {1}),
        (run_of("changes", "flat"), {2, 4}),
        (run_of("changes", "changes", ratio=0.5), {0, 3, 4}),
        (run_of("changes", "changes", ratio=2.5), {0, 4}),
        (run_of("changes", "not decided"), {6}),
    ],
)
def test_each_goal_is_missed_by_what_it_is_about(b, missed):
    assert reached(run_of("changes", "changes"), b) == [place not in missed for place in range(7)]


def test_two_runs_that_share_nothing_reach_no_share():
    assert reached(run_of("changes"), digest(cell("other", mean(1)))) == [False, False, True, True, True, False, False]


def written(results: Path, of: Digest) -> Path:
    paths = StudyPaths(results, of.study)
    paths.tables.mkdir(parents=True)
    paths.digest.write_text(of.model_dump_json())
    paths.report.write_text("a made-up report")
    return results


def test_runs_that_are_there_are_used_and_the_exit_code_tells(tmp_path, capsys):
    first = written(tmp_path / "a", run_of("changes"))
    folders: list[Any] = ["--out", str(tmp_path / "out"), "--first", str(first), "--second"]
    assert agreement.main([*folders, str(written(tmp_path / "b", run_of("changes", ratio=1.51)))]) == 0
    said = capsys.readouterr().out
    assert "ratios of the second run inside the first run's interval: at least 93 %" in said
    assert "NO" not in said
    rows = said.split("Tested comparisons: 1 of 1")[1].splitlines()
    assert rows[2].split() == [
        "block_size",
        *[f"cpu-all/vllm/tiny/chat/bs{n}" for n in (1, 0)],
        *["1.5", "changes"],
        *["1.51", "changes"],
    ]
    assert agreement.main([*folders, str(written(tmp_path / "c", run_of("flat", ratio=1.0)))]) == 1
    said = capsys.readouterr().out
    assert "flat against changes" in said
    assert "NO" in said
    assert "flat against changes" in (tmp_path / "out" / "agreement.md").read_text()


def test_a_pause_separates_the_runs_and_each_has_its_own_folder(tmp_path, monkeypatch):
    done: list[object] = []

    def measured(study: Path, results: Path) -> None:
        done.append(results.name)
        written(results, run_of("changes"))

    monkeypatch.setattr(agreement, "measure", measured)
    monkeypatch.setattr(agreement.time, "sleep", lambda seconds: done.append(round(seconds / 60)))
    assert agreement.main(["--out", str(tmp_path), "--pause-min", "40"]) == 0
    assert done == ["first", 40, "second"]
    # What is there is not measured again.
    assert agreement.main(["--out", str(tmp_path)]) == 0
    assert len(done) == 3


def test_a_run_that_fails_is_told(tmp_path, monkeypatch, capsys):
    failed = agreement.subprocess.CompletedProcess([], 1)
    monkeypatch.setattr(agreement.subprocess, "run", lambda *arguments, **settings: failed)
    assert agreement.main(["--out", str(tmp_path / "out")]) == 2
    assert "failed; called again, this continues where it ended" in capsys.readouterr().err
