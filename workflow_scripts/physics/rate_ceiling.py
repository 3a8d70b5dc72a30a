"""The highest rates that a device allows, and whether a rate is above them.

All uncertainties are resolved in the rate's favour: memory and arithmetic run at their data-sheet rates and overlap
fully, and prompts are read in steps in which other requests decode.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from workflow_scripts.catalog.gpus_and_models import CatalogError, Gpu, resolve
from workflow_scripts.physics import formulas
from workflow_scripts.physics.model_facts import ModelFacts

RateVerdict = Literal["possible", "impossible", "unknown"]


@dataclass(frozen=True)
class MeanLengths:
    """Tokens of every request; means, if requests differ."""

    prompt_tokens: float
    output_tokens: float


# About ShareGPT's means with vLLM's benchmark (docs/workloads.md), for tables that do not state their lengths.
USUAL_LENGTHS = MeanLengths(200, 200)


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


def ceiling(
    facts: ModelFacts,
    gpu: Gpu,
    max_num_seqs: float,
    workload: MeanLengths,
    gpu_memory_utilization: float = 1.0,
    kv_cache_dtype: str = "auto",
) -> Ceiling | None:
    """The highest rates of one device with at most `max_num_seqs` live sequences; None without data-sheet rates.

    The KV cache limits live sequences too: at best it has all memory that the weights leave free, and each sequence
    takes the memory that it holds on average over its steps.

    Llama-3.1-8B on an H200, one sequence: each of 4 steps reads 15.01 GB of weights at 4.8 TB/s, and also its KV cache.

    >>> from workflow_scripts.catalog.gpus_and_models import get_model, load_gpus
    >>> from workflow_scripts.physics.model_facts import read_model_facts
    >>> llama = read_model_facts(get_model("llama-3.1-8b-instruct").config)
    >>> highest = ceiling(llama, load_gpus()["h200"], 1, MeanLengths(prompt_tokens=4, output_tokens=4))
    >>> round(highest.output_tokens_per_s, 1), round(highest.total_tokens_per_s, 1), highest.limit
    (319.8, 639.6, 'memory bandwidth')
    """
    if gpu.memory_bandwidth_bytes_per_s is None or gpu.memory_bytes is None or gpu.dense_flop_per_s is None:
        return None
    memory = max(gpu.memory_bytes, gpu.usable_memory_bytes or 0) * gpu_memory_utilization
    bytes_per_token = facts.uniform().bytes_per_token(kv_cache_dtype)
    held_tokens = workload.prompt_tokens + (workload.output_tokens - 1) / 2
    fitting = (memory - facts.weight_bytes) / (bytes_per_token * held_tokens)
    if fitting < 1:
        because = f"{facts.weight_bytes / 1e9:.1f} GB of weights and a request do not fit in {memory / 1e9:.0f} GB"
        return Ceiling(gpu.name, 0.0, 0.0, "memory size", because)
    sequences = min(max_num_seqs, fitting)
    bandwidth, rates = gpu.memory_bandwidth_bytes_per_s, gpu.dense_flop_per_s
    # A quantized model may run in a smaller type, so the device's highest rate counts.
    flop_per_s = (max(rates.values()) if facts.quantization else gpu.peak_flop_per_s(facts.dtype)) or math.inf
    flops = facts.request_flops(workload.prompt_tokens, workload.output_tokens)
    time_s = formulas.request_time_min_s(
        sequences,
        workload.prompt_tokens,
        workload.output_tokens,
        facts.decode_weight_bytes,
        bytes_per_token,
        flops,
        bandwidth,
        flop_per_s,
    )
    if flops / flop_per_s >= time_s:
        limit, because = "arithmetic", f"{flops / 1e12:.3g} TFLOP per request at {flop_per_s / 1e12:.4g} TFLOP/s"
    else:
        live = f"{sequences:.4g} live sequence{'s' * (sequences != 1)}"
        live += ", as many as the KV cache holds" if sequences == fitting else ""
        weights = f"a step reads {facts.decode_weight_bytes / 1e9:.1f} GB of weights at {bandwidth / 1e12:.4g} TB/s"
        limit, because = "memory bandwidth", f"{live}: {weights}"
    total = formulas.total_tokens_per_s_ceiling(workload.prompt_tokens, workload.output_tokens, time_s)
    return Ceiling(gpu.name, total, workload.output_tokens / time_s, limit, because)


@dataclass(frozen=True)
class JudgedRate:
    """The verdict on a rate.

    `predicted_ceiling_tokens_per_s` is that of `ceiling_gpu`, the card with the highest one. `limit` is what limits
    that card, and `times_ceiling` the throughput over the ceiling. A number is NaN if it is not known.
    """

    verdict: RateVerdict = "unknown"
    predicted_ceiling_tokens_per_s: float = math.nan
    times_ceiling: float = math.nan
    ceiling_gpu: str | None = None
    limit: str | None = None
    reason: str = ""


def judge_rate(
    gpu: str,
    tokens_per_s: float,
    sequences: float | None,
    facts: ModelFacts,
    workload: MeanLengths,
    *,
    output_only: bool = False,
    gpu_memory_utilization: float = 1.0,
    kv_cache_dtype: str = "auto",
    default_max_num_seqs: int = 256,
    devices: float = 1,
) -> JudgedRate:
    """The verdict on a rate of a device, or of several that share all work and memory evenly, with at most so many live
    sequences, or the default if they are not stated.

    `gpu` is a name as tables write it; of several cards that it may mean, the one with the highest ceiling counts. The
    reason is empty if the rate is no positive number.
    """
    try:
        gpus = resolve(gpu)
    except CatalogError as e:
        return JudgedRate(reason=str(e).partition(";")[0])
    at_once = default_max_num_seqs if sequences is None else sequences
    conditions = (at_once, workload, gpu_memory_utilization, kv_cache_dtype)
    ceilings = [ceiling(facts, card.times(devices), *conditions) for card in gpus]
    highest = max(filter(None, ceilings), key=lambda rates: rates.total_tokens_per_s, default=None)
    if highest is None:
        return JudgedRate(reason=f"no data sheet gives the rates of {gpu}")
    counted, limit = "prompt and output tokens", highest.total_tokens_per_s
    if output_only:
        counted, limit = "output tokens", highest.output_tokens_per_s
    judged = JudgedRate(predicted_ceiling_tokens_per_s=limit, ceiling_gpu=highest.gpu, limit=highest.limit)
    if not tokens_per_s > 0:
        return judged
    times = tokens_per_s / limit if limit else math.inf
    assumed = f"; max-num-seqs is not stated: {default_max_num_seqs} assumed" if sequences is None else ""
    several = f"{devices:g} devices, " if devices > 1 else ""
    reason = f"{times:.3g} times the ceiling for {counted}; {several}{highest.because}{assumed}"
    return replace(judged, verdict="impossible" if times > 1 else "possible", times_ceiling=times, reason=reason)
