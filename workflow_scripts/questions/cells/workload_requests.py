"""What the engines were asked: the workloads, and the lengths and arrivals of the requests that really ran."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from workflow_scripts.common.columns import column
from workflow_scripts.common.files import read_json
from workflow_scripts.common.wording import number
from workflow_scripts.page.blocks import Absent, Block, shown, table_of
from workflow_scripts.page.plot import Panel, Plot, key, plain_log_axis
from workflow_scripts.page.report import FigurePart, Report, Subject
from workflow_scripts.page.series import cell_titles, evenly
from workflow_scripts.page.style import COLOURS, LineStyle
from workflow_scripts.study.paths import MANIFEST
from workflow_scripts.tables.results import MissingError, Tables, require
from workflow_scripts.workloads.sampling import in_words
from workflow_scripts.workloads.workload_kinds import LengthDistribution, TextWorkload

# Column of the requests -> name, colour and line.
LENGTHS: dict[str, tuple[str, str, LineStyle]] = {
    "prompt_tokens": ("prompt tokens", COLOURS[0], "-"),
    "output_tokens": ("output tokens", COLOURS[1], (0, (4, 1.5))),
}
MOST_CELLS = 6
# Submitting all requests at once takes less than this share of the repeat, or less than this time.
AT_ONCE, AT_ONCE_S = 0.05, 0.5


def workload_lengths(tables: Tables) -> Plot:
    groups = list(_workloads(tables))
    tokens = pd.concat([rows[list(LENGTHS)] for _, rows in groups]).to_numpy(dtype=float)
    limits = max(tokens.min(), 1) / 1.3, tokens.max() * 1.3
    medians = [
        f"{title}: {rows['prompt_tokens'].median():g} prompt and {rows['output_tokens'].median():g} output tokens in "
        f"{len(rows)} requests"
        for title, rows in groups
    ]
    return Plot(
        title="Lengths of the requests of each workload",
        alt=f"Median tokens, measured: {'; '.join(medians)}.",
        panels=[Panel(title, partial(_draw_lengths, rows=rows, limits=limits)) for title, rows in groups],
        panels_are="workloads",
        x_label="Tokens in the request",
        y_label="Share of requests",
        handles=[key(*length) for length in LENGTHS.values()],
        notes=[
            "the requests are those of the cell that served the most; other cells with this workload served the first "
            "of these",
        ],
        panel_height_in=2.3,
    )


def workload_arrivals(tables: Tables) -> Plot:
    """Number of arrived requests over the time of a repeat, in cells where they did not all arrive at once."""
    cells = tables.measured.drop_duplicates("cell_id").set_index("cell_id")
    requests = _requests(tables, cells.index)
    ends_s = requests.groupby("cell_id")[["queued_s", "last_token_s"]].max()
    ends_s = ends_s[ends_s["queued_s"] > (AT_ONCE * ends_s["last_token_s"]).clip(lower=AT_ONCE_S)]
    require(ends_s, "in every cell all requests were submitted at once")
    arriving = cells.loc[ends_s.index]
    arriving["per_s"] = requests.groupby("cell_id").size() / ends_s["queued_s"]
    of_each = max(2, MOST_CELLS // arriving["workload"].nunique())
    shown = evenly(arriving, ["workload"], "per_s", of_each).head(MOST_CELLS).sort_values("per_s")
    titles = cell_titles(cells, list(shown.index), tables.knobs)
    times_s = {cell: rows["queued_s"].sort_values() for cell, rows in requests.groupby("cell_id")}
    notes = ["the first repeat of each cell"]
    if len(shown) < len(arriving):
        notes.append(f"{len(shown)} of {len(arriving)} cells are drawn, from the slowest to the fastest arrivals")
    rates = [f"{', '.join(titles[str(cell)].splitlines())}: {number(per_s)}" for cell, per_s in shown["per_s"].items()]
    return Plot(
        title="Arrivals of requests over the time of a repeat",
        alt=f"Requests per second, measured: {'; '.join(rates)}.",
        panels=[Panel(titles[cell], partial(_draw_arrivals, times_s=times_s[cell])) for cell in shown.index],
        x_label=column("time_s").axis,
        y_label="Requests arrived",
        notes=notes,
        panel_height_in=2.3,
    )


def _workloads(tables: Tables) -> Iterator[tuple[str, pd.DataFrame]]:
    """Each workload with its requests; several times if models' tokenizers give its texts different lengths."""
    cells = tables.measured.drop_duplicates("cell_id").sort_values("num_requests", ascending=False, kind="stable")
    largest = cells.drop_duplicates(["model", "workload"])
    requests = _requests(tables, largest["cell_id"]).merge(largest[["cell_id", "model", "workload"]], on="cell_id")
    for workload, rows in requests.groupby("workload", sort=False):
        versions = {
            of_model[list(LENGTHS)].to_numpy(dtype=int).tobytes(): (model, of_model)
            for model, of_model in rows.groupby("model", sort=False)
        }
        for model, of_model in versions.values():
            yield str(workload) if len(versions) == 1 else f"{workload} · {model}", of_model


