"""The command that measures a cell, in cases that do not depend on the engine."""

import json
import math
import os
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import gethostname
from types import SimpleNamespace
from typing import Any

import pytest

from tests.processes import wait_for
from tests.unit.made_studies import fixed, write_study
from workflow_scripts.common.ownership import temporary_folder
from workflow_scripts.device.device_lock import locked
from workflow_scripts.measure import cell as command
from workflow_scripts.measure import session
from workflow_scripts.study.definition import cell_definition, model_key, resolved_models, workload_key
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study

DEMO = Path(__file__).parents[3] / "config/studies/demo.yaml"


def prepared(results: Path, study: Study | None = None, count: int = 1) -> tuple[Cell, StudyPaths]:
    """A cell of the demo, with the files that measuring asks for, without content; or of a study with more of them."""
    study = study or load_study(DEMO)
    paths = StudyPaths(results, study.name)
    for cell in (cells := expand(study))[:count]:
        definition = cell_definition(study, cell, resolved_models(study))
        config = paths.model(cell.model, model_key(definition.model)) / "config.json"
        for file in (config, paths.workload(cell.model, cell.workload, workload_key(definition))):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    return cells[0], paths


def call(results: Path, cell: Cell, *options: str) -> int:
    return command.main(["--study", str(DEMO), "--results", str(results), "--cell", cell.id, *options])


