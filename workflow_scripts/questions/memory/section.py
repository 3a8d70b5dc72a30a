"""What happens when KV blocks run short: requests at once, speed, preemptions and hits by the size of the pool."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from workflow_scripts.common.columns import Column, column
from workflow_scripts.common.wording import number, plural
from workflow_scripts.page.blocks import Block, Finding, Fold, table_of
from workflow_scripts.page.plot import LINE_IN, Panel, Plot, hide_y, key, log2_axis, mark_handles, write_label
from workflow_scripts.page.report import CELL, FigurePart, Report, Subject
from workflow_scripts.page.series import PLACES, ends_in_words, repeats_of, told_apart
from workflow_scripts.page.style import COLOURS, INK, Mark, marks
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.tables.results import RATE, MissingError, Tables, records, require

POOL = "num_gpu_blocks_override"
USERS = "running_while_others_wait"
QUANTITIES = (
    *("running_peak", "output_tokens_per_s", "ttft_s_p50", "preemptions", "recomputed_tokens"),
    "prefix_cache_hit_rate",
)
EVICTED = "evicted_blocks"
# What makes a measured number an upper bound, and how its label says so.
COUNTS_TRIES, BOUND = "the engine also counts those of tries that find no blocks", ", at most"
# Rows are compared if these are equal: they have the same requests and the same memory for them.
MEMORY = [*PLACES, "pool_tokens"]
# Lines that a layout takes in a panel of users.
LINES_PER_LAYOUT = 2.0
PREDICTED: Mapping[str, Any] = {"marker": "D", "markerfacecolor": "none", "linestyle": "none", "markersize": 8}


def under_pressure(tables: Tables) -> pd.DataFrame:
    """One row per measured cell for which the study sets the number of blocks: values over its repeats, and the
    predicted values as `*_predicted`.

    `pool_tokens` is the number of tokens in all blocks that requests can get; `layout` is the block size in words.
    """
    cells = tables.measured
    rows = cells[cells[f"knob_{POOL}"].notna()] if f"knob_{POOL}" in cells else cells.head(0)
    require(rows, "the study sets the number of KV blocks of no measured cell")
    rows = _of_cells(tables, rows, ["num_gpu_blocks", "block_size_effective", "max_model_len_effective"])
    size, longest = rows["block_size_effective"], rows["max_model_len_effective"]
    blocks = "blocks of " + size.map("{:g}".format) + " tokens"
    contiguous = "contiguous: " + longest.map("{:g}".format) + " tokens per request"
    return rows.assign(
        pool_tokens=(rows["num_gpu_blocks"] - 1) * size,
        contiguous=size >= longest,
        layout=contiguous.where(size >= longest, blocks),
    ).sort_values([*COORDINATES, "block_size_effective", "pool_tokens"], kind="stable")


def _of_cells(tables: Tables, rows: pd.DataFrame, further: Sequence[str], by: Sequence[str] = ()) -> pd.DataFrame:
    """One row per cell: its values over all repeats, and the predicted values as `*_predicted`; NaN without any."""
    rows = rows.drop_duplicates("cell_id")[["cell_id", *CELL, *by, *further]]
    rows = rows.join(tables.values.reindex(columns=["num_requests", USERS, *QUANTITIES]), on="cell_id")
    of_schedule = ["running_peak_predicted", f"{EVICTED}_predicted"]
    predictions = tables.get("predictions", "cell_id", "quantity", "predicted", *of_schedule)
    predicted = predictions.pivot(index="cell_id", columns="quantity", values="predicted")
    predicted = predicted.reindex(columns=[*QUANTITIES, USERS, EVICTED]).add_suffix("_predicted").astype(float)
    predicted[of_schedule] = predictions.groupby("cell_id")[of_schedule].first()
    return rows.join(predicted, on="cell_id")


def same_memory(tables: Tables) -> pd.DataFrame:
    """One row per way to keep the KV cache of the same requests in the same memory.

    `users` is the number of requests that run at once while others wait, or the peak if none waits (also for static
    batches); `times` is its ratio to that of contiguous reservations. `used_pct` is the share of the held slots that
    tokens fill. Memory that is enough for all contiguous reservations is left out.
    """
    rows = pd.concat([under_pressure(tables), _of_transformers(tables).assign(contiguous=False)])
    for of in ("", "_predicted"):
        rows[f"users{of}"] = rows[f"{USERS}{of}"].fillna(rows[f"running_peak{of}"])
    short = rows[rows["contiguous"] & rows[USERS].notna()]
    both = rows.merge(short.groupby(MEMORY, as_index=False)["users"].max(), on=MEMORY, suffixes=("", "_contiguous"))
    used_pct = 100 - both["cell_id"].map(tables.waste_pct)
    both = both.assign(times=both["users"] / both["users_contiguous"], used_pct=used_pct)
    return both.sort_values([*MEMORY, "users"], ascending=[True] * 4 + [False], kind="stable")


def _of_transformers(tables: Tables) -> pd.DataFrame:
    """Cells of transformers' engines with a cache of known size, in the columns of `under_pressure`."""
    cells = tables.measured
    names = [f"knob_{name}" for name in ("num_blocks", "page_size", "room_tokens", "cache_implementation")]
    cells = cells.assign(**{name: None for name in names if name not in cells})
    pages, size, capacity = (cells[name].astype(float) for name in names[:3])
    cache = cells["knob_cache_implementation"].fillna("dynamic").astype(str) + " cache"
    in_pages = "pages of " + size.map("{:g}".format) + " tokens"
    rows = cells.assign(
        pool_tokens=capacity.fillna(pages * size), layout="HuggingFace's " + cache.where(capacity.notna(), in_pages)
    )
    return _of_cells(tables, rows[rows["pool_tokens"].notna()], ["pool_tokens"], ["layout"])


