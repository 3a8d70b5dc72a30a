"""Summaries of the cells table, with one row per cell over its starts and repeats, for comparisons of cells."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from workflow_scripts.catalog.gpus_and_models import load_gpus, readable_models
from workflow_scripts.engines.registry import every_knob, load_engines, without_environment
from workflow_scripts.statistics.errors import FloatArray, IntArray
from workflow_scripts.statistics.samples import Samples
from workflow_scripts.statistics.variation import mean_of

# A row of a table: column -> value.
Row = dict[str, Any]

# The environment of a cell, which is not part of its definition. Cells with different locks ran different versions of
# an engine, and a CPU device has the same name on different processors; such cells are never compared. Records of GPUs,
# and old records, have no processor.
ENVIRONMENT = ("lock_sha256", "processor")

# The identity of a cell. Cells of different studies or sources are never pooled either, even if their names are equal.
IDENTITY = ("study", "source", "gpu", "engine", "model", "workload", "knobs", "cell_id", *ENVIRONMENT)

# What cells of several engines must share to be compared, and their rate.
PLACE = ("study", "source", "gpu", "model", "workload")
RATE = "output_tokens_per_s"
# Outcomes of cells that the engine could run.
RAN = ("ok", "invalid")

# What cells must share to be pooled: a device, an engine and its environment.
POOLED = ("study", "source", "gpu", "engine", *ENVIRONMENT)

# From this share of used KV blocks on, the cache counts as full: a waiting request needs several blocks.
KV_CACHE_FULL = 0.95

# If the study sets the rate of arrivals, the throughput is that rate and not the engine's.
RATE_OF_ARRIVALS = "knob_request_rate_per_s"
STEADY = "steady_output_tokens_per_s"
THROUGHPUT = (RATE, "total_tokens_per_s", STEADY)
# What a repeat served; two cells of which one had other requests did unequal work.
WORK = ("num_requests", "prompt_tokens", "output_tokens")
_OBSERVED = (*WORK, STEADY, "effective", "kv_cache_tokens", "dtype", "quantization", "engine_version")


def comparable_rows(cells: pd.DataFrame) -> pd.DataFrame:
    """Rows that comparisons may use: the cell ended `ok` and was measured as the study defines it."""
    return cells[cells["outcome"].eq("ok").fillna(False) & cells["comparable"].eq(True).fillna(False)]


def is_served(cells: pd.DataFrame) -> pd.Series:
    """Which rows are of engines that are servers."""
    servers = [engine.name for engine in load_engines().values() if engine.serves]
    return cells["engine"].map(without_environment).isin(servers)


class Summaries:
    """The cells of a study that may be compared, each measure summed up once.

    Called with a measure it returns one row per counted cell: identity, settings, `starts`, `repeats`, `log_mean` of
    the measure, and `sample`, its position among the cells' samples; and these. A cell without any value of the measure
    has no row. For a throughput, a cell whose requests arrived at a rate has none either. `cells` is the frame of
    `tables.measurements`.
    """

    def __init__(self, cells: pd.DataFrame) -> None:
        self.cells = cells
        rows = comparable_rows(cells)
        self._rows = rows.assign(cell=rows.groupby(list(IDENTITY), dropna=False, sort=False).ngroup())
        self._summed: dict[str, tuple[pd.DataFrame, Samples]] = {}

    def __call__(self, measure: str) -> tuple[pd.DataFrame, Samples]:
        if measure not in self._summed:
            rows = self._rows
            if RATE_OF_ARRIVALS in rows and measure in THROUGHPUT:
                rows = rows[rows[RATE_OF_ARRIVALS].isna()]
            self._summed[measure] = summarise(rows, ["cell"], measure)
        summary, samples = self._summed[measure]
        summary = summary[summary["repeats"] > 0]
        return self._settings.take(summary["cell"].to_numpy()).reset_index(drop=True).assign(
            **{name: summary[name].array for name in ("starts", "repeats", "log_mean", "sample")}
        ), samples

    @cached_property
    def _settings(self) -> pd.DataFrame:
        """What a cell has beside its measures, in the order of its number `cell`: the first value of its repeats that
        is not null."""
        first = ["max_concurrency_allowed", *knob_columns(self._rows), *_OBSERVED]
        first += [str(name) for name in self._rows if str(name).endswith("_effective")]
        how = dict.fromkeys(first, "first") | BOUND_BY_NEEDS
        named = self._rows.assign(dtype=dtypes, quantization=lambda rows: as_applied(rows, "quantization"))
        groups = named.groupby("cell", sort=False)
        taken = {
            name: groups[name].sum(min_count=1) if way == "sum" else groups[name].agg(way) for name, way in how.items()
        }
        taken |= {f"{name}_values": groups[name].nunique() for name in WORK}
        settings = named.drop_duplicates("cell")[[*IDENTITY]].reset_index(drop=True)
        settings = settings.assign(**{name: values.array for name, values in taken.items()})
        return settings.assign(bound_by=bound_by(settings))


def summarise(rows: pd.DataFrame, by: Sequence[str], column: str) -> tuple[pd.DataFrame, Samples]:
    """Sum up starts and repeats: one row per cell with the columns `by`, then `starts`, `repeats`, `log_mean` and
    `sample`, its position among the samples.

    A value that is null or not above zero has no logarithm and does not count as a repeat.

    >>> rows = pd.DataFrame({"gpu": "h200", "cell": list("aaab"), "start": [1, 1, 2, 1], "round": [1, 1, 2, 1]})
    >>> summary, samples = summarise(rows.assign(rate=np.exp([1.0, 3.0, 4.0, 1.0])), ["gpu", "cell"], "rate")
    >>> summary.drop(columns="gpu").values.tolist(), samples.log.tolist()
    ([['a', 2, 3, 3.0, 0], ['b', 1, 1, 1.0, 1]], [[2.0, 4.0], [1.0, nan]])
    """
    by, values = list(by), rows[column].astype(float)
    started = {name: rows[name].fillna(1).astype(int) for name in ("start", "round")}
    of_start = {"card": rows.get("device_uuid", ""), "session": rows.get("session"), **started}
    logs = rows[by].assign(log=np.log(values.where(values > 0)), **of_start)
    groups = logs.groupby(by, dropna=False, sort=False)
    summary = groups.agg(repeats=("log", "count")).reset_index()
    columns_of_group = rows.reindex(columns=list(POOLED))[~rows.duplicated(by)]
    is_cpu = np.isin(columns_of_group["gpu"], [name for name, gpu in load_gpus().items() if gpu.kind == "cpu"])
    columns_of_group["is_cpu"] = is_cpu

    def numbered(*names: str) -> IntArray:
        return columns_of_group.groupby(list(names), dropna=False, sort=False).ngroup().to_numpy().astype(int)

    group, cell = numbered(*POOLED), groups.ngroup()
    logs = logs[["log", *of_start]].assign(cell=cell, group=group[cell])
    reduced = {name: (name, "first") for name in ("group", "card", "round", "session")}
    reduced |= {"log": ("log", "mean"), "n": ("log", "count"), "variance": ("log", "var")}
    starts = logs.dropna(subset="log").groupby(["cell", "start"]).agg(**reduced).reset_index()
    # In a group on several cards the column of a start is its card, so that only starts on the same card are paired;
    # else it is its round. A second start of a cell in a round has its own column.
    of_cards = starts.groupby("group")["card"].transform("nunique") > 1
    order = starts.groupby(["cell", "round"]).cumcount().where(~of_cards, 0)
    column_of = starts["card"].astype("category").cat.codes.where(of_cards, starts["round"])
    columns = starts.groupby([order, of_cards, column_of]).ngroup()
    log = numbers(starts.groupby(["cell", columns])["log"].mean().unstack().reindex(summary.index))
    # A start that shares its engine's process with no other cell has no session.
    served = starts.assign(session=starts["session"].where(~starts.duplicated(["cell", "session"])))
    of_session = served.groupby(["group", "session"])
    number = of_session.ngroup().where(of_session["cell"].transform("nunique") > 1, -1)
    session = np.full(log.shape, -1)
    session[starts["cell"], columns] = number.fillna(-1).astype(int)
    of_cell = starts.assign(squares=starts["variance"] * (starts["n"] - 1), df=starts["n"] - 1).groupby("cell")
    within_df = of_cell["df"].sum().reindex(summary.index, fill_value=0)
    samples = Samples(
        log=log,
        within=numbers(of_cell["squares"].sum(min_count=1) / within_df),
        within_df=numbers(within_df),
        repeats=numbers(of_cell["n"].mean().reindex(summary.index)),
        group=group,
        between_cards=np.isin(group, starts.loc[of_cards, "group"]),
        shared=is_cpu,
        device=numbered("study", "source", "gpu"),
        kind=numbered("study", "source", "is_cpu"),
        session=session if (session >= 0).any() else None,
    )
    summary.insert(len(by), "starts", samples.starts)
    return summary.assign(log_mean=mean_of(log), sample=np.arange(len(summary))), samples


def reduced(rows: pd.DataFrame, by: Sequence[str], of_numbers: str) -> pd.DataFrame:
    """One row per combination of `by`: the mean or median of each column of numbers, and the first of any other."""
    numeric = set(rows.select_dtypes("number").columns)
    how = {name: of_numbers if name in numeric else "first" for name in rows.columns if name not in by}
    return rows.groupby(list(by), dropna=False, sort=False).agg(how).reset_index()


def stacked(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The parts below each other; a column without any value in a part does not decide its type."""
    columns = dict.fromkeys(name for part in parts for name in part)
    filled = [part.dropna(axis="columns", how="all") for part in parts if len(part)]
    return pd.concat(filled or parts, ignore_index=True).reindex(columns=list(columns))