class Children:
    """Stands for the processes that measure: `ends` says after which of its jobs, from 1, each one ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ends: int) -> None:
        self.ends, self.served = iter(ends), 0
        monkeypatch.setattr(session, "begin", self.begin)
        monkeypatch.setattr(session, "LOOK_S", 0)

    def begin(self, _: str, arguments: list[str], log_file: Path, *__: Any) -> SimpleNamespace:
        self.job, left = Path(arguments[0]), next(self.ends)
        following = session.Job.read(self.job).following
        assert following is None or not following.exists()
        log_file.write_text("start\n")

        def wait(_: float) -> int | None:
            nonlocal left
            if not left:
                return 0  # some time after its last record
            job = session.Job.read(self.job)
            since = log_file.stat().st_size
            with log_file.open("a") as more:
                more.write(f"{job.definition.workload_name}\n")
            left -= 1
            failed = not left and job.following
            record = {"outcome": "engine_error" if failed else "ok", "log_bytes": [6, since], "goes_on": left > 0}
            (job.evidence / "measured.json").write_text(json.dumps(record))
            self.job = job.following or self.job
            return None

        return SimpleNamespace(wait=wait, close=lambda: None)


def test_cells_that_share_a_start_have_their_own_outcomes_and_logs_and_go_on_after_a_failure(tmp_path, monkeypatch):
    workloads = {name: fixed(num_prompts=n) for n, name in enumerate("abcd", start=1)}
    file = write_study(
        tmp_path, {"gpu": "cpu-all", "model": "tiny-llama-57m", "workload": [*workloads]}, workloads=workloads
    )
    cells = expand(study := load_study(file))
    _, paths = prepared(tmp_path, study, len(cells))
    for left in (paths.cell(cells[1]) / "raw.partial/job.json", paths.cell(cells[0]) / ".outcome.json.ab12cd34"):
        left.parent.mkdir(parents=True)  # by a command that was killed
        left.touch()
    Children(monkeypatch, 2, 2)  # the second cell ends the first session
    words = ["--cell", *(cell.id for cell in cells), "--start", *4 * ["1"], "--round", "3", "--position", "5"]
    assert command.main(["--study", str(file), "--results", str(tmp_path), *words]) == 0
    outcomes = [Outcome.read(paths.outcome(cell)) for cell in cells]
    assert [outcome.outcome for outcome in outcomes] == ["ok", "engine_error", "ok", "ok"]
    assert [(one.start.position, one.start.place_in_session) for one in outcomes] == [(5, 1), (6, 2), (7, 1), (8, 2)]
    first, _, second, _ = sessions = [outcome.start.session for outcome in outcomes]
    assert sessions == [first, first, second, second]
    assert first != second
    logs = [(paths.cell(cell) / "raw/engine.log").read_text().split() for cell in cells]
    assert logs == [["start", name] for name in "abcd"]
    assert all(sorted(p.name for p in paths.cell(cell).iterdir()) == ["outcome.json", "raw"] for cell in cells)


def test_cells_of_other_settings_cannot_share_a_start(tmp_path, capsys):
    cells = [cell.id for cell in expand(load_study(DEMO))][:2]
    assert command.main(["--study", str(DEMO), "--results", str(tmp_path), "--cell", *cells]) == 2
    assert "cannot share" in capsys.readouterr().err


def let_measure(monkeypatch: pytest.MonkeyPatch, *records: dict[str, Any]) -> None:
    """Let each process that measures a cell end with the next of these records."""
    left = iter(records)

    def measured(_: str, arguments: list[str], *__: Any, **___: Any) -> SimpleNamespace:
        (Path(arguments[0]).parent / "measured.json").write_text(json.dumps(next(left)))
        return SimpleNamespace(wait=lambda _: 0, close=lambda: None)

    monkeypatch.setattr(session, "begin", measured)


def test_a_full_disk_leaves_a_last_line_and_no_half_evidence(tmp_path, monkeypatch, capsys):
    demo_cell, paths = prepared(tmp_path)

    def on_a_full_disk(series: command._Series, *_: object) -> int:
        series.job.evidence.mkdir(parents=True)
        print("INFO half a li", end="", file=sys.stderr)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command._Series, "measure", on_a_full_disk)
    assert call(tmp_path, demo_cell) == 1
    assert list(paths.cell(demo_cell).iterdir()) == []
    assert capsys.readouterr().err == "INFO half a li\nkvsweep measure-cell: [Errno 28] No space left on device\n"


def test_a_folder_for_temporary_files_that_is_not_its_own_ends_the_command_with_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    temporary_folder().symlink_to("elsewhere")
    cell, paths = prepared(tmp_path)
    assert call(tmp_path, cell) == 2
    assert not paths.cell(cell).exists()
    assert str(temporary_folder()) in capsys.readouterr().err.splitlines()[-1]


def test_time_that_ran_out_while_the_command_was_suspended_is_no_timeout(tmp_path, monkeypatch, capsys):
    def stopped(_: float) -> None:
        os.kill(os.getpid(), signal.SIGCONT)
        monkeypatch.setattr(session.time, "monotonic", lambda: math.inf)

    cell, paths = prepared(tmp_path)
    child = SimpleNamespace(wait=stopped, close=lambda: None)
    monkeypatch.setattr(session, "begin", lambda *_: child)
    assert call(tmp_path, cell, "--start", "1", "--round", "1") == 1
    assert not paths.outcome(cell).exists()
    assert "stopped" in capsys.readouterr().err
    child.wait = lambda _: None
    assert call(tmp_path, cell, "--start", "1", "--round", "1") == 0
    assert Outcome.read(paths.outcome(cell)).outcome == "timeout"


def test_a_further_start_has_a_folder_of_its_own_and_leaves_the_first_as_it_is(tmp_path, monkeypatch):
    cell, paths = prepared(tmp_path)
    let_measure(monkeypatch, {"outcome": "ok"}, {"outcome": "timeout"})
    first, further = ["--start", "1"], ["--start", "2", "--round", "4", "--position", "7"]
    assert [call(tmp_path, cell, "--unless-done", *of) for of in (first, further, first, further)] == [0] * 4
    assert {start: path.relative_to(paths.cell(cell)).as_posix() for start, path in paths.outcomes(cell).items()} == {
        1: "outcome.json",
        2: "start-2/outcome.json",
    }
    one_start, second = (Outcome.read(path) for path in paths.outcomes(cell).values())
    assert (one_start.outcome, second.outcome) == ("ok", "timeout")
    assert (one_start.start.start, one_start.start.round, one_start.start.position) == (1, 1, None)
    assert (second.start.start, second.start.round, second.start.position) == (2, 4, 7)
    assert second.start.planned == load_study(DEMO).starts.in_words
    assert second.start.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_cell_by_hand_is_measured_in_its_next_start_and_the_present_round(tmp_path, monkeypatch):
    cell, paths = prepared(tmp_path)
    let_measure(monkeypatch, *3 * [{"outcome": "ok", "phases_s": {"start": 1.0}}])
    assert call(tmp_path, cell, "--start", "1", "--round", "5") == 0
    first = paths.outcome(cell).read_bytes()
    assert [call(tmp_path, cell) for _ in range(2)] == [0, 0]
    assert paths.outcome(cell).read_bytes() == first
    starts = {start: Outcome.read(path).start for start, path in paths.outcomes(cell).items()}
    assert {start: (of.start, of.round) for start, of in starts.items()} == {1: (1, 5), 2: (2, 6), 3: (3, 7)}


@pytest.mark.parametrize("node", [None, "n-7"])
def test_on_the_wrong_device_a_cell_has_no_outcome_not_in_the_last_attempt_either(tmp_path, monkeypatch, capsys, node):
    cell, paths = prepared(tmp_path)
    reason = "h200 was requested, but there is no NVIDIA GPU here"
    let_measure(monkeypatch, *2 * [{"outcome": "invalid", "reason": reason, "wrong_device": True}])
    monkeypatch.setenv("SLURMD_NODENAME", node) if node else monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    planted = paths.wrong_nodes(cell.gpu) / "n-7"  # by whoever may write in the results
    planted.parent.mkdir(parents=True)
    planted.symlink_to(tmp_path / "victim")
    for attempt in ("1", "3"):
        assert call(tmp_path, cell, "--attempt", attempt, "--attempts", "3") == command.WRONG_DEVICE
        message = capsys.readouterr().err
        assert message.startswith("h200 ")
        assert list(paths.cell(cell).iterdir()) == []
    assert planted.is_symlink() == (node is None)
    assert not (tmp_path / "victim").exists()


def test_a_cells_lock_is_this_users_alone_and_names_its_holder(tmp_path, capsys):
    def wait() -> None:
        with locked(lock, command._tell):
            pass

    lock = tmp_path / "a.lock"
    with ThreadPoolExecutor() as pool, locked(lock, print):  # released before the pool waits
        assert lock.stat().st_mode & 0o777 == 0o600
        second = pool.submit(wait)
        said = wait_for(lambda: capsys.readouterr().out, what="the message")
        assert said.startswith(f"waiting: process {os.getpid()} of user ")
        assert gethostname() in said
    second.result(timeout=60)
