"""vLLM's offline engine, as `LLM.generate` users run it, and its OpenAI-compatible server, as `vllm serve` users do."""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from workflow_scripts.common.files import read_json, read_text, write_json
from workflow_scripts.common.ownership import enter_own_network
from workflow_scripts.engines.engine import (
    Effective,
    Engine,
    EngineSetup,
    Metrics,
    RequestRecord,
    Step,
    forget_prefixes,
)
from workflow_scripts.engines.serving.client import Target
from workflow_scripts.engines.serving.processes import ServerProcess
from workflow_scripts.engines.serving.scrape import labelled
from workflow_scripts.engines.serving.server import SERVED_MODEL_NAME, Serving
from workflow_scripts.engines.vllm import versions as vllm_versions
from workflow_scripts.engines.vllm.knobs import VllmKnobs, VllmServeKnobs, command_line
from workflow_scripts.workloads.request import Request
from workflow_scripts.workloads.sampling import settings_of_request

# vLLM's variable for its process layout: "0" means one process; if unset, the engine core has its own process.
LAYOUT = "VLLM_ENABLE_V1_MULTIPROCESSING"
# The executor that runs a single rank in the engine core.
IN_THE_CORE = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
# All ranks are on one host: what they say to each other does not leave it.
ON_THIS_HOST = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


class VllmOffline(Engine):
    """One `vllm.LLM`, with a listener on its scheduler's steps."""

    def start(self) -> Effective:
        """Start the engine. On a CPU one rank runs in this process; on a GPU vLLM has its default process layout. If
        the job's environment names a layout, that layout is used."""
        knobs = VllmKnobs.model_validate(self._setup.knobs)
        os.environ |= vllm_environment(self._setup, knobs) | {k: v for k, v in os.environ.items() if k == LAYOUT}
        from vllm import LLM

        arguments = engine_arguments(self._setup, knobs)
        vllm_versions.check_arguments(arguments)
        vllm_versions.let_ranks_meet_in_a_file()
        on_cpu = self._setup.device_kind == "cpu"
        if on_cpu and os.environ[LAYOUT] != "0":  # the GPU's layout, in which a single rank runs in the engine core
            fork_the_engine_core()
            arguments |= {"distributed_executor_backend": IN_THE_CORE} if knobs.ranks == 1 else {}
        # The tokens of each step, and whether it was one graph, several, or none.
        step_metrics = vllm_versions.accepted({"enable_mfu_metrics": True, "cudagraph_metrics": not on_cpu})
        self._llm = LLM(disable_log_stats=False, **step_metrics, **arguments)
        self._statistics = vllm_versions.request_statistics(self._llm)
        self._listen()
        self._watch_the_core()
        return effective_settings(self._llm.llm_engine.vllm_config)

    def _listen(self) -> None:
        """Record each step that the engine core reports, with the core's own time."""
        core, manager = self._llm.llm_engine.engine_core, self._llm.llm_engine.logger_manager
        get_output, record = core.get_output, manager.record

        def noted() -> Any:
            outputs = get_output()
            if outputs.scheduler_stats is not None:
                self._steps.append({"time_s": outputs.timestamp, **step_record(outputs.scheduler_stats, None)})
            return outputs

        def counted(*, scheduler_stats: Any, iteration_stats: Any, **more: Any) -> None:
            record(scheduler_stats=scheduler_stats, iteration_stats=iteration_stats, **more)
            # Tokens are counted in this process, right after the core's report of the step.
            if iteration_stats is not None:
                self._steps[-1] |= step_record(scheduler_stats, iteration_stats)

        core.get_output, manager.record = noted, counted

    def _watch_the_core(self) -> None:
        """If the core's process ends, put an error among its outputs; otherwise vLLM would wait forever."""
        core = self._llm.llm_engine.engine_core
        reader = getattr(core, "output_queue_thread", None)
        if reader is None:  # the core is in this process
            return

        def watch() -> None:
            reader.join()
            core.outputs_queue.put(RuntimeError("the engine core is gone"))

        threading.Thread(target=watch, daemon=True).start()

    def run(self, requests: Sequence[Request]) -> list[RequestRecord]:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        began_s, before, sampling = time.monotonic(), len(self._steps), self._setup.sampling
        outputs = self._llm.generate(
            [TokensPrompt(prompt_token_ids=r.prompt_token_ids) for r in requests],
            [
                SamplingParams(max_tokens=r.output_tokens, ignore_eos=True, **settings_of_request(sampling, i))
                for i, r in enumerate(requests)
            ],
            use_tqdm=False,
        )
        # Steps that a core in its own process took after the last answer of a pass are read at the start of the next.
        self._steps[before:] = [step for step in self._steps[before:] if step["time_s"] >= began_s]
        keep = self._setup.keep_answers
        pairs = zip(requests, outputs, strict=True)
        return [request_record(request, output, self._statistics(output), keep) for request, output in pairs]

    def reset(self) -> None:
        forget_prefixes(lambda: self._llm.reset_prefix_cache() is not False)  # nothing is returned until 0.11.2

    def metrics(self) -> Metrics:
        """vLLM's Prometheus counters and gauges by name and labels; also prints its periodic log line."""
        self._llm.llm_engine.do_log_stats()
        return {labelled(m.name, m.labels): m.value for m in self._llm.get_metrics() if hasattr(m, "value")}

    def stop(self) -> None:
        """End the engine's other processes. Neither a core nor a worker in this process is torn down: the process ends
        right after, and collecting garbage takes a second."""
        core = self._llm.llm_engine.engine_core
        in_this_process = getattr(core, "engine_core", None)
        if in_this_process is None:
            core.shutdown()
        elif VllmKnobs.model_validate(self._setup.knobs).ranks > 1:
            in_this_process.model_executor.shutdown()


