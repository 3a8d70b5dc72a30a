"""The steps of a calibration's passes as they were observed, and the costs of a GPU and its host fitted to them.

An engine whose core has its own process begins with the first request alone, and others join when they reach it. So the
steps of a pass are not those of a schedule in which all requests are there. They follow from the pass itself: a first
token is made at the end of a step, and each further step makes one more token of a request.

A step is launched while the one before runs, and its end is reported when the next one is launched. So the time between
two reports holds the work of one step and the launch of another. Each pass is passed through this pipeline, and least
squares finds the costs with which the times between reports are met best, as factors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workflow_scripts.physics.step_time import KIND, KINDS, LAUNCHED, FloatArray, StepCosts, device_s
from workflow_scripts.predict.schedule import Segments
from workflow_scripts.study.calibrations import Pass

# A first token belongs to a step whose end is this close.
SAME_S = 1e-4
# Costs that follow from measured rates of the device, and how closely, as a share.
GUIDED = ("weight_bytes", "kv_bytes", "matrix_flops", "attention_flops")
GUIDED_WITHIN, GUIDED_BY_DATA_SHEET = 0.05, 0.3
# Costs that are fitted: of the device, and of its host.
_DEVICE = (*GUIDED, "layers", "activation_bytes", "sequences")
HOST = ("steps", "sequences", "prompts", "requests", *LAUNCHED, "start")
# Errors beyond this share count by their size instead of their square, because disturbances only add time.
_DISTURBED = 0.05
# No cost is further than this from where the search begins, as a logarithm.
MOST_LOG = 7.0


@dataclass(frozen=True)
class ObservedSteps:
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


def segments_of(run: Pass, budget: int) -> Segments | None:
    """The steps of a pass, one segment each; None if its requests do not account for all of them. `budget`: maximum
    number of tokens in a step; a prompt that does not fit began in the step before."""
    ends_s = np.array(run.step_ends_s)
    if not len(ends_s):
        return None
    made_s = run.start_s + np.array(run.ttft_s)
    firsts = np.abs(ends_s[None, :] - made_s[:, None]).argmin(axis=1)
    prompts = [_Prompt(*lengths, int(first)) for lengths, first in zip(run.requests, firsts, strict=True)]
    matched = np.abs(ends_s[firsts] - made_s).max() < SAME_S
    if not matched or max(prompt.first + prompt.outputs for prompt in prompts) != len(ends_s):
        return None
    decode_seqs, decode_kv, seqs, tokens, kv, attended = np.zeros((6, len(ends_s)), dtype=np.int64)
    for prompt in prompts:
        further = slice(prompt.first + 1, prompt.first + prompt.outputs)
        decode_seqs[further] += 1
        decode_kv[further] += prompt.tokens + np.arange(1, prompt.outputs)
    budgets = budget - decode_seqs if run.step_tokens is None else np.array(run.step_tokens) - decode_seqs
    for prompt in sorted(prompts, key=lambda prompt: -prompt.first):
        step, end = prompt.first, prompt.tokens
        while end > 0:  # from the last part of a prompt to its first
            begin = 0 if step == 0 else max(0, end - max(0, int(budgets[step])))
            if begin < end:
                budgets[step] -= end - begin
                seqs[step] += 1
                tokens[step] += end - begin
                kv[step] += end
                attended[step] += (end * (end + 1) - begin * (begin + 1)) // 2
            end, step = begin, step - 1
    none = np.zeros_like(seqs)
    return Segments(
        steps=none + 1,
        decode_seqs=decode_seqs,
        decode_kv_tokens=decode_kv,
        prefill_seqs=seqs,
        prefill_tokens=tokens,
        prefill_kv_tokens=kv,
        prefill_attended_tokens=attended,
        generation_tokens=decode_seqs + seqs,
        running=decode_seqs + seqs,
        waiting=none,
        blocks_held=none,
        idle_s=none.astype(float),
    )


class _Passes:
    """Passes of equal length: shorter ones end with rows of zeros. The first index is the step, the second the pass."""

    def __init__(self, observed: Sequence[ObservedSteps], weights: FloatArray) -> None:
        shape = max(len(run.ends_s) for run in observed), len(observed)
        self.rows, ends_s = np.zeros((*shape, len(KINDS))), np.full(shape, np.nan)
        self.last = np.zeros(shape, dtype=bool)
        for number, run in enumerate(observed):
            self.rows[: len(run.ends_s), number], ends_s[: len(run.ends_s), number] = run.rows, run.ends_s
            self.last[len(run.ends_s) - 1, number] = True
        self.seen = ~np.isnan(ends_s)
        self.times_s = _between(ends_s, self.seen)
        self.weights = np.broadcast_to(weights, shape)[self.seen]

    def reported_s(self, costs: StepCosts) -> FloatArray:
        on_device_s, host = device_s(self.rows, costs), costs.launch
        assert host is not None
        launch_s = host.host_s(self.rows)
        as_graph = np.equal(sum(self.rows[..., KIND[kind]] for kind in LAUNCHED), 0)
        # The other requests are taken in when the first step is launched.
        others_s = self.rows[0, :, KIND["requests"]] * host.requests
        launch_s[0] -= others_s
        reported = np.zeros_like(on_device_s)
        end_s = launched_s = np.full(on_device_s.shape[1], host.start)
        for step in range(len(on_device_s)):
            if step == 0 or not host.ahead:
                begins_s = end_s if step else launched_s
                launched_s = begins_s + launch_s[step]
            end_s = np.maximum(end_s + on_device_s[step], launched_s + on_device_s[step] * as_graph[step])
            reported[step] = end_s
            if host.ahead and step + 1 < len(on_device_s):
                begins_s = np.maximum(launched_s, reported[step - 1]) if step else launched_s + others_s
                launched_s = begins_s + launch_s[step + 1]
                reported[step] = np.where(self.last[step], end_s, np.maximum(end_s, launched_s))
                end_s = end_s if step else np.maximum(end_s, begins_s)
        return reported

    def off(self, costs: StepCosts) -> FloatArray:
        # Logarithms of predicted over measured times between reports.
        logs: FloatArray = np.log(np.maximum(_between(self.reported_s(costs), self.seen), 1e-9) / self.times_s)
        return logs

    def longer(self, costs: StepCosts) -> float:
        """Logarithm of measured over predicted times of whole passes; the median."""
        measured_s = np.bincount(np.nonzero(self.seen)[1], self.times_s)
        return float(np.median(np.log(measured_s / self.reported_s(costs).T[self.last.T])))


def _between(ends_s: FloatArray, seen: npt.NDArray[np.bool_]) -> FloatArray:
    """Times from one reported end to the next, or from the start of the pass."""
    reported_s = np.where(seen, ends_s, 0.0)
    before = np.maximum.accumulate(np.vstack([np.zeros(reported_s.shape[1]), reported_s[:-1]]), axis=0)
    between: FloatArray = (reported_s - before)[seen]
    return between


def fit_pipeline(
    observed: Sequence[ObservedSteps], weights: FloatArray, begin: StepCosts, within: float = GUIDED_WITHIN
) -> StepCosts:
    """The costs that meet the reported times of passes best. `begin`: costs of a GPU and its host by the device's
    rates, with which the search begins. `within`: how far costs of reading and of operations are from those, as a
    share."""
    begin_launch = begin.launch
    assert begin_launch is not None
    passes = _Passes(observed, weights)
    amounts = passes.rows.max(axis=(0, 1))
    names = [kind for kind in _DEVICE if amounts[KIND[kind]] > 0 and getattr(begin, kind)]
    host = [kind for kind in HOST if getattr(begin_launch, kind, 0.0)]
    first = np.array([*(getattr(begin, kind) for kind in names), *(getattr(begin_launch, kind) for kind in host)])
    guided = np.array([kind in GUIDED for kind in names] + [False] * len(host))

    def costs_of(logs: FloatArray) -> StepCosts:
        values = np.exp(np.clip(logs, -MOST_LOG, MOST_LOG)) * first
        launch = begin_launch.model_copy(update=dict(zip(host, values[len(names) :].tolist(), strict=True)))
        return StepCosts(**dict(zip(names, values.tolist(), strict=False)), launch=launch)

    def off(logs: FloatArray) -> FloatArray:
        far = passes.off(costs_of(logs)) / _DISTURBED
        # Grows like the square of small errors, and like the size of large ones.
        residuals = np.sign(far) * np.sqrt(2 * (np.sqrt(1 + far**2) - 1)) * passes.weights
        return np.concatenate([residuals, logs[guided] / within])

    from scipy.optimize import least_squares  # takes longer than a prediction that fits no calibration

    logs = least_squares(off, np.zeros(len(first)), method="lm", ftol=1e-4, xtol=1e-3).x
    # What the host disturbs counts little above, but whole passes have it; each cost takes its share.
    return costs_of(logs + passes.longer(costs_of(logs)))
