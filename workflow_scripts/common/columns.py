"""Measured quantities: each column that several tables, pages or commands have is declared here, once.

Names of columns end in their SI unit and a statistic, such as `ttft_s_p50`. The unit in which people see a column
follows from its name alone, so that a quantity has one unit in each table, figure, sentence and script.
"""

import json
import math
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from workflow_scripts.common.wording import number

# The last words of a column's name, apart from its statistic -> the unit that is shown, and the factor to it.
_UNITS = {
    **dict.fromkeys(
        ("ttft_s", "ttfa_s", "tpot_s", "itl_s", "queue_s", "prefill_s", "decode_s", "step_s", "lag_s"), ("ms", 1e3)
    ),
    **dict.fromkeys(("tokens_per_s", "tokens_per_device_s"), ("tokens/s", 1)),
    **dict.fromkeys(("requests_per_s", "arrivals_per_s", "rate_per_s", "growth_per_s"), ("requests/s", 1)),
    **dict.fromkeys(
        ("share", "usage", "hit_rate", "acceptance_rate", "attainment", "memory_utilization", "mbu", "mfu"), ("%", 100)
    ),
    "pct": ("%", 1),
    "bytes_per_s": ("GB/s", 1e-9),
    "flop_per_s": ("TFLOP/s", 1e-12),
    "bytes": ("GiB", 2**-30),
    "gib": ("GiB", 1),
    "j_per_output_token": ("J/token", 1),
    "j": ("J", 1),
    "w": ("W", 1),
    "mhz": ("MHz", 1),
    "s": ("s", 1),
}
_STATISTICS = "p50|p90|p99|mean|median|peak|min|max|low|high|used|reserved|predicted|uniform|ceiling|a|b"
_UNIT_OF = re.compile(rf"(?:.+?_)??(?P<unit>{'|'.join(sorted(_UNITS, key=len, reverse=True))})(?:_(?:{_STATISTICS}))*")


@cache
def unit_of(name: str, largest: float = math.inf) -> tuple[str, float]:
    """The unit in which a column is shown, and the factor from the column's own unit; ("", 1) if it has none.

    GiB become MiB if not even the `largest` value shown is a hundredth of one.

    >>> unit_of("steady_ttft_s_p50"), unit_of("predicted_kv_bytes"), unit_of("ratio_low"), unit_of("num_requests")
    (('ms', 1000.0), ('GiB', 9.313225746154785e-10), ('', 1), ('', 1))
    >>> unit_of("kv_bytes", 2**20), unit_of("kv_bytes", 2**30)[0]
    (('MiB', 9.5367431640625e-07), 'GiB')
    """
    found = _UNIT_OF.fullmatch(name)
    unit, factor = _UNITS[found["unit"]] if found else ("", 1)
    return ("MiB", 1024 * factor) if unit == "GiB" and 0 < largest * factor < 0.01 else (unit, factor)


Summary = Literal["interval", "mean", "median", "first", "max", "min"]


@dataclass(frozen=True)
class Column:
    """A column: its name, its meaning in the documentation, and how people see it.

    Attributes:
        label: the quantity as an axis or a heading names it, without the unit.
        dtype: the pandas type.
        more: whether more is better; None if neither is.
        summary: how the table `intervals`, and with it every page and figure, sums it up: the geometric mean over the
            starts with its interval, that mean alone, or the median, first, highest or lowest of the repeats.
        digits: significant digits that are shown.
    """

    name: str
    label: str
    meaning: str = ""
    dtype: str = "float64"
    more: bool | None = None
    summary: Summary = "median"
    digits: int = 3

    @property
    def unit(self) -> str:
        return unit_of(self.name)[0]

    @property
    def factor(self) -> float:
        return unit_of(self.name)[1]

    @property
    def axis(self) -> str:
        """The label with the unit, for axes and headings."""
        return heading(self.name, self.label)

    @property
    def in_words(self) -> str:
        """The label inside a sentence.

        >>> column("ttft_s_p50").in_words, column("mbu").in_words
        ('median TTFT', 'MBU')
        """
        return self.label if self.label[1:2].isupper() else self.label[0].lower() + self.label[1:]

    def scaled(self, values: Any) -> Any:
        """Numbers, or a column of them, in the unit that is shown."""
        return values * self.factor

    def text(self, low: float, high: float | None = None) -> str:
        """A value, or the range of two, with its unit.

        >>> column("ttft_s_p50").text(0.018293), column("ttft_s_p50").text(0.5, 2)
        ('18.3 ms', '500 to 2,000 ms')
        """
        both = (low, low if high is None else high)
        unit, factor = unit_of(self.name, max(both))
        return f"{' to '.join(dict.fromkeys(number(end * factor, self.digits) for end in both))} {unit}".strip()


