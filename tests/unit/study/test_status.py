"""The status of cells, and how far their study is, from only their files."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.unit.made_studies import MadeStudy, fixed, round_plan
from workflow_scripts.common.files import write_text
from workflow_scripts.study.definition import cell_definition, resolved_models
from workflow_scripts.study.outcome import WHAT_TO_DO
from workflow_scripts.study.rounds import OpenComparison
from workflow_scripts.study.status import main

# The present.
NOW = 1_800_000_000.0
TOOK = {"start": 60.0, "measure": 30.0}


class Seen(MadeStudy):
    """A study of twelve cells, and a way to end them."""

    def __init__(self, folder: Path, **changes: object) -> None:
        sweep = {"gpu": ["h200", "l40s"], "knobs": {"block_size": [8, 16, 32], "max_num_seqs": [1, 2]}}
        super().__init__(folder, sweep, **{"name": "seen", "workloads": {"short": fixed()}} | changes)

    def end(self, cell: str, outcome: str = "ok", reason: str = "", ended_s: float = NOW, **changes: Any) -> None:
        """A start ended `ended_s`; one that is ok took 90 s unless `phases_s` say otherwise."""
        ran = {"host": changes.pop("host", "node-1"), "ended_at": datetime.fromtimestamp(ended_s, UTC).isoformat()}
        took = {"phases_s": TOOK} if outcome == "ok" else {}
        super().end(self.cells[cell], **took | changes, outcome=outcome, reason=reason, provenance=ran)
        self.paths.log(cell, changes.get("start", 1)).write_text("measuring\n")

    def printed(self, capsys: pytest.CaptureFixture[str]) -> str:
        assert main(self.options) == 0
        return capsys.readouterr().out


@pytest.fixture(autouse=True)
def without_slurm(monkeypatch):
    monkeypatch.setenv("PATH", "")


@pytest.fixture
def seen(tmp_path):
    return Seen(tmp_path)


def cell(gpu: str, block_size: int, seqs: int = 1) -> str:
    return f"{gpu}/vllm/opt-125m/short/bs{block_size}-seqs{seqs}"


def test_the_end_of_a_call_says_what_came_out_and_what_to_type_next(seen, capsys):
    def brief(*options: str) -> list[str]:
        assert main([*seen.options, "--brief", *options]) == 0
        return capsys.readouterr().out.splitlines()

    for name in seen.cells:
        seen.end(name, **({"outcome": "infeasible", "reason": "refused"} if "/bs8-" in name else {}))
    came_out, following = brief()
    assert came_out == "seen: 8 ok, 4 infeasible"
    assert "compare" in following
    write_text(seen.paths.report, "")
    assert brief()[1] == f"report: {seen.paths.report}"
    seen.end(cell("h200", 16), "timeout", "too slow")
    assert f"--results {seen.paths.results}" in brief()[-1]
    assert "rule tables: no space left" in brief("--failed", "rule tables: no space left")[1]


def test_counts_are_grouped_and_cells_with_one_reason_stand_together_each_with_its_log(seen, capsys):
    seen.end(cell("h200", 16))
    for seqs in (1, 2):
        seen.end(cell("h200", 8, seqs), "infeasible", "ValueError: no backend\nfor block size 8")
    seen.end(cell("l40s", 16), "timeout", "not done after 60 s")
    lines = seen.printed(capsys).partition("\n\n")[2].splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["GPU", "engine", "model", "workload", "ok", "infeasible", "timeout", "missing"],
        ["h200", "vllm", "opt-125m", "short", "1", "2", "·", "3"],
        ["l40s", "vllm", "opt-125m", "short", "·", "·", "1", "5"],
        ["all", "1", "2", "1", "8"],
    ]
    first = lines.index("infeasible: ValueError: no backend")
    assert lines[first + 1 :] == [
        *(f"    {one}  {seen.paths.log(one)}" for one in (cell("h200", 8), cell("h200", 8, 2))),
        "timeout: not done after 60 s",
        f"    {cell('l40s', 16)}  {seen.paths.log(cell('l40s', 16))}",
        *(f"What you do about {state}: {WHAT_TO_DO[state]}." for state in ("infeasible", "timeout")),
    ]


def test_a_cell_that_was_tried_in_vain_or_never_ran_is_missing_with_the_reason(seen, capsys):
    tried, broken = cell("h200", 16), cell("h200", 8)
    write_text(seen.paths.log(tried), "Traceback\nkilled by signal 9\n\n")
    assert seen.printed(capsys).endswith(f"missing: killed by signal 9\n    {tried}  {seen.paths.log(tried)}\n")
    seen.end(broken, "invalid", "environment vllm-0.25.1: no module vllm")
    assert "missing: did not run" in seen.printed(capsys)
    seen.end(broken, "invalid", "other tokens", phases_s={"start": 1.0})
    assert "invalid: other tokens" in seen.printed(capsys)


def test_a_cell_is_ok_when_all_its_starts_are(tmp_path, capsys):
    seen = Seen(tmp_path, starts=2)
    both, one = cell("h200", 8, 1), cell("h200", 8, 2)
    for ended in (both, one):
        seen.end(ended)
    seen.end(both, start=2)
    rows = [line.split() for line in seen.printed(capsys).splitlines()]
    assert rows[-1] == ["all", "1", "11"]
    # A start that failed is shown with its own log, also one that the study does not ask for.
    for cell_id, start in ((one, 2), (both, 3)):
        seen.end(cell_id, "timeout", "not done after 60 s", start=start)
    *_, totals, reason, first, second, _ = seen.printed(capsys).splitlines()
    assert (totals.split(), reason) == (["all", "2", "10"], "timeout: not done after 60 s")
    logs = [f"    {of} start {n}  {seen.paths.cell(of)}/start-{n}/measure.log" for of, n in ((both, 3), (one, 2))]
    assert [first, second] == logs


def test_what_is_not_decided_is_shown_with_what_it_would_take(tmp_path, capsys):
    seen = Seen(tmp_path, starts={"at_least": 2, "at_most": 5, "budget_min": 60})
    assert "After round" not in seen.printed(capsys)
    pair = (cell("h200", 8, 1), cell("h200", 8, 2))
    lost = OpenComparison(knob="block_size", cells=pair, further_starts=None, given_up="it takes too long")
    open_pairs = {"undecided": (OpenComparison(knob="max_num_seqs", cells=pair, further_starts=2),)}
    open_pairs |= {"not_decidable": (lost,), "decided": 4}
    plan = round_plan(3, (pair[0], 3), (pair[1], 3), spent_s=900, left_s=360, **open_pairs)
    plan.write(seen.paths.round_plan("h200", 3))
    printed = seen.printed(capsys)
    for number in ("4 of 6", "2 cells", "0.1 h", "45 of 60", "max_num_seqs: 2 further", "block_size: an unknown"):
        assert number in printed
    ended = plan.model_copy(update={"round": 4, "starts": (), "ended": "all is said", "undecided": ()})
    ended.write(seen.paths.round_plan("h200", 4))
    assert all(part in seen.printed(capsys) for part in ("4 of 5", "all is said", "0.25 h"))


def test_starts_beyond_those_asked_for_count_once_they_were_tried(seen):
    name = cell("h200", 8)
    assert seen.paths.tried_beyond(name, 1) == []
    for start in (12, 3, 2):
        seen.end(name, start=start)
    seen.paths.outcome(name, 12).unlink()
    seen.paths.log(name, 3).unlink()
    seen.paths.start(name, 4).mkdir()
    assert seen.paths.tried_beyond(name, 1) == [2, 3, 12]
    assert seen.paths.tried_beyond(name, 2) == [3, 12]


def test_starts_are_counted_if_a_cell_has_several(tmp_path, capsys):
    seen = Seen(tmp_path, starts=2)
    for start in (1, 2):
        seen.end(cell("h200", 8), start=start, ended_s=NOW - 1000)
    seen.end(cell("h200", 16), ended_s=NOW - 1000)
    former = cell_definition(seen.study, seen.cells[cell("h200", 32)], resolved_models(seen.study)).as_json()
    seen.end(cell("h200", 32), ended_s=NOW - 1000, definition=former | {"protocol": 0})
    assert "\n3 of 24 starts of 12 cells have ended.\n" in seen.printed(capsys)


def test_a_round_that_was_decided_on_counts_and_more_may_follow(tmp_path, capsys):
    seen = Seen(tmp_path, starts={"at_least": 2, "at_most": 5})
    for name in seen.cells:
        for start in (1, 2):
            seen.end(name, start=start, ended_s=NOW - 10)
    assert "24 of 24 starts of 12 cells have ended; further rounds may follow" in seen.printed(capsys)
    plan = round_plan(3, *((name, 3) for name in list(seen.cells)[:3]))
    plan.write(seen.paths.round_plan("h200", 3))
    seen.end(plan.starts[0].cell, start=3, ended_s=NOW - 5)
    assert "25 of 27 starts" in seen.printed(capsys)
    plan.model_copy(update={"round": 4, "starts": (), "ended": "all is said"}).write(seen.paths.round_plan("h200", 4))
    assert "have ended" not in seen.printed(capsys)