def _requests(tables: Tables, cell_ids: Iterable[str]) -> pd.DataFrame:
    """Requests of the first repeat of each cell's first start."""
    columns = ["cell_id", "start", "repeat", *LENGTHS, "queued_s", "last_token_s"]
    rows = tables.facts("requests", cell_ids, columns)
    return rows[rows["repeat"] == rows.groupby("cell_id")["repeat"].transform("min")]


def _draw_lengths(ax: Axes, rows: pd.DataFrame, limits: tuple[float, float]) -> None:
    for name, (_, color, style) in LENGTHS.items():
        ax.ecdf(rows[name], color=color, linestyle=style)
    plain_log_axis(ax, "x", *limits, most=6)
    ax.set_ylim(0, 1.03)
    ax.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))


def _draw_arrivals(ax: Axes, times_s: pd.Series) -> None:
    count = np.arange(1, len(times_s) + 1)
    ax.plot(times_s, count, color=COLOURS[0], drawstyle="steps-post", linewidth=1.2)
    ax.set_xlim(left=0)
    ax.set_ylim(0, len(times_s) * 1.05)


def workloads(report: Report) -> Iterator[Block]:
    rows = []
    paths = sorted(report.prepared.glob(f"workloads/**/{MANIFEST}"))
    made = sorted(map(read_json, paths), key=lambda manifest: -int(manifest["num_requests"]))
    served = dict(list(report.tables.rows.dropna(subset="num_requests").groupby("workload")["num_requests"]))
    requests: dict[str, pd.DataFrame] = {}
    with suppress(MissingError):
        for title, of_model in _workloads(report.tables):
            requests.setdefault(title.partition(" · ")[0], of_model)
    for name, workload in report.study.workloads.items():
        manifest = next((m for m in made if m["workload"] == name), None)
        asked = workload.num_prompts if manifest is None else manifest["num_requests"]
        counts = served.get(name, [asked])
        prompt = getattr(workload, "prompt_tokens", None)
        if prefix := getattr(workload, "prefix_tokens", 0):
            prompt = f"{prefix:,} shared and {prompt}"
        rows.append(
            {
                "Workload": name,
                "prompt_tokens": _length(manifest, requests.get(name), "prompt_tokens", prompt),
                "output_tokens": _length(
                    manifest, requests.get(name), "output_tokens", getattr(workload, "output_tokens", None)
                ),
                "Requested kind": workload.kind
                + (", chat" if isinstance(workload, TextWorkload) and workload.chat else ""),
                "Actual kind": manifest and manifest["kind"],
                "Made from": manifest and manifest.get("source"),
                "Requests per cell": " to ".join(dict.fromkeys([shown(min(counts)), shown(max(counts))])),
                "Requests that share text": manifest and manifest["requests_with_prefix"],
                "Sampling": in_words(workload.sampling),
            }
        )
    yield table_of(pd.DataFrame(rows), None, "Workloads with the lengths of their requests")
    if not made:
        reason = (
            "the requests themselves are not beside these tables, so lengths are those served, or of the study file"
        )
        yield Absent("requests as made", reason)


def _length(manifest: dict[str, Any] | None, served: pd.DataFrame | None, field: str, asked: Any) -> str | None:
    """Of the requests as made, else as the cell with the most requests served them, else as the study asks."""
    said = ", as served" if manifest is None and served is not None else ""
    said += f" ({asked})" if said and isinstance(asked, str) else ""
    made = served[field].agg(["min", "max", "median"]) if served is not None else None
    if (lengths := made if manifest is None else manifest[field]) is not None:
        least, most, median = (shown(float(lengths[of])) for of in ("min", "max", "median"))
    elif isinstance(asked, LengthDistribution):
        least, most, median = f"{asked.minimum:,}", f"{asked.maximum:,}", f"about {asked.median:,.6g}"
    else:
        return None if asked is None else shown(asked)
    return (least if least == most else f"{least} to {most}, median {median}") + said


SUBJECT = Subject(
    id="workloads",
    title="Workloads",
    parts=[workloads, FigurePart(workload_lengths), FigurePart(workload_arrivals)],
)
