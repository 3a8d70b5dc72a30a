"""A small fork server: imports an engine's libraries once, then forks a child for each job.

Importing vLLM takes 20 to 30 s; forking a process that has imported it takes milliseconds. The first measuring
command on a host that needs certain libraries starts a server with exactly these. The server ends by itself after some
time without work. Each job has its own session and its own log, and ends with the command that requested it: the
server holds one connection per job and kills the whole session, with all its process groups, when the connection ends.
A child imports the pipeline's code anew, so that it runs what is on disk. Both ends of a connection check that the
other one is a process of the same user.

    python -m workflow_scripts.measure.forkserver SOCKET torch,transformers [IDLE_S]
"""

import contextlib
import fcntl
import gc
import hashlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from workflow_scripts.common.ownership import own_folder, peer_of, temporary_folder
from workflow_scripts.common.parent import die_with_parent

IDLE_S = 120.0
START_LIMIT_S = 600.0  # imports from a slow network file system take minutes
LONGEST_S = 2e6  # poll(2) counts milliseconds in 31 bits
MESSAGE_BYTES = 16  # of the longest message
KILLED_IN_S = 10.0
SEARCH_PATHS = ("PATH", "LD_LIBRARY_PATH")
READ_ON_LOAD = ("GOMP_", "KMP_", "LD_PRELOAD", "MKL_", "OMP_", "OPENBLAS_")  # by libraries of threads, only once
CHECKOUT = Path(__file__).resolve().parents[2]


class ForkServerError(RuntimeError):
    """The fork server could not be started, did not begin the job, or ended during it."""


class NotImportedError(ForkServerError):
    """The fork server ended while it started: its Python or the libraries to preload are not there or broken."""


# --- the client --------------------------------------------------------------------------------------------------


class Child:
    """A forked process. It and all that it started are killed when its context ends, or this process."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._server, contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_WR)
            self._server.settimeout(KILLED_IN_S)
            while self._server.recv(MESSAGE_BYTES):  # until the server has killed them
                pass

    def wait(self, limit_s: float) -> int | None:
        """The exit status, negative if a signal killed the child; None if it has not ended within `limit_s`. Raises
        ForkServerError if the server ended."""
        self._server.settimeout(min(limit_s, LONGEST_S))
        try:
            status = self._server.recv(MESSAGE_BYTES)
        except TimeoutError:
            return None
        except ConnectionError:
            status = b""
        if not status:
            raise ForkServerError("the fork server went away while the cell ran")
        return int(status)


def begin(
    module: str,
    argv: Sequence[str],
    log: IO[bytes],
    env: dict[str, str],
    time_limit_s: float,
    preload: Sequence[str],
    python: Path | None = None,
) -> Child:
    """Run `module.main(argv)` in a forked child whose output goes to `log`. The child's environment is `env`, plus
    variables that the preloaded modules set and `env` lacks; its folder for temporary files is one that only this user
    can enter. `python` is that of another environment, where the child keeps its own search paths. Raises
    ForkServerError if no server could be started within `START_LIMIT_S`, or it did not begin the job within
    `time_limit_s`; InputError if the folder is not this user's own."""
    own = () if python is None else SEARCH_PATHS
    temporary = temporary_folder()
    env = {**env, "TMPDIR": str(temporary)}
    job = {"module": module, "argv": list(argv), "env": env, "own": own, "cwd": str(Path.cwd())}
    # One server per environment, checkout, cluster job, number of threads and set of libraries: a job's processes end
    # with the job, and the libraries of one engine must not change the process of another engine.
    threads = sorted(f"{name}={value}" for name, value in env.items() if name.startswith(READ_ON_LOAD))
    where = (str(python or sys.prefix), str(CHECKOUT), env.get("SLURM_JOB_ID", ""), str(os.sched_getaffinity(0)))
    key = "\0".join((*where, *threads, *preload))
    path = temporary / f"server-{hashlib.sha256(key.encode()).hexdigest()[:12]}.sock"
    log_of_server = path.with_suffix(".log")
    with own_folder(temporary) as folder:
        for _ in range(3):
            with contextlib.ExitStack() as unless_begun:
                server = unless_begun.enter_context(_server(folder, path, preload, env, python))
                try:
                    server.settimeout(min(time_limit_s, LONGEST_S))
                    _send_job(server, job, log)
                    if server.recv(MESSAGE_BYTES):  # else the server was idle and ended at the moment of the request
                        unless_begun.pop_all()
                        return Child(server)
                except ConnectionError:
                    continue
                except TimeoutError:
                    how = f"did not begin the job within {time_limit_s:g} s"
                    raise ForkServerError(f"the fork server {how}; its log is {log_of_server}") from None
    raise ForkServerError(f"no fork server answers; its log is {log_of_server}")


