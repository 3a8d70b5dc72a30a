"""HuggingFace transformers: the knobs and descriptions of its static and its continuous batching."""

from dataclasses import replace
from typing import Annotated, Literal

from workflow_scripts.common.knob import Knob
from workflow_scripts.engines.description import EngineDescription
from workflow_scripts.engines.knobs import Knobs, Positive
from workflow_scripts.workloads.sampling import SETTINGS, THINKING

PACKAGES = ("transformers",)


class HfStaticKnobs(Knobs):
    """`transformers` `generate()` on left-padded static batches."""

    batch_size: Annotated[Positive, Knob("static-batch", wording="batches of {}")]
    cache_implementation: Annotated[Literal["dynamic", "static"], Knob("cache", kernels=True)] = "dynamic"

    @property
    def max_concurrency(self) -> int:
        return self.batch_size


class HfContinuousKnobs(Knobs):
    """`transformers` `generate_batch()`: continuous batching over a paged cache."""

    page_size: Annotated[
        Positive,
        Knob("continuous-page", settles=("block_size",), wording="pages of {} tokens"),
    ]
    # Without it the cache is sized from the host's memory and takes all of it.
    num_blocks: Annotated[Positive, Knob("blocks", reserves="amount", wording="{} blocks")]
    max_batch_tokens: Annotated[
        Positive,
        Knob(
            "tokens",
            settles=("max_num_batched_tokens",),
            wording="at most {} tokens per step",
        ),
    ]

    @property
    def max_concurrency(self) -> int:
        """Each live sequence takes at least one token of every step's budget."""
        return self.max_batch_tokens


HF_STATIC = EngineDescription(
    name="hf-static",
    knobs=HfStaticKnobs,
    packages=PACKAGES,
    versions=">=4.57",
    preload=("torch", "transformers", "transformers.modeling_utils"),
    needs=("torch", "transformers", "accelerate"),
    peaks={"torch_memory_bytes_max": "torch_max_memory_allocated_bytes"},
    sampling=SETTINGS - {THINKING},
    adapter="workflow_scripts.engines.hf.static:HfStatic",
    steps="workflow_scripts.engines.hf.predictions:hf_static_steps",
    arguments="transformers",
    reserved=dict.fromkeys(
        [
            *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "pad_token_id", "eos_token_id"),
            *("stop_strings", "disable_compile", "cache_implementation", "do_sample", "num_return_sequences"),
            *("return_dict_in_generate", "temperature", "top_k", "top_p", "repetition_penalty"),
            *("output_scores", "output_logits"),
        ],
        "the pipeline sets it, or `sampling` of a workload does",
    ),
)
HF_CONTINUOUS = replace(
    HF_STATIC,
    name="hf-continuous",
    knobs=HfContinuousKnobs,
    versions=">=5.18",  # 5.17 calls a page a block
    # Its maximum comes from the budget of tokens.
    bounds_sequences=False,
    # It drops the processor of a repetition penalty with no more than a warning.
    sampling=SETTINGS - {"repetition_penalty", THINKING},
    adapter="workflow_scripts.engines.hf.continuous:HfContinuous",
    steps="workflow_scripts.engines.hf.predictions:hf_continuous_steps",
    capacity="workflow_scripts.engines.hf.predictions:hf_continuous_capacity",
    arguments="",
)
