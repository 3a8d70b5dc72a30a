"""Folders and sockets of this user, in places where another user can write."""

import ctypes
import os
import socket
from pathlib import Path

import pytest

from tests.other_user import NOBODY, OTHER_UID, another_user, answer_of_another_user, shared_folder
from tests.processes import wait_for
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.ownership import enter_own_network, own_folder, peer_of


@pytest.mark.parametrize("umask", [0, 0o077])
@pytest.mark.parametrize("mode", [0o777, 0o2777])  # a group's scratch hands its group on
def test_a_folder_is_made_for_this_user_alone_and_used_again(tmp_path, umask, mode):
    tmp_path.chmod(mode)
    before = os.umask(umask)
    try:
        for _ in range(2):
            with own_folder(tmp_path / "own") as folder:
                (folder / "file").touch()
    finally:
        os.umask(before)
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "own/file").exists()


def linked(path: Path, target: str) -> None:
    (path.parent / "victim").mkdir(mode=0o700)
    path.symlink_to(target)


@pytest.mark.parametrize(
    "prepare",
    [
        Path.touch,
        lambda path: linked(path, "victim"),
        lambda path: linked(path, "nowhere"),
        lambda path: path.mkdir(mode=0o755),
        lambda path: path.mkdir(mode=0o500),
    ],
    ids=["file", "link", "link to nothing", "others may enter", "not writable"],
)
def test_anything_else_in_its_place_is_refused_and_left_as_it_is(tmp_path, prepare):
    prepare(tmp_path / "own")
    before = [(path, path.lstat().st_mode) for path in sorted(tmp_path.rglob("*"))]
    with pytest.raises(InputError, match=str(tmp_path / "own")), own_folder(tmp_path / "own"):
        pass
    assert [(path, path.lstat().st_mode) for path in sorted(tmp_path.rglob("*"))] == before


def test_a_folder_of_another_user_is_refused_to_root_too(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir(mode=0o700)
    if OTHER_UID == NOBODY:
        os.chown(tmp_path / "own", NOBODY, NOBODY)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    with pytest.raises(InputError), own_folder(tmp_path / "own"):
        pass


def test_an_open_folder_stays_the_same_when_another_takes_its_place(tmp_path):
    (tmp_path / "theirs").mkdir()
    with own_folder(tmp_path / "own") as folder:
        (tmp_path / "own").rename(tmp_path / "moved")
        (tmp_path / "own").symlink_to("theirs")
        (folder / "file").touch()
    assert (tmp_path / "moved/file").exists()
    assert list((tmp_path / "theirs").iterdir()) == []


def test_both_ends_of_a_socket_know_the_process_and_the_user_of_the_other():
    def listen() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(shared / "socket"))
            listener.listen()
            (shared / "socket").chmod(0o777)
            peer = peer_of(listener.accept()[0])
            (shared / "seen").write_text(f"{peer.pid} {peer.uid}\n")

    def connected() -> bool:
        try:
            connection.connect(str(shared / "socket"))
        except OSError:
            return False
        return True

    with shared_folder() as shared, socket.socket(socket.AF_UNIX) as connection, another_user(listen) as pid:
        wait_for(connected)
        assert peer_of(connection) == (pid, OTHER_UID)
        wait_for(lambda: (shared / "seen").exists() and (shared / "seen").read_text().endswith("\n"))
        assert (shared / "seen").read_text() == f"{os.getpid()} {os.geteuid()}\n"


def reached_in_an_own_network() -> str:
    set_dumpable = 4  # which a process that changes its user is not; those of a user who logs in are
    ctypes.CDLL(None).prctl(set_dumpable, 1)
    outside = socket.create_server(("127.0.0.1", 0))
    enter_own_network()
    inside = socket.create_server(("127.0.0.1", 0))
    socket.socket().connect(inside.getsockname())
    try:
        socket.socket().connect(outside.getsockname())
    except ConnectionRefusedError:
        return "inside alone"
    return "outside too"


def test_a_network_of_its_own_needs_no_rights_and_reaches_nothing_else():
    assert answer_of_another_user(reached_in_an_own_network) == "inside alone"