def _send_job(server: socket.socket, job: dict[str, Any], log: IO[bytes]) -> None:
    """Send the job as an open file beside its log, so that the server never waits for the rest of a message."""
    with os.fdopen(os.memfd_create("job"), "wb") as description:
        description.write(json.dumps(job).encode())
        description.flush()
        socket.send_fds(server, [b"job"], [description.fileno(), log.fileno()])


def _server(
    folder: Path, path: Path, preload: Sequence[str], env: dict[str, str], python: Path | None
) -> socket.socket:
    """A connection to the server at `path`, which is started if it does not run; `folder` is the open folder."""
    deadline_s = time.monotonic() + START_LIMIT_S
    # Only one command at a time looks for a server, so that two commands never start two servers.
    with (folder / path.with_suffix(".lock").name).open("w") as lock:
        while not _is_locked(lock):
            if time.monotonic() > deadline_s:
                raise ForkServerError(f"another command has not started a fork server within {START_LIMIT_S:g} s")
            time.sleep(0.05)
        connection = _connected(folder / path.name) or _started(folder, path, preload, env, python, lock, deadline_s)
    if (uid := peer_of(connection).uid) != os.geteuid():
        connection.close()
        raise ForkServerError(f"a process of user {uid} listens at {path}")
    return connection


def _is_locked(lock: IO[str]) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _connected(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    return connection


def _started(
    folder: Path,
    path: Path,
    modules: Sequence[str],
    env: dict[str, str],
    python: Path | None,
    lock: IO[str],
    deadline_s: float,
) -> socket.socket:
    if python is not None:
        env = {**env, "PATH": f"{python.parent}{os.pathsep}{env.get('PATH', os.defpath)}"}
    command = [str(python or sys.executable), "-m", __name__, str(path), ",".join(modules)]
    log = path.with_suffix(".log")
    with (folder / log.name).open("wb") as output:
        try:
            server = subprocess.Popen(
                command,
                cwd=CHECKOUT,
                env=env,
                stdin=lock,  # which the server holds until it listens, even if this command is killed
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as e:
            raise NotImportedError(f"{command[0]}: {e.strerror}") from None
    while (connection := _connected(folder / path.name)) is None:
        if server.poll() is not None:
            raise _not_imported(log)
        if time.monotonic() > deadline_s:
            server.kill()
            raise ForkServerError(f"the fork server did not start within {START_LIMIT_S:g} s; its log is {log}")
        time.sleep(0.02)
    return connection


def _not_imported(log: Path) -> NotImportedError:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "without a word")
    return NotImportedError(f"the fork server ended at once: {last}; its log is {log}")


# --- the server --------------------------------------------------------------------------------------------------


class _Job(NamedTuple):
    """A child, and the connection of the command that requested it; when either ends, the other has to."""

    pid: int
    pidfd: int
    connection: socket.socket


def serve(path: Path, modules: Sequence[str], idle_s: float = IDLE_S) -> None:
    """Import `modules`, listen at `path`, then fork a child for each job until `idle_s` pass without one. Standard
    input is the lock of those who look for a server, which is held until this one listens. Raises InputError if the
    folder of `path` is not this user's own."""
    lock = os.dup(0)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    before = set(os.environ)
    for module in modules:
        _import(module)
    set_on_import = {name: value for name, value in os.environ.items() if name not in before}
    gc.freeze()  # so that a child's garbage collector does not touch the shared pages
    with own_folder(path.parent) as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        address = folder / path.name
        address.unlink(missing_ok=True)
        listener.bind(str(address))
        listener.listen()
        os.close(lock)
        jobs: list[_Job] = []
        silent: list[socket.socket] = []  # connections whose job has not come yet
        while ready := wait([listener, *silent, *(end for job in jobs for end in job[1:])], None if jobs else idle_s):
            for job in [job for job in jobs if job.pidfd in ready or job.connection in ready]:
                jobs.remove(job)
                _end(job)
            for connection in [connection for connection in silent if connection in ready]:
                silent.remove(connection)
                others = [listener, *silent, *(job.connection for job in jobs)]
                if begun := _begun(connection, others, set_on_import):
                    jobs.append(begun)
            if listener in ready:
                silent += _accepted(listener)
        address.unlink(missing_ok=True)


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as e:
        # Another version of a library may lack one of its parts, but not all of it.
        if not f"{module}.".startswith(f"{e.name}.") or e.name == module.partition(".")[0]:
            raise


def _accepted(listener: socket.socket) -> list[socket.socket]:
    connection = listener.accept()[0]
    if (uid := peer_of(connection).uid) == os.geteuid():
        return [connection]
    print(f"a connection of user {uid} was refused", file=sys.stderr, flush=True)
    connection.close()
    return []


def _begun(connection: socket.socket, others: Sequence[socket.socket], set_on_import: dict[str, str]) -> _Job | None:
    """Fork a child for the job that a connection has sent; None if it sent none. The child closes the `others` too."""
    files: list[int] = []
    try:
        _, files, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 2, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
        described, log = files
        message = json.loads(os.pread(described, os.fstat(described).st_size, 0))
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            for end in (*others, connection):
                end.close()
            _child(message, log, set_on_import, server)
        job = _Job(pid, os.pidfd_open(pid), connection)
        with contextlib.suppress(OSError):  # the command has ended; its connection says so too
            connection.send(b"begun")
        return job
    except (OSError, ValueError) as e:
        print(f"a job could not be taken: {e}", file=sys.stderr, flush=True)
        connection.close()
        return None
    finally:
        for file in files:
            os.close(file)


def _end(job: _Job) -> None:
    # Kill what the child left behind, or the child itself if its command has ended.
    os.kill(job.pid, signal.SIGKILL)  # not waited for yet, so the process id is still the child's
    _kill_session(job.pid)
    _, status = os.waitpid(job.pid, 0)
    os.close(job.pidfd)
    with contextlib.suppress(OSError):
        job.connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    job.connection.close()


def _kill_session(leader: int) -> None:
    """Kill all processes of a session, of any group and parent, and repeat until no new one is found."""
    killed: set[int] = set()
    while members := _session(leader) - killed:
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= members


def _session(leader: int) -> set[int]:
    members = set()
    for name in os.listdir("/proc"):  # noqa: PTH208 - only names are needed
        with contextlib.suppress(ProcessLookupError, ValueError):
            if os.getsid(int(name)) == leader:
                members.add(int(name))
    return members


def _child(job: dict[str, Any], log_fd: int, set_on_import: dict[str, str], server: int) -> None:
    status = 1
    try:
        os.setsid()
        die_with_parent(server)
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        own = {name: os.environ[name] for name in job["own"] if name in os.environ}
        os.environ.clear()
        os.environ.update(set_on_import)
        os.environ.update(job["env"] | own)
        os.chdir(job["cwd"])
        for name in [name for name in sys.modules if name.startswith("workflow_scripts.")]:
            del sys.modules[name]
        status = int(importlib.import_module(job["module"]).main(job["argv"]))
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        # Without the interpreter's clean-up, which would run the server's own.
        os._exit(status)


if __name__ == "__main__":
    _, socket_path, preload, *idle_s = sys.argv
    serve(Path(socket_path), [module for module in preload.split(",") if module], *map(float, idle_s))
