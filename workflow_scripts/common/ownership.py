"""What belongs to this user alone on a host with other users: a folder, a network, or a process behind a socket."""

import contextlib
import ctypes
import fcntl
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from workflow_scripts.common.faults import InputError


class Peer(NamedTuple):
    """A process and its user, as the kernel reports them; 0 is a process that is not visible from here."""

    pid: int
    uid: int


def peer_of(connection: socket.socket) -> Peer:
    """The process at the other end of a UNIX socket: the one that connected, or that listened."""
    ucred = "3i"
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(ucred))
    pid, uid, _ = struct.unpack(ucred, credentials)
    return Peer(pid, uid)


def temporary_folder() -> Path:
    """This user's folder in the one for temporary files, which others can write; `own_folder` makes it."""
    return Path(tempfile.gettempdir()) / f"kvsweep-{os.geteuid()}"


@contextlib.contextmanager
def own_folder(path: Path) -> Iterator[Path]:
    """Make the folder `path`, or open it if nobody else can enter it. The value is its address while it is open, which
    names this folder even if another one takes its place, and is short enough for a socket. Raises InputError if `path`
    is a link, a file, or a folder of another user or mode."""
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        raise _not_own(path) from None
    try:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o777 != 0o700:
            raise _not_own(path)
        yield Path(f"/proc/self/fd/{folder}")
    finally:
        os.close(folder)


def enter_own_network() -> None:
    """Give this process, and those that it starts from now on, a network of its own. At 127.0.0.1 they reach each
    other, and nobody else reaches them; a UNIX socket with a path stays reachable. The process must have one thread.
    Raises OSError if this host does not let this user make a network."""
    libc, new_user, new_network = ctypes.CDLL(None, use_errno=True), 0x10000000, 0x40000000
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(new_network):  # only root may do so; others are root of a namespace of users first
        if libc.unshare(new_user | new_network):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        for name, words in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(words, encoding="utf-8")
    set_flags, is_up = 0x8914, 1
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sH14x", b"lo", is_up))


def _not_own(path: Path) -> InputError:
    return InputError(
        f"{path} must be a folder of user {os.geteuid()} with mode 0700, not a link; remove it, or set TMPDIR to a"
        " folder that only you can write"
    )
