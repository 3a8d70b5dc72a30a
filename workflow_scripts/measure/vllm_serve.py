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
from workflow_scripts.measure.engine import forget_prefixes
from workflow_scripts.measure.processes import ServerProcess
from workflow_scripts.measure.server_engine import LOOPBACK, Serving, free_port, new_address
from workflow_scripts.measure.vllm_offline import effective_settings, fork_the_engine_core, vllm_environment
from workflow_scripts.study.outcome import Effective

SERVED_MODEL_NAME = "model"
EFFECTIVE = "effective.json"


class VllmServe(Serving):
    """The API server in a fork of this process, which has imported vLLM, and its engine core in another fork."""

    def _launch(self) -> tuple[ServerProcess, Target, str]:
        address = new_address(port := free_port())
        on_cpu = self._setup.device_kind == "cpu"
        words = self._arguments(port)
        environment = self._environment(str(address.api_key))
        effective = self._setup.evidence / EFFECTIVE
        target = Target(
            address,
            SERVED_MODEL_NAME,
            extra_body={"ignore_eos": True, **({"return_token_ids": True} if self._setup.keep_answers else {})},
            sampling=self._setup.sampling,
            keep_answers=self._setup.keep_answers,
        )

        def serve() -> None:
            os.environ.update(environment)
            _serve(words, effective, on_cpu)

        return ServerProcess.forked(serve), target, "/health"

    def _arguments(self, port: int) -> list[str]:
        knobs = VllmServeKnobs.model_validate(dict(self._setup.knobs))
        arguments = {
            "model": str(self._setup.model_dir),
            "served_model_name": SERVED_MODEL_NAME,
            "load_format": "dummy" if self._setup.load_format == "dummy" else "auto",
            "dtype": self._setup.dtype,
            "seed": self._setup.seed,
            # A checkpoint may set penalties, which would be extra work that the other engines do not have.
            "generation_config": "vllm",
            "host": LOOPBACK,
            "port": port,
            **({"trust_remote_code": True} if self._setup.trust_remote_code else {}),
            **knobs.engine_arguments(None if self._setup.draft_model_dir is None else str(self._setup.draft_model_dir)),
        }
        # A log line per request would be extra load on the server.
        return [*command_line(arguments), "--disable-uvicorn-access-log"]

    def _environment(self, api_key: str) -> dict[str, str]:
        # The key is set in the running child, so that no process list and no command line shows it. The development
        # endpoints are needed to empty the prefix cache between repeats. An API server always has its engine core in
        # another process; turning multiprocessing off on a CPU keeps the worker in that process.
        environment = vllm_environment(self._setup, VllmServeKnobs.model_validate(dict(self._setup.knobs)))
        return environment | {"VLLM_API_KEY": api_key, "VLLM_SERVER_DEV_MODE": "1"}

    def _effective(self) -> Effective:
        told: Effective = read_json(self._setup.evidence / EFFECTIVE)
        (self._setup.evidence / EFFECTIVE).unlink()
        return told

    def reset(self) -> None:
        """Forget cached prefixes."""

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
