"""The printing of `make bench-agreement`, on made-up results with changed numbers; nothing is measured."""

from pathlib import Path

import pytest

from benchmarks import agreement
from tests.unit.analyse.digests import cell, digest, mean, pair
from workflow_scripts.analyse.compare.comparison import comparison
from workflow_scripts.analyse.compare.digest import Digest
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


def written(results: Path, of: Digest) -> Path:
    paths = StudyPaths(results, of.study)
    paths.tables.mkdir(parents=True)
    paths.digest.write_text(of.model_dump_json())
    paths.report.write_text("a made-up report")
    return results


@pytest.mark.parametrize(("second", "code"), [(run_of("changes", ratio=1.51), 0), (run_of("flat", ratio=1.0), 1)])
def test_runs_that_are_there_are_used_and_the_exit_code_tells(tmp_path, capsys, second, code):
    first, other = (written(tmp_path / name, of) for name, of in (("a", run_of("changes")), ("b", second)))
    assert agreement.main(["--out", str(tmp_path / "out"), "--first", str(first), "--second", str(other)]) == code
    assert ("NO" in capsys.readouterr().out) == bool(code)
    assert ("flat against changes" in (tmp_path / "out" / "agreement.md").read_text()) == bool(code)