def pressure_by_pool(tables: Tables) -> Plot:
    rows = under_pressure(tables)
    if rows.groupby([*COORDINATES, "layout"])["pool_tokens"].nunique().max() < 2:
        raise MissingError("no block size was measured with KV caches of two sizes")
    layouts = marks(rows["layout"])
    differing = told_apart(rows, COORDINATES, [])
    panels = []
    for _, part in rows.groupby(COORDINATES, sort=False):
        place = " · ".join(part[differing].iloc[0])
        for shown in map(column, QUANTITIES):
            if part[shown.name].max() > 0:
                draw = partial(_draw, rows=part, shown=shown, layouts=layouts)
                panels.append(Panel(f"{shown.axis}\n{place}".strip(), draw))
    predicted = rows.filter(like="_predicted").notna().any(axis=None)
    handles = mark_handles({f"{layout} (measured)": mark for layout, mark in layouts.items()})
    handles += [key("predicted", **PREDICTED)] if predicted else []
    measured = tables.measured
    return Plot(
        title="When KV blocks run short",
        alt=" ".join(
            ends_in_words(f"{', '.join(map(str, names))}, {column(RATE).axis} by tokens of the pool:", part[RATE])
            for names, part in list(rows.sort_values("pool_tokens").set_index("pool_tokens").groupby(COORDINATES))[:4]
        ),
        sources=["measured", *(["predicted"] if predicted else [])],
        panels=panels,
        x_label="Tokens of the pool",
        handles=handles,
        repeats=repeats_of(measured[measured["cell_id"].isin(rows["cell_id"])]),
        notes=["marks are the values of cells, as in the tables; a quantity that is 0 for all of a panel is not drawn"],
        panel_height_in=2.4,
    )


def _draw(ax: Axes, rows: pd.DataFrame, shown: Column, layouts: Mapping[str, Mark]) -> None:
    measured, predicted = (shown.scaled(rows[name]) for name in (shown.name, f"{shown.name}_predicted"))
    for layout, line in rows.groupby("layout", sort=False):
        mark = layouts[str(layout)]
        ax.plot(line["pool_tokens"], measured[line.index], color=mark.color, marker=mark.marker)
        ax.plot(line["pool_tokens"], predicted[line.index], color=mark.color, **PREDICTED)
    log2_axis(ax, rows["pool_tokens"].unique())
    ax.set_ylim(0, 1.12 * max(measured.max(), predicted.fillna(0).max()))


def users_in_the_same_memory(report: Report) -> Iterator[Block]:
    if f"knob_{POOL}" in report.tables.rows:
        rows = under_pressure(report.tables)
        yield from (*_users(same_memory(report.tables)), *_block_sizes(rows), *_exactness(rows))


