"""The highest rates that a device allows, and whether a rate is above them.

All uncertainties are resolved in the rate's favour: memory and arithmetic run at their data-sheet rates and overlap
fully, and prompts are read in steps in which other requests decode. What a source leaves open takes the value that
allows the most.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal

import numpy as np

from workflow_scripts.catalog.gpus_and_models import CatalogError, Gpu, resolve
from workflow_scripts.physics import formulas
from workflow_scripts.physics.model_facts import ModelFacts

RateVerdict = Literal["possible", "conditional", "impossible", "unknown"]


@dataclass(frozen=True)
class MeanLengths:
    """Tokens of every request; means, if requests differ."""

    prompt_tokens: float
    output_tokens: float


# Shares of prompt tokens among all tokens, in steps in which the share of output tokens falls by at most 6 %.
_SHARES = [*np.arange(0.01, 0.5, 0.01).tolist(), *(1 - np.geomspace(0.5, 1e-4, 150)).tolist()]


@dataclass(frozen=True)
class Ceiling:
    """The highest rates that a device allows, and what limits them.

    `total_tokens_per_s` counts prompt and output tokens, `output_tokens_per_s` only output tokens. `limit` is
    "memory bandwidth", "arithmetic" or "memory size", and `because` gives the numbers.
    """

    gpu: str
    total_tokens_per_s: float
    output_tokens_per_s: float
    limit: str
    because: str


def matrix_flop_per_s(gpu: Gpu, facts: ModelFacts) -> float | None:
    """Highest rate of products with a model's weights, in operations/s; None if no data sheet gives one. Quantized
    weights may be multiplied in a smaller type, so the device's highest rate counts."""
    rates = (gpu.dense_flop_per_s or {}).values()
    return max(rates, default=None) if facts.quantization else gpu.peak_flop_per_s(facts.dtype)


def attention_cost(gpu: Gpu | None, facts: ModelFacts, kv_cache_dtype: str) -> float:
    """Least time of an operation of attention over that of one with weights: a smaller type of the KV cache allows the
    device's highest rate; 0 if it is not known."""
    if facts.kv_dtype_bytes(kv_cache_dtype) >= facts.kv_dtype_bytes():
        return 1.0
    rates = gpu and gpu.dense_flop_per_s
    return (matrix_flop_per_s(gpu, facts) or 0.0) / max(rates.values()) if gpu and rates else 0.0


def ceiling(
    facts: ModelFacts,
    gpu: Gpu,
    max_num_seqs: float,
    workload: MeanLengths,
    gpu_memory_utilization: float = 1.0,
    kv_cache_dtype: str = "auto",
    cached_share: float = 0.0,
) -> Ceiling | None:
    """The highest rates of one device with at most `max_num_seqs` live sequences; None without data-sheet rates.

    The KV cache limits live sequences too: at best it has all memory that the weights leave free, and each sequence
    takes the memory that it holds on average over its steps. The `cached_share` of a prompt comes from a prefix cache:
    it is not computed, and its memory is not the request's."""
    if gpu.memory_bandwidth_bytes_per_s is None or gpu.memory_bytes is None or gpu.dense_flop_per_s is None:
        return None
    memory = max(gpu.memory_bytes, gpu.usable_memory_bytes or 0) * gpu_memory_utilization
    bytes_per_token = facts.uniform().bytes_per_token(kv_cache_dtype)
    computed = max(workload.prompt_tokens * (1 - cached_share), 1)
    held_tokens = computed + (workload.output_tokens - 1) / 2
    fitting = (memory - facts.weight_bytes) / (bytes_per_token * held_tokens)
    if fitting < 1:
        because = f"{facts.weight_bytes / 1e9:.1f} GB of weights and a request do not fit in {memory / 1e9:.0f} GB"
        return Ceiling(gpu.name, 0.0, 0.0, "memory size", because)
    sequences = min(max_num_seqs, fitting)
    bandwidth, flop_per_s = gpu.memory_bandwidth_bytes_per_s, matrix_flop_per_s(gpu, facts) or math.inf
    flops = facts.request_flops(computed, workload.output_tokens, attention_cost(gpu, facts, kv_cache_dtype))
    # A request takes part in at least as many steps as it has output tokens. A step reads the weights once for all its
    # sequences; those after the first also read the KV of all earlier tokens. Reading overlaps with computing.
    weights_read = facts.decode_weight_bytes * workload.output_tokens / sequences
    kv_read = bytes_per_token * formulas.decode_kv_tokens_read(workload.prompt_tokens, workload.output_tokens)
    time_s = max((weights_read + kv_read) / bandwidth, flops / flop_per_s)
    if flops / flop_per_s >= time_s:
        limit, because = "arithmetic", f"{flops / 1e12:.3g} TFLOP per request at {flop_per_s / 1e12:.4g} TFLOP/s"
    else:
        live = f"{sequences:.4g} live sequence{'s' * (sequences != 1)} on {gpu.name}"
        live += ", as many as the KV cache holds" if sequences == fitting else ""
        weights = f"a step reads {facts.decode_weight_bytes / 1e9:.1f} GB of weights at {bandwidth / 1e12:.4g} TB/s"
        limit, because = "memory bandwidth", f"{live}: {weights}"
    total = (workload.prompt_tokens + workload.output_tokens) / time_s
    return Ceiling(gpu.name, total, workload.output_tokens / time_s, limit, because)


