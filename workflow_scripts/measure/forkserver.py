"""A small fork server: imports an engine's libraries once, then forks a child for each job.

Importing vLLM takes 20 to 30 s; forking a process that has imported it takes milliseconds. The first measuring
command on a host that needs certain libraries starts a server with exactly these, at a socket that it has bound. The
server ends by itself after some time without work. For each connection it forks a keeper, which forks the child. The
child has its own session and its own log, and ends with the command that requested it: the keeper kills the whole
session, with all its process groups, when the connection or the child ends. A child imports the pipeline's code anew,
so that it runs what is on disk. Both ends of a connection check that the other one is a process of the same user.

    python -m workflow_scripts.measure.forkserver SOCKET torch,transformers [IDLE_S] < the listening socket
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
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import psutil

from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.files import last_line
from workflow_scripts.common.ownership import own_folder, peer_of, temporary_folder
from workflow_scripts.common.parent import forked

IDLE_S = 120.0
_START_LIMIT_S = 600.0  # imports from a slow network file system take minutes
KILLED_IN_S = 10.0
SEARCH_PATHS = ("PATH", "LD_LIBRARY_PATH")
# By libraries, only once.
READ_ON_LOAD = ("GOMP_", "HF_", "KMP_", "LD_PRELOAD", "MKL_", "OMP_", "OPENBLAS_", "TORCH", "TRANSFORMERS_")


class ForkServerError(RuntimeError):
    """The fork server could not be started, did not begin the job, or ended during it."""


class NotImportedError(ForkServerError):
    """The fork server ended while it started: its Python or the libraries to preload are not there or broken."""


def _checked(end: socket.socket) -> Connection:
    """One end of a connection. Raises ForkServerError if the process at the other end is another user's."""
    if (uid := peer_of(end).uid) != os.geteuid():
        raise ForkServerError(f"the other end of the socket is a process of user {uid}")
    return Connection(end.detach())


# --- the client --------------------------------------------------------------------------------------------------


class Child:
    """A forked process."""

    def __init__(self, keeper: Connection) -> None:
        self._keeper = keeper

    def close(self) -> None:
        """Kill it and all that it started, as the end of this process does too."""
        with self._keeper, contextlib.suppress(OSError):
            self._keeper.send_bytes(b"end")
            self._keeper.poll(KILLED_IN_S)  # until they are killed

    def wait(self, limit_s: float) -> int | None:
        """The exit status, negative if a signal killed the child; None if it has not ended within `limit_s`. Raises
        ForkServerError if the server ended."""
        try:
            return int(self._keeper.recv_bytes()) if self._keeper.poll(limit_s) else None
        except (EOFError, OSError):
            raise ForkServerError("the fork server went away while the cell ran") from None


def begin(
    module: str,
    argv: Sequence[str],
    log: Path,
    env: dict[str, str],
    preload: Sequence[str],
    python: Path | None = None,
) -> Child:
    """Run `module.main(argv)` in a forked child that appends its output to `log`. The child's environment is `env`,
    plus variables that the preloaded modules set and `env` lacks; its folder for temporary files is one that only this
    user can enter. `python` is that of another environment, where the child keeps its own search paths. Raises
    ForkServerError if no server began the job within `_START_LIMIT_S`; InputError if the folder is not this user's
    own."""
    own = () if python is None else SEARCH_PATHS
    temporary = temporary_folder()
    env = {**env, "TMPDIR": str(temporary)}
    job = {"module": module, "argv": list(argv), "log": str(log), "env": env, "own": own, "cwd": str(Path.cwd())}
    # One server per environment, checkout, cluster job, set of libraries and what these read: a job's processes end
    # with the job, and the libraries of one engine must not change the process of another engine.
    on_load = sorted(f"{name}={value}" for name, value in env.items() if name.startswith(READ_ON_LOAD))
    where = (str(python or sys.prefix), str(CHECKOUT), env.get("SLURM_JOB_ID", ""), str(os.sched_getaffinity(0)))
    key = "\0".join((*where, *on_load, *preload))
    path = temporary / f"server-{hashlib.sha256(key.encode()).hexdigest()[:12]}.sock"
    command = [str(python or sys.executable), "-m", __name__, str(path), ",".join(preload)]
    if python is not None:
        env = {**env, "PATH": f"{python.parent}{os.pathsep}{env.get('PATH', os.defpath)}"}
    how, its_log = "does not answer", f"its log is {path.with_suffix('.log')}"
    for _ in range(3):
        keeper, started = _connected(path, command, env)
        with contextlib.suppress(EOFError, ConnectionError):
            keeper.send_bytes(json.dumps(job).encode())
            if keeper.poll(_START_LIMIT_S):
                keeper.recv_bytes()
                return Child(keeper)
            how = f"did not begin the job within {_START_LIMIT_S:g} s"
            if started:
                started.kill()
            break
        if started:  # else it was idle and ended at the moment of the request, or another command started it
            last = last_line(path.with_suffix(".log")) or "without a word"
            raise NotImportedError(f"the fork server ended at once: {last}; {its_log}")
    keeper.close()
    raise ForkServerError(f"the fork server {how}; {its_log}")