def _users(rows: pd.DataFrame) -> Iterator[Finding]:
    """One sentence per device, model and workload: for the memory used in most ways, then with the largest ratio."""
    for (gpu, model, workload), part in rows.groupby(PLACES, sort=False):
        pools = part.groupby("pool_tokens")["times"].agg(["size", "max"]).sort_values(["size", "max"])
        of_pool = part[part["pool_tokens"] == pools.index[-1]]
        whole = records(of_pool[of_pool["contiguous"]])[0]
        ways = [
            f"{number(row['users'])} in {row['layout']}{_predicted(row)}"
            + (" (all requests)" if row["users"] >= row["num_requests"] else "")
            + _filled(row)
            for row in records(of_pool[~of_pool["contiguous"]])
        ]
        if ways:
            yield Finding(
                f"{number(whole['users'])} to {number(of_pool['users'].max())} requests",
                f"{gpu}, {model}, {workload}: a KV cache of {whole['pool_tokens']:,.0f} tokens holds "
                f"{number(whole['users'])} requests on average{_predicted(whole)}, {whole['running_peak']:g} at most, "
                f"if each reserves {whole['max_model_len_effective']:,.0f} tokens{_filled(whole)}; {'; '.join(ways)}.",
            )


def _predicted(row: Mapping[str, Any]) -> str:
    return "" if pd.isna(row["users_predicted"]) else f" ({number(row['users_predicted'])} predicted)"


def _filled(row: Mapping[str, Any]) -> str:
    return "" if pd.isna(row["used_pct"]) else f" (tokens fill {row['used_pct']:.0f} % of the held slots)"


def _block_sizes(rows: pd.DataFrame) -> Iterator[Finding]:
    """The largest blocks against the smallest, in the smallest and in the largest pool that was measured with both."""
    rows = rows[~rows["contiguous"]].assign(users=rows[USERS].fillna(rows["running_peak"]))
    for _, part in rows.groupby(COORDINATES, sort=False):
        ends = part["block_size_effective"].agg(["min", "max"])
        small, large = (part[part["block_size_effective"] == size].set_index("pool_tokens") for size in ends)
        pools = sorted(small.index.intersection(large.index))
        if ends["min"] == ends["max"] or not pools:
            continue
        comparisons = [
            f"with {pool:,.0f} tokens of KV cache, {number(large.at[pool, 'users'])} requests run at once instead of "
            f"{number(small.at[pool, 'users'])}, with {number(large.at[pool, RATE])} output tokens/s "
            f"instead of {number(small.at[pool, RATE])}"
            for pool in dict.fromkeys([pools[0], pools[-1]])
        ]
        blocks = f"blocks of {ends['max']:g} instead of {ends['min']:g} tokens"
        yield Finding("block size", f"{', '.join(part[COORDINATES].iloc[0])}: {blocks}: {'; '.join(comparisons)}.")


def _exactness(rows: pd.DataFrame) -> Iterator[Finding]:
    names = ["preemptions", "recomputed_tokens"]
    predicted = [f"{name}_predicted" for name in names]
    both = rows.dropna(subset=[*names, *predicted])
    if both.empty:
        return
    right = (both[names].to_numpy() == both[predicted].to_numpy()).all(axis=1)
    most = records(both.sort_values("preemptions", ascending=False))[0]
    preempted, again = (f"{most[name]:,.0f} measured, {most[f'{name}_predicted']:,.0f} predicted" for name in names)
    which = "in the cell with the most " if len(both) > 1 else ""
    seen = (
        f"{which}preemptions: {preempted}; tokens computed again: at most {again} (medians of repeats; {COUNTS_TRIES})"
        if most["preemptions"]
        else "none was preempted"
    )
    if len(both) == 1:
        yield Finding(
            f"{most['preemptions']:,.0f} preempted", f"The one cell whose number of KV blocks the study sets: {seen}."
        )
        return
    exact = f"{int(right.sum())} of {len(both)}"
    yield Finding(
        f"{exact} exact" if most["preemptions"] else "none preempted",
        f"The preemptions and the tokens computed again are exactly as predicted from the schedule in {exact} cells; "
        f"{seen}.",
        "good" if right.all() and most["preemptions"] else "neutral",
    )


