"""Engine knobs that a study may set: typed, validated and part of a cell's path.

Field names are the engines' own argument names. A knob that a study leaves out keeps the engine's default and
does not appear in the slug.
"""

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from workflow_scripts.workloads.arrivals import Load

Positive = Annotated[int, Field(ge=1)]


class Knobs(BaseModel):
    """Settings of one engine in one cell."""

    # Strict: a text or a boolean is never accepted as a number, even if it could be read as one.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    # Short names for paths, in the order in which they appear there.
    codes: ClassVar[dict[str, str]]

    def slug(self) -> str:
        """Canonical name of the settings, e.g. `bs16-seqs128-pc0`; `default` if nothing is set.

        >>> VllmKnobs(max_num_seqs=128, block_size=16, enable_prefix_caching=False).slug()
        'bs16-seqs128-pc0'
        """
        values = self.set_values()
        return "-".join(f"{code}{_text(values[name])}" for name, code in self.codes.items() if name in values) or (
            "default"
        )

    def set_values(self) -> dict[str, Any]:
        """What the study sets, by argument name; knobs left at the engine's default are left out."""
        return self.model_dump(exclude_none=True)

    @property
    def max_concurrency(self) -> int:
        """Maximum number of sequences that these settings let run at once."""
        raise NotImplementedError

    @property
    def ranks(self) -> int:
        """Parts of the model that run in parallel, each on its own GPU; on a CPU they share its cores."""
        return 1

    @property
    def draft_model(self) -> str | None:
        """Name of the draft model that the engine loads beside the cell's own model; usually None."""
        return None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)


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
        else:
            words += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return words


class VllmKnobs(Knobs):
    """Arguments of vLLM's engine."""

    codes: ClassVar[dict[str, str]] = {
        "block_size": "bs",
        "max_num_seqs": "seqs",
        "max_num_batched_tokens": "tokens",
        "max_model_len": "len",
        "gpu_memory_utilization": "util",
        "enable_prefix_caching": "pc",
        "enable_chunked_prefill": "cp",
        "kv_cache_dtype": "kv",
        "quantization": "quant",
        "tensor_parallel_size": "tp",
        "pipeline_parallel_size": "pp",
        "enforce_eager": "eager",
        "attention_backend": "attn",
        "cpu_kv_cache_gib": "cpukv",
        "speculative_method": "spec",
        "num_speculative_tokens": "draft",
        "prompt_lookup_max": "lookup",
        "prompt_lookup_min": "lookupmin",
        "speculative_model": "by",
    }

    block_size: Positive | None = None
    max_num_seqs: Positive | None = None
    max_num_batched_tokens: Positive | None = None
    max_model_len: Positive | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    kv_cache_dtype: Literal["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"] | None = None
    quantization: (
        Literal["awq", "awq_marlin", "gptq", "gptq_marlin", "fp8", "fp8_per_tensor", "compressed-tensors"] | None
    ) = None
    tensor_parallel_size: Positive | None = None
    pipeline_parallel_size: Positive | None = None
    enforce_eager: bool | None = None
    attention_backend: Annotated[str, Field(pattern=r"^[A-Z0-9_]+$")] | None = None
    cpu_kv_cache_gib: Annotated[int, Field(ge=1, description="VLLM_CPU_KVCACHE_SPACE; CPU devices only")] | None = None
    speculative_method: Literal["ngram", "draft_model"] | None = None
    num_speculative_tokens: (
        Annotated[int, Field(ge=0, description="tokens drafted a step; 0 is no speculative decoding")] | None
    ) = None
    prompt_lookup_max: Annotated[int, Field(ge=1, description="longest n-gram that ngram looks up")] | None = None
    prompt_lookup_min: Annotated[int, Field(ge=1, description="shortest n-gram that ngram looks up")] | None = None
    speculative_model: (
        Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="a name in config/models/")] | None
    ) = None

    @model_validator(mode="after")
    def _speculation_is_whole(self) -> Self:
        if (self.speculative_method is None) != (self.num_speculative_tokens is None):
            raise ValueError("speculative_method and num_speculative_tokens go together; one is set without the other")
        if self.speculative_method != "ngram" and (self.prompt_lookup_max or self.prompt_lookup_min):
            raise ValueError("prompt_lookup_max and prompt_lookup_min need speculative_method: ngram")
        if (self.speculative_method == "draft_model") != (self.speculative_model is not None):
            raise ValueError("speculative_method: draft_model and speculative_model go together; one is set alone")
        if (self.prompt_lookup_min or 1) > (self.prompt_lookup_max or math.inf):
            raise ValueError(
                f"prompt_lookup_min {self.prompt_lookup_min} must be at most prompt_lookup_max {self.prompt_lookup_max}"
            )
        return self

    @property
    def max_concurrency(self) -> int:
        """`max_num_seqs`; if a study sets none, 256, vLLM's own default for the offline engine."""
        return self.max_num_seqs or 256

    @property
    def ranks(self) -> int:
        """Tensor parallel ranks of each stage of the pipeline.

        >>> VllmKnobs(tensor_parallel_size=4, pipeline_parallel_size=2).ranks, VllmKnobs().ranks
        (8, 1)
        """
        return (self.tensor_parallel_size or 1) * (self.pipeline_parallel_size or 1)

    @property
    def draft_model(self) -> str | None:
        """`speculative_model`, unless zero tokens are drafted."""
        return self.speculative_model if self.num_speculative_tokens else None

    def engine_arguments(self, draft_model: str | None = None) -> dict[str, Any]:
        """What is set, as arguments of `vllm.LLM` and `vllm serve`, by their Python names.

        Args:
            draft_model: folder or repository of the model named by `draft_model`.

        >>> VllmKnobs(block_size=16, speculative_method="ngram", num_speculative_tokens=4).engine_arguments()
        {'block_size': 16, 'speculative_config': {'method': 'ngram', 'num_speculative_tokens': 4}}
        """
        values = self.set_values()
        arguments = {name: values[name] for name in _VLLM_ARGUMENTS if name in values}
        if self.num_speculative_tokens:
            speculation = {key: values[name] for name, key in _SPECULATION.items() if name in values}
            arguments["speculative_config"] = speculation | ({"model": draft_model} if draft_model else {})
        return arguments

    def environment(self) -> dict[str, str]:
        """Settings that vLLM reads only from the environment.

        >>> VllmKnobs(block_size=32, cpu_kv_cache_gib=4).environment()
        {'VLLM_CPU_KVCACHE_SPACE': '4'}
        """
        return {} if self.cpu_kv_cache_gib is None else {"VLLM_CPU_KVCACHE_SPACE": str(self.cpu_kv_cache_gib)}