class VllmServe(Serving):
    """The API server in a fork of this process, which has imported vLLM, and its engine core in another fork."""

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        self._knobs = VllmServeKnobs.model_validate(dict(setup.knobs))
        self._effective_file = setup.evidence / "effective.json"  # by the server

    def _launch(self) -> tuple[ServerProcess, Target, str]:
        socket = self._own_folder() / "http"
        arguments = {
            **engine_arguments(self._setup, self._knobs),
            "served_model_name": SERVED_MODEL_NAME,
            # A checkpoint may set penalties, which would be extra work that the other engines do not have.
            "generation_config": "vllm",
            "enable_prompt_tokens_details": True,  # what each request found in the prefix cache
            "uds": str(socket),
            # At its end vLLM logs the command line of the process that listens at its port.
            "port": 0,
        }
        # A log line per request would be extra load on the server.
        if self._setup.device_kind == "cpu" and self._knobs.ranks == self._knobs.engines > 1:
            arguments["distributed_executor_backend"] = IN_THE_CORE
        words = [*command_line(arguments), "--disable-uvicorn-access-log"]
        # The development endpoints, which can run any code, are needed to empty the prefix cache between repeats; only
        # this user reaches them. VLLM_API_KEY, if it is set, is the key of another server. An API server always has its
        # engine core in another process; turning multiprocessing off on a CPU keeps the worker in that process.
        environment = vllm_environment(self._setup, self._knobs)
        environment |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_API_KEY": ""}

        def serve() -> None:
            os.environ.update(environment)
            if self._knobs.engines > 1:
                meet_unseen(self._setup.model_dir)
            _serve(words, self._effective_file, self._setup.device_kind == "cpu")

        return ServerProcess.forked(serve), self._target_at(socket), "/health"

    def _effective(self) -> Effective:
        effective: Effective = read_json(self._effective_file)
        self._effective_file.unlink()
        return effective

    def reset(self) -> None:
        def attempt() -> bool:
            answer = self._target.address.call("/reset_prefix_cache", method="POST")
            return not answer or json.loads(answer)["success"] is True  # an empty body: vLLM until 0.25.1

        forget_prefixes(attempt)


def meet_unseen(model_dir: Path) -> None:
    """Let no other user take part when engines of `data_parallel_size` meet. Those of a model with experts find each
    other at ports without a key, and unpickle what they receive there: they get a network of their own. Raises
    NotImplementedError if this host does not allow one."""
    if "experts" not in read_text(model_dir / "config.json"):
        return vllm_versions.start_engines_without_a_store()
    try:
        enter_own_network()
    except OSError as e:
        raise NotImplementedError(
            "data_parallel_size above 1 with experts: any user of this host could run code in the engines, which vLLM"
            f" lets meet at open ports; they need a network of their own, which this host refuses: {e.strerror}"
        ) from None


def _serve(words: list[str], effective: Path, on_cpu: bool) -> None:
    """Run the API server until it is told to stop; once its engine is up, write the settings that took effect."""
    import uvloop
    from vllm.entrypoints.openai import api_server

    if on_cpu:
        fork_the_engine_core()
    vllm_versions.let_ranks_meet_in_a_file()
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


def engine_arguments(setup: EngineSetup, knobs: VllmKnobs) -> dict[str, Any]:
    """Arguments of `vllm.LLM` and `vllm serve` that follow from the setup, by their Python names."""
    return {
        "model": str(setup.model_dir),
        "load_format": "dummy" if setup.load_format == "dummy" else "auto",
        "dtype": setup.dtype,
        "seed": setup.seed,
        **({"trust_remote_code": True} if setup.trust_remote_code else {}),
        **knobs.engine_arguments(str(setup.draft_model_dir) if setup.draft_model_dir else None),
    }


def vllm_environment(setup: EngineSetup, knobs: VllmKnobs) -> dict[str, str]:
    environment = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_COLOR": "0", **ON_THIS_HOST, **knobs.environment()}
    if setup.device_kind != "cpu":
        return environment
    environment[LAYOUT] = "0"
    if knobs.ranks > 1:
        # By default vLLM requires a NUMA node for each rank.
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(cores_of_ranks(setup.cores, knobs.ranks))
    return environment


