"""The shortest time in which a device can serve the requests of a repeat, and what limits it in each phase.

Uncertainties are resolved in the device's favour, so that anything faster is impossible; docs/limits.md has details.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.device.device_record import DeviceRates
from workflow_scripts.physics.layers import Experts
from workflow_scripts.physics.model_facts import ModelFacts
from workflow_scripts.physics.rate_ceiling import attention_cost, matrix_flop_per_s
from workflow_scripts.statistics.errors import FloatArray
from workflow_scripts.tables.summary import numbers

# Knobs whose product is the number of ranks.
RANKS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")

MEMORY, CACHE, _ARITHMETIC = "memory bandwidth", "cache bandwidth", "arithmetic"


@dataclass(frozen=True)
class KnownRates:
    """A device with rates from one source: a `gpu` whose memory bandwidth and arithmetic rates are from that source.

    `cache_bytes` is the size of its last-level cache, 0 if unknown. `measured` is the record of the device, if the
    source is a measurement.
    """

    source: Literal["datasheet", "measured"]
    gpu: Gpu
    cache_bytes: int
    measured: DeviceRates | None = None

    def cache_bytes_per_s(self, facts: ModelFacts) -> float:
        """Highest rate at which weights are read from caches; infinite if it was not measured.

        If the weights do not fit, the part that fits is read no faster than data of the cache's size.
        """
        kept = min(facts.decode_weight_bytes, self.cache_bytes)
        return (self.measured and self.measured.rereading_bytes_per_s(kept)) or np.inf

    @property
    def memory_bandwidth_bytes_per_s(self) -> float:
        """Memory bandwidth in bytes/s; NaN if the source has none."""
        return self.gpu.memory_bandwidth_bytes_per_s or np.nan

    def flop_per_s(self, facts: ModelFacts) -> float:
        """Highest rate of products with the model's weights, in operations/s; NaN if the source has none. The measured
        rates of a device do not cover the types of quantized weights."""
        of_source = None if self.measured and facts.quantization else matrix_flop_per_s(self.gpu, facts)
        return of_source or np.nan


def rates_of(gpu: Gpu, devices: Path) -> list[KnownRates]:
    """A device's rates from its data sheet, and the measured ones if `devices` holds its record."""
    record = devices / f"{gpu.name}.json"
    measured = DeviceRates.read(record) if record.exists() else None
    cache_bytes = (measured.last_level_cache_bytes if measured else None) or 0
    rates = (
        [KnownRates("datasheet", gpu, cache_bytes)] if gpu.memory_bandwidth_bytes_per_s or gpu.dense_flop_per_s else []
    )
    if measured:
        rates.append(KnownRates("measured", as_measured(gpu, measured), cache_bytes, measured))
    return rates


def as_measured(gpu: Gpu, rates: DeviceRates) -> Gpu:
    measured = {"memory_bandwidth_bytes_per_s": rates.memory_bytes_per_s, "dense_flop_per_s": rates.matmul_flop_per_s}
    return gpu.model_copy(update=measured)


