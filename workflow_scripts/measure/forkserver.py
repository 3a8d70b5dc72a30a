"""A small fork server: imports an engine's libraries once, then forks a child for each job.

Importing vLLM takes 20 to 30 s; forking a process that has imported it takes milliseconds. The first measuring
command on a host that needs certain libraries starts a server with exactly these. The server ends by itself after some
time without work. Each job has its own session and its own log, and ends with the command that requested it: the
server holds one connection per job and kills the whole session, with all its process groups, when the connection ends.
The server does not import the pipeline's measuring code, so that every child runs the code that is on disk.

    python -m workflow_scripts.measure.forkserver SOCKET torch,transformers [IDLE_S]
"""

import contextlib
import ctypes
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
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Client, Connection, wait
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import IO, Any, NamedTuple

IDLE_S = 120.0
STARTED_S = 5.0  # after this a server that was just started and does not take a job is not one that ended
LONGEST_S = 2e6  # poll(2) counts milliseconds in 31 bits
SEARCH_PATHS = ("PATH", "LD_LIBRARY_PATH")
CHECKOUT = Path(__file__).resolve().parents[2]


class ForkServerError(RuntimeError):
    """The fork server could not be started, or ended before the job began."""


class NotImportedError(ForkServerError):
    """The fork server ended while it started: its Python or the libraries to preload are not there or broken."""


# --- the client --------------------------------------------------------------------------------------------------


def run(
    module: str,
    argv: Sequence[str],
    log: IO[bytes],
    env: dict[str, str],
    time_limit_s: float,
    preload: Sequence[str],
    python: Path | None = None,
) -> int | None:
    """Run `module.main(argv)` in a forked child whose output goes to `log`; wait for its end and return its exit
    status: negative if a signal killed it, None if it reached the time limit. The child's environment is `env`, plus
    variables that the preloaded modules set and `env` lacks. The child and everything that it started are killed after
    `time_limit_s`, or when this process ends. The limit counts from the fork, not from the start of the server.
    `python` is that of another environment, where the child keeps its own search paths. Raises ForkServerError if no
    server could be started, or it ended during the job."""
    own = () if python is None else SEARCH_PATHS
    job = {"module": module, "argv": list(argv), "env": env, "own": own, "cwd": str(Path.cwd())}
    # One server per environment, checkout, cluster job and set of libraries: a job's processes end with the job, and
    # the libraries of one engine must not change the process of another engine.
    key = "\0".join((str(python or sys.prefix), str(CHECKOUT), os.environ.get("SLURM_JOB_ID", ""), *preload))
    path = _runtime_dir() / f"fork-{hashlib.sha256(key.encode()).hexdigest()[:12]}.sock"
    for _ in range(3):
        # Only one command at a time looks for a server, so that two commands never start two servers.
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            started, server = None, _connected(path)
            if server is None:
                started, server = _started(path, preload, python)
        with server:
            try:
                server.send_bytes(json.dumps(job).encode())
                send_handle(server, log.fileno(), None)
                server.recv_bytes()
            except (EOFError, ConnectionError):
                if started is not None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        started.wait(STARTED_S)
                        raise _not_imported(path) from None
                continue  # the server was idle and ended at the moment of the request
            try:
                return int(server.recv_bytes()) if server.poll(min(time_limit_s, LONGEST_S)) else None
            except (EOFError, ConnectionError):
                raise ForkServerError("the fork server went away while the cell ran") from None
    raise ForkServerError(f"no fork server answers; its log is {path.with_suffix('.log')}")


