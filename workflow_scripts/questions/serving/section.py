"""Servers under load: latency and throughput by request rate or users, and which load was too high."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import nan
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from workflow_scripts.common.columns import column, heading
from workflow_scripts.common.wording import listed, number, plural
from workflow_scripts.page.blocks import Block, Finding, Table, shown
from workflow_scripts.page.plot import Panel, Plot, draw_repeats, key, log2_axis, mark_cells, mark_handles, ratio_axis
from workflow_scripts.page.report import PLACE_HEADINGS, FigurePart, Report, Subject, TablePart
from workflow_scripts.page.sentences import EFFECT_COLUMNS, NOT_DECIDED, overall, some, span, verdicts_by
from workflow_scripts.page.series import PLACES, ends_in_words, repeats_of, series_labels, told_apart
from workflow_scripts.page.style import INK, MUTED, LineStyle, Mark, marks
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.study.setting_words import setting, setting_phrase
from workflow_scripts.study.study import WITHIN_SHARE
from workflow_scripts.tables.results import Tables, records, require
from workflow_scripts.workloads.arrivals import Load

# The column that sets the load, in the order of the search -> its name.
LOADS: Mapping[str, str] = {"request_rate_per_s": "requests/s", "users": "users"}
LATENCIES: Mapping[str, LineStyle] = {"ttft_s_p50": "-", "ttft_s_p99": (0, (5, 1.5)), "tpot_s_p50": (0, (1, 1.2))}
RATES: Mapping[str, LineStyle] = {"requests_per_s": "-", "goodput_requests_per_s": (0, (5, 1.5))}
OFFERED: LineStyle = (0, (1, 1.2))
# Words for what the table says limited a load.
LIMITED: Mapping[str, str] = {"client,load": "kept up, slow client", "unknown": NOT_DECIDED}
SATURATED_LABEL = "more load than the server sustains"
# A table of max-num-seqs by rate for each of these, with a sign at loads that were too high.
SEQUENCES, ARRIVALS, TOO_HIGH = "knob_max_num_seqs", "knob_request_rate_per_s", "*"
BY_RATE = ("ttft_s_p50", "tpot_s_p50", "goodput_requests_per_s")
MOST_SERIES, MOST_FINDINGS = 6, 8
_PANEL = [*PLACES, "axis"]
OF_SERVER = {
    **PLACE_HEADINGS,
    "endpoint": "Server",
    "knobs": "Settings and load",
    "load": "Kind of load",
    "request_rate_per_s": "Sent",
    "users": "Users",
}
# Knobs that say what the load is and which server gets it.
_NO_SETTINGS = {f"knob_{name}" for name in (*LOADS, "ramp_to_per_s", "endpoint")}


def serving_latency(tables: Tables) -> Plot:
    return _plot(
        tables, _rows(tables).assign(arrived=nan), LATENCIES, "Latency of served requests against load", "Latency"
    )


def serving_throughput(tables: Tables) -> Plot:
    rows = _rows(tables)
    rows = rows.assign(arrived=rows["x"].where(rows["axis"] == "request_rate_per_s"))
    plot = _plot(tables, rows, RATES, "Throughput and goodput against load", "Requests")
    within = [
        f"goodput counts requests with {slo}; if all are, its line hides that of the request throughput"
        for slo in rows["slo"].dropna().unique()
    ]
    return replace(plot, notes=[*plot.notes, *within])


def _plot(tables: Tables, rows: pd.DataFrame, looks: Mapping[str, LineStyle], title: str, what: str) -> Plot:
    """The figure of the columns `looks`, and of the rate `arrived` where it is known."""
    looks = {name: look for name, look in looks.items() if rows[name].gt(0).any()}
    ends = {name: [name, f"{name}_low", f"{name}_high"] for name in looks}
    rows = rows.assign(**{of: column(name).scaled(rows[of]) for name in looks for of in ends[name]})
    repeats = tables.need("serving").merge(rows[["cell_id", "x"]], on="cell_id")
    repeats = repeats.assign(**{name: column(name).scaled(repeats[name]) for name in looks})
    groups = _groups(rows)
    colours = marks(dict.fromkeys(label for _, part in groups for label in part["series"]))
    values = pd.concat([rows[[of for name in looks for of in ends[name]]], repeats[list(looks)]]).astype(float)
    limits = float(values[values > 0].min().min()), float(max(values.max().max(), rows["arrived"].fillna(0).max()))
    draw = partial(_draw, repeats=repeats, looks=looks, colours=colours, limits=limits)
    few = rows.groupby(_PANEL)["series"].nunique().max() > MOST_SERIES
    handles = mark_handles(colours) + [key(column(name).label, linestyle=style) for name, style in looks.items()]
    handles.append(key("95 % interval; a repeat is a dot", MUTED, linewidth=1.5))
    if rows["arrived"].notna().any():
        handles.append(key("arrived", MUTED, OFFERED))
    if rows["saturated"].eq(True).any():
        handles.append(key(SATURATED_LABEL, linestyle="none", marker="o", markerfacecolor="none"))
    return Plot(
        title=title,
        alt=" ".join([f"{title}, measured.", *_in_words(groups, looks)]),
        sources=sorted(rows["source"].unique()),
        panels=[Panel(head, partial(draw, rows=part)) for head, part in groups],
        panels_are="combinations of device, workload and kind of load",
        x_label="Load (logarithmic)",
        y_label=heading(next(iter(looks)), what),
        handles=handles,
        repeats=repeats_of(repeats),
        notes=[f"at most {MOST_SERIES} settings per panel have a line; the table holds all"] if few else [],
    )


def _rows(tables: Tables) -> pd.DataFrame:
    """Cells that count, with their load as `x`, its kind as `axis`, and what distinguishes series."""
    settings = tables.measured.drop_duplicates("cell_id")[["cell_id", *tables.knobs]]
    rows = tables.need("serving_summary").merge(settings, on="cell_id")
    rows = _with_load(rows[rows["ramp_to_per_s"].isna()])
    rows = rows[rows.groupby(_PANEL)["x"].transform("nunique") >= 2]
    require(rows, "no server was measured at two request rates or numbers of users")
    return rows.assign(series=_series(rows, tables.knobs))


def _with_load(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows whose load is steady, with its kind as `axis` and the load as `x`."""
    axis = rows["request_rate_per_s"].notna().map({True: "request_rate_per_s", False: "users"})
    x = rows["request_rate_per_s"].fillna(rows["users"]).astype(float)
    return rows.assign(axis=axis, x=x)[x.notna()]


