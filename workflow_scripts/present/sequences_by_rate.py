"""Max-num-seqs against the rate of requests: latency, goodput, and where the load was too high."""

from collections.abc import Iterator, Mapping

import pandas as pd

from workflow_scripts.present.blocks import Block, Table, shown
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import Tables
from workflow_scripts.study.setting_words import said

SEQUENCES, RATE = "knob_max_num_seqs", "knob_request_rate_per_s"
MEASURES: Mapping[str, str] = {
    "ttft_s_p50": "Median TTFT (s)",
    "tpot_s_p50": "Median TPOT (s)",
    "goodput_requests_per_s": "Goodput (requests per s within the SLO)",
}
TOO_HIGH = "*"
NOTE = f"{TOO_HIGH}: more load than the server sustains, so its latencies grow with the length of the run."
_PLACE = ("gpu", "engine", "model", "workload")


def sequences_by_rate(report: Report) -> Iterator[Block]:
    """For each server and other settings a table of max-num-seqs by rate for each measure; nothing if none has both."""
    for title, rows in _groups(report.tables):
        for measure, name in MEASURES.items():
            if rows[measure].notna().any():
                yield _table(rows, measure, f"{name} by max-num-seqs and rate: {title}")


def _groups(tables: Tables) -> Iterator[tuple[str, pd.DataFrame]]:
    """The cells of servers among which only max-num-seqs and the rate change, and both do; with their title."""
    summary = tables.need("serving_summary")
    if not {SEQUENCES, RATE} <= set(tables.knobs):
        return
    others = [name for name in tables.knobs if name not in (SEQUENCES, RATE)]
    cells = tables.measured.drop_duplicates("cell_id")[["cell_id", *tables.knobs]]
    rows = summary.merge(cells[cells[SEQUENCES].notna() & cells[RATE].notna()], on="cell_id")
    settings = [repr(values) for values in rows[others].itertuples(index=False, name=None)]
    for _, part in rows.assign(settings=settings).groupby([*_PLACE, "settings"], sort=False):
        if part[SEQUENCES].nunique() > 1 and part[RATE].nunique() > 1:
            first = part.iloc[0]
            held = [said(name, first[name]) for name in others if pd.notna(first[name])]
            yield ", ".join([*(str(first[name]) for name in _PLACE), *held]), part


def _table(rows: pd.DataFrame, measure: str, caption: str) -> Table:
    too_high = rows["saturated"].eq(True).map({True: f" {TOO_HIGH}", False: ""})
    texts = rows.assign(text=rows[measure].map(shown) + too_high)
    wide = texts.pivot(index=SEQUENCES, columns=RATE, values="text").fillna(shown(None))
    headings = ["max-num-seqs", *(f"{rate:g} requests/s" for rate in wide.columns)]
    body = [[f"{sequences:g}", *values] for sequences, values in zip(wide.index, wide.to_numpy(), strict=True)]
    return Table(caption, headings, body, [True] * len(headings), NOTE if too_high.any() else "", None)
