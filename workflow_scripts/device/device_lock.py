"""Locks of devices: one job at a time, of all users of a host.

A lock is an abstract UNIX socket, which the kernel binds once per name and frees when its process ends. It has no file
that others could replace, and is the same for jobs with different folders for temporary files; but any user of the host
can hold it. A GPU that Slurm gave to this job alone has a lock of this user's own, and a site may have a folder of its
group for locks (`LOCK_FOLDER`): both are files.
"""

import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
import pwd
import socket
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from socket import gethostname

import psutil

from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.common.command import say
from workflow_scripts.common.ownership import Peer, own_folder, peer_of, temporary_folder
from workflow_scripts.common.printable import printable
from workflow_scripts.device.device_check import nvml_handle

# Variable with a word; only jobs with the same one wait for each other. For several hosts that share one kernel, as in
# tests, and against a user who does not release a lock.
SCOPE = "KVSWEEP_LOCK_SCOPE"
# Variable with the time in minutes after which a job that waits for a device gives up, and with a folder for locks.
WAIT, WAIT_MIN, LOCK_FOLDER = "KVSWEEP_LOCK_WAIT_MIN", 60.0, "KVSWEEP_LOCK_FOLDER"
AGAIN_S = 0.2


@contextlib.contextmanager
def device_lock(gpu: Gpu, count: int = 1) -> Iterator[None]:
    """Hold `count` devices for one job, so that no other job on this host uses them, whichever snakemake started it.
    All CPU devices of a host share one lock, because they share its cores and its memory bandwidth. A process that is
    forked meanwhile must not outlive the job: it holds the lock too. Raises InputError if this user's folder for
    temporary files is not its own, TimeoutError if others hold a device for too long."""
    own = temporary_folder()
    is_given = gpu.kind != "cpu" and "SLURM_JOB_ID" in os.environ and os.environ.get("SLURM_JOB_GPUS")
    files = Path(os.environ[LOCK_FOLDER]) if LOCK_FOLDER in os.environ else own if is_given else None
    ends_s = time.monotonic() + 60 * float(os.environ.get(WAIT, WAIT_MIN))
    with own_folder(own), contextlib.ExitStack() as held:
        for name in _lock_names(gpu, count):
            told = partial(_tell, name, set(), ends_s)
            held.enter_context(locked(files / f"{name}.lock", told, 0o660) if files else _bound(name, told, ends_s))
        yield


def boot_id() -> str:
    """Linux's random id of the present boot of this host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def _lock_names(gpu: Gpu, count: int) -> list[str]:
    """Lock names in the same order for all jobs, so that no two jobs each wait for what the other holds. A GPU is named
    by its UUID, because a cluster may give each job on a host another GPU as number 0. Those that NVML cannot read have
    one name; the check of the device refuses them."""
    if gpu.kind == "cpu":
        return ["cpu"]
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            return sorted(f"gpu-{pynvml.nvmlDeviceGetUUID(nvml_handle(index))}" for index in range(count))
        finally:
            pynvml.nvmlShutdown()
    except (pynvml.NVMLError, IndexError, ValueError):
        return ["gpu"]


def _address(name: str) -> str:
    """The abstract address of a lock; the words before its name have a fixed length, because an address has a limit."""
    scope = os.environ.get(SCOPE, "")
    return f"\0kvsweep-{hashlib.sha256(scope.encode()).hexdigest()[:12]}-{name}" if scope else f"\0kvsweep-{name}"


@contextlib.contextmanager
def _bound(name: str, told: Callable[[str], object], ends_s: float) -> Iterator[None]:
    """Hold the lock `name`; while another process holds it, tell which one, and wait until that one releases it."""
    with socket.socket(socket.AF_UNIX) as listener:
        for attempt in itertools.count():
            try:
                listener.bind(_address(name))
                break
            except OSError as e:
                if e.errno != errno.EADDRINUSE:
                    raise
            with socket.socket(socket.AF_UNIX) as waiting:
                waiting.setblocking(False)  # the queue of the holder may be full
                try:
                    waiting.connect(_address(name))
                except (ConnectionRefusedError, BlockingIOError):  # it has just released it, or is no job of kvsweep
                    if attempt:
                        told("a process that does not answer")
                else:
                    told(_in_words(peer_of(waiting)))
                    waiting.settimeout(max(0.001, ends_s - time.monotonic()))
                    with contextlib.suppress(ConnectionResetError, TimeoutError):
                        waiting.recv(1)  # until the holder closes its socket
            time.sleep(AGAIN_S)
        listener.listen()
        yield


@contextlib.contextmanager
def locked(file: Path, told: Callable[[str], object], mode: int = 0o600) -> Iterator[None]:
    """The same for a lock that is a file, in which its holder says who it is. Hosts may share it."""
    with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode), "r+") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                lock.seek(0)
                told(printable(lock.read(200)) or "another process")
                time.sleep(AGAIN_S)
        lock.truncate(0)
        lock.seek(0)
        lock.write(f"{_in_words(Peer(os.getpid(), os.geteuid()))} on {gethostname()}")
        lock.flush()
        yield


def _tell(name: str, said: set[str], ends_s: float, holder: str) -> None:
    """Say who holds a lock, unless it was said already. Raises TimeoutError after the end of the wait."""
    left_s = ends_s - time.monotonic()
    what = f"waiting for the device: {holder} holds {name}"
    if left_s <= 0:
        raise TimeoutError(f"{what}; no longer waiting ({WAIT})")
    if holder not in said:
        said.add(holder)
        advice = f"set {SCOPE} to a word, if that is no measurement, or measure on another host"
        say(f"{what}; this job waits {left_s / 60:.0f} minutes ({WAIT}); {advice}")


def _in_words(peer: Peer) -> str:
    try:
        user = pwd.getpwuid(peer.uid).pw_name
    except KeyError:
        user = str(peer.uid)
    if not peer.pid:
        return f"a process of user {user} in another container"
    try:
        since = f"since {datetime.fromtimestamp(psutil.Process(peer.pid).create_time()):%Y-%m-%d %H:%M}"
    except psutil.Error:
        since = "which has ended, or one that it started,"
    return f"process {peer.pid} of user {user} {since}"