def dtypes(cells: pd.DataFrame) -> pd.Series:
    """The type in which each row was computed: the recorded one, else the model's own, else `not recorded`."""
    own: dict[str, str] = {name: model.dtype for name, model in readable_models().items() if model.dtype != "native"}
    asked = cells["model"].map(own)
    return cells["dtype"].astype("string").fillna(asked).fillna("not recorded")


def knob_columns(cells: pd.DataFrame) -> list[str]:
    return [str(name) for name in cells.columns if str(name).startswith("knob_")]


def as_applied(cells: pd.DataFrame, knob: str) -> pd.Series:
    """Each cell's value of a knob; where the study leaves it out, the neutral value, or an empty text if it has none.

    >>> cells = pd.DataFrame({"knob_tensor_parallel_size": [4, 2]})
    >>> list(as_applied(cells, "tensor_parallel_size")), list(as_applied(cells, "kv_cache_dtype"))
    ([4, 2], ['auto', 'auto'])
    """
    column, unset = f"knob_{knob}", (every_knob()[knob].neutral or ("",))[0]
    values = cells[column] if column in cells else pd.Series(None, index=cells.index, dtype=object)
    return values.astype(object).where(values.notna(), unset).infer_objects()


def usable_blocks(cells: pd.DataFrame) -> "pd.Series[float]":
    """The KV blocks of each row without those that its engine keeps to itself; NaN if the engine does not tell them.

    >>> usable_blocks(pd.DataFrame({"engine": ["vllm", "hf-continuous"], "num_gpu_blocks": [5, 5]})).tolist()
    [4.0, 5.0]
    """
    own = {name: engine.own_blocks for name, engine in load_engines().items()}
    kept = cells["engine"].map(without_environment).map(own) * as_applied(cells, "data_parallel_size")
    return cells["num_gpu_blocks"].astype(float) - kept


