"""The schedule of HuggingFace's `generate()` on static batches, which needs no scheduler to be known."""

import numpy as np

from workflow_scripts.prepare.schedule import IntArray, RequestLengths, Schedule, SchedulerSettings, Segments


def static_schedule(requests: RequestLengths, batch_size: int) -> Schedule:
    """Batches in the order of the requests, one after the other, each padded to its longest prompt and answer.

    A step reads the prompts of a batch, padding included, and each further one makes a token for all its rows, those
    included that have all theirs already.
    """
    prompts, outputs = requests.prompt_tokens, requests.output_tokens
    starts = np.arange(0, len(requests), batch_size)
    rows = np.minimum(batch_size, len(requests) - starts)
    prompt = np.maximum.reduceat(prompts, starts)
    further = np.maximum.reduceat(outputs, starts) - 1
    batch = np.arange(len(requests)) // batch_size
    waiting = len(requests) - starts - rows

    def both(prefill: IntArray, decode: IntArray) -> IntArray:
        """A segment for each batch's prompts and one for its further steps, in turn."""
        values: IntArray = np.stack([prefill, decode], axis=1).ravel()[kept]
        return values

    none = np.zeros_like(rows)
    kept = np.stack([np.ones_like(further, dtype=bool), further > 0], axis=1).ravel()
    segments = Segments(
        steps=both(np.ones_like(rows), further),
        decode_seqs=both(none, rows),
        decode_kv_tokens=both(none, rows * (prompt + 1)),
        prefill_seqs=both(rows, none),
        prefill_tokens=both(rows * prompt, none),
        prefill_kv_tokens=both(rows * prompt, none),
        prefill_attended_tokens=both(rows * prompt * (prompt + 1) // 2, none),
        sampled_tokens=both(rows, rows),
        running_seqs=both(rows, rows),
        waiting_seqs=both(waiting, waiting),
        blocks_held=both(none, none),
        idle_s=both(none, none).astype(float),
    )
    first = (np.cumsum(further + 1) - further - 1)[batch]
    nothing = np.zeros(len(requests), dtype=np.int64)
    longest = int((prompt + further + 1).max())
    return Schedule(
        settings=SchedulerSettings(batch_size, batch_size * longest, 1, longest, enable_prefix_caching=False),
        segments=segments,
        first_step=first,
        first_token_step=first,
        last_token_step=first + outputs - 1,
        preemptions=nothing,
        cached_tokens=nothing,
        peak_blocks_held=0,
        needs_blocks=0,
    )
