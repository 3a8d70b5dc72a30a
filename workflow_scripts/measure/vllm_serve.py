"""vLLM's OpenAI-compatible server, as `vllm serve` users run it."""

import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from workflow_scripts.common.files import read_json, write_json
from workflow_scripts.engines import vllm_versions
from workflow_scripts.engines.vllm_engines import VllmServeKnobs, command_line
from workflow_scripts.measure.client import Target
from workflow_scripts.measure.engine import EngineSetup, forget_prefixes
from workflow_scripts.measure.processes import ServerProcess
from workflow_scripts.measure.server_engine import LOOPBACK, SERVED_MODEL_NAME, Serving, free_port, new_address
from workflow_scripts.measure.vllm_offline import (
    effective_settings,
    engine_arguments,
    fork_the_engine_core,
    vllm_environment,
)
from workflow_scripts.study.outcome import Effective


class VllmServe(Serving):
    """The API server in a fork of this process, which has imported vLLM, and its engine core in another fork."""

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        self._knobs = VllmServeKnobs.model_validate(dict(setup.knobs))
        self._told = setup.evidence / "effective.json"  # by the server

    def _launch(self) -> tuple[ServerProcess, Target, str]:
        address = new_address(port := free_port())
        arguments = {
            **engine_arguments(self._setup, self._knobs),
            "served_model_name": SERVED_MODEL_NAME,
            # A checkpoint may set penalties, which would be extra work that the other engines do not have.
            "generation_config": "vllm",
            "host": LOOPBACK,
            "port": port,
        }
        # A log line per request would be extra load on the server.
        words = [*command_line(arguments), "--disable-uvicorn-access-log"]
        # The key is set in the running child, so that no process list and no command line shows it. The development
        # endpoints are needed to empty the prefix cache between repeats. An API server always has its engine core in
        # another process; turning multiprocessing off on a CPU keeps the worker in that process.
        environment = vllm_environment(self._setup, self._knobs)
        environment |= {"VLLM_API_KEY": str(address.api_key), "VLLM_SERVER_DEV_MODE": "1"}

        def serve() -> None:
            os.environ.update(environment)
            _serve(words, self._told, self._setup.device_kind == "cpu")

        return ServerProcess.forked(serve), self._target_at(address), "/health"

    def _effective(self) -> Effective:
        told: Effective = read_json(self._told)
        self._told.unlink()
        return told

    def reset(self) -> None:
        def attempt() -> bool:
            told = self._target.address.call("/reset_prefix_cache", method="POST")
            return not told or json.loads(told)["success"] is True  # an empty body: vLLM until 0.25.1

        forget_prefixes(attempt)


def _serve(words: list[str], effective: Path, on_cpu: bool) -> None:
    """Run the API server until it is told to stop; once its engine is up, write the settings that took effect."""
    import uvloop
    from vllm.entrypoints.openai import api_server

    if on_cpu:
        fork_the_engine_core()
    more = vllm_versions.accepted({"enable_mfu_metrics": True})
    args = vllm_versions.serve_arguments([*words, *command_line(more)])
    # The module in which vLLM runs its server and looks for the function that starts the engine.
    home = sys.modules[api_server.run_server_worker.__module__]
    start = home.build_async_engine_client

    @contextlib.asynccontextmanager
    async def start_and_tell(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async with start(*args, **kwargs) as engine:
            write_json(effective, effective_settings(engine.vllm_config))
            yield engine

    home.build_async_engine_client = start_and_tell  # type: ignore[attr-defined]
    uvloop.run(api_server.run_server_worker(*vllm_versions.server_socket(args), args))
