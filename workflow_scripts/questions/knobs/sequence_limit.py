"""Throughput by max-num-seqs, the number of sequences that may run at once."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import cache

import pandas as pd

from workflow_scripts.common.columns import column
from workflow_scripts.common.wording import number
from workflow_scripts.page.blocks import Block, Finding
from workflow_scripts.page.by_knob import (
    NO_CEILINGS,
    NOTHING_PUBLISHED,
    WHOLE,
    ceilings_of,
    compared,
    plot_by_knob,
    with_ends,
)
from workflow_scripts.page.plot import Plot
from workflow_scripts.page.report import FigurePart, Part, Report, Subject
from workflow_scripts.page.sentences import claims_on, effects_of, size_of, verdicts_on
from workflow_scripts.page.series import Group, one_line, values_at
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.study.setting_words import setting_phrase, shortly
from workflow_scripts.tables.results import RATE, STEADY, MissingError, Tables

OF_ARRIVALS = ("knob_request_rate_per_s", "knob_ramp_to_per_s", "knob_burstiness")
DRAIN, WORK = "drain_share", ("num_requests", "prompt_tokens", "output_tokens")


def output_by_max_num_seqs(tables: Tables) -> Plot:
    """The panels that the figure of throughput does not have. If the requests differ along a line, its rate is that
    while the engine is full, beside that of whole repeats."""
    groups = compared(tables, tables.measured, "knob_max_num_seqs", COORDINATES[1:])
    own = {cell for group in groups for cell in group.rows["cell_id"]}
    if most_important_knob(tables) == "max_num_seqs":
        if len(groups) == 1 and published_rates(tables, own).empty:
            raise MissingError("the figure of throughput has the same lines")
        groups = groups[1:] or groups
    return _while_full(tables, groups, "max_num_seqs")


def throughput(tables: Tables) -> Plot:
    knob, group = most_important_group(tables)
    return _while_full(tables, [group], knob, published_rates(tables, set(group.rows["cell_id"])))


def rate_of(group: Group) -> str:
    """The measure that compares equal work along the lines of a group: if their requests differ and all cells have it,
    output tokens/s while the engine is full."""
    differ = (group.rows.groupby("colour")[list(WORK)].nunique() > 1).any(axis=None)
    return STEADY if differ and group.rows[STEADY].notna().all() else RATE


def unequal(line: Group) -> str:
    return " (their requests differ)" * (rate_of(line) == STEADY)


def _while_full(tables: Tables, groups: list[Group], knob: str, published: pd.DataFrame | None = None) -> Plot:
    shown = []
    for group in groups:
        rows = group.rows
        if rate_of(group) == STEADY:
            whole = rows["cell_id"].map(tables.value(RATE))
            rows = with_ends(tables, rows, STEADY).assign(**{WHOLE: whole, RATE: rows[STEADY]})
        shown.append(replace(group, rows=rows))
    ceilings = NO_CEILINGS if all(WHOLE in group.rows for group in shown) else ceilings_of(tables, groups)
    return plot_by_knob(tables, shown, knob, RATE, ceilings, NOTHING_PUBLISHED if published is None else published)


def at_both_ends(
    measure: str,
    badge: Callable[[float, float], str] | None = None,
    note: Callable[[Tables, Group], str] = lambda _, line: unequal(line),
) -> Part:
    """A measure at the lowest and the highest value of the knob that matters most, for each device, with a note. Both
    values are the badge, because no test compares them."""
    shown = column(measure)

    def part(report: Report) -> Iterator[Block]:
        values = report.tables.value(measure)
        knob, line = most_important_line(report.tables)
        at_x = line.rows.drop_duplicates("cell_id").assign(value=lambda r: r["cell_id"].map(values))
        for gpu, of_one in at_x.dropna(subset="value").groupby("gpu", sort=False):
            at = of_one.set_index("x")["value"].sort_index()
            (low, first), (high, last) = ((at.index[end], float(at.iloc[end])) for end in (0, -1))
            if low < high:
                begin = f"{shown.in_words} {shown.text(first)} with {setting_phrase(knob, low)}"
                end = f"{shown.text(last)} with {shortly(knob, high, low)}"
                said = f"{in_place(gpu, line)}: {begin}, {end}{note(report.tables, line)}."
                yield Finding((badge or shown.text)(first, last), said)

    return part


kv_memory = at_both_ends("kv_bytes_used_mean")


def drains(report: Report) -> Iterator[Block]:
    """How much slower whole repeats are than the engine while it is full, where the drain is longest and at the end."""
    knob, line = most_important_line(report.tables)
    values = values_at(report.tables, line, RATE, STEADY, DRAIN).dropna(subset=[STEADY, DRAIN])
    for gpu, of_one in values.groupby(level="gpu", sort=False):
        rates = of_one.droplevel("gpu")
        drain, rates[DRAIN] = rates[DRAIN], 100 * rates[DRAIN]
        rates_in_words = [
            f"with {setting_phrase(knob, x)}, {number(steady)} output tokens/s while the engine is full, "
            f"{number(whole)} over whole repeats, because it is not full in the last {drain_pct:.0f} % of the time"
            for x, whole, steady, drain_pct in rates.loc[sorted({drain.idxmax(), drain.index[-1]})].itertuples()
        ]
        yield Finding(f"{100 * drain.max():.0f} % not full", f"{in_place(gpu, line)}: {'; '.join(rates_in_words)}.")


@cache
def most_important_group(tables: Tables) -> tuple[str, Group]:
    """The knob that matters most, and the cells of the model and workload in which it was varied in the most cells."""
    knob = most_important_knob(tables)
    return knob, compared(tables, tables.measured, f"knob_{knob}", COORDINATES[1:])[0]


def most_important_line(tables: Tables) -> tuple[str, Group]:
    """The knob that matters most, and one line of each device along it."""
    knob, group = most_important_group(tables)
    return knob, one_line(group)


def in_place(gpu: object, line: Group) -> str:
    """A device, and what else the cells of a line share."""
    return ", ".join(filter(None, [str(gpu), *line.title.split(" · ")]))


def most_important_knob(tables: Tables) -> str:
    """The knob with numbers as values whose change had the largest effect; max-num-seqs if no effect is known.

    A rate of arrivals is none: the output rate follows from it, and the section on serving has its latencies.
    """
    numeric = [name for name in tables.knobs if pd.api.types.is_numeric_dtype(tables.measured[name])]
    numeric = [name for name in numeric if name not in OF_ARRIVALS]
    names = [name.removeprefix("knob_") for name in numeric if tables.measured[name].nunique() > 1]
    effects = tables.get("knobs", "comparison", "knob", "ratio")
    rows = effects[(effects["comparison"] == "overall") & effects["knob"].isin(names) & (effects["ratio"] > 0)]
    if len(rows):
        return str(rows["knob"].iloc[int(size_of(rows["ratio"]).to_numpy().argmax())])
    if not names:
        raise MissingError("no two measured cells differ in one number")
    return "max_num_seqs" if "max_num_seqs" in names else names[0]


def published_rates(tables: Tables, cells: Collection[str]) -> pd.DataFrame:
    """What others published for the settings of these cells, in tokens per second, and the least share of prompt tokens
    that allows it, by cell."""
    rows = tables.get("predictions", "quantity", "cell_id", "published", "published_prompt_share")
    rows = rows[(rows["quantity"] == RATE) & rows["cell_id"].isin(cells)]
    return rows.set_index("cell_id")[["published", "published_prompt_share"]].dropna(subset="published")


SUBJECT = Subject(
    id="max-num-seqs",
    title="Throughput",
    asked="max-num-seqs|throughput|number of sequences",
    parts=[
        FigurePart(throughput),
        FigurePart(output_by_max_num_seqs),
        effects_of("max_num_seqs"),
        claims_on("max-num-seqs"),
    ],
    findings=[verdicts_on("max_num_seqs"), drains, kv_memory],
)
