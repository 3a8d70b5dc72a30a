"""Jobs of the fork server end as they should, and leave no process behind."""

import os
import signal
import socket
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.other_user import another_user, answer_of_another_user, shared_folder
from tests.processes import is_gone, wait_for
from workflow_scripts.common.ownership import Peer, own_folder
from workflow_scripts.common.parent import forked
from workflow_scripts.measure import forkserver
from workflow_scripts.measure.forkserver import ForkServerError, NotImportedError, begin

JOBS = "tests.unit.measure.forked_jobs"
LITTLE = ("json",)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Servers started in the test end soon; gives those that were started."""
    started: list[psutil.Process] = []
    popen = subprocess.Popen

    def start(command: list[str], **options: object) -> "subprocess.Popen[bytes]":
        process = popen([*command, "1.5"], **options)  # type: ignore[call-overload]
        started.append(psutil.Process(process.pid))
        return process  # type: ignore[no-any-return]

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(forkserver.subprocess, "Popen", start)
    yield started
    for process in started:
        if process.is_running():
            process.kill()


def call(
    tmp_path: Path, *argv: str, time_limit_s: float = 30, preload: tuple[str, ...] = LITTLE, **variables: str
) -> tuple[int | None, str]:
    log = tmp_path / f"{'-'.join(argv)}.log"
    environment = {**os.environ, **variables}
    log.unlink(missing_ok=True)
    with closing(begin(JOBS, argv, log, environment, preload)) as child:
        ended = child.wait(time_limit_s)
    return ended, log.read_text(encoding="utf-8")


def test_a_job_has_its_own_log_environment_and_status(tmp_path, server):
    assert call(tmp_path, "say", "0", WORD="one") == (0, f"said one {Path.cwd()}\n")
    assert call(tmp_path, "say", "3", WORD="two") == (3, f"said two {Path.cwd()}\n")
    assert len(server) == 1
    ended, log = call(tmp_path, "raise")
    assert ended == 1
    assert "ValueError: the engine broke" in log
    assert call(tmp_path, "say", "0")[0] == 0
    assert call(tmp_path, "die")[0] == -signal.SIGKILL


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A module that sets a variable when it is imported."""
    (tmp_path / "library_of_the_test.py").write_text("import os\nos.environ['SET_ON_IMPORT'] = 'by the library'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "library_of_the_test"


def test_a_job_has_what_its_libraries_set_on_import_where_it_does_not_say_otherwise(tmp_path, server, library):
    variable = ("variable", "SET_ON_IMPORT")
    assert call(tmp_path, *variable, preload=(library,))[1] == "by the library\n"
    assert call(tmp_path, *variable, preload=(library,), SET_ON_IMPORT="by the user")[1] == "by the user\n"
    assert len(server) == 1
    # Jobs of other libraries have another server.
    call(tmp_path, "variable", "SET_ON_IMPORT", preload=(library,))
    assert call(tmp_path, "variable", "SET_ON_IMPORT")[1] == "None\n"
    assert len(server) == 2


def test_a_job_has_the_threads_that_it_asks_for_whoever_started_the_server(tmp_path, server, library):
    """OpenMP reads its variables once, when a library loads it."""
    (tmp_path / "library_of_the_test.py").write_text("import os\nos.environ['READ'] = os.environ['OMP_NUM_THREADS']\n")
    for threads in ("1", "2", "1"):
        assert call(tmp_path, "variable", "READ", preload=(library,), OMP_NUM_THREADS=threads)[1] == f"{threads}\n"
    assert len(server) == 2


def test_a_job_dies_with_its_server_and_the_command_is_told(tmp_path, server):
    log = tmp_path / "hang.log"
    with ThreadPoolExecutor() as pool:
        running = pool.submit(call, tmp_path, "hang")
        wait_for(lambda: log.exists() and log.read_text(encoding="utf-8").endswith("\n"), what="the job")
        job, helper = map(int, log.read_text(encoding="utf-8").split())
        server[0].kill()
        with pytest.raises(ForkServerError, match="went away"):
            running.result(timeout=60)
    wait_for(lambda: is_gone(job), what="the end of the job")
    psutil.Process(helper).kill()  # the kernel ends the child; what that had started is its own to end


def test_an_idle_server_ends_and_the_next_job_starts_another(tmp_path, server):
    call(tmp_path, "say", "0")
    wait_for(lambda: is_gone(server[0].pid), what="the end of the idle server")
    assert not list(tmp_path.glob("kvsweep-*/*.sock"))
    assert call(tmp_path, "say", "0")[0] == 0
    assert len(server) == 2


def test_commands_that_come_at_once_share_one_server(tmp_path, server):
    with ThreadPoolExecutor(max_workers=4) as pool:
        statuses = pool.map(lambda number: call(tmp_path, "say", str(number))[0], range(4))
        assert list(statuses) == [0, 1, 2, 3]
    assert len(server) == 1


def test_a_connection_that_says_nothing_keeps_no_other_waiting(tmp_path, server):
    call(tmp_path, "say", "0")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(next(tmp_path.glob("*/server-*.sock"))))
        assert call(tmp_path, "say", "3")[0] == 3
        silent.send(b"no job")
        assert call(tmp_path, "say", "4")[0] == 4
    assert len(server) == 1