ALL_DIGITS = 15


def _count(name: str, label: str, meaning: str, summary: Summary = "median") -> Column:
    return Column(name, label, meaning, "Int64", summary=summary, digits=ALL_DIGITS)


PER_REQUEST = (
    Column("ttft_s", "TTFT", "time to the first token, from being queued (servers: from the scheduled arrival)"),
    Column("ttfa_s", "TTFA", "time to the first token of the answer after reasoning, as TTFT; null without reasoning"),
    Column("tpot_s", "TPOT", "mean time per output token after the first, per request"),
    Column("itl_s", "ITL", "time between two pieces of a streamed answer, over all requests"),
    Column("e2e_s", "End-to-end latency", "time to the last token"),
)


def _quantile(base: Column, quantile: str = "p50") -> Column:
    words = {"p50": "Median"}.get(quantile, quantile.upper())
    summary: Summary = "interval" if quantile == "p50" and base.name != "itl_s" else "mean"
    return replace(base, name=f"{base.name}_{quantile}", label=f"{words} {base.in_words}", more=False, summary=summary)


LATENCIES = tuple(_quantile(base, quantile) for base in PER_REQUEST for quantile in ("p50", "p90", "p99"))
_RATE = "over `wall_s`; total includes prompts"
_OF_ALL_GPUS = "all GPUs of the cell, by the energy counter, else by sampled power"
COLUMNS = {
    column.name: column
    for column in (
        Column("output_tokens_per_s", "Output throughput", _RATE, more=True, summary="interval"),
        Column(
            "steady_output_tokens_per_s",
            "Output throughput while full",
            "output rate while the engine is full: from the first tokens of as many sequences as may run, or ran if "
            "KV blocks allow fewer, until fewer requests remain",
            more=True,
            summary="interval",
        ),
        Column("total_tokens_per_s", "Total throughput", _RATE, more=True, summary="interval"),
        Column("drain_share", "Drain after the steady part", "share of `wall_s` after it", more=False),
        Column("requests_per_s", "Request throughput", _RATE, more=True, summary="interval"),
        Column("goodput_requests_per_s", "Goodput within the SLO", "rate of requests within all bounds", more=True),
        Column("slo_attainment", "Requests within the SLO", "share of requests within all bounds", more=True),
        *PER_REQUEST,
        *LATENCIES,
        _quantile(Column("queue_s", "Wait until scheduled", "from being queued to being scheduled first")),
        _quantile(Column("prefill_s", "Time from there to the first token", "from then to the first token")),
        Column(
            "energy_j_per_output_token",
            "Energy per output token",
            "`energy_j / output_tokens`",
            more=False,
            summary="interval",
        ),
        Column("energy_j", "Energy", _OF_ALL_GPUS, more=False, summary="mean"),
        Column("power_w_mean", "Mean power", _OF_ALL_GPUS, summary="mean"),
        Column(
            "power_cap_share", "Samples at the power limit", "share of samples in which the limit lowered the clocks"
        ),
        Column("sm_clock_mhz_median", "Median clock of the multiprocessors", "multiprocessor clock, all GPUs"),
        Column(
            "sm_clock_mhz_min", "Lowest clock of the multiprocessors", "multiprocessor clock, all GPUs", summary="min"
        ),
        Column("mbu", "MBU", "bytes read over those that the device could read", more=True),
        Column("mfu", "MFU", "operations over those that the device could do", more=True),
        Column("ceiling_share", "Share of the ceiling", "measured rate over its ceiling", more=True),
        Column("kv_cache_usage_peak", "KV blocks in use, peak", "share of KV blocks in use", summary="max"),
        Column(
            "memory_used_bytes_max",
            "Peak memory",
            "of the first GPU (CPU: resident, of the engine's processes)",
            summary="max",
        ),
        Column("waste_pct", "Empty slots in held KV memory", "share without a token", more=False, summary="interval"),
        Column("num_gpu_blocks", "KV blocks", "blocks of the KV cache", summary="first", digits=ALL_DIGITS),
        Column("kv_cache_tokens", "KV-cache tokens", "tokens in the cache", summary="first", digits=ALL_DIGITS),
        Column("kv_bytes_used_mean", "KV memory of running requests", "bytes of their tokens", summary="interval"),
        Column("kv_bytes_reserved_mean", "KV reserved, mean", "bytes for keys and values; a pool counts whole"),
        Column("kv_bytes_reserved_peak", "KV reserved, peak", "their highest value", summary="max"),
        Column(
            "torch_memory_bytes_max",
            "Peak of torch",
            "HuggingFace on a GPU: `torch.cuda.max_memory_allocated`",
            summary="max",
        ),
        Column(
            "process_memory_growth_bytes_max",
            "Growth of the process",
            "CPU: highest resident memory of the engine's processes, minus that before the start",
            summary="max",
        ),
        Column("running_peak", "Requests at once, peak", "running sequences", summary="max"),
        Column("running_while_others_wait", "Requests at once", "mean while others wait", summary="interval"),
        _count("waiting_peak", "Waiting requests, peak", "waiting requests", "max"),
        _count("preemptions", "Preemptions", "requests that lost their blocks and were recomputed"),
        _count(
            "recomputed_tokens",
            "Tokens computed again, at most",
            "after preemption; a try that finds no blocks counts too; null where the engine does not count",
        ),
        Column("prefix_cache_hits", "Prompt tokens found in the prefix cache", "tokens looked up and found"),
        Column("prefix_cache_hit_rate", "Share of prompt tokens found in the prefix cache", "hits over queries"),
        Column("draft_acceptance_rate", "Accepted drafts", "accepted over drafted tokens"),
        _count("max_cudagraph_capture_size", "Tokens of the largest CUDA graph", "effective value"),
        _count("num_requests", "Requests", "requests of the repeat"),
        _count("prompt_tokens", "Prompt tokens", "tokens of the repeat"),
        _count("output_tokens", "Output tokens", "tokens of the repeat"),
        Column("wall_s", "Duration", "from the submission of the first request to the end of the last", summary="mean"),
        Column("cpu_others_pct", "CPU time of others", "CPU time of other processes, of all cores"),
        # Samples of the trace and steps of the schedule.
        Column("time_s", "Time since the repeat began"),
        Column("memory_used_bytes", "Memory of the device"),
        Column("process_memory_bytes", "Memory of the engine's processes"),
        Column("power_w", "Power"),
        Column("sm_clock_mhz", "Clock"),
        Column("kv_cache_usage", "KV cache in use"),
    )
}


def column(name: str) -> Column:
    """The declared column of this name, or one whose label is its name."""
    return COLUMNS.get(name) or Column(name, name.replace("_", " "))


def heading(name: str, words: str = "", largest: float = math.inf) -> str:
    """How a column is headed: its label, or other words for it, with the unit, for which see `unit_of`.

    >>> heading("ttft_s_p50"), heading("vllm_output_tokens_per_s", "vLLM"), heading("ratio", "Ratio")
    ('Median TTFT (ms)', 'vLLM (tokens/s)', 'Ratio')
    """
    words, unit = words or column(name).label, unit_of(name, largest)[0]
    return f"{words} ({unit})" if unit else words


def columns_module() -> str:
    """The declared columns as the page's module `columns.js`: name -> label, unit, factor, more and digits.

    >>> '"mbu": {"label": "MBU", "unit": "%", "factor": 100' in columns_module()
    True
    """
    shown = ("label", "unit", "factor", "more", "digits")
    of_all = {each.name: {key: getattr(each, key) for key in shown} for each in COLUMNS.values()}
    return f"export const COLUMNS = {json.dumps(of_all)};\n"
