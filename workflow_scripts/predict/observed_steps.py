"""What the steps of a calibration's pass did, and when each was done.

An engine whose core has its own process begins with the first request alone, and others join when they reach it. So the
steps of a pass are not those of a schedule in which all requests are there. They follow from the pass itself: a first
token is made at the end of a step, and each further step makes one more token of a request.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from workflow_scripts.physics.step_time import KIND, LAUNCHED, FloatArray
from workflow_scripts.predict.schedule import IntArray, Segments
from workflow_scripts.study.calibrations import Pass

# A first token belongs to a step whose end is this close.
SAME_S = 1e-4


@dataclass(frozen=True)
class Observed:
    """The steps of one pass: the work of each, one column per kind, and seconds from the start of the pass to its end.
    `ends_s` is NaN for a step whose end was not reported, but the last one always is."""

    rows: FloatArray
    ends_s: FloatArray

    @property
    def sums(self) -> tuple[FloatArray, FloatArray]:
        """Work and time between steps that were reported or, if some were not, from the start of the pass."""
        seen = ~np.isnan(self.ends_s)
        if seen.all():
            return self.rows, np.diff(self.ends_s, prepend=0.0)
        return self.rows.cumsum(axis=0)[seen], self.ends_s[seen]


class _Prompt(NamedTuple):
    tokens: int
    outputs: int
    first: int


def segments_of(one: Pass, budget: int) -> Segments | None:
    """The steps of a pass, one segment each; None if its requests do not account for all of them. `budget`: maximum
    number of tokens in a step; a prompt that does not fit began in the step before."""
    ends_s = np.array(one.step_ends_s)
    if not len(ends_s):
        return None
    made_s = one.start_s + np.array(one.ttft_s)
    firsts = np.abs(ends_s[None, :] - made_s[:, None]).argmin(axis=1)
    prompts = [_Prompt(*lengths, int(first)) for lengths, first in zip(one.requests, firsts, strict=True)]
    known = np.abs(ends_s[firsts] - made_s).max() < SAME_S
    if not known or max(prompt.first + prompt.outputs for prompt in prompts) != len(ends_s):
        return None
    decode_seqs, decode_kv, seqs, tokens, kv, attended = np.zeros((6, len(ends_s)), dtype=np.int64)
    for prompt in prompts:
        further = slice(prompt.first + 1, prompt.first + prompt.outputs)
        decode_seqs[further] += 1
        decode_kv[further] += prompt.tokens + np.arange(1, prompt.outputs)
    room = budget - decode_seqs if one.step_tokens is None else np.array(one.step_tokens) - decode_seqs
    for prompt in sorted(prompts, key=lambda prompt: -prompt.first):
        for step, begin, end in _parts(prompt, room):
            seqs[step] += 1
            tokens[step] += end - begin
            kv[step] += end
            attended[step] += (end * (end + 1) - begin * (begin + 1)) // 2
    none = np.zeros_like(seqs)
    return Segments(
        steps=none + 1,
        decode_seqs=decode_seqs,
        decode_kv_tokens=decode_kv,
        prefill_seqs=seqs,
        prefill_tokens=tokens,
        prefill_kv_tokens=kv,
        prefill_attended_tokens=attended,
        sampled_tokens=decode_seqs + seqs,
        running_seqs=decode_seqs + seqs,
        waiting_seqs=none,
        blocks_held=none,
        idle_s=none.astype(float),
    )


def _parts(prompt: _Prompt, room: IntArray) -> Iterator[tuple[int, int, int]]:
    """Steps that compute a prompt, last first, with its first and last token; takes them from `room`."""
    step, end = prompt.first, prompt.tokens
    while end > 0:
        taken = end if step == 0 else min(end, max(0, int(room[step])))
        if taken:
            room[step] -= taken
            yield step, end - taken, end
        end, step = end - taken, step - 1


def with_graphs(rows: FloatArray, one: Pass) -> FloatArray:
    """The work with the graphs that the engine reported for each step, if it did."""
    if one.step_graphs is None:
        return rows
    for kind, name in zip(LAUNCHED, ("PIECEWISE", "NONE"), strict=True):
        rows[:, KIND[kind]] = rows[:, KIND["layers"]] * (np.array(one.step_graphs) == name)
    return rows
