"""HuggingFace's `generate()` on static batches: its schedule, which follows without a scheduler, and its work.

What its steps read and compute follows `transformers` 5.19 (`cache_utils`, `masking_utils`, `sdpa_attention`) and
torch 2.13. docs/plan.md lists it.
"""

import numpy as np

from workflow_scripts.engines.steps import SchedulerSettings, StaticBatches
from workflow_scripts.physics.model_facts import ModelFacts
from workflow_scripts.physics.step_time import StepWork
from workflow_scripts.predict.schedule import RequestLengths, Schedule, Segments
from workflow_scripts.predict.timing import activation_bytes_per_token


class _Phases:
    """Batches in the order of the requests, each in two phases: first its prompts are read, then it makes the tokens
    after the first, if there are any. One element per phase: `reads` says which it is. The `rows` prompts of the batch
    are padded to the length `prompt`, `further` is the number of its steps after the first, and `padded` whether any
    row has padding."""

    def __init__(self, requests: RequestLengths, batch_size: int) -> None:
        starts = np.arange(0, len(requests), batch_size)
        longest = np.maximum.reduceat(requests.prompt_tokens, starts)
        further = np.maximum.reduceat(requests.output_tokens, starts) - 1
        batch = np.repeat(np.arange(len(starts)), 1 + (further > 0))
        self.reads = np.diff(batch, prepend=-1) > 0
        self.rows = np.minimum(batch_size, len(requests) - starts)[batch]
        self.prompt, self.further = longest[batch], further[batch]
        self.padded = (np.minimum.reduceat(requests.prompt_tokens, starts) < longest)[batch]
        self.steps = np.where(self.reads, 1, self.further)


def static_schedule(requests: RequestLengths, batch_size: int) -> Schedule:
    """Batches in the order of the requests, one after the other, each padded to its longest prompt and answer. The
    first step reads the prompts of a batch, including padding. Each further step makes a token for all its rows, even
    for those that are complete."""
    phases = _Phases(requests, batch_size)
    rows, prompt, none = phases.rows, phases.prompt, np.zeros_like(phases.rows)
    reading, decoding = rows * phases.reads, rows * ~phases.reads
    segments = Segments(
        steps=phases.steps,
        decode_seqs=decoding,
        decode_kv_tokens=decoding * (prompt + 1),
        prefill_seqs=reading,
        prefill_tokens=reading * prompt,
        prefill_kv_tokens=reading * prompt,
        prefill_attended_tokens=reading * prompt * (prompt + 1) // 2,
        generation_tokens=rows,
        running=rows,
        waiting=len(requests) - np.cumsum(reading),
        blocks_held=none,
        idle_s=none.astype(float),
    )
    first = segments.first_step[phases.reads][np.arange(len(requests)) // batch_size]
    nothing = np.zeros(len(requests), dtype=np.int64)
    longest = int((prompt + phases.further + 1).max())
    return Schedule(
        settings=SchedulerSettings(batch_size, batch_size * longest, 1, longest, enable_prefix_caching=False),
        segments=segments,
        first_step=first,
        first_token_step=first,
        last_token_step=first + requests.output_tokens - 1,
        preemptions=nothing,
        cached_tokens=nothing,
        recomputed_tokens=nothing,
        evicted_blocks=0,
        peak_blocks_held=0,
        needs_blocks=0,
    )


def static_work(
    requests: RequestLengths, asked: StaticBatches, facts: ModelFacts, *, copies_matrices: bool
) -> StepWork:
    """Work of the segments of `static_schedule`; every row is computed, including padding.

    Besides the weights, a step moves the KV of all slots that its attention covers, some of it several times:

    - The dynamic cache is a new tensor in each step: all of it is read and written.
    - Attention reads that KV once. With a mask, for padding, KV heads that several query heads share are expanded
      before: read, written for each query head, and read from there.

    Masks take a few bytes per slot and are left out. Logits are made only for the last token of each row. With
    `copies_matrices`, a product of several rows first copies its matrix into another layout, and so reads its bytes
    twice. torch on a CPU does; vLLM packs matrices when it loads them.
    """
    phases = _Phases(requests, asked.max_num_seqs)
    reads, rows, prompt = phases.reads, phases.rows, phases.prompt
    held = prompt + ~reads
    shared_by = facts.attention.heads // facts.attention.kv_heads
    read = np.where(phases.padded & (shared_by > 1), 1 + 2 * shared_by, 1)
    of_prompts = np.where(phases.padded, prompt * held, prompt * (prompt + 1) // 2)
    pairs, tokens = np.where(reads, of_prompts, held), rows * np.where(reads, prompt, 1)

    per_token, width = facts.bytes_per_token(), facts.attention_width
    copied = facts.layer_matmul_parameters * (tokens > 1) + facts.vocab * facts.hidden * (rows > 1)
    return StepWork.of(
        phases.steps.astype(float),
        {
            "weight_bytes": facts.decode_weight_bytes + copies_matrices * facts.kv_dtype_bytes() * copied,
            "kv_bytes": per_token * rows * (read + 2) * held,
            "matrix_flops": facts.matrix_flops(tokens.astype(float), rows.astype(float)),
            "attention_flops": 4.0 * width * rows * pairs,
            "layers": float(facts.layers),
            "activation_bytes": tokens * activation_bytes_per_token(facts),
            "sequences": rows.astype(float),
            "prompts": (rows * reads).astype(float),
            "eager_layers": float(facts.layers),
        },
        {"kv_bytes": ~reads * per_token * rows * (read + 2.0), "attention_flops": ~reads * 4.0 * width * rows},
    )
