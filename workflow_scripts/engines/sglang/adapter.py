"""SGLang's OpenAI-compatible server, as `python -m sglang.launch_server` users run it."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from workflow_scripts.engines.engine import Effective, EngineSetup, forget_prefixes
from workflow_scripts.engines.serving.client import StatusError, Target
from workflow_scripts.engines.serving.processes import ServerProcess
from workflow_scripts.engines.serving.server import SERVED_MODEL_NAME, Serving
from workflow_scripts.engines.sglang.knobs import SglangServeKnobs
from workflow_scripts.engines.vllm.adapter import ON_THIS_HOST, cores_of_ranks


class SglangServe(Serving):
    """The HTTP server, which starts its scheduler and its detokenizer itself."""

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        self._knobs = SglangServeKnobs.model_validate(dict(setup.knobs))

    def _launch(self) -> tuple[ServerProcess, Target, str]:
        socket = self._own_folder() / "http"
        environment = {
            **os.environ,
            **self._environment(),
            # Otherwise the ranks, even a single one, meet at a port that is open on every address of the host.
            "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE": f"file://{socket.with_name('ranks')}",
        }
        # Not a fork: SGLang's processes share their metrics only if each imports prometheus_client after SGLang.
        launcher = Path(__file__).with_name("on_socket.py")
        command = [sys.executable, "-P", str(launcher), str(socket), "sglang.launch_server", *self._words()]
        server = ServerProcess.forked(lambda: os.execvpe(command[0], command, environment))
        return server, self._target_at(socket), "/health"

    def _words(self) -> list[str]:
        setup, knobs = self._setup, self._knobs
        arguments = {
            "model-path": setup.model_dir,
            "served-model-name": SERVED_MODEL_NAME,
            "load-format": "dummy" if setup.load_format == "dummy" else "auto",
            "dtype": setup.dtype,
            "random-seed": setup.seed,
            # A checkpoint may set penalties, which would be extra work that the other engines do not have.
            "sampling-defaults": "openai",
            # A log line per request would be extra load on the server.
            "log-level-http": "warning",
        }
        words = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
        words += ["--enable-metrics", *(["--trust-remote-code"] if setup.trust_remote_code else [])]
        if setup.device_kind == "cpu":
            # The other backend for a CPU needs AMX.
            words += ["--device", "cpu", *([] if knobs.attention_backend else ["--attention-backend", "torch_native"])]
        return words + knobs.command_line()

    def _environment(self) -> dict[str, str]:
        if self._setup.device_kind != "cpu":
            return ON_THIS_HOST
        bound = "|".join(cores_of_ranks(self._setup.cores, self._knobs.ranks))
        return {**ON_THIS_HOST, "SGLANG_USE_CPU_ENGINE": "1", "SGLANG_CPU_OMP_THREADS_BIND": bound}

    def _effective(self) -> Effective:
        models, info = (json.loads(self._target.address.call(path)) for path in ("/v1/models", "/server_info"))
        return effective_settings(info) | {"max_model_len": models["data"][0]["max_model_len"]}

    def reset(self) -> None:
        def attempt() -> bool:
            try:
                self._target.address.call("/flush_cache", method="POST")
            except StatusError as e:
                if e.status != 400:  # a request is still running
                    raise
                return False
            return True

        forget_prefixes(attempt)


def effective_settings(info: dict[str, Any]) -> Effective:
    """The settings that took effect, from the answer of /server_info. A page is a block."""
    state = info["internal_states"][0]
    return {
        "block_size": state["page_size"],
        "num_gpu_blocks": state["memory_usage"]["token_capacity"] // state["page_size"],
        "mem_fraction_static": state["mem_fraction_static"],
        "kv_cache_dtype": state["kv_cache_dtype"],
        "enable_prefix_caching": not state["disable_radix_cache"],
        "max_num_seqs": state["effective_max_running_requests_per_dp"],
        "chunked_prefill_size": state["chunked_prefill_size"],
        "enforce_eager": not state["decode_cuda_graph_bs"],
        "max_cudagraph_capture_size": max(state["decode_cuda_graph_bs"], default=0),
        "dtype": state["dtype"],
        "quantization": state["quantization"],
        "tensor_parallel_size": state["tp_size"],
        "attention_backend": state["attention_backend"],
        "overlap_schedule": not state["disable_overlap_schedule"],
    }
