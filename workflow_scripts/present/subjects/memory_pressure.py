"""What happens when KV blocks run short: requests at once, speed, preemptions and hits by the size of the pool."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from workflow_scripts.present.blocks import Block, Finding, Findings, Fold, table_of
from workflow_scripts.present.kv_pools import EVICTED, MEMORY, POOL, QUANTITIES, USERS, same_memory, under_pressure
from workflow_scripts.present.plot import (
    LINE_IN,
    Panel,
    Plot,
    hide_y,
    key,
    log2_axis,
    mark_handles,
    some_panels,
    write_label,
)
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import MissingError, Tables, records
from workflow_scripts.present.series import NAMES, PLACES, repeats_of
from workflow_scripts.present.style import COLOURS, INK, Mark, marks
from workflow_scripts.present.subject import CELL, FigurePart, Subject
from workflow_scripts.study.study import Study

# Lines that a layout takes in a panel of users.
LINES_PER_LAYOUT = 2.0
PREDICTED: Mapping[str, Any] = {"marker": "D", "markerfacecolor": "none", "linestyle": "none", "markersize": 8}


def sets_the_pool(study: Study) -> bool:
    """Whether a sweep of the study sets the number of KV blocks."""
    return any(POOL in sweep.knobs for sweep in study.sweeps)


def pressure_by_pool(tables: Tables) -> Plot:
    """Each quantity against the tokens of the pool, one line per block size, beside the predicted values."""
    rows = under_pressure(tables)
    if rows.groupby([*NAMES, "layout"])["pool_tokens"].nunique().max() < 2:
        raise MissingError("no block size was measured with KV caches of two sizes")
    layouts = marks(rows["layout"])
    groups = list(rows.groupby(NAMES, sort=False))
    told_apart = [name for name in NAMES if rows[name].nunique() > 1]
    panels = []
    for _, part in groups:
        place = " · ".join(part[told_apart].iloc[0])
        for column, name in QUANTITIES.items():
            if part[column].max() > 0:
                title = f"{name}\n{place}" if place else name
                panels.append(Panel(title, partial(_draw, rows=part, column=column, layouts=layouts)))
    shown, notes = some_panels(panels, "panels")
    predicted = rows.filter(like="_predicted").notna().any(axis=None)
    handles = mark_handles({f"{layout} (measured)": mark for layout, mark in layouts.items()})
    handles += [key("predicted", **PREDICTED)] if predicted else []
    measured = tables.measured
    return Plot(
        title="When KV blocks run short",
        alt=" ".join(_in_words(part) for _, part in groups[:4]),
        sources=["measured", *(["predicted"] if predicted else [])],
        panels=shown,
        x_label="Tokens of the pool",
        handles=handles,
        repeats=repeats_of(measured[measured["cell_id"].isin(rows["cell_id"])]),
        notes=[*notes, "marks are medians over repeats; a quantity that is 0 for all cells of a panel is not drawn"],
        panel_height_in=2.4,
    )


def _draw(ax: Axes, rows: pd.DataFrame, column: str, layouts: Mapping[str, Mark]) -> None:
    highest = 0.0
    for layout, line in rows.groupby("layout", sort=False):
        mark = layouts[str(layout)]
        ax.plot(line["pool_tokens"], line[column], color=mark.color, marker=mark.marker)
        highest = max(highest, float(line[column].max()))
        if f"{column}_predicted" in line:
            ax.plot(line["pool_tokens"], line[f"{column}_predicted"], color=mark.color, **PREDICTED)
            highest = max(highest, float(line[f"{column}_predicted"].fillna(0).max()))
    log2_axis(ax, rows["pool_tokens"].unique())
    ax.set_ylim(0, 1.12 * highest)


def _in_words(rows: pd.DataFrame) -> str:
    first, last = records(rows.sort_values("pool_tokens").iloc[[0, -1]])
    return (
        f"{', '.join(rows[NAMES].iloc[0])}: "
        + "; ".join(
            f"{row['pool_tokens']:g} tokens in {row['layout']}: {row['output_tokens_per_s']:.4g} output tokens per s, "
            f"{row['preemptions']:g} preemptions"
            for row in (first, last)
        )
        + "."
    )


def users_in_the_same_memory(report: Report) -> Iterator[Block]:
    """How many requests run at once in the same memory, the effect of the block size, and how exact predictions are."""
    if f"knob_{POOL}" not in report.tables.cells:
        return
    rows = under_pressure(report.tables)
    found = [*_users(same_memory(report.tables)), *_block_sizes(rows), *_exactness(rows)]
    if found:
        yield Findings(found)


def _users(rows: pd.DataFrame) -> Iterator[Finding]:
    """One sentence per device, model and workload: for the memory used in most ways, then with the largest ratio."""
    for (gpu, model, workload), part in rows.groupby(PLACES, sort=False):
        pools = part.groupby("pool_tokens")["times"].agg(["size", "max"]).sort_values(["size", "max"])
        of_pool = part[part["pool_tokens"] == pools.index[-1]]
        whole = records(of_pool[of_pool["contiguous"]])[0]
        ways = [
            f"{row['users']:.3g} in {row['layout']}"
            + (" (all requests)" if row["users"] >= row["num_requests"] else "")
            + _filled(row)
            for row in records(of_pool[~of_pool["contiguous"]])
        ]
        if ways:
            yield Finding(
                f"{of_pool['times'].max():.3g} times the users",
                f"{gpu}, {model}, {workload}: a KV cache of {whole['pool_tokens']:,.0f} tokens holds "
                f"{whole['users']:.3g} requests at once if each reserves {whole['max_model_len_effective']:,.0f} "
                f"tokens{_filled(whole)}; {'; '.join(ways)}. All values are measured.",
                "good",
            )


def _filled(row: Mapping[str, Any]) -> str:
    return "" if pd.isna(row["used_pct"]) else f" (tokens fill {row['used_pct']:.0f} % of the held slots)"


def _block_sizes(rows: pd.DataFrame) -> Iterator[Finding]:
    """The largest blocks against the smallest, in the smallest and in the largest pool that was measured with both."""
    rows = rows[~rows["contiguous"]].assign(users=rows[USERS].fillna(rows["running_peak"]))
    for _, part in rows.groupby(NAMES, sort=False):
        ends = part["block_size_effective"].agg(["min", "max"])
        small, large = (part[part["block_size_effective"] == size].set_index("pool_tokens") for size in ends)
        pools = sorted(small.index.intersection(large.index))
        if ends["min"] == ends["max"] or not pools:
            continue
        told = [
            f"with {pool:,.0f} tokens of KV cache, {large.at[pool, 'users']:.3g} requests run at once instead of "
            f"{small.at[pool, 'users']:.3g}, with {large.at[pool, 'output_tokens_per_s']:,.3g} output tokens per s "
            f"instead of {small.at[pool, 'output_tokens_per_s']:,.3g}"
            for pool in dict.fromkeys([pools[0], pools[-1]])
        ]
        yield Finding(
            "block size",
            f"{', '.join(part[NAMES].iloc[0])}: blocks of {ends['max']:g} instead of {ends['min']:g} tokens: "
            + "; ".join(told)
            + ".",
        )


def _exactness(rows: pd.DataFrame) -> Iterator[Finding]:
    known = [name for name in ("preemptions", "recomputed_tokens") if f"{name}_predicted" in rows]
    both = rows.dropna(subset=[*known, *(f"{name}_predicted" for name in known)])
    if not known or both.empty:
        return
    right = pd.concat([both[name] == both[f"{name}_predicted"] for name in known], axis=1).all(axis=1)
    yield Finding(
        "predicted",
        f"The schedule predicts the preemptions and the tokens computed again exactly in {int(right.sum())} of "
        f"{len(both)} cells; up to {both['preemptions'].max():g} preemptions were measured in a repeat.",
        "good" if right.all() else "neutral",
    )


def users_by_cache(tables: Tables) -> Plot:
    """Requests at once for each way to keep their KV cache in the same memory, measured and predicted."""
    rows = same_memory(tables)
    if rows.empty:
        raise MissingError("in no pool of KV blocks did contiguous reservations let requests wait")
    most = rows.filter(regex="^users(_predicted)?$").max().max()
    lines = LINES_PER_LAYOUT * int(rows.groupby(MEMORY)["layout"].nunique().max())
    groups = sorted((part for _, part in rows.groupby(MEMORY, sort=False)), key=len, reverse=True)
    places = [(*part[MEMORY[:-1]].iloc[0], f"{part['pool_tokens'].iloc[0]:,.0f} tokens") for part in groups]
    panels = [
        Panel(" · ".join(place), partial(_draw_users, rows=part, most=most, lines=lines))
        for place, part in zip(places, groups, strict=True)
    ]
    shown, notes = some_panels(panels, "sizes of the memory")
    measured = tables.measured
    predicted = "users_predicted" in rows
    handles = [key("measured", COLOURS[0], linewidth=7)] + ([key("predicted", **PREDICTED)] if predicted else [])
    return Plot(
        title="Requests at once in the same memory, by the way their KV cache is kept",
        alt="Requests at once, measured: "
        + "; ".join(
            f"{row['pool_tokens']:g} tokens, {row['layout']}: {row['users']:.3g}" for row in records(rows.head(12))
        )
        + ".",
        sources=["measured", *(["predicted"] if predicted else [])],
        panels=shown,
        x_label="Requests at once",
        handles=handles,
        repeats=repeats_of(measured[measured["cell_id"].isin(rows["cell_id"])]),
        notes=[*notes, "bars are medians over repeats"],
        panel_height_in=LINE_IN * lines + 0.75,
    )


def _draw_users(ax: Axes, rows: pd.DataFrame, most: float, lines: float) -> None:
    for i, row in enumerate(records(rows)):
        y = LINES_PER_LAYOUT * i
        write_label(ax, y + 0.5, f"{row['layout']}: {row['users']:.3g}")
        ax.barh(y + 1.3, row["users"], height=0.6, color=COLOURS[0])
        if "users_predicted" in row:
            ax.plot(row["users_predicted"], y + 1.3, color=INK, **PREDICTED)
    ax.set_ylim(lines, 0)
    ax.set_xlim(0, 1.05 * most)
    hide_y(ax)


def every_way(report: Report) -> Iterator[Block]:
    """The table of all ways to keep the same requests in the same memory."""
    rows = same_memory(report.tables)
    columns = {name: CELL[name] for name in PLACES} | {
        "pool_tokens": "Memory, in tokens",
        "layout": "KV cache in",
        "users": "Requests at once",
        "users_predicted": "Requests at once, predicted",
        "times": "Ratio to contiguous reservations",
        "used_pct": "Held slots that tokens fill (%)",
        "output_tokens_per_s": QUANTITIES["output_tokens_per_s"],
    }
    if not rows.empty:
        yield table_of(
            rows, {k: v for k, v in columns.items() if k in rows}, "Users in the same memory, medians over repeats"
        )


def every_pool(report: Report) -> Iterator[Block]:
    """The table of all cells, measured and predicted."""
    rows = under_pressure(report.tables)
    columns = {**CELL, "pool_tokens": "Tokens of the pool", "layout": "Layout"}
    for column, name in QUANTITIES.items():
        columns |= {column: name, f"{column}_predicted": f"{name}, predicted"}
    columns[f"{EVICTED}_predicted"] = "Blocks of shared prompts that lost their content, predicted"
    caption = "Every size of the pool, medians over repeats"
    whole = report.link(report.tables.folder / "cells.csv", "cells.csv")
    yield Fold(f"{caption}: {len(rows)} rows", [table_of(rows, columns, caption, "", whole)])


SUBJECT = Subject(
    id="pressure",
    title="Memory pressure",
    parts=[
        FigurePart(pressure_by_pool, {"cells": [*QUANTITIES, "num_gpu_blocks", "block_size_effective"]}),
        FigurePart(users_by_cache, {"cells": [USERS, *QUANTITIES], "waste": ["waste_pct"]}),
        every_way,
        every_pool,
    ],
    findings=[users_in_the_same_memory],
    is_in=sets_the_pool,
)