def least_steps(work: pd.DataFrame) -> pd.DataFrame:
    """The minimum number of steps that give all output tokens of a repeat, and what prevents fewer steps.

    A step gives one token to each running sequence. With speculative decoding it also gives the accepted drafted
    tokens, except in the prefill, which gives one token. The number of running sequences is limited by the settings, by
    the number of requests and by the KV blocks. The longest request needs one step per token; with drafts it needs,
    after its first token, one step per (number of drafted tokens + 1) tokens.

    Args:
        work: sums of `tables.work`, and `max_num_seqs_effective`, `max_concurrency_allowed`, `num_gpu_blocks`,
            `data_parallel_size`, `num_speculative_tokens`, and `accepted_draft_tokens`, which may be null.

    Returns:
        `sequences_max`: sequences that may run at once; `steps_min`; `output_tokens_per_step_max`: output tokens over
        `steps_min`; `steps_bound_by`: max_num_seqs, requests, kv_blocks or longest_request;
        `sequence_tokens_per_step_max`: maximum number of tokens that one sequence gets in a step;
        `sequence_steps_min`: sum of the steps of all sequences.
    """
    drafted = work["num_speculative_tokens"].astype(float)
    per_step = 1 + drafted
    # The prefill gives the first token of a request; nothing is drafted for it.
    most_accepted = np.floor((work["output_tokens"] - work["requests"]) * drafted / per_step)
    accepted = np.fmin(work["accepted_draft_tokens"].astype(float).where(drafted > 0, 0.0), most_accepted)
    sequence_steps = work["output_tokens"] - accepted
    of_all_engines = work["max_num_seqs_effective"] * work["data_parallel_size"]
    allowed = of_all_engines.fillna(work["max_concurrency_allowed"]).astype(float)
    sequences = np.minimum(allowed, work["requests"])
    by_sequences = np.ceil(sequence_steps / sequences)
    by_blocks = np.ceil((work["block_steps"] / work["num_gpu_blocks"].astype(float)).fillna(0.0) / per_step)
    longest = 1 + np.ceil((work["output_tokens_longest"] - 1) / per_step)
    steps = np.maximum(np.maximum(by_sequences, longest), by_blocks)
    bound_by = np.select(
        [by_sequences == steps, longest == steps],
        [np.where(allowed < work["requests"], "max_num_seqs", "requests"), "longest_request"],
        "kv_blocks",
    )
    return pd.DataFrame(
        {
            "sequences_max": sequences,
            "steps_min": steps,
            "output_tokens_per_step_max": work["output_tokens"] / steps,
            "steps_bound_by": bound_by,
            "sequence_tokens_per_step_max": per_step,
            "sequence_steps_min": sequence_steps,
        },
        index=work.index,
    )


def phase_flops(work: pd.DataFrame, facts: ModelFacts, attention_cost: float = 1.0) -> tuple[FloatArray, FloatArray]:
    """Operations of a repeat's prefills and of its decode steps, where one of attention counts `attention_cost` times.
    Cached prefix tokens are not computed again."""

    def flops(tokens: str, logit_tokens: str, attended_tokens: str, pair_flops: str) -> FloatArray:
        matrices = facts.matrix_flops(numbers(work[tokens]), numbers(work[logit_tokens]))
        pairs = (getattr(r, pair_flops) * numbers(work[attended_tokens + r.suffix]) for r in facts.reaches)
        of_attention = (attention_cost * of_reach for of_reach in pairs)
        return sum(of_attention, start=matrices + facts.state_flops * numbers(work[tokens]))

    return (
        flops("computed_prompt_tokens", "requests", "prefill_attended_tokens", "prefill_pair_flops"),
        flops("decode_tokens", "decode_tokens", "decode_attended_tokens", "decode_pair_flops"),
    )


def devices_of(work: pd.DataFrame, gpu: Gpu) -> pd.Series:
    """How many devices the ranks of each row use: one each, but on a CPU one for all ranks.

    >>> from workflow_scripts.catalog.gpus_and_models import get_gpu
    >>> ranks = pd.DataFrame(dict.fromkeys(RANKS, [1, 2]))
    >>> [devices_of(ranks, get_gpu(name)).tolist() for name in ("h200", "cpu-all")]
    [[1, 8], [1, 1]]
    """
    ranks = work[[*RANKS]].prod(axis="columns")
    return ranks.clip(upper=1) if gpu.kind == "cpu" else ranks


