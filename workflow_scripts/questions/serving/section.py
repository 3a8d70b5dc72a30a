"""Servers under load: latency and throughput by request rate or users, and which load was too high."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle

import pandas as pd

from workflow_scripts.common.columns import column
from workflow_scripts.common.wording import plural
from workflow_scripts.page.answers import NO, OPEN, PARTLY, YES, Answer
from workflow_scripts.page.blocks import Block, Fold, Table, Text, shown
from workflow_scripts.page.digits import rounded
from workflow_scripts.page.kit import Plot, line
from workflow_scripts.page.parts import compared
from workflow_scripts.page.report import PLACE_HEADINGS, Report, Subject, TablePart
from workflow_scripts.page.series import PLACES, device_looks, telling
from workflow_scripts.page.style import Look
from workflow_scripts.study.setting_words import setting
from workflow_scripts.study.study import WITHIN_SHARE
from workflow_scripts.tables.results import Tables, records, require

# The column that sets the load, in the order of the search -> its name.
LOADS: Mapping[str, str] = {"request_rate_per_s": "requests/s", "users": "users"}
_PANEL = [*PLACES, "axis"]
OF_SERVER = {
    **PLACE_HEADINGS,
    "endpoint": "Server",
    "knobs": "Settings and load",
    "load": "Kind of load",
    "request_rate_per_s": "Sent",
    "users": "Users",
}
# What sources print of servers, in their words.
SIDE_BY_SIDE = {"output_tokens_per_s": "tok/s (output)", "requests_per_s": "Requests/s"}
SIDE_BY_SIDE |= {"ttft_s_p50": column("ttft_s_p50").axis, "ttft_s_p99": column("ttft_s_p99").axis}
SIDE_BY_SIDE |= {"itl_s_p50": column("itl_s_p50").axis, "running_peak": "Largest batch", "memory_pct": "GPU memory, %"}
UNTRIED = "The project has never run TGI: its entry in config/endpoints.yaml follows TGI's documentation."
# Knobs that say what the load is and which server gets it.
_NO_SETTINGS = {f"knob_{name}" for name in (*LOADS, "endpoint")}


def served_latency(tables: Tables) -> Plot:
    """Median time to the first token by load, with its 95 % interval; hollow: more load than the server sustains."""
    return _by_load(tables, "ttft_s_p50", "Latency by load")


def served_throughput(tables: Tables) -> Plot:
    """Requests answered per second by load, with their 95 % interval; hollow: more load than the server sustains."""
    return _by_load(tables, "requests_per_s", "Throughput by load")


def _by_load(tables: Tables, measure: str, title: str) -> Plot:
    rows, shown_as = _loads(tables), column(measure)
    rows = rows[rows.groupby(_PANEL)["x"].transform("nunique") >= 2]
    require(rows, "no server was measured at two request rates or numbers of users")
    places = rows.groupby(_PANEL, sort=False)
    rows = places.get_group(places["cell_id"].nunique().idxmax())
    ends = {
        key: shown_as.scaled(rows[f"{measure}{end}"]) for key, end in (("y", ""), ("low", "_low"), ("high", "_high"))
    }
    drawn = rows.assign(**ends, hollow=rows["saturated"].eq(True)).dropna(subset="y").sort_values("x", kind="stable")
    colour = device_looks(tables)[drawn["gpu"].iloc[0]].colour
    # Servers and settings of one device differ by their marks.
    looks = dict(zip(drawn["series"].unique(), (Look(colour, marker) for marker in cycle("os^D")), strict=False))
    return line(drawn, looks, title, shown_as.axis, f"load, {LOADS[drawn['axis'].iloc[0]]}", measure=measure)


def _sustained(tables: Tables) -> Answer:
    """Whether servers kept up with the loads that their clients could send."""
    rows = _with_load(tables.need("serving_summary"))
    rows = rows[~rows["limited_by"].astype(str).str.contains("client|users")]
    require(rows, "no server was measured at a load that the client could send")
    unit, asked = LOADS[rows["axis"].iloc[0]], "Keeps up with the load?"
    over = rows.loc[rows["saturated"].eq(True), "x"].min()
    kept = rows.loc[rows["saturated"].eq(False) & ~(rows["x"] >= over), "x"].max()
    if pd.isna(kept) and pd.isna(over):
        return Answer(OPEN, asked, "runs are too short to say")
    if pd.isna(kept):
        return Answer(NO, asked, f"not with {over:g} {unit}")
    if pd.isna(over):
        return Answer(YES, asked, f"up to {kept:g} {unit}")
    return Answer(PARTLY, asked, f"with {kept:g}, not {over:g} {unit}")


def answers(report: Report) -> Iterator[Answer]:
    found = report.tables.get("searches", "cell_id")
    if len(found):
        row = records(found)[0]
        load, low, high = (row[f"highest_load{end}"] for end in ("", "_low", "_high"))
        if pd.isna(load):
            said = f"at {rounded(low)} requests/s and more" if pd.notna(low) else f"not at {rounded(high)} requests/s"
            yield Answer(YES if pd.notna(low) else NO, "Keeps the limits?", said)
        else:
            short = ", in passes too short to show a queue" if row["too_short"] is True else ""
            yield Answer(YES, "Keeps the limits?", f"up to {rounded(load, low, high)} requests/s{short}")
    yield _sustained(report.tables)


def sentence(report: Report) -> str:
    rows = _with_load(report.tables.need("serving_summary")).sort_values("x", kind="stable")
    first = records(rows)[0]
    time = column("ttft_s_p50").text(first["ttft_s_p50"])
    load = LOADS[first["axis"]].removesuffix("s" if first["x"] == 1 and first["axis"] == "users" else "")
    return f"At {first['x']:g} {load}, the first token takes {time} in the median."


def _loads(tables: Tables) -> pd.DataFrame:
    """Cells that count, with their load as `x`, its kind as `axis`, and the server with its settings as `series`."""
    settings = tables.cells[["cell_id", *tables.knobs]]
    rows = _with_load(tables.need("serving_summary").merge(settings, on="cell_id"))
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
    parts = [pd.Series(telling(of_one, others), index=of_one.index) for _, of_one in rows.groupby(server)]
    settings = pd.concat(parts)[rows.index]
    # If the load is a rate, the number of users is a cap, and therefore a setting.
    capped = (rows["axis"] != "users") & rows["users"].notna()
    cap = rows["users"].map(lambda users: setting("knob_users", users)).where(capped, "")
    return [", ".join(filter(None, texts)) for texts in zip(server, settings, cap, strict=True)]


def side_by_side(report: Report) -> Iterator[Block]:
    """A table of each place with a column for each server and its settings, as sources print them."""
    rows = _loads(report.tables)
    rows = rows.assign(memory_pct=100 * rows["memory_utilization"])
    for place, part in rows.groupby(PLACES, sort=False):
        if part["series"].nunique() < 2:
            continue
        wide = part.drop_duplicates([*_PANEL, "x", "series"]).set_index(["axis", "x", "series"])
        servers = list(dict.fromkeys(part["series"]))
        body = [
            [f"{LOADS[axis]}: {x:g}", words, *(shown(wide[measure].get((axis, x, at)), measure) for at in servers)]
            for axis, x in part[["axis", "x"]].drop_duplicates().sort_values(["axis", "x"]).to_numpy().tolist()
            for measure, words in SIDE_BY_SIDE.items()
        ]
        caption = f"Servers side by side: {', '.join(map(str, place))}"
        numeric = [False, False, *(True for _ in servers)]
        table = Table(caption, ["Load", "", *servers], body, numeric, UNTRIED)
        yield Fold(f"{caption}, {plural(len(servers), 'server')}", [table])


def slow_clients(report: Report) -> Iterator[Block]:
    """Loads that the client limited, which say nothing of the server, and what limits were searched within."""
    rows = report.tables.need("serving_summary")
    slow = rows[rows["limited_by"].astype(str).str.contains("client")]
    if len(slow):
        yield Text(f"In {len(slow)} of {len(rows)} loads the client was too slow, so these say nothing of the server.")
    if len(found := report.tables.get("searches", "cell_id")):
        share = f"{100 * WITHIN_SHARE:g} %"
        yield Text(f"A load keeps the limits if {share} of its requests do: {', '.join(found['slo'].unique())}.")


SUBJECT = Subject(
    id="serving",
    title="Serving",
    asked="server|request rate|turn|saturate|users wait|load",
    sentence=sentence,
    figures=[served_latency, served_throughput],
    answers=answers,
    why=[slow_clients],
    tables=[
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
                "running_peak": "",
                "in_flight_peak": "Maximum requests at once (client)",
                "memory_utilization": "Device memory in use",
                **dict.fromkeys(("kv_cache_usage_peak", "preemptions"), ""),
            },
            "Servers, one row per load",
        ),
        side_by_side,
        compared("server", caption="vLLM's server over others with as many users"),
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
            },
            "The highest load within the limits",
            optional=True,
        ),
        TablePart(
            "conversations",
            {
                **PLACE_HEADINGS,
                "knobs": "Settings and load",
                "turn": "Turn",
                "count": "Requests or conversations",
                "prompt_tokens_mean": f"{column('prompt_tokens').label} per request",
                **dict.fromkeys(("ttft_s_p50", "ttft_s_p90", "e2e_s_p50", "e2e_s_p90", "prefix_cache_hit_rate"), ""),
            },
            "Conversations, as a whole and by turn",
            optional=True,
        ),
    ],
)