def _series(rows: pd.DataFrame, knobs: Sequence[str]) -> list[str]:
    server = rows["engine"].where(rows["endpoint"].isna(), rows["endpoint"])
    others = [name for name in knobs if name not in _NO_SETTINGS]
    # Each server has its own knobs, so settings are compared only within one server.
    settings = pd.concat([series_labels(of_server, others) for _, of_server in rows.groupby(server)])[rows.index]
    # If the load is a rate, the number of users is a cap, and therefore a setting.
    capped = (rows["axis"] != "users") & rows["users"].notna()
    cap = rows["users"].map(lambda users: setting("knob_users", users)).where(capped, "")
    return [", ".join(filter(None, texts)) for texts in zip(server, settings, cap, strict=True)]


def _groups(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The panels with their titles, each with its first series."""
    names = told_apart(rows, PLACES)
    parts = sorted((part for _, part in rows.groupby(_PANEL, sort=False)), key=lambda part: -part["cell_id"].nunique())
    return [
        (
            " · ".join([*part[names].iloc[0], f"against {LOADS[part['axis'].iloc[0]]}"]),
            part[part["series"].isin(part["series"].unique()[:MOST_SERIES])],
        )
        for part in parts
    ]


def _draw(
    ax: Axes,
    rows: pd.DataFrame,
    repeats: pd.DataFrame,
    looks: Mapping[str, LineStyle],
    colours: Mapping[str, Mark],
    limits: tuple[float, float],
) -> None:
    for label, part in rows.groupby("series", sort=False):
        mark = colours[str(label)]
        for name, style in looks.items():
            at = part[part[name] > 0].sort_values("x", kind="stable")
            dots = repeats[repeats["cell_id"].isin(at["cell_id"])]
            draw_repeats(ax, dots["x"], dots[name], mark.color)
            ax.vlines(at["x"], at[f"{name}_low"], at[f"{name}_high"], color=mark.color, linewidth=1.5)
            ax.plot(at["x"], at[name], color=mark.color, marker=mark.marker, linestyle=style)
            ends = at[[f"{name}_low", f"{name}_high"]].to_numpy()
            mark_cells(ax, at["x"], at[name], at["cell_id"], name, ends=ends)
            if len(at) == 1:
                # A single load makes no line; a short stroke in its style shows which quantity the mark is.
                ax.hlines(at[name], at["x"] / 1.2, at["x"] * 1.2, color=mark.color, linestyle=style)
            over = at[at["saturated"].eq(True)]
            ax.scatter(over["x"], over[name], s=120, facecolors="none", edgecolors=INK, zorder=3, clip_on=False)
    log2_axis(ax, rows["x"].unique())
    ratio_axis(ax, *limits)
    if len(arrived := sorted(rows["arrived"].dropna().unique())):
        ax.plot(arrived, arrived, color=MUTED, linestyle=OFFERED, linewidth=1.2)


def _in_words(groups: Sequence[tuple[str, pd.DataFrame]], looks: Mapping[str, LineStyle]) -> Iterator[str]:
    for head, rows in groups[:6]:
        for label, part in rows.groupby("series", sort=False):
            for name in looks:
                if len(at := part.set_index("x")[name].sort_index().dropna()):
                    yield ends_in_words(f"{head}, {label}: {column(name).axis}", at)


def sustained(report: Report) -> Iterator[Block]:
    """For each server and setting the two loads that enclose its maximum sustained load, and what users see there."""
    cells = report.tables.rows.drop_duplicates("cell_id")[["cell_id", *report.tables.knobs]]
    rows = report.tables.need("serving_summary").merge(cells, on="cell_id")
    # If the client was the limit, nothing is known about the server.
    rows = _with_load(rows[~rows["limited_by"].str.contains("client|users")])
    require(rows, "no server was measured at a load that the client could send")
    rows["series"] = _series(rows, report.tables.knobs)
    groups = rows.groupby([*_PANEL, "series", rows["ramp_to_per_s"].notna()], sort=False)
    parts = sorted((part for _, part in groups), key=lambda part: -part["x"].nunique())
    findings = [_most_sustained(part.sort_values("x", kind="stable")) for part in parts]
    yield from some(findings, "serving_summary", MOST_FINDINGS)


def _most_sustained(rows: pd.DataFrame) -> Finding:
    """The finding for one server and setting; rows are ordered from the lowest load to the highest."""
    first, last = records(rows)[0], records(rows)[-1]
    place = ", ".join([first["gpu"], first["model"], first["workload"], first["series"]])
    if pd.notna(first["ramp_to_per_s"]):
        ends = f"{first['x']:g} to {first['ramp_to_per_s']:g} requests/s"
        return Finding("ramp", f"{place}: on a ramp from {ends} {_users_see(first)}.")
    if first["axis"] == "users":
        by_users = {plural(int(row["x"]), "user"): _users_see(row) for row in (first, last)}
        verdict = f"{first['x']:g} to " * (first["x"] < last["x"]) + plural(int(last["x"]), "user")
        return Finding(verdict, f"{place}: {'; '.join(f'with {users} {seen}' for users, seen in by_users.items())}.")
    # A run that is too short to decide counts as neither.
    over = rows[rows["saturated"].eq(True)].head(1)
    kept_up = rows[rows["saturated"].eq(False)]
    below = (kept_up[kept_up["x"] < over["x"].iloc[0]] if len(over) else kept_up).tail(1)
    if over.empty and below.empty:
        return Finding(NOT_DECIDED, f"{place}: the runs are too short to say whether the server keeps up.")
    at = [f"at {row['x']:g} requests/s it kept up: {_users_see(row)}" for row in records(below)]
    at += [f"at {row['x']:g} requests/s it did not keep up: {_users_see(row)}" for row in records(over)]
    low, high = (f"{part['x'].iloc[0]:g}" if len(part) else "" for part in (below, over))
    bounds = f"sustains {low}, not {high}" if low and high else f"sustains {low}" if low else f"does not sustain {high}"
    return Finding(f"{bounds} requests/s", f"{place}: {'; '.join(at)}.")


def _users_see(row: Mapping[str, Any]) -> str:
    """The rate of answers and the time to the first token, in words.

    >>> _users_see({"requests_per_s": 11.49, "ttft_s_p50": 0.27, "ttft_s_p99": 0.4567})
    'it answered 11.5 requests/s, drain included, with a TTFT of 270 ms in the median and 457 ms at the 99th percentile'
    >>> _users_see({"requests_per_s": 11.49, "ttft_s_p50": 0.27, "ttft_s_p99": nan})  # of few requests
    'it answered 11.5 requests/s, drain included, with a TTFT of 270 ms in the median'
    """
    rate, median, tail = (column(name).text(row[name]) for name in ("requests_per_s", "ttft_s_p50", "ttft_s_p99"))
    at_tail = f" and {tail} at the 99th percentile" if pd.notna(row["ttft_s_p99"]) else ""
    return f"it answered {rate}, drain included, with a TTFT of {median} in the median{at_tail}"


def load_findings(report: Report) -> Iterator[Block]:
    """What limited each load that the server did not simply keep up with, with its rates; warnings come first."""
    rows = report.tables.need("serving_summary")
    # What a server that keeps up answers is told by `sustained`.
    rows = rows[rows["saturated"].eq(True) | rows["limited_by"].ne("load")]
    warned = rows["saturated"].eq(True) | rows["limited_by"].str.contains("client|users")
    findings = [_finding(row, report.labels) for row in records(pd.concat([rows[warned], rows[~warned]]))]
    yield from some(findings, "serving_summary", MOST_FINDINGS)


def _finding(row: Mapping[str, Any], labels: Mapping[str, str]) -> Finding:
    server = row["engine"] if pd.isna(row["endpoint"]) else row["endpoint"]
    settings = labels.get(row["cell_id"], row["knobs"])
    place = ", ".join([row["gpu"], row["model"], row["workload"], f"{server} ({settings})"])
    saturated, slow_client = row["saturated"] is True, "client" in row["limited_by"]
    limited = LIMITED.get(row["limited_by"], f"limited by {listed(row['limited_by'].split(','))}")
    arrived = f"{number(row['arrivals_per_s'])} requests/s arrived, " if pd.notna(row["arrivals_per_s"]) else ""
    words = f"{place}: {arrived}{number(row['requests_per_s'])} requests/s were answered"
    if saturated:
        words += f", and {number(row['queue_growth_per_s'])} more were unanswered each second"
    if row["limited_by"] == "unknown":
        words += "; the run is too short to say whether the server keeps up"
    if slow_client:
        late = column("client_lag_s_p99").text(row["client_lag_s_p99"])
        words += f"; 1 % of the requests left the client {late} late or later"
        words += f", and it used {number(row['client_cpu_cores'])} cores"
    return Finding("saturated" if saturated else limited, f"{words}.", "bad" if saturated or slow_client else "neutral")


def sequences_by_rate(report: Report) -> Iterator[Block]:
    """A table of max-num-seqs by rate for each measure of the cells of a server among which only these two change."""
    tables, summary = report.tables, report.tables.need("serving_summary")
    if not {SEQUENCES, ARRIVALS} <= set(tables.knobs):
        return
    others = [name for name in tables.knobs if name not in (SEQUENCES, ARRIVALS)]
    cells = tables.measured.drop_duplicates("cell_id")[["cell_id", *tables.knobs]]
    rows = summary.merge(cells.dropna(subset=[SEQUENCES, ARRIVALS]), on="cell_id")
    for _, part in rows.groupby([*COORDINATES, *others], sort=False, dropna=False):
        if part[[SEQUENCES, ARRIVALS]].nunique().min() > 1:
            first = part.iloc[0]
            held = [setting_phrase(name, first[name]) for name in others if pd.notna(first[name])]
            title = ", ".join([*first[COORDINATES], *held])
            for measure in BY_RATE:
                if part[measure].notna().any():
                    yield _by_rate(part, measure, f"{column(measure).axis} by max-num-seqs and rate: {title}")


def _by_rate(rows: pd.DataFrame, measure: str, caption: str) -> Table:
    too_high = rows["saturated"].eq(True).map({True: f" {TOO_HIGH}", False: ""})
    texts = rows.assign(text=[shown(value, measure) for value in rows[measure]] + too_high)
    wide = texts.pivot(index=SEQUENCES, columns=ARRIVALS, values="text").fillna(shown(None))
    headings = ["max-num-seqs", *(f"{rate:g} requests/s" for rate in wide.columns)]
    body = [[f"{sequences:g}", *values] for sequences, values in zip(wide.index, wide.to_numpy(), strict=True)]
    note = f"{TOO_HIGH}: more load than the server sustains, so its latencies grow with the length of the run."
    return Table(caption, headings, body, [True] * len(headings), note if too_high.any() else "")


def searches(report: Report) -> Iterator[Block]:
    """The highest load within the study's limits, start by start."""
    rows = report.tables.get("searches", "cell_id")
    yield from some([_searched(row, report.labels) for row in records(rows)], "searches", MOST_FINDINGS)


def _searched(row: Mapping[str, Any], labels: Mapping[str, str]) -> Finding:
    unit = "users" if row["find"] == "highest_users" else "requests/s"
    load, low, high = (row[f"highest_load{end}"] for end in ("", "_low", "_high"))
    words = f"{row['gpu']}, {row['model']}, {row['workload']} ({labels.get(row['cell_id'], row['knobs'])}): "
    words += f"{100 * WITHIN_SHARE:g} % of the requests keep {row['slo']} "
    if pd.isna(load):
        verdict = f"more than {number(low)} {unit}" if pd.notna(low) else f"not {number(high)} {unit}"
        words += (
            f"at {number(low)} {unit} and more" if pd.notna(low) else f"at no load, not even at {number(high)} {unit}"
        )
    else:
        verdict = f"up to {number(load)} {unit}"
        words += f"{verdict} (95 % interval {number(low)} to {number(high)})"
    words += f", by {row['search_passes']:g} passes in start {row['start']:g}"
    if pd.notna(predicted := row["highest_load_predicted"]):
        ends = [row[f"highest_load{end}_predicted"] for end in ("_low", "_high")]
        band = f" ({number(ends[0])} to {number(ends[1])})" if pd.notna(ends).all() else ""
        words += f"; the plan said {number(predicted)}{band}"
    return Finding(verdict, f"{words}.")


def answers_after_reasoning(report: Report) -> Iterator[Block]:
    """When the first token and the first token of the answer came, for each server and load by workload."""
    by = ["gpu", "model", "knobs"]
    rows = report.tables.get("serving_summary", "cell_id", *by, "ttfa_s_p50").dropna(subset="ttfa_s_p50")
    findings = []
    for (gpu, model, knobs), part in rows.groupby(by, sort=False):
        first, answer = (column(name).scaled(part[name]) for name in ("ttft_s_p50", "ttfa_s_p50"))
        words = [
            f"{number(token)} ms and {number(told)} ms with {workload}"
            for workload, token, told in zip(part["workload"], first, answer, strict=True)
        ]
        place = f"{gpu}, {model} ({report.labels.get(part['cell_id'].iloc[0], knobs)})"
        sentence = f"{place}: median times to the first token and to the first token of the answer are {listed(words)}."
        findings.append(Finding(f"answer after {span(answer)} ms", sentence))
    yield from some(findings, "serving_summary", MOST_FINDINGS)


def conversations(report: Report) -> Iterator[Block]:
    """How long conversations take, and how first and last turns differ, cell by cell."""
    rows = report.tables.get("conversations", "cell_id")
    cells = [rows[rows["cell_id"] == cell_id] for cell_id in rows["cell_id"].unique()]
    yield from some([_conversation(of_cell, report.labels) for of_cell in cells], "conversations", MOST_FINDINGS)


def _conversation(rows: pd.DataFrame, labels: Mapping[str, str]) -> Finding:
    whole, *turns = records(rows)
    first, *_, last = [turn for turn in turns if turn["agent"] == "user"]
    words = f"{whole['gpu']}, {whole['model']}, {whole['workload']} ({labels.get(whole['cell_id'], whole['knobs'])}): "
    words += f"a conversation takes {column('e2e_s_p50').text(whole['e2e_s_p50'])} in the median; the TTFT is "
    words += " and ".join(
        f"{column('ttft_s_p50').text(turn['ttft_s_p50'])} in turn {turn['turn']:g}" for turn in (first, last)
    )
    if pd.notna(last["prefix_cache_hit_rate"]):
        found = column("prefix_cache_hit_rate").text(last["prefix_cache_hit_rate"])
        words += f", where {found} of {number(last['prompt_tokens_mean'])} prompt tokens were in the prefix cache"
    return Finding(column("e2e_s_p50").text(whole["e2e_s_p50"]), f"{words}.")


def latency_verdicts(report: Report) -> Iterator[Block]:
    rows = report.tables.need("latencies")
    # What the client sends is not a setting of the server.
    rows = rows[(rows["comparison"] == "overall") & ~rows["knob"].isin(Load.model_fields)]
    yield from verdicts_by(rows, "knob", "metric")


SUBJECT = Subject(
    id="serving",
    title="Serving",
    lines=3,  # servers and settings
    asked="server|request rate|turn|saturate|users wait",
    parts=[
        FigurePart(serving_latency),
        FigurePart(serving_throughput),
        TablePart(
            "serving_summary",
            {
                **OF_SERVER,
                **dict.fromkeys(("requests_per_s", "output_tokens_per_s", "ttft_s_p50", "ttft_s_p99"), ""),
                "saturated": "Load too high",
                "limited_by": "Limited by",
                "ttfa_s_p50": "",
                **dict.fromkeys(("itl_s_p50", "tpot_s_p50", "e2e_s_p99", "goodput_requests_per_s"), ""),
                "slo": "SLO",
            },
            "Servers side by side, one row per load",
        ),
        TablePart(
            "serving_summary",
            {
                **OF_SERVER,
                "running_peak": "",
                "in_flight_peak": "Maximum requests at once (client)",
                "memory_utilization": "Device memory in use",
                **dict.fromkeys(("kv_cache_usage_peak", "preemptions"), ""),
            },
            "Requests at once and memory of the servers, one row per load",
        ),
        sequences_by_rate,
        TablePart(
            "searches",
            {
                **PLACE_HEADINGS,
                "knobs": "Settings",
                "start": "Start",
                "find": "Search",
                "slo": "Limits",
                "highest_load": "Highest load",
                "highest_load_low": "95 % interval from",
                "highest_load_high": "to",
                "search_passes": "Passes",
                "search_requests": "Requests",
                "highest_load_predicted": "Predicted",
                "highest_load_low_predicted": "band from",
                "highest_load_high_predicted": "to ",
            },
            "The highest load within the limits",
            optional=True,
        ),
        TablePart(
            "conversations",
            {
                **PLACE_HEADINGS,
                "knobs": "Settings and load",
                "agent": "Agent",
                "turn": "Turn",
                "count": "Requests or conversations",
                "prompt_tokens_mean": f"{column('prompt_tokens').label} per request",
                **dict.fromkeys(("ttft_s_p50", "ttft_s_p90", "e2e_s_p50", "e2e_s_p90", "prefix_cache_hit_rate"), ""),
            },
            "Conversations, as a whole and by turn",
            optional=True,
        ),
        TablePart(
            "latencies",
            {
                "metric": "Latency",
                "knob": "Setting",
                **EFFECT_COLUMNS,
                "value": "Slowest",
                "baseline": "Fastest",
                "ratio": "Slowest over fastest (95 % interval)",
                "saturated": "Load too high",
            },
            "Effects of settings and of the load on latencies",
            lambda latencies: overall(latencies).assign(
                metric=lambda rows: [column(of).label for of in rows["metric"]]
            ),
        ),
    ],
    findings=[searches, answers_after_reasoning, conversations, sustained, load_findings, latency_verdicts],
)
