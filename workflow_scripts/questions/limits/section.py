"""How close the measurements come to what the hardware allows."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pandas as pd

from workflow_scripts.common.columns import column
from workflow_scripts.page.answers import NO, OPEN, PARTLY, YES, Answer, fitting
from workflow_scripts.page.blocks import Block, Text
from workflow_scripts.page.digits import rounded
from workflow_scripts.page.kit import Plot, bar
from workflow_scripts.page.main_line import main_line
from workflow_scripts.page.report import Report, Subject, TablePart
from workflow_scripts.page.series import cell_names, coloured, device_names
from workflow_scripts.tables.results import MissingError, Tables, records, require

# What prevents fewer steps, in words.
STEPS_BOUND_BY = {
    "max_num_seqs": "sequences allowed at once",
    "longest_request": "longest request",
    "kv_blocks": column("num_gpu_blocks").label,
}
_RATES = {"datasheet": "data sheet", "measured": "measured rates"}
# From this share of the ceiling on a cell is near it, and below that one it is not.
NEAR, FAR = 0.7, 0.35


def _shares(tables: Tables) -> pd.DataFrame:
    """The share of its ceiling that each cell reaches, along the lines of the study (at `x`) if it has them, else of
    all cells."""
    known = ["ceiling_share", "ceiling_share_low", "ceiling_share_high"]
    shares = tables.limits.groupby("cell_id")[known].first().dropna(subset=known[0]).mul(100)
    shares = require(shares, "no ceiling is known for any cell").set_axis(["value", "low", "high"], axis="columns")
    cells = tables.cells.join(shares, on="cell_id", how="inner")
    cells = cells.assign(name=cells["cell_id"].map(cell_names(tables)))
    with suppress(MissingError):
        at = main_line(tables).rows.drop_duplicates("cell_id").set_index("cell_id")["x"]
        along = cells.join(at, on="cell_id", how="inner").sort_values("x", kind="stable")
        cells = require(along, "").sort_values("gpu", key=lambda names: names.map(tables.devices.index), kind="stable")
    return coloured(tables, cells).drop_duplicates("name")


def limits(tables: Tables) -> Plot:
    """Rate of each cell as a share of the highest that its device allows for its requests, by the data sheet or, where
    its rates are not known, by measured rates."""
    rows = _shares(tables)
    title, label = "How close to the hardware's limit", "share of the ceiling"
    return bar(rows, title, label, unit=" %", measure="ceiling_share", sources=("measured", "predicted"))


def answers(report: Report) -> Iterator[Answer]:
    rows = _shares(report.tables)
    rows = rows[rows["gpu"] == rows["gpu"].iloc[0]]
    first, last = (records(rows)[end] for end in (0, -1))
    lowest, highest = rows["value"].min() / 100, rows["value"].max() / 100
    verdict = OPEN if highest > 1 else YES if lowest >= NEAR else NO if highest < FAR else PARTLY
    said = f"{_pct(first)} of its ceiling"
    if "x" in rows and len(rows) > 1:
        names = device_names(report.tables)
        name = names[first["gpu"]].partition(" (")[0] * (len(report.tables.devices) > 1)
        said = f"{_pct(first)} at {first['x']:g}, {_pct(last)} at {last['x']:g}"
        said = fitting(f"{{}}: {said}", name) if name else said
    yield Answer(verdict, "Near the hardware's limit?", said)


def _pct(row: Mapping[str, Any]) -> str:
    return f"{rounded(row['value'], row['low'], row['high'])} %"


def sentence(report: Report) -> str:
    rows = _shares(report.tables)
    top = records(rows.sort_values("value", ascending=False))[0]
    return f"The closest cell reaches {_pct(top)} of what its {device_names(report.tables)[top['gpu']]} allows."


def above_ceilings(report: Report) -> Iterator[Block]:
    known = report.tables.need("limits").dropna(subset="factor")
    above = known[known["exceeds"].eq(True)]
    for row in records(above.drop_duplicates("cell_id")):
        name = report.names.get(row["cell_id"], row["cell_id"])
        yield Text(f"Impossible: {name} is {row['factor']:.3g} times its ceiling on {row['ceiling_broken']}.")
    if above.empty:
        yield Text(f"None of the {known['cell_id'].nunique()} cells with a known ceiling is faster than possible.")


def closest(tables: Tables) -> pd.DataFrame:
    rows = tables.limits.drop_duplicates("cell_id").replace({"steps_bound_by": STEPS_BOUND_BY, "rates": _RATES})
    return rows.sort_values("ceiling_share", ascending=False, kind="stable")


SUBJECT = Subject(
    id="limits",
    title="How close to the hardware's limits",
    asked="limits|hardware",
    sentence=sentence,
    figures=[limits],
    answers=answers,
    why=[above_ceilings],
    tables=[
        TablePart(
            "limits",
            {
                "cell_id": "Cell",
                "rates": "Source of the device's rates",
                "ceiling_share": "",
                "output_tokens_per_s_ceiling": "Ceiling of the output over whole repeats",
                "mbu": "",
                "read_bytes_per_s": "Reading, at most",
                "mfu": "",
                "flop_per_s": "Operations, at most",
                "decode_bound_by": "Ceiling of decoding set by",
                "bound_by": "Ceiling of the repeat set by",
                "steps_bound_by": "Steps limited by",
            },
            "Cells closest to their ceilings",
            rows=closest,
        ),
    ],
)