def knob_text(value: Any) -> str:
    """A knob's value as a study writes it.

    >>> [knob_text(v) for v in (16, 32.0, 0.9, True, "fp8")]
    ['16', '32', '0.9', 'true', 'fp8']
    """
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    return f"{value:g}" if isinstance(value, (float, np.floating)) else str(value)


# The columns that `bound_by` needs, and how they are reduced over repeats.
BOUND_BY_NEEDS = {"num_requests": "first", "running_peak": "max", "preemptions": "sum", "kv_cache_usage_peak": "max"}


def bound_by(summary: pd.DataFrame) -> pd.Series:
    """The limit that kept a cell from running more sequences at once.

    `kv_blocks`: requests were preempted, or waited while the cache was full; `sequences`: as many ran as the settings
    allow; `prompts`: all requests ran; `token_budget`: none of these, so only a step's budget of tokens remains.
    Null if the engine does not report how many sequences ran.
    """
    running, requests = numbers(summary["running_peak"]), numbers(summary["num_requests"])
    unbounded = [engine.name for engine in load_engines().values() if not engine.bounds_sequences]
    allowed = np.where(
        summary["engine"].map(without_environment).isin(unbounded), np.inf, numbers(summary["max_concurrency_allowed"])
    )
    at_a_rate = summary[RATE_OF_ARRIVALS].notna() if RATE_OF_ARRIVALS in summary else np.zeros(len(summary), dtype=bool)
    limit = np.select(
        [
            numbers(summary["preemptions"]) > 0,
            running >= allowed,
            running >= requests,
            (running < requests) & (numbers(summary["kv_cache_usage_peak"]) >= KV_CACHE_FULL),
            # If requests arrive at a rate, no more run because no more have arrived.
            (running < requests) & ~at_a_rate,
        ],
        ["kv_blocks", "sequences", "prompts", "kv_blocks", "token_budget"],
        "",
    )
    return pd.Series(limit, index=summary.index, dtype="string").replace("", pd.NA)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    # The way of pandas itself takes longer, and of few rows with many columns ten times as long.
    columns = {
        str(name): [None if value is pd.NA else value for value in values.tolist()] for name, values in frame.items()
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def numbers(column: pd.Series | pd.DataFrame) -> FloatArray:
    """A column, or several, as floats, null as NaN."""
    return column.to_numpy(dtype=float, na_value=np.nan)