def _connected(
    path: Path, command: Sequence[str], env: dict[str, str]
) -> tuple[Connection, "subprocess.Popen[bytes] | None"]:
    """A connection to the server at `path`, and its process, if it did not run and was started."""
    # Only one command at a time looks for a server, so that two commands never start two servers.
    unix = partial(socket.socket, socket.AF_UNIX)
    with own_folder(path.parent) as folder, (folder / "servers.lock").open("w") as lock, unix() as connection:
        fcntl.flock(lock, fcntl.LOCK_EX)
        address = folder / path.name
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            connection.connect(str(address))
            return _checked(connection), None
        address.unlink(missing_ok=True)
        with unix() as listener, address.with_suffix(".log").open("wb") as output:
            listener.bind(str(address))
            listener.listen()
            options: dict[str, Any] = {"cwd": CHECKOUT, "env": env, "start_new_session": True}
            try:
                server = subprocess.Popen(command, stdin=listener.fileno(), stdout=output, stderr=output, **options)
            except OSError as e:
                raise NotImportedError(f"{command[0]}: {e.strerror}") from None
            connection.connect(str(address))
        return _checked(connection), server


# --- the server --------------------------------------------------------------------------------------------------


def serve(path: Path, modules: Sequence[str], idle_s: float = IDLE_S) -> None:
    """Import `modules`, then fork a keeper for each connection to the socket at `path`, which standard input is, until
    `idle_s` pass without one."""
    listener = socket.socket(fileno=os.dup(0))
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    before = set(os.environ)
    for module in modules:
        _import(module)
    set_on_import = {name: value for name, value in os.environ.items() if name not in before}
    gc.freeze()  # so that a child's garbage collector does not touch the shared pages
    keepers: dict[int, int] = {}  # process ids by their pidfds
    while ready := wait([listener, *keepers], None if keepers else idle_s):
        for pidfd in keepers.keys() & ready:
            os.waitpid(keepers.pop(pidfd), 0)
            os.close(pidfd)
        if listener in ready:
            with listener.accept()[0] as connection:
                keeper = forked(partial(_keep, connection, listener, set_on_import))
            keepers[os.pidfd_open(keeper)] = keeper
    path.unlink(missing_ok=True)


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as e:
        # Another version of a library may lack one of its parts, but not all of it.
        if not f"{module}.".startswith(f"{e.name}.") or e.name == module.partition(".")[0]:
            raise


def _keep(connection: socket.socket, listener: socket.socket, set_on_import: dict[str, str]) -> None:
    """Fork a child for the job that comes through a connection, and kill it with all that it started when it, the
    connection or the server ends."""
    listener.close()
    command = _checked(connection)
    job = json.loads(command.recv_bytes())
    child = forked(partial(_child, command, job, set_on_import))
    with contextlib.suppress(OSError):  # the command has ended
        command.send_bytes(b"begun")
        wait([command, os.pidfd_open(child)])
    os.kill(child, signal.SIGKILL)  # not waited for yet, so the process id is still the child's
    _kill_session(child)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        command.send_bytes(str(os.waitstatus_to_exitcode(status)).encode())


def _kill_session(leader: int) -> None:
    """Kill all processes of a session, of any group and parent, and repeat until no new one is found."""
    killed: set[int] = set()
    while members := {pid for pid in psutil.pids() if _session_of(pid) == leader} - killed:
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= members


def _session_of(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid)
    return None


def _child(command: Connection, job: dict[str, Any], set_on_import: dict[str, str]) -> int:
    command.close()
    os.setsid()
    with Path(job["log"]).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    own = {name: os.environ[name] for name in job["own"] if name in os.environ}
    os.environ.clear()
    os.environ.update(set_on_import)
    os.environ.update(job["env"] | own)
    os.chdir(job["cwd"])
    for name in [name for name in sys.modules if name.startswith("workflow_scripts.")]:
        del sys.modules[name]
    return int(importlib.import_module(job["module"]).main(job["argv"]))


if __name__ == "__main__":
    _, socket_path, preload, *idle_s = sys.argv
    serve(Path(socket_path), [module for module in preload.split(",") if module], *map(float, idle_s))
