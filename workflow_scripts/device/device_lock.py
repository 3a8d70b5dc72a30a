"""Locks of devices: one job at a time, of all users of a host.

A lock is an abstract UNIX socket, which the kernel binds once per name and frees when its process ends. It has no file
that others could replace, and is the same for jobs with different folders for temporary files.
"""

import contextlib
import errno
import hashlib
import itertools
import os
import pwd
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.common.files import read_json, write_json
from workflow_scripts.common.ownership import Peer, own_folder, peer_of, temporary_folder
from workflow_scripts.device.device_check import nvml_handle

# Variable with a word; only jobs with the same one wait for each other. For several hosts that share one kernel, as in
# tests, and against a user who does not release a lock.
SCOPE = "KVSWEEP_LOCK_SCOPE"
AGAIN_S = 0.2


@contextlib.contextmanager
def device_lock(gpu: Gpu, count: int = 1) -> Iterator[float | None]:
    """Hold `count` devices for one job, so that no other job on this host uses them, whichever snakemake started it.
    The value is the time in seconds since a job of this user last released one of them; None if that is not known. All
    CPU devices of a host share one lock, because they share its cores and its memory bandwidth. A process that is
    forked meanwhile must not outlive the job: it holds the lock too. Raises InputError if this user's folder for
    temporary files is not its own."""
    names = _lock_names(gpu, count)
    with own_folder(temporary_folder()) as folder, contextlib.ExitStack() as held:
        for name in names:
            held.enter_context(_bound(name))
        left = [folder / f"{name}.left" for name in names]
        idle_s = [seconds for file in left if (seconds := _seconds_since(file)) is not None]
        try:
            yield min(idle_s, default=None)
        finally:
            for file in left:
                with contextlib.suppress(OSError):
                    write_json(file, [boot_id(), _since_boot_s()])


def boot_id() -> str:
    """Linux's random id of the present boot of this host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def _since_boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # while the machine sleeps, a device cools down


def _seconds_since(file: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        boot, at_s = read_json(file)
        if boot == boot_id():
            return _since_boot_s() - float(at_s)
    return None


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
def _bound(name: str) -> Iterator[None]:
    """Hold the lock `name`; while another process holds it, print which one, and wait until that one releases it."""
    said = None
    with socket.socket(socket.AF_UNIX) as listener:
        for attempt in itertools.count():
            try:
                listener.bind(_address(name))
                break
            except OSError as e:
                if e.errno != errno.EADDRINUSE:
                    raise
            with socket.socket(socket.AF_UNIX) as waiting:
                try:
                    waiting.connect(_address(name))
                    holder = _in_words(peer_of(waiting))
                    if holder != said:
                        print(f"waiting for the device: {holder} holds {name}", flush=True)
                        said = holder
                    waiting.recv(1)  # until the holder closes its socket
                except ConnectionResetError:
                    pass
                except ConnectionRefusedError:  # it has just released the lock, or is no job of kvsweep
                    if attempt == 1:
                        print(f"waiting for the device: a process that does not answer holds {name}", flush=True)
            time.sleep(AGAIN_S)
        listener.listen()
        yield


def _in_words(peer: Peer) -> str:
    try:
        user = pwd.getpwuid(peer.uid).pw_name
    except KeyError:
        user = str(peer.uid)
    return f"process {peer.pid} of user {user}" if peer.pid else f"a process of user {user} in another container"
