"""Formulas of LLM inference memory and speed: one function each, with units, source and a worked number.

Sizes are in bytes, times in seconds, rates in bytes/s or operations/s; a multiply-add is two operations.
The speed limits are lower bounds of time, so a measurement that beats one is wrong or measures something else. They
hold for one new token per sequence and step, and for prompts that share no cached prefix; `questions.limits.ceilings`
handles speculative decoding and shared prefixes.

Sources: [Pope] Pope et al., Efficiently Scaling Transformer Inference, 2022; [Kwon] Kwon et al., Efficient Memory
Management for LLM Serving with PagedAttention, 2023; [Williams] Williams et al., Roofline, 2009.
"""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", float, npt.NDArray[np.float64])


# --- KV cache: how much is wasted --------------------------------------------------------------------------------


def blocks_summed(tokens: Number, block_size: Number | float) -> Number:
    """Blocks held by a sequence of 1 token, plus those of one of 2 tokens, and so on up to `tokens`. [Kwon]

    This is what a growing sequence holds, summed over its steps. Blocks of 4: 1 + 1 + 1 + 1 + 2 + 2.

    >>> blocks_summed(6.0, 4)
    8.0
    """
    full = tokens // block_size
    return block_size * full * (full + 1) / 2 + (tokens - full * block_size) * (full + 1)


def token_seconds(prompt_tokens: Number, output_tokens: Number, prefill_s: Number, decode_s: Number) -> Number:
    """Tokens that a request holds in the KV cache, integrated over its life: token-seconds.

    The prompt is there while it is read (`prefill_s`). Then the first of `output_tokens` tokens comes, and the
    last one `decode_s` later, at even steps. Each token enters the cache in the step that makes the next one, so the
    last one never does. 10 + 3 tokens, 2 s of prefill and two steps of 0.5 s: 10 x 2 s, 11 x 0.5 s, 12 x 0.5 s.

    >>> token_seconds(10.0, 3.0, 2.0, 1.0)
    31.5
    """
    return prompt_tokens * prefill_s + (prompt_tokens + output_tokens / 2) * decode_s


def block_seconds(
    prompt_tokens: Number, output_tokens: Number, prefill_s: Number, decode_s: Number, block_size: Number | float
) -> Number:
    """Blocks that a request holds, integrated over its life as in `token_seconds`: block-seconds. [Kwon]

    The same request in blocks of 11: 1 block for 2 s, 1 for 0.5 s, 2 for 0.5 s.

    >>> float(block_seconds(10.0, 3.0, 2.0, 1.0, 11))
    3.5
    """
    steps = np.maximum(output_tokens - 1, 1)  # a request of one output token has no decode step
    grown = blocks_summed(prompt_tokens + output_tokens - 1, block_size) - blocks_summed(prompt_tokens, block_size)
    blocks: Number = -(-prompt_tokens // block_size) * prefill_s + grown / steps * decode_s
    return blocks


# --- speed: what a step must read and compute --------------------------------------------------------------------


def decode_kv_tokens_read(prompt_tokens: Number, output_tokens: Number) -> Number:
    """Tokens whose KV a request reads from the cache, summed over its decode steps. [Pope]

    There is one step for each output token after the first; it reads the tokens of all earlier steps. 10 + 4 tokens:
    10 + 11 + 12.

    >>> decode_kv_tokens_read(10.0, 4.0)
    33.0
    """
    further = output_tokens - 1
    return further * (prompt_tokens + (further - 1) / 2)


def attended_tokens(tokens: Number, limit: int | None = None) -> Number:
    """Pairs of tokens of which one attends to the other, in a text of `tokens` tokens. [Pope]

    A token attends to itself and to all before it; with a `limit` only to the last `limit` tokens, itself included.
    1 + 2 + 3 + 4 + 5; 1 + 2 + 3 + 3 + 3:

    >>> attended_tokens(5.0), attended_tokens(5.0, 3)
    (15.0, 12.0)
    """
    if limit is None:
        return tokens * (tokens + 1) / 2
    within = np.minimum(tokens, limit)
    pairs: Number = within * (within + 1) / 2 + (tokens - within) * limit
    return pairs if isinstance(tokens, np.ndarray) else float(pairs)