def users_by_cache(tables: Tables) -> Plot:
    rows = require(same_memory(tables), "in no pool of KV blocks did contiguous reservations let requests wait")
    most = rows.filter(regex="^users(_predicted)?$").max().max()
    lines = LINES_PER_LAYOUT * int(rows.groupby(MEMORY)["layout"].nunique().max())
    groups = sorted(rows.groupby(MEMORY, sort=False), key=lambda item: -len(item[1]))
    draw = partial(_draw_users, most=most, lines=lines)
    measured = tables.measured
    predicted = rows["users_predicted"].notna().any()
    handles = [key("measured", COLOURS[0], linewidth=7)] + ([key("predicted", **PREDICTED)] if predicted else [])
    users = [
        f"{row['pool_tokens']:g} tokens, {row['layout']}: {number(row['users'])}" for row in records(rows.head(12))
    ]
    return Plot(
        title="Requests at once in the same memory, by the way their KV cache is kept",
        alt=f"Requests at once, measured: {'; '.join(users)}.",
        sources=["measured", *(["predicted"] if predicted else [])],
        panels=[
            Panel(" · ".join([*map(str, place), f"{tokens:,.0f} tokens"]), partial(draw, rows=part))
            for (*place, tokens), part in groups
        ],
        panels_are="sizes of the memory",
        x_label=column(USERS).axis,
        handles=handles,
        repeats=repeats_of(measured[measured["cell_id"].isin(rows["cell_id"])]),
        notes=["bars are the values of cells, as in the tables"],
        panel_height_in=LINE_IN * lines + 0.75,
    )


def _draw_users(ax: Axes, rows: pd.DataFrame, most: float, lines: float) -> None:
    for i, row in enumerate(records(rows)):
        y = LINES_PER_LAYOUT * i
        write_label(ax, y + 0.5, f"{row['layout']}: {number(row['users'])}")
        ax.barh(y + 1.3, row["users"], height=0.6, color=COLOURS[0])
        ax.plot(row["users_predicted"], y + 1.3, color=INK, **PREDICTED)
    ax.set_ylim(lines, 0)
    ax.set_xlim(0, 1.05 * most)
    hide_y(ax)


def every_way(report: Report) -> Iterator[Block]:
    rows = same_memory(report.tables)
    columns = {name: CELL[name] for name in PLACES} | {
        "pool_tokens": "Memory, in tokens",
        "layout": "KV cache in",
        "users": column(USERS).label,
        "users_predicted": f"{column(USERS).label}, predicted",
        "times": "Ratio to contiguous reservations",
        "used_pct": "Held slots that tokens fill",
        RATE: "",
    }
    if not rows.empty:
        yield table_of(rows, columns, "Users in the same memory")


def every_pool(report: Report) -> Iterator[Block]:
    rows = report.named(under_pressure(report.tables))
    words = {f"{name}_predicted": f"{column(name).label.removesuffix(BOUND)}, predicted" for name in QUANTITIES}
    words[f"{EVICTED}_predicted"] = "Blocks of shared prompts that lost their content, predicted"
    place = {**CELL, "pool_tokens": "Tokens that fit", "layout": "Layout"}
    caption = "Every size of the pool"
    whole = report.link(report.tables.folder / "repeats.csv", "repeats.csv")
    note = f"Tokens that fit are without the block that vLLM keeps to itself. Of tokens computed again, {COUNTS_TRIES}."
    shown = []
    for about, names in (("speed", QUANTITIES[:3]), ("preemptions and prefix cache", (*QUANTITIES[3:], EVICTED))):
        columns = {of: words.get(of, "") for name in names for of in (name, f"{name}_predicted")}
        shown.append(table_of(rows, place | columns, f"{caption}: {about}", note, whole))
    yield Fold(f"{caption}: {plural(len(rows), 'row')}", shown)


SUBJECT = Subject(
    id="memory",
    title="Memory pressure",
    asked="KV blocks|requests fit|fit more",
    parts=[FigurePart(pressure_by_pool), FigurePart(users_by_cache), every_way, every_pool],
    findings=[users_in_the_same_memory],
    is_in=lambda study: any(POOL in sweep.knobs for sweep in study.sweeps),
)
