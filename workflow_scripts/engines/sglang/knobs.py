"""SGLang: the knobs and the description of its OpenAI-compatible server."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from workflow_scripts.common.knob import Knob
from workflow_scripts.engines.description import EngineDescription
from workflow_scripts.engines.knobs import Knobs, Positive, flat
from workflow_scripts.engines.vllm.knobs import VllmKnobs
from workflow_scripts.workloads.arrivals import Load
from workflow_scripts.workloads.sampling import SETTINGS, THINKING

# Switches of SGLang that exist only for one value, by the knob and this value.
_SWITCHES = {("enable_prefix_caching", False): "--disable-radix-cache", ("enforce_eager", True): "--disable-cuda-graph"}


def _as_of_vllm(name: str, argument: str | None = None) -> Knob:
    """The knob of vLLM that means the same, with SGLang's name for it. Both engines' cells then have it in common."""
    return replace(VllmKnobs.described()[name], argument=argument)


class SglangServeKnobs(Knobs, Load):
    """Arguments of SGLang's server, and the load on it. What means the same as in vLLM has vLLM's name."""

    block_size: Annotated[Positive | None, _as_of_vllm("block_size", "page_size")] = None
    max_num_seqs: Annotated[Positive | None, _as_of_vllm("max_num_seqs", "max_running_requests")] = None
    max_model_len: Annotated[Positive | None, _as_of_vllm("max_model_len", "context_length")] = None
    # Not vLLM's gpu_memory_utilization, which is a share of all memory and includes activations and graphs.
    mem_fraction_static: Annotated[
        Annotated[float, Field(gt=0, lt=1, description="share of the free memory for weights and KV cache together")]
        | None,
        Knob("static", reserves="share", wording="{} of the memory for weights and KV cache"),
    ] = None
    max_total_tokens: Annotated[
        Annotated[int, Field(ge=1, description="tokens of the KV cache; the number that fits, if that is smaller")]
        | None,
        Knob("kvtokens", reserves="amount", wording="KV cache of {} tokens"),
    ] = None
    # Not vLLM's max_num_batched_tokens, which counts the sequences that decode too.
    chunked_prefill_size: Annotated[Positive | None, Knob("chunk", wording="at most {} prompt tokens per step")] = None
    enable_prefix_caching: Annotated[bool | None, _as_of_vllm("enable_prefix_caching", "disable_radix_cache")] = None
    kv_cache_dtype: Annotated[
        Literal["auto", "bfloat16", "fp8_e4m3", "fp8_e5m2"] | None, _as_of_vllm("kv_cache_dtype")
    ] = None
    tensor_parallel_size: Annotated[Positive | None, _as_of_vllm("tensor_parallel_size", "tp_size")] = None
    enforce_eager: Annotated[bool | None, _as_of_vllm("enforce_eager", "disable_cuda_graph")] = None
    attention_backend: Annotated[
        Annotated[str, Field(pattern=r"^[a-z0-9_]+$")] | None, _as_of_vllm("attention_backend")
    ] = None

    @property
    def max_concurrency(self) -> int:
        """`max_num_seqs`, or the number of users if that is smaller. Without it SGLang's limit follows from its memory,
        and vLLM's default is assumed, so that both get the same requests."""
        return min(self.max_num_seqs or 256, self.users or 256)

    def command_line(self) -> list[str]:
        """What is set, as words of the server's command line.

        >>> SglangServeKnobs(block_size=16, enable_prefix_caching=False, enforce_eager=False, users=4).command_line()
        ['--page-size', '16', '--disable-radix-cache']
        """
        words: list[str] = []
        for name, value in flat(self.set_values()).items():
            if isinstance(value, bool):
                own = f"--{name.replace('_', '-')}" if value and name in self.other_arguments() else None
                words += [switch] if (switch := _SWITCHES.get((name, value), own)) else []
            elif name not in Load.model_fields:
                argument = knob.argument if (knob := self.described().get(name)) else None
                words += [f"--{(argument or name).replace('_', '-')}", str(value)]
        return words


SGLANG_SERVE = EngineDescription(
    name="sglang-serve",
    knobs=SglangServeKnobs,
    packages=("sglang",),
    versions=">=0.5.23",
    # It needs another torch than vLLM, so it has environments of its own only.
    locks={},
    counters={
        "preemptions_counted": "sglang:num_retracted_requests",
        "prefix_cache_queries": "sglang:prompt_tokens{is_streaming=true}",
        "prefix_cache_hits": "sglang:prefill_effective_tokens{mode=device_hit}",
    },
    arguments="sglang",
    reserved=dict.fromkeys(
        [
            *("model_path", "served_model_name", "load_format", "dtype", "random_seed", "sampling_defaults"),
            *("host", "port", "log_level_http", "enable_metrics", "trust_remote_code", "device"),
            *("tokenizer_path", "revision", "api_key"),
        ],
        "the pipeline sets it, or it would change what is measured",
    ),
    sampling=SETTINGS - {THINKING},
    adapter="workflow_scripts.engines.sglang.adapter:SglangServe",
)
