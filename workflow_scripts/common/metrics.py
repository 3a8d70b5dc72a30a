"""What is measured in each repeat and shown: one record per column of `cells`."""

import json
from typing import NamedTuple


class Metric(NamedTuple):
    """A column of `cells`, `limits` (mbu, mfu) or `serving`, in the units that its name says.

    Attributes:
        name: the metric in words; None if the page uses the column but offers no choice of it.
        unit, factor: the unit that is shown, and the factor from the column's unit to it.
        more: whether more is better.
        has_interval: whether the table `intervals` has its mean over starts with the 95 % interval.
    """

    column: str
    name: str | None = None
    unit: str = ""
    factor: float = 1
    more: bool = False
    has_interval: bool = False


_LATENCIES = {
    "ttft_s": ("Time to first token (TTFT)", "ms", 1000),
    "tpot_s": ("Time per output token (TPOT)", "ms", 1000),
    "itl_s": ("Time between tokens (ITL)", "ms", 1000),
    "e2e_s": ("End-to-end latency", "s", 1),
}
_QUANTILES = {"p50": "median", "p90": "90th percentile", "p99": "99th percentile"}
LATENCIES = tuple(
    Metric(f"{column}_{q}", f"{name}, {words}", unit, factor, has_interval=q == "p50" and column != "itl_s")
    for column, (name, unit, factor) in _LATENCIES.items()
    for q, words in _QUANTILES.items()
)
METRICS = (
    Metric("output_tokens_per_s", "Output tokens per second", "tokens/s", more=True, has_interval=True),
    Metric(
        "steady_output_tokens_per_s",
        "Output tokens per second in the steady part",
        "tokens/s",
        more=True,
        has_interval=True,
    ),
    Metric("drain_share", "Time after the steady part (drain)", "%", 100),
    Metric(
        "total_tokens_per_s", "Total tokens per second (prompt and output)", "tokens/s", more=True, has_interval=True
    ),
    Metric("requests_per_s", "Requests per second", "requests/s", more=True, has_interval=True),
    Metric("goodput_requests_per_s", "Requests per second within the study's limits", "requests/s", more=True),
    *LATENCIES,
    Metric("queue_s_p50", "Wait until the engine first schedules the request, median", "ms", 1000),
    Metric("prefill_s_p50", "From there to the first token, median", "ms", 1000),
    Metric("energy_j_per_output_token", "Energy per output token", "J/token", has_interval=True),
    Metric("power_w_mean", "Mean power", "W"),
    Metric("power_cap_share", "Samples at the power limit", "%", 100),
    Metric("sm_clock_mhz_median", "Clock of the multiprocessors, median", "MHz"),
    Metric("sm_clock_mhz_min", "Clock of the multiprocessors, lowest", "MHz"),
    Metric("mbu", "Memory bandwidth used (MBU)", "%", 100, more=True),
    Metric("mfu", "Arithmetic used (MFU)", "%", 100, more=True),
    Metric("kv_cache_usage_peak", "KV blocks in use, peak", "%", 100),
    Metric("memory_used_bytes_max", "Memory in use, peak", "GiB", 2**-30),
    *map(Metric, ("slo_attainment", "energy_j", "wall_s", "num_requests", "prompt_tokens", "output_tokens")),
    *map(Metric, ("running_peak", "waiting_peak", "preemptions", "prefix_cache_hit_rate", "draft_acceptance_rate")),
    *map(Metric, ("cpu_others_pct", "started_at")),
)


def metrics_module() -> str:
    """The metrics that the page offers, as its module `metrics.js`: column -> name, unit, factor, more.

    >>> "mbu: " in metrics_module(), "wall_s" in metrics_module()
    (True, False)
    """
    offered = {metric.column: metric._asdict() for metric in METRICS if metric.name}
    lines = (
        f"  {column}: {json.dumps({key: of[key] for key in ('name', 'unit', 'factor', 'more')})},\n"
        for column, of in offered.items()
    )
    return f"export const METRICS = {{\n{''.join(lines)}}};\n"