def _runtime_dir() -> Path:
    path = Path(tempfile.gettempdir()) / f"kvsweep-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise ForkServerError(f"{path} belongs to somebody else; set TMPDIR to a folder of your own")
    return path


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """The address of a socket, through its open folder: an address has at most 107 bytes, and `path` may have more."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _connected(path: Path) -> Connection | None:
    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError), _address(path) as address:
        return Client(address)
    return None


def _started(path: Path, modules: Sequence[str], python: Path | None) -> "tuple[subprocess.Popen[bytes], Connection]":
    search = os.environ.get("PATH", os.defpath)
    env = os.environ if python is None else {**os.environ, "PATH": f"{python.parent}{os.pathsep}{search}"}
    command = [str(python or sys.executable), "-m", __name__, str(path), ",".join(modules)]
    with path.with_suffix(".log").open("wb") as log:
        try:
            server = subprocess.Popen(
                command,
                cwd=CHECKOUT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        except OSError as e:
            raise NotImportedError(f"{command[0]}: {e.strerror}") from None
    while (connection := _connected(path)) is None:
        if server.poll() is not None:
            raise _not_imported(path)
        time.sleep(0.02)
    return server, connection


def _not_imported(path: Path) -> NotImportedError:
    log = path.with_suffix(".log")
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "without a word")
    return NotImportedError(f"the fork server ended at once: {last}; its log is {log}")


# --- the server --------------------------------------------------------------------------------------------------


class _Job(NamedTuple):
    """A child, and the connection of the command that requested it; when either ends, the other has to."""

    pid: int
    pidfd: int
    connection: Connection


def serve(path: Path, modules: Sequence[str], idle_s: float = IDLE_S) -> None:
    """Listen at `path`, import `modules`, then fork a child for each job until `idle_s` pass without one."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _address(path) as address:
        listener.bind(address)
    # Commands may connect while the imports run; they wait in the backlog.
    listener.listen(64)
    before = set(os.environ)
    for module in modules:
        _import(module)
    set_on_import = {name: value for name, value in os.environ.items() if name not in before}
    gc.freeze()  # so that a child's garbage collector does not touch the shared pages
    jobs: list[_Job] = []
    while ready := wait([listener, *(end for job in jobs for end in job[1:])], None if jobs else idle_s):
        for job in [job for job in jobs if job.pidfd in ready or job.connection in ready]:
            jobs.remove(job)
            _end(job)
        if listener in ready and (taken := _accept(listener, set_on_import)):
            jobs.append(taken)
    path.unlink(missing_ok=True)


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as e:
        # Another version of a library may lack one of its parts, but not all of it.
        if not f"{module}.".startswith(f"{e.name}.") or e.name == module.partition(".")[0]:
            raise


def _accept(listener: socket.socket, set_on_import: dict[str, str]) -> _Job | None:
    connection = Connection(listener.accept()[0].detach())
    try:
        message, log_fd = json.loads(connection.recv_bytes()), recv_handle(connection)
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            listener.close()
            connection.close()
            _child(message, log_fd, set_on_import, server)
        os.close(log_fd)
        connection.send_bytes(b"begun")
        return _Job(pid, os.pidfd_open(pid), connection)
    except (OSError, EOFError, RuntimeError, ValueError) as e:
        print(f"a job could not be taken: {e}", file=sys.stderr, flush=True)
        connection.close()
        return None


def _end(job: _Job) -> None:
    # Kill what the child left behind, or the child itself if its command has ended.
    os.kill(job.pid, signal.SIGKILL)  # not waited for yet, so the process id is still the child's
    _kill_session(job.pid)
    _, status = os.waitpid(job.pid, 0)
    os.close(job.pidfd)
    with contextlib.suppress(OSError):
        job.connection.send_bytes(str(os.waitstatus_to_exitcode(status)).encode())
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
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        own = {name: os.environ[name] for name in job["own"] if name in os.environ}
        os.environ.clear()
        os.environ.update(set_on_import)
        os.environ.update(job["env"] | own)
        os.chdir(job["cwd"])
        status = int(importlib.import_module(job["module"]).main(job["argv"]))
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        # Without the interpreter's clean-up, which would run the server's own.
        os._exit(status)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, and end it now if that has happened already."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    _, socket_path, preload, *idle_s = sys.argv
    serve(Path(socket_path), [module for module in preload.split(",") if module], *map(float, idle_s))
