"""A server's whole process group ends, whatever it does, and the end of its leader is reported."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import is_gone, wait_for
from workflow_scripts.common.parent import die_with_parent
from workflow_scripts.engines.serving import processes
from workflow_scripts.engines.serving.processes import LastCommand, ServerProcess

FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN) if "stubborn" in sys.argv else None
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}\\n")
time.sleep(600)
"""


def family(folder: Path, *words: str) -> tuple[ServerProcess, list[int]]:
    pids = folder / "pids"
    argv = [sys.executable, "-c", FAMILY, str(pids), *words]
    server = ServerProcess.forked(lambda: os.execv(argv[0], argv))
    wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"))
    return server, [int(word) for word in pids.read_text().split()]


def test_a_child_is_a_group_of_its_own_that_ends_with_its_parent():
    for parent, status in ((os.getpid(), 7), (-1, 1)):
        if (child := os.fork()) == 0:
            die_with_parent(parent)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status
    server = ServerProcess.forked(lambda: time.sleep(600))
    assert os.getpgid(server.pid) == server.pid != os.getpgid(0)
    assert os.getsid(server.pid) == os.getsid(0)
    server.stop()


@pytest.mark.parametrize(("words", "grace_s", "by"), [((), 60.0, "15 (SIGTERM)"), (("stubborn",), 0.3, "9 (SIGKILL)")])
def test_a_stopped_server_takes_what_it_started_with_it_even_if_it_does_not_listen(
    tmp_path, monkeypatch, words, grace_s, by
):
    monkeypatch.setattr(processes, "TERM_GRACE_S", grace_s)
    server, pids = family(tmp_path, *words)
    assert server.pid == pids[0]
    assert server.ended() is None
    server.stop()
    assert all(is_gone(pid) for pid in pids)
    assert server.ended() == f"the server was killed by signal {by}"


def test_while_a_server_is_guarded_its_children_do_not_outlive_it(tmp_path):
    server, pids = family(tmp_path)
    with server.guarded():
        assert not is_gone(pids[1])
        os.kill(server.pid, signal.SIGKILL)
        wait_for(lambda: is_gone(pids[1]))
    assert server.ended() == "the server was killed by signal 9 (SIGKILL)"
    server.stop()


def test_an_exception_and_a_command_that_is_not_there_are_statuses():
    def fail() -> None:
        raise ValueError("it broke")

    for server in (ServerProcess.forked(fail), ServerProcess.forked(lambda: os.execvp("no-such-server", [""]))):
        wait_for(lambda server=server: server.ended() is not None)  # type: ignore[misc]
        assert server.ended() == "the server ended with status 1"
        server.stop()


def test_a_last_command_runs_when_it_is_told_to_and_its_failure_is_no_error(tmp_path):
    done = tmp_path / "done"
    last = LastCommand(["sh", "-c", 'echo "$WORD" > "$0"', str(done)], {**os.environ, "WORD": "over"})
    time.sleep(0.2)
    assert not done.exists()
    last.run(limit_s=60)
    assert done.read_text() == "over\n"
    # One that takes too long or is not there is no error.
    began = time.monotonic()
    LastCommand(["sleep", "600"], dict(os.environ)).run(limit_s=0.3)
    LastCommand(["no-such-command"], dict(os.environ)).run(limit_s=10)
    assert time.monotonic() - began < 60


def test_a_last_command_runs_when_all_of_its_session_is_killed(tmp_path):
    done = tmp_path / "done"
    code = f"""
import os, signal
from workflow_scripts.engines.serving.processes import LastCommand, ServerProcess
LastCommand(["touch", {str(done)!r}], dict(os.environ))
server = ServerProcess.forked(lambda: os.execvp("sleep", ["sleep", "600"]))
print(server.pid, flush=True)
signal.pause()
"""
    root = Path(processes.__file__).parents[3]
    command = [sys.executable, "-c", code]
    cell = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert cell.stdout is not None
    server = int(cell.stdout.readline())
    assert not done.exists()
    cell.kill()
    cell.communicate()
    wait_for(done.exists)
    wait_for(lambda: is_gone(server))