def cores_of_ranks(cores: Sequence[int], ranks: int) -> list[str]:
    """An equal number of cores for each rank, in vLLM's format; if there are fewer cores than ranks, ranks share them.

    >>> cores_of_ranks([4, 5, 6, 7, 8], 2), cores_of_ranks([0, 1], 4)
    (['4,5', '6,7'], ['0', '1', '0', '1'])
    """
    share = max(1, len(cores) // ranks)
    return [
        ",".join(str(cores[i % len(cores)]) for i in range(rank * share, (rank + 1) * share)) for rank in range(ranks)
    ]


def fork_the_engine_core() -> None:
    """Let vLLM fork its engine cores, and the process that divides requests among several, as it does on a GPU; on a
    CPU it would import everything again, for 20 s."""
    import multiprocessing

    import vllm.v1.engine.coordinator as coordinator
    import vllm.v1.engine.utils as engine_processes

    engine_processes.get_mp_context = coordinator.get_mp_context = partial(multiprocessing.get_context, "fork")


def effective_settings(config: Any) -> Effective:
    """The settings that took effect, from the `VllmConfig` of a running engine."""
    cache, scheduler, model = config.cache_config, config.scheduler_config, config.model_config
    speculation = config.speculative_config
    # Only layers in this process; if there are none, the log names the backends.
    layers = config.compilation_config.static_forward_context.values()
    backends = {layer.attn_backend.get_name() for layer in layers if hasattr(layer, "attn_backend")}
    return {
        "block_size": cache.block_size,
        "num_gpu_blocks": cache.num_gpu_blocks,
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "kv_cache_dtype": str(cache.cache_dtype),
        "enable_prefix_caching": cache.enable_prefix_caching,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "enable_chunked_prefill": scheduler.enable_chunked_prefill,
        "max_model_len": model.max_model_len,
        "enforce_eager": model.enforce_eager,
        "cudagraph_mode": mode_name(config.compilation_config.cudagraph_mode),
        "max_cudagraph_capture_size": vllm_versions.largest_graph(config.compilation_config),
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantization": model.quantization,
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "pipeline_parallel_size": config.parallel_config.pipeline_parallel_size,
        "data_parallel_size": config.parallel_config.data_parallel_size,
        "speculative_method": getattr(speculation, "method", None),
        "num_speculative_tokens": getattr(speculation, "num_speculative_tokens", 0),
        "attention_backend": ", ".join(sorted(backends)) or None,
        "multiprocessing": os.environ.get(LAYOUT, "1") != "0",
    }


def mode_name(mode: Any) -> str:
    """Name of a `CUDAGraphMode`, which vLLM also writes with the name of its type.

    >>> mode_name("CUDAGraphMode.FULL_AND_PIECEWISE"), mode_name("NONE")
    ('FULL_AND_PIECEWISE', 'NONE')
    """
    return str(getattr(mode, "name", mode)).rpartition(".")[2]


def step_record(scheduler_stats: Any, iteration_stats: Any) -> Step:
    """What a step did, from a `SchedulerStats` and an `IterationStats`; the latter may be None. What this version of
    vLLM does not count is left out."""
    prefix, graph = scheduler_stats.prefix_cache_stats, getattr(scheduler_stats, "cudagraph_stats", None)
    counts: Step = {}
    if graph is not None:
        counts = {"computed_tokens": graph.num_unpadded_tokens, "graph": mode_name(graph.runtime_mode)}
    if vllm_versions.counts_resumed_requests() and (prefix is None or hasattr(prefix, "preempted_queries")):
        counts["recomputed_tokens"] = getattr(prefix, "preempted_queries", 0) - getattr(prefix, "preempted_hits", 0)
    return {
        **counts,
        "running": scheduler_stats.num_running_reqs,
        "waiting": scheduler_stats.num_waiting_reqs,
        "kv_cache_usage": scheduler_stats.kv_cache_usage,
        "prompt_tokens": getattr(iteration_stats, "num_prompt_tokens", 0),
        "generation_tokens": getattr(iteration_stats, "num_generation_tokens", 0),
        "preempted": getattr(iteration_stats, "num_preempted_reqs", 0),
        "prefix_hits": getattr(prefix, "hits", 0),
    }


def request_record(request: Request, output: Any, stats: Any, keep_answer: bool = False) -> RequestRecord:
    """What happened to a request, from a `RequestOutput` and a `RequestStateStats`; vLLM 0.25.1 does not count
    preemptions per request."""
    return RequestRecord(
        request_id=request.request_id,
        prompt_tokens=len(output.prompt_token_ids),
        output_tokens=sum(len(o.token_ids) for o in output.outputs),
        queued_s=stats.queued_ts,
        scheduled_s=stats.scheduled_ts,
        first_token_s=stats.first_token_ts,
        last_token_s=stats.last_token_ts,
        preemptions=getattr(stats, "num_preemptions", None),
        cached_prompt_tokens=output.num_cached_tokens,
        token_ids=list(output.outputs[0].token_ids) if keep_answer else None,
    )