def _of_prompt_share(share: float) -> MeanLengths:
    """The shortest lengths of which this share are prompt tokens: they read the least KV cache."""
    return MeanLengths(share / (1 - share), 1) if share > 0.5 else MeanLengths(1, (1 - share) / share)


def _least(is_allowed: Callable[[float], bool]) -> float | None:
    """The smallest share that is allowed, to a thousandth; None if none of `_SHARES` is."""
    first = next((i for i, share in enumerate(_SHARES) if is_allowed(share)), None)
    if not first:
        return None if first is None else 0.0
    between: list[float] = np.linspace(_SHARES[first - 1], _SHARES[first], 20).tolist()
    return next(share for share in between if is_allowed(share))


def at_least(share: float) -> str:
    """A share that is needed, in words."""
    return f"at least {math.floor(1000 * share) / 10:g} %"


@dataclass(frozen=True)
class JudgedRate:
    """The verdict on a rate; `conditional` if only some values of what the source leaves open allow it.

    `predicted_ceiling_tokens_per_s` is that of `ceiling_gpu`, the card with the highest one. `limit` is what limits
    that card, and `times_ceiling` the throughput over the ceiling. `least_prompt_share` is the share of prompt tokens
    among all tokens below which the rate is impossible, if lengths are open. A number is NaN if it is not known.
    """

    verdict: RateVerdict = "unknown"
    predicted_ceiling_tokens_per_s: float = math.nan
    times_ceiling: float = math.nan
    ceiling_gpu: str | None = None
    limit: str | None = None
    least_prompt_share: float = math.nan
    reason: str = ""


def judge_rate(
    gpu: str,
    tokens_per_s: float,
    sequences: float | None,
    facts: ModelFacts,
    workload: MeanLengths | None,
    *,
    output_only: bool = False,
    kv_cache_dtype: str = "auto",
    devices: float = 1,
) -> JudgedRate:
    """The verdict on a rate of a device, or of several that share all work and memory evenly, with at most so many live
    sequences; None: as many as the KV cache holds. Lengths that are None are open. That prompts come from a prefix
    cache is open too; then they take no time and no memory.

    `gpu` is a name as tables write it; of several cards that it may mean, the one with the highest ceiling counts. The
    reason is empty if the rate is no positive number.
    """
    try:
        gpus = resolve(gpu)
    except CatalogError as e:
        return JudgedRate(reason=str(e).partition(";")[0])
    at_once = math.inf if sequences is None else sequences
    devices_of = [gpu.times(devices) for gpu in gpus if ceiling(facts, gpu, 1, MeanLengths(1, 1))]
    if not devices_of:
        return JudgedRate(reason=f"no data sheet gives the rates of {gpu}")
    rate = attrgetter("output_tokens_per_s" if output_only else "total_tokens_per_s")

    def highest(lengths: MeanLengths, cached_share: float = 0.0) -> Ceiling:
        conditions = (at_once, lengths, 1.0, kv_cache_dtype, cached_share)
        return max(filter(None, (ceiling(facts, card, *conditions) for card in devices_of)), key=rate)

    best = max(map(highest, [workload] if workload else map(_of_prompt_share, _SHARES)), key=rate)
    limit: float = rate(best)
    judged = JudgedRate(predicted_ceiling_tokens_per_s=limit, ceiling_gpu=best.gpu, limit=best.limit)
    if not tokens_per_s > 0:
        return judged
    times = tokens_per_s / limit if limit else math.inf
    least: float | None = 0.0
    which = "the tokens are prompt tokens"
    if times > 1:
        which = "the prompt tokens come from a prefix cache"
        # Without lengths, nearly all tokens may be those of prompts, and a rate of output tokens has none to cache.
        least = None if output_only or not limit else 1 - 1 / times
        if workload and limit:
            least = _least(lambda share: rate(highest(workload, share)) >= tokens_per_s)
    elif not workload and not output_only:
        least = _least(lambda share: rate(highest(_of_prompt_share(share))) >= tokens_per_s) or 0.0
        judged = replace(judged, least_prompt_share=least)
        best = highest(_of_prompt_share(least)) if least else best
    verdict: RateVerdict = "impossible" if least is None else "conditional" if least else "possible"
    tokens = "output tokens" if output_only else "prompt and output tokens"
    words = [f"{times:.3g} times the {'' if workload else 'highest '}ceiling for {tokens}"]
    words += [f"possible only if {at_least(least)} of {which}"] if least else []
    words += [f"{devices:g} devices, {best.because}" if devices > 1 else best.because]
    if len(devices_of) > 1:
        words.append(f"{gpu} may mean {len(devices_of)} cards, of which {best.gpu} allows the most")
    if sequences is None:
        words.append("max-num-seqs is not stated: as many as the KV cache holds assumed")
    return replace(judged, verdict=verdict, times_ceiling=times, reason="; ".join(words))
