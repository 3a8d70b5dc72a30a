"""Plan a study before it is queued: what is feasible, how fast, what it costs.

    kvsweep plan --study config/studies/paged_attention.yaml

prints a summary and writes `results/{study}/plan/plan.parquet` (and `.csv`), one row per cell, and
`capacity.jsonl`, how the memory of each cell divides. It needs no GPU, no engine and no prepared file.
docs/plan.md says how the numbers are made.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd
from rich.table import Table

from workflow_scripts.catalog.published import PUBLISHED, Published
from workflow_scripts.common.command import RESULTS, STUDY, command, option
from workflow_scripts.common.csv_rows import with_texts
from workflow_scripts.common.files import write_bytes, write_jsonl, write_text
from workflow_scripts.common.parquet import read_parquet, to_parquet
from workflow_scripts.common.terminal import Terminal
from workflow_scripts.common.wording import plural
from workflow_scripts.predict.calibrated import UNCALIBRATED
from workflow_scripts.predict.prediction_record import FIELDS, TEXTS
from workflow_scripts.predict.predictions import VLLM_VERSION, at_version, predict_cells, predict_study
from workflow_scripts.study.definition import Cells
from workflow_scripts.study.grid import COORDINATES, Cell, expand
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.expected_ratios import expected_ratios

_MOST_ROWS = 40
TEXT_HEADINGS = (*COORDINATES, "ratio", "verdict", "why", "for example", "limited by")
# Columns of the expected ratios that are shown as one.
RATIOS = (["bandwidth_ratio"], ["predicted_low", "predicted_high"], ["published"])


def plan(study: Study, cells: Sequence[Cell], prepared: Path | None) -> pd.DataFrame:
    """One row per cell, in the order of the grid, with the columns `FIELDS`."""
    rows = [record.row() for record in predict_cells(study, cells, prepared)]
    table = pd.DataFrame(rows, columns=list(FIELDS)).set_index("cell_id").loc[[cell.id for cell in cells]]
    table = table.reset_index()
    table = table.astype({name: "string" if name in TEXTS else "float64" for name in FIELDS})
    # Cells as of another version share starts as those of the study do.
    return _in_sessions(table, dict(zip(table["cell_id"], Cells(study).sessions.values(), strict=True)))


def _in_sessions(table: pd.DataFrame, sessions: Mapping[str, str]) -> pd.DataFrame:
    """The cells that share a start of their engine have equal parts of what it takes, and of the longest warm-up."""
    timed = table[table["cell_s"].notna()]
    session, parts = timed["cell_id"].map(sessions), ["start_s", "warmup_s", "stop_s"]
    of_session = timed[parts].groupby(session)
    shared = timed.assign(**of_session.transform("max").div(session.map(of_session.size()), axis="index"))
    saved_s = (timed[parts] - shared[parts]).sum(axis="columns")
    table.loc[timed.index, [*parts, "cell_s"]] = shared.assign(cell_s=timed["cell_s"] - saved_s)
    return table


# A title, headings and rows.
Shown = tuple[str, Sequence[str], Sequence[Sequence[object]]]


def print_plan(terminal: Terminal, study: Study, table: pd.DataFrame) -> None:
    """A summary that stays readable for hundreds of cells; the files contain each cell."""
    terminal.print(f"{study.name}: {len(table)} cells, all numbers are predicted")
    claims = [Published(PUBLISHED).claim(name) for name in study.claims]
    ratios = _ratios(expected_ratios(table, claims))
    for title, headings, rows in (*_refused(table), _groups(table), ratios, _hours(study, table)):
        if not rows:
            continue
        shown = Table(title=title, title_justify="left")
        for heading in headings:
            shown.add_column(heading, justify="left" if heading in TEXT_HEADINGS else "right", overflow="fold")
        for row in rows[:_MOST_ROWS]:
            shown.add_row(*map(str, row))
        terminal.print(shown)
        if len(rows) > _MOST_ROWS:
            terminal.print(f"{_MOST_ROWS} of {len(rows)} rows; the files hold all.")
    late, limit_s = table[table["cell_s"] > study.cell_time_limit_s], study.cell_time_limit_s
    if len(late):
        beyond = f"{len(late)} cells would take longer than the study's cell_time_limit_s of {limit_s:g} s"
        terminal.print(f"{beyond}, such as {late['cell_id'].iloc[0]}.")
    cliff = table[table["beyond_graphs_time_share"] > 0]
    if len(cliff):
        share = _range(100 * cliff["beyond_graphs_time_share"], after=" % of their time")
        words = f"{plural(len(cliff), 'cell')} decode more sequences than a full CUDA graph has, in {share}"
        terminal.print(f"Predicted: {words}, such as {cliff['cell_id'].iloc[0]}.")


def _refused(table: pd.DataFrame) -> Iterator[Shown]:
    for column, title in (("infeasible", "Infeasible"), ("unknown", "Not predicted")):
        reasons = table.groupby(column, sort=False)["cell_id"].agg(["size", "first"])
        most = reasons.sort_values("size", ascending=False, kind="stable").reset_index()[["size", column, "first"]]
        yield f"{title}: {reasons['size'].sum()} cells", ("cells", "why", "for example"), most.to_numpy().tolist()


def _groups(table: pd.DataFrame) -> Shown:
    scheduled = table[table["running_peak"].notna()]
    keys = [key for key in COORDINATES if scheduled[key].nunique() > 1] or ["gpu"]
    ranges = {"KV blocks": "num_blocks", "requests of full length": "max_concurrency", "run at once": "running_peak"}
    ranges |= {"output tok/s": "output_tokens_per_s", "TTFT p50 (s)": "ttft_s_p50"}
    rows = []
    for names, part in scheduled.groupby(keys, sort=False):
        bound = part["bound_by"].str.replace("_", " ").value_counts()
        bounds = ", ".join(f"{what} {count}" for what, count in bound.items())
        rows.append([*names, len(part), *(_range(part[name]) for name in ranges.values()), _within(part), bounds])
    headings = (*keys, "cells", *ranges, "within", "limited by")
    return "Speed and memory, from the slowest to the fastest cell", headings, rows


def _ratios(expected: pd.DataFrame) -> Shown:
    headings = ("ratio", "engine", "model", "settings", "bandwidth", "predicted", "published", "verdict")
    rows = [
        [
            f"{row['a']} / {row['b']}",
            row["engine"] or f"on {row['gpu']}",
            *(row["model"], row["settings"]),
            *(_range(pd.Series([row[end] for end in ends], dtype=float), after="x") for ends in RATIOS),
            row["verdict"] or "",
        ]
        for row in expected.astype(object).where(expected.notna(), None).to_dict("records")
    ]
    return "Expected ratios, of devices with all else equal and of engines", headings, rows


def _hours(study: Study, table: pd.DataFrame) -> Shown:
    headings = ("gpu", "cells", "timed", "not timed", "seconds per start", "starts", "repeats", "GPU hours")
    rows = []
    for gpu, part in table[table["cell_s"].notna()].groupby("gpu", sort=False):
        around_s = part[["start_s", "warmup_s", "stop_s"]].sum(axis="columns")
        timed = float(((part["cell_s"] - around_s) * part["gpus"]).sum() * study.starts.at_least) / 3600
        whole = float((part["cell_s"] * part["gpus"]).sum() * study.starts.at_least) / 3600
        hours = f"{timed:.2f} h", f"{whole - timed:.2f} h", _range(part["cell_s"])
        rows.append((gpu, len(part), *hours, study.starts.in_words, study.repeats, f"{whole:.2f}"))
    return "Time, including the pipeline's own", headings, rows


def _range(values: pd.Series, before: str = "", after: str = "") -> str:
    """The lowest and highest value, or the value if there is only one.

    >>> _range(pd.Series([3.0, 12000.0])), _range(pd.Series([0.5, 0.5])), _range(pd.Series([float("nan")]))
    ('3 to 12,000', '0.5', '')
    """
    finite = values.dropna()
    ends = list(dict.fromkeys(f"{v:,.0f}" if v >= 100 else f"{v:.3g}" for v in (finite.min(), finite.max()) if v == v))
    return f"{before}{' to '.join(ends)}{after}" if ends else ""


def _within(part: pd.DataFrame) -> str:
    """The band of the cells that are predicted; says if some of them have none.

    >>> _within(pd.DataFrame({"output_tokens_per_s": [9.0, 9.0, None], "error_pct": [10.0, None, None]}))
    '±10 %, 1 uncalibrated'
    """
    errors = part.loc[part["output_tokens_per_s"].notna(), "error_pct"]
    without = int(errors.isna().sum())
    if without and without == len(errors):
        return UNCALIBRATED
    return _range(errors, "±", " %") + (f", {without} {UNCALIBRATED}" if without else "")


@command(
    "plan",
    STUDY,
    RESULTS,
    VLLM_VERSION,
    option("--quiet", action="store_true", help="write the files and print nothing"),
    option("--written", action="store_true", help="print the plan that was written before, and write nothing"),
)
def main(args: Namespace) -> None:
    study = load_study(args.study)
    cells = at_version(expand(study), args.vllm_version)
    paths = StudyPaths(args.results, study.name)
    if args.written:
        table = read_parquet(paths.plan / "plan.parquet")
    else:
        table = plan(study, cells, paths.prepared)
        write_jsonl(paths.capacity, (of_cell.line() for of_cell in predict_study(cells, paths.prepared)))
        write_text(paths.plan / "plan.csv", with_texts(table).to_csv(index=False))
        write_bytes(paths.plan / "plan.parquet", to_parquet(table))
    if not args.quiet:
        terminal = Terminal(width=None if sys.stdout.isatty() else 160)
        print_plan(terminal, study, table)
        terminal.print(f"{paths.plan / 'plan.csv'} has every cell.")
