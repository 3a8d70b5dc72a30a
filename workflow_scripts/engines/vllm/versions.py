"""What differs between the versions of vLLM that can be measured, 0.11.0 to 0.32.0: no other module depends on one.

vLLM is imported only when a function is called. "Until" names the last version with the other form.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from inspect import signature
from types import SimpleNamespace
from typing import Any
from uuid import uuid4


def accepted(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that this version's engine has. Until 0.12.0 it counts no bytes and operations
    (`enable_mfu_metrics`) and does not report the graph of each step (`cudagraph_metrics`)."""
    from vllm.engine.arg_utils import EngineArgs

    names = {field.name for field in fields(EngineArgs)}
    return {name: value for name, value in arguments.items() if name in names}


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raises ValueError if this version's engine lacks one of the arguments, such as `attention_backend` until
    0.12.0."""
    if lacking := arguments.keys() - accepted(arguments).keys():
        raise ValueError(_lacks(", ".join(sorted(lacking))))


def argument_parser() -> Any:
    """An empty parser of vLLM's kind that raises ValueError where vLLM's would end the process."""
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:  # until 0.11.0
        from vllm.utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]  # vLLM has no types
        def error(self, message: str) -> Any:
            start, _, words = message.partition("unrecognized arguments: ")
            raise ValueError(_lacks(words) if not start else message)

    return Parser()


def serve_arguments(words: list[str]) -> Any:
    """What the words of a command line say to `vllm serve`. Raises ValueError if this version does not accept them."""
    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    except ImportError:  # until 0.25.1
        from vllm.entrypoints.openai.cli_args import make_arg_parser, validate_parsed_serve_args

    args = make_arg_parser(argument_parser()).parse_args(words)
    validate_parsed_serve_args(args)
    return args


def server_socket(args: Any) -> tuple[str, Any]:
    """The address and the socket of a server with these arguments, which it does not share."""
    from vllm.entrypoints.openai.api_server import setup_server

    # Until 0.22.1 there is no option to share the port.
    may_share = "reuse_port" in signature(setup_server).parameters
    address, socket = setup_server(args, **({"reuse_port": False} if may_share else {}))
    return address, socket


def let_ranks_meet_in_a_file() -> None:
    """Let the ranks of an engine, even a single one, find each other as they do in 0.32.0. Until 0.25.1 they meet at a
    port that PyTorch opens on every address of the host."""
    from vllm.v1.executor.abstract import UniProcExecutor
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    # On a CPU, what follows the last colon becomes the name of shared memory.
    file = f"file://{tempfile.gettempdir()}/vllm-ranks:{uuid4().hex}"
    for method in (UniProcExecutor._distributed_args, MultiprocExecutor._init_executor):
        if "get_file_store_init_method" not in method.__globals__:
            method.__globals__["get_distributed_init_method"] = lambda ip, port: file


def start_engines_without_a_store() -> None:
    """Let the engines of a model without experts, which need nothing of each other, start without the store that those
    with experts meet in: since 0.32.0 it listens, without a key, at a port that PyTorch opens on every address."""
    from vllm.distributed import utils

    utils.create_tcp_store = lambda *_, **__: SimpleNamespace(port=0)


@cache
def counts_resumed_requests() -> bool:
    """Whether this version counts a preempted request when it resumes; 0.25.1 counts each attempt to resume it."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    return hasattr(KVCacheManager, "record_prefix_cache_stats")


def request_statistics(llm: Any) -> Callable[[Any], Any]:
    """A function of a `RequestOutput` that gives the request's `RequestStateStats`."""
    import vllm

    if not vllm.__version__.startswith("0.11.0"):
        return lambda output: output.metrics
    # Until 0.11.0 only the output processor has them, until it forgets a request that has ended.
    processor, ended = llm.llm_engine.output_processor, {}
    forget = processor._update_stats_from_finished

    def keep(request: Any, *args: Any) -> None:
        ended[request.request_id] = request.stats
        forget(request, *args)

    processor._update_stats_from_finished = keep
    return lambda output: ended.pop(output.request_id)


def largest_graph(compilation: Any) -> int | None:
    """Most tokens of a step that runs as a captured graph, from a `CompilationConfig`."""
    until_0_11_0: int | None = getattr(compilation, "max_capture_size", None)
    return getattr(compilation, "max_cudagraph_capture_size", until_0_11_0)


def _lacks(words: str) -> str:
    import vllm

    return f"vLLM {vllm.__version__} does not have {words}"