def phase_times(work: pd.DataFrame, facts: ModelFacts, rates: KnownRates, kv_cache_dtype: str) -> pd.DataFrame:
    """Shortest times (s) of a repeat's two phases, by memory and by arithmetic, and of both phases together.

    `work` has sums of `tables.work`, the columns of `least_steps`, and the numbers of ranks. Each rank has one
    such device, but on a CPU all ranks share it.

    Returns:
        `prefill_memory_s`, `prefill_arithmetic_s`, `decode_memory_s`, `decode_arithmetic_s`, and of both phases
        `memory_s`, `arithmetic_s`, `wall_s_min`; null if a rate is unknown. If all weights fit in the cache
        (`weights_fit_cache`), the times by memory are those of reading them from the cache, and 0 if that rate was not
        measured.
    """
    devices = devices_of(work, rates.gpu)
    # In a step of all data-parallel engines, each reads its own weights; experts, which they share, are read once.
    copies = work["data_parallel_size"].clip(upper=1 if any(facts.of_kind(Experts)) else devices)
    # Weights that the cache keeps from one step to the next are not read from memory again.
    from_memory = (facts.decode_weight_bytes - rates.cache_bytes * devices / copies).clip(lower=0) * work["steps_min"]
    # All tokens that a sequence gets in one step read the KV cache once: the entries before the first of them.
    per_step = work["sequence_tokens_per_step_max"]
    # A state is read and written in every step.
    kv_read = 2 * facts.state_bytes() * work["decode_tokens"] / per_step
    for reach in facts.reaches:
        tokens = work[f"kv_tokens_read{reach.suffix}"]
        read = (tokens - work["decode_tokens"] * (per_step - 1) / 2).clip(lower=0) / per_step
        shared = np.minimum(work["kv_tokens_shared"] / per_step, read)
        own = read - shared
        kv_read += reach.kv_elements * facts.kv_dtype_bytes(kv_cache_dtype) * (own + shared / work["sequences_max"])
    bytes_per_s = rates.memory_bandwidth_bytes_per_s * devices
    # The stages of a pipeline read their weights one after the other for each batch, each stage from its own memory.
    stages = work["pipeline_parallel_size"].clip(upper=devices) * copies
    weights_s, kv_s = from_memory * stages / bytes_per_s, kv_read * (from_memory > 0) / bytes_per_s
    # No data is read faster than from the cache, wherever it is.
    cache_bytes_per_s = rates.cache_bytes_per_s(facts) * devices
    from_cache_s = facts.decode_weight_bytes * work["steps_min"] * stages / cache_bytes_per_s
    kv_from_cache_s = kv_read / cache_bytes_per_s
    slower = from_cache_s + kv_from_cache_s > weights_s + kv_s
    weights_s, kv_s = weights_s.mask(slower, from_cache_s), kv_s.mask(slower, kv_from_cache_s)
    # Each request's first token comes from its prefill.
    prefills = work["requests"] / work["sequence_steps_min"]
    # The rates of smaller types are not measured.
    cost = attention_cost(None if rates.measured else rates.gpu, facts, kv_cache_dtype)
    prefill_flops, decode_flops = phase_flops(work, facts, cost)
    flop_per_s = rates.flop_per_s(facts) * devices
    times = pd.DataFrame(
        {
            "prefill_memory_s": weights_s * prefills,
            "prefill_arithmetic_s": prefill_flops / flop_per_s,
            "decode_memory_s": weights_s * (1 - prefills) + kv_s,
            "decode_arithmetic_s": decode_flops / flop_per_s,
            "memory_s": weights_s + kv_s,
            "arithmetic_s": (prefill_flops + decode_flops) / flop_per_s,
        }
    )
    prefill_s = np.fmax(times["prefill_memory_s"], times["prefill_arithmetic_s"])
    decode_s = np.fmax(times["decode_memory_s"], times["decode_arithmetic_s"])
    # A single sequence is either in its prefill or decoding; with several, one may compute while another reads.
    alone = work["sequences_max"] == 1
    times["wall_s_min"] = (prefill_s + decode_s).where(alone, np.fmax(times["memory_s"], times["arithmetic_s"]))
    times["weights_fit_cache"] = (facts.decode_weight_bytes <= rates.cache_bytes * devices).astype("boolean")
    return times


def binding(memory_s: pd.Series, arithmetic_s: pd.Series, memory: Any = MEMORY) -> pd.Series:
    """Which resource takes longer, where that of `memory_s` is called `memory`; null if neither time is known.

    >>> binding(pd.Series([2.0, np.nan, 0.5, np.nan]), pd.Series([1.0, 0.5, np.nan, np.nan])).fillna("?").tolist()
    ['memory bandwidth', 'arithmetic', 'memory bandwidth', '?']
    """
    slower = np.where(arithmetic_s.fillna(0.0) > memory_s.fillna(0.0), _ARITHMETIC, memory)
    has_time = memory_s.notna() | arithmetic_s.notna()
    return pd.Series(slower, index=memory_s.index, dtype="string").where(has_time)