# Knobs of speculative decoding -> keys of vLLM's `speculative_config`.
_SPECULATION = {
    "speculative_method": "method",
    "num_speculative_tokens": "num_speculative_tokens",
    "prompt_lookup_max": "prompt_lookup_max",
    "prompt_lookup_min": "prompt_lookup_min",
}
SPECULATION = {*_SPECULATION, "speculative_model"}
_VLLM_ARGUMENTS = [name for name in VllmKnobs.codes if name not in SPECULATION | {"cpu_kv_cache_gib"}]


class HfStaticKnobs(Knobs):
    """`transformers` `generate()` on left-padded static batches."""

    codes: ClassVar[dict[str, str]] = {"batch_size": "static-batch", "cache_implementation": "cache"}

    batch_size: Positive
    cache_implementation: Literal["dynamic", "static"] = "dynamic"

    @property
    def max_concurrency(self) -> int:
        """The batch size: a batch's requests start together, and the next batch waits for the longest."""
        return self.batch_size


class HfContinuousKnobs(Knobs):
    """`transformers` `generate_batch()`: continuous batching over a paged cache."""

    codes: ClassVar[dict[str, str]] = {
        "page_size": "continuous-page",
        "num_blocks": "blocks",
        "max_batch_tokens": "tokens",
    }

    page_size: Positive
    # Without it the cache is sized from the host's memory and takes all of it.
    num_blocks: Positive
    max_batch_tokens: Positive

    @property
    def max_concurrency(self) -> int:
        """Each live sequence takes at least one token of every step's budget."""
        return self.max_batch_tokens


class VllmServeKnobs(VllmKnobs, Load):
    """Arguments of vLLM's engine behind its OpenAI-compatible server, and the load on it."""

    codes: ClassVar[dict[str, str]] = VllmKnobs.codes | Load.load_codes

    @property
    def max_concurrency(self) -> int:
        """`max_num_seqs`, or the number of users if that is smaller."""
        allowed = super().max_concurrency
        return allowed if self.users is None else min(allowed, self.users)


class OpenAiKnobs(Load, Knobs):
    """A server of config/endpoints.yaml, and the load on it. The server's own settings are in its command there."""

    codes: ClassVar[dict[str, str]] = {"endpoint": "at-", **Load.load_codes}

    endpoint: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", description="a name in config/endpoints.yaml")]

    @property
    def max_concurrency(self) -> int:
        """The users if a study sets them; otherwise the limit is unknown, and vLLM's default is assumed."""
        return self.users or 256


ENGINES: dict[str, type[Knobs]] = {
    "vllm": VllmKnobs,
    "vllm-serve": VllmServeKnobs,
    "openai": OpenAiKnobs,
    "hf-static": HfStaticKnobs,
    "hf-continuous": HfContinuousKnobs,
}
