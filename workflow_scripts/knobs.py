"""Engine knobs that a study may set: typed, validated and named in a path.

Field names are the engines' own argument names. A knob that a study leaves out keeps the engine's default and
does not appear in the slug.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]


class Knobs(BaseModel):
    """Settings of one engine in one cell."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Short names for paths, in the order in which they appear there.
    codes: ClassVar[dict[str, str]]

    def slug(self) -> str:
        """Canonical name of what is set, e.g. `bs16-seqs128-pc0`; `default` if nothing is.

        >>> VllmKnobs(max_num_seqs=128, block_size=16, enable_prefix_caching=False).slug()
        'bs16-seqs128-pc0'
        """
        values = self.set_values()
        return "-".join(f"{code}{_text(values[name])}" for name, code in self.codes.items() if name in values) or (
            "default"
        )

    def set_values(self) -> dict[str, Any]:
        """What the study sets, by argument name; knobs left at the engine's default are absent."""
        return self.model_dump(exclude_none=True)

    @property
    def max_concurrency(self) -> int:
        """Most sequences that these settings let run at once."""
        raise NotImplementedError


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


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
    }

    block_size: Positive | None = None
    max_num_seqs: Positive | None = None
    max_num_batched_tokens: Positive | None = None
    max_model_len: Positive | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    kv_cache_dtype: Literal["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"] | None = None
    quantization: Literal["awq", "awq_marlin", "gptq", "gptq_marlin", "fp8", "compressed-tensors"] | None = None
    tensor_parallel_size: Positive | None = None
    pipeline_parallel_size: Positive | None = None
    enforce_eager: bool | None = None
    attention_backend: Annotated[str, Field(pattern=r"^[A-Z0-9_]+$")] | None = None
    cpu_kv_cache_gib: Annotated[int, Field(ge=1, description="VLLM_CPU_KVCACHE_SPACE; CPU devices only")] | None = None

    @property
    def max_concurrency(self) -> int:
        """`max_num_seqs`; vLLM's own default for the offline engine is 256 where a study sets none."""
        return self.max_num_seqs or 256


class HfStaticKnobs(Knobs):
    """`transformers` `generate()` on left-padded static batches."""

    codes: ClassVar[dict[str, str]] = {"batch_size": "static-batch", "cache_implementation": "cache"}

    batch_size: Positive
    cache_implementation: Literal["dynamic", "static"] = "dynamic"

    @property
    def max_concurrency(self) -> int:
        """The batch size: a batch's requests start together, the next batch waits for the longest."""
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
        """Each live sequence takes at least a token of every step's budget."""
        return self.max_batch_tokens


ENGINES: dict[str, type[Knobs]] = {
    "vllm": VllmKnobs,
    "hf-static": HfStaticKnobs,
    "hf-continuous": HfContinuousKnobs,
}
