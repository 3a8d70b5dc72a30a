"""Engines of `data_parallel_size` meet as vLLM's own start code lets them, while another user of the host attacks."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.other_user import answer_of_another_user, shared_folder
from tests.processes import wait_for
from workflow_scripts.common.parent import forked
from workflow_scripts.engines.vllm.adapter import meet_unseen

pytest.importorskip("vllm", reason="vLLM is not installed")


@pytest.fixture(scope="module")
def start_code() -> Any:
    """vLLM's modules, imported before a process becomes another user, who may not be able to read them or to start the
    process that tracks shared memory."""
    from vllm.config import ParallelConfig, VllmConfig
    from vllm.distributed import parallel_state, utils

    VllmConfig(parallel_config=ParallelConfig(data_parallel_size=2))  # imports more
    resource_tracker.ensure_running()
    return parallel_state, utils


@pytest.fixture
def folder() -> Iterator[Path]:
    with shared_folder() as made:
        yield made


def meet(start_code: Any, rank: int, port: int) -> Any:
    """Meet the other engine of two as this rank, through the store at a port; the value is the group of both."""
    from vllm.config import ParallelConfig, VllmConfig, set_current_vllm_config

    parallel_state, _ = start_code
    config = VllmConfig(parallel_config=ParallelConfig(data_parallel_size=2, data_parallel_rank=rank))
    config.parallel_config._coord_store_port = port
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(1, 0, "unused", 0, "gloo")
    return parallel_state.get_world_group().cpu_group


def open_store(utils: Any) -> int:
    """What the server does before it starts its engines (vllm/v1/engine/utils.py, `launch_core_engines`)."""
    arguments = {"is_master": True, "world_size": -1, "wait_for_workers": False}
    open_store.held = utils.create_tcp_store("127.0.0.1", 0, **arguments)  # type: ignore[attr-defined]
    return int(open_store.held.port)  # type: ignore[attr-defined]


def ports() -> set[int]:
    """Ports that another user finds."""
    return {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}


class RunsCode:
    """What makes a folder where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self._path,)


def attack(start_code: Any, candidates: set[int], path: Path) -> str:
    """Take the place of the first engine at a store behind one of the ports, and send the second one code."""
    from torch import distributed

    for port in sorted(candidates):
        with suppress(distributed.DistError):
            distributed.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=3)).num_keys()
            group = meet(start_code, 0, port)
            distributed.broadcast_object_list([RunsCode(path)], src=0, group=group)
            distributed.barrier(group=group)
            return "joined"
    return "nothing to join"


@pytest.mark.parametrize("protected", [False, True])
def test_another_user_cannot_take_the_place_of_an_engine_with_experts(protected, start_code, folder, tmp_path):
    parallel_state, utils = start_code
    (tmp_path / "config.json").write_text('{"num_local_experts": 8}')
    before, ready, go_on, hacked = ports(), tmp_path / "ready", tmp_path / "go_on", folder / "hacked"

    def serve() -> int:
        if protected:
            meet_unseen(tmp_path)
        port = open_store(utils)
        second = forked(lambda: parallel_state.in_the_same_node_as(meet(start_code, 1, port)) != [True, True])
        ready.touch()
        if protected:
            wait_for(go_on.exists, what="the end of the attack")
            parallel_state.in_the_same_node_as(meet(start_code, 0, port))
        return os.waitstatus_to_exitcode(os.waitpid(second, 0)[1])

    server = forked(serve)
    wait_for(ready.exists, what="the engine that waits for the first one")
    told = answer_of_another_user(lambda: attack(start_code, ports() - before, hacked))
    go_on.touch()
    if not protected and told != "joined":
        os.kill(server, signal.SIGKILL)
    left = os.waitstatus_to_exitcode(os.waitpid(server, 0)[1])
    if protected:
        assert (told, hacked.exists(), left) == ("nothing to join", False, 0)
    else:  # the attack is one: without protection it succeeds
        assert (told, hacked.stat().st_uid) == ("joined", os.geteuid())


def test_engines_without_experts_open_no_port_to_meet(start_code, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')

    def ports_opened(protected: bool) -> int:
        if protected:
            meet_unseen(tmp_path)
        before = ports()
        open_store(start_code[1])
        return len(ports() - before)

    opened = [forked(lambda how=how: ports_opened(how)) for how in (False, True)]  # type: ignore[misc]
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in opened] == [1, 0]