def test_a_server_that_hangs_ends_the_job_within_its_limit_and_later_leaves_none_behind(tmp_path, server, monkeypatch):
    call(tmp_path, "say", "0")
    server[0].suspend()
    with monkeypatch.context() as soon:
        soon.setattr(forkserver, "_START_LIMIT_S", 0.5)
        with pytest.raises(ForkServerError, match=r"within 0\.5 s"):
            call(tmp_path, "hang")
    server[0].resume()
    call(tmp_path, "say", "0")  # the server looks at connections in the order in which they came
    wait_for(lambda: server[0].children() == [], what="the end of the job")


def test_a_library_that_hangs_on_import_ends_with_its_server(tmp_path, server, library, monkeypatch):
    (tmp_path / f"{library}.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(forkserver, "_START_LIMIT_S", 1.0)
    with pytest.raises(ForkServerError, match="did not begin"):
        call(tmp_path, "say", "0", preload=(library,))
    wait_for(lambda: is_gone(server[0].pid), what="the end of the server")


def test_a_server_whose_command_was_killed_while_it_started_serves_the_next(tmp_path, server, library):
    (tmp_path / f"{library}.py").write_text(f"import time\nopen({str(tmp_path / 'began')!r}, 'w')\ntime.sleep(1)\n")
    first = os.fork()
    if first == 0:
        call(tmp_path, "say", "0", preload=(library,))
        os._exit(0)
    wait_for((tmp_path / "began").exists, what="the import")
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    assert call(tmp_path, "say", "3", preload=(library,))[0] == 3
    assert server == []


def with_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the tests cannot become another user, processes of this one are taken for those of root."""
    if os.geteuid() != 0:
        monkeypatch.setattr(forkserver, "peer_of", lambda _: Peer(1, 0))


def test_a_job_is_not_sent_to_a_server_of_another_user(tmp_path, server, monkeypatch):
    call(tmp_path, "say", "0")
    server[0].kill()
    wait_for(lambda: is_gone(server[0].pid), what="the end of the server")
    (address := next(tmp_path.glob("*/server-*.sock"))).unlink()
    with_another_user(monkeypatch)
    reading, writing = os.pipe()

    def listen() -> None:
        theirs.listen()
        os.write(writing, b"listens")
        os.write(writing, theirs.accept()[0].recv(100) or b"nothing")

    with socket.socket(socket.AF_UNIX) as theirs, own_folder(address.parent) as folder:
        theirs.bind(str(folder / address.name))
        with another_user(listen):
            assert os.read(reading, 100) == b"listens"
            with pytest.raises(ForkServerError, match=r"process of user \d+"):
                call(tmp_path, "say", "0")
            assert os.read(reading, 100) == b"nothing"


def test_a_server_takes_no_job_from_another_user(monkeypatch):
    with_another_user(monkeypatch)

    def connect() -> bytes:
        with socket.socket(socket.AF_UNIX) as theirs:
            theirs.connect(str(shared / "socket"))
            return theirs.recv(100)

    with shared_folder() as shared, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(shared / "socket"))
        (shared / "socket").chmod(0o777)
        listener.listen()
        with ThreadPoolExecutor() as pool:
            theirs = pool.submit(answer_of_another_user, connect)
            with listener.accept()[0] as connection:
                keeper = forked(partial(forkserver._keep, connection, listener, {}))
            assert theirs.result(timeout=60) == "b''"
            assert os.waitstatus_to_exitcode(os.waitpid(keeper, 0)[1]) == 1


def test_a_server_that_cannot_start_is_named_with_its_log(tmp_path, server, library):
    (tmp_path / f"{library}.py").write_text("import time\ntime.sleep(0.5)\nraise RuntimeError('no such kernel')\n")
    with pytest.raises(NotImportedError, match=r"ended at once: .*no such kernel.*\.log"):
        call(tmp_path, "say", "0", preload=(library,))
