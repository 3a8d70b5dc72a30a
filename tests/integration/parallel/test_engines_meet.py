"""Engines of `data_parallel_size` of a model without experts open no port to meet, and others do not start."""

import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from workflow_scripts.common.parent import forked
from workflow_scripts.engines.engine import EngineSetup
from workflow_scripts.engines.vllm import versions
from workflow_scripts.engines.vllm.adapter import VllmServe

utils: Any = pytest.importorskip("vllm.distributed.utils", reason="vLLM is not installed")


def ports() -> set[int]:
    return {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize(("protected", "opened"), [(False, 1), (True, 0)])
def test_engines_without_experts_open_no_port_to_meet(protected, opened):
    def ports_opened() -> int:
        if protected:
            versions.start_engines_without_a_store()
        before = ports()
        # What the server does before it starts its engines (vllm/v1/engine/utils.py, `launch_core_engines`).
        store = utils.create_tcp_store("127.0.0.1", 0, is_master=True, world_size=-1, wait_for_workers=False)
        return len(ports() - before) if store.port is not None else -1

    assert os.waitstatus_to_exitcode(os.waitpid(forked(ports_opened), 0)[1]) == opened


def test_engines_with_experts_do_not_start(tmp_path):
    (tmp_path / "config.json").write_text('{"num_local_experts": 8}')
    knobs = {"users": 2, "data_parallel_size": 2}
    setup = EngineSetup(Path(tmp_path), "dummy", "bfloat16", 0, knobs, "cuda")
    with pytest.raises(NotImplementedError, match="any user of the host could run code"):
        VllmServe(setup).start()
