"""Predictions made before anything ran, beside measured values."""

from collections.abc import Iterator, Mapping

import pandas as pd

from workflow_scripts.common.columns import column, heading
from workflow_scripts.common.wording import listed
from workflow_scripts.engines.vllm.knobs import VLLM
from workflow_scripts.page.answers import NO, PARTLY, YES, Answer
from workflow_scripts.page.blocks import Block, Text
from workflow_scripts.page.digits import rounded
from workflow_scripts.page.kit import Plot, ratio
from workflow_scripts.page.report import CELL, Report, Subject, TablePart
from workflow_scripts.page.series import cell_names, coloured
from workflow_scripts.tables.results import RATE, Tables, records, require, under_load

FORESEEN = ("ttft_s_p50", "tpot_s_p50")
# Predictions are right if their median error is at most this, and wrong from that one on.
RIGHT_PCT, WRONG_PCT = 5.0, 25.0
# What a prediction is made from, in words.
SOURCES: Mapping[str, str] = {
    "calibrated": "this study's calibration",
    "project file": "the project's calibration",
    "measured rates": "measured rates of the device",
    "data sheet": "the data sheet",
}


def _compared(tables: Tables) -> pd.DataFrame:
    """Cells whose rate was both predicted and measured; a rate that follows from a load is neither."""
    rows = tables.need("predictions")
    loaded = rows["cell_id"].isin(tables.cells.loc[under_load(tables.cells), "cell_id"])
    rows = rows[(rows["quantity"] == RATE) & ~loaded].dropna(subset=["predicted", "measured"])
    return require(rows, "no cell was both predicted and measured")


def _errors(tables: Tables) -> "pd.Series[float]":
    """The median size of the error by engine, vLLM's first."""
    rows = _compared(tables)
    sizes = rows["error_pct"].abs().groupby(rows["engine"].map(_engine)).median()
    return sizes.sort_index(key=lambda names: names != _engine(VLLM.name))


def prediction_errors(tables: Tables) -> Plot:
    """Predicted over measured rate of each cell, the largest error first, with the 95 % interval of the measured rate
    and, wide and pale, the band of the prediction; filled: the measured rate is outside the band."""
    rows = _compared(tables)
    measured = rows[["cell_id"]].join(tables.intervals_of(RATE), on="cell_id")
    rows = rows.assign(
        name=rows["cell_id"].map(cell_names(tables)),
        value=rows["predicted"] / rows["measured"],
        low=rows["predicted"] / measured["high"],
        high=rows["predicted"] / measured["low"],
        band_low=rows["low"] / rows["measured"],
        band_high=rows["high"] / rows["measured"],
        hollow=rows["in_band"].ne(False),
        size=rows["error_pct"].abs(),
        text=rows["error_pct"].map(lambda error: f"{round(error):+d} %"),
    )
    rows = coloured(tables, rows.sort_values("size", ascending=False, kind="stable")).drop_duplicates("name")
    return ratio(
        rows,
        "Predicted and measured",
        "predicted over measured rate (1×: exact); pale: predicted band",
        measure="ratio",
        sources=("measured", "predicted"),
    )


def answers(report: Report) -> Iterator[Answer]:
    errors = _errors(report.tables)
    worst, best = errors.max(), errors.min()
    verdict = YES if worst <= RIGHT_PCT else NO if best > WRONG_PCT else PARTLY
    said = ", ".join(f"{engine} {rounded(error)} %" for engine, error in errors.head(2).items())
    yield Answer(verdict, "Predictions right in the median?", f"{said} off")


def _engine(name: str) -> str:
    return "vLLM" if name == VLLM.name else "HuggingFace" if name.startswith("hf") else name


def sentence(report: Report) -> str:
    rows = _compared(report.tables)
    known = rows["in_band"].dropna()
    if known.empty:
        return f"The median error of {len(rows)} cells is {rounded(rows['error_pct'].abs().median())} %."
    return f"{int(known.sum())} of {len(known)} measured rates are within their predicted band."


def made_from(report: Report) -> Iterator[Block]:
    """What the predictions were made from, and which cells are flagged."""
    rows = _compared(report.tables)
    for (gpu, engine), part in rows.groupby(["gpu", "engine"], sort=False):
        source = listed(part["speed_source"].map(SOURCES).fillna("an unknown source").unique())
        dates = sorted({str(at)[:10] for at in part["calibrated_at"].dropna()})
        of_date = f" of {' to '.join(dict.fromkeys([dates[0], dates[-1]]))}" if dates else ""
        error = rounded(part["error_pct"].abs().median())
        yield Text(f"{engine} on {gpu}, from {source}{of_date}: off by {error} % in the median of {len(part)}.")
    for row in records(rows[rows["flagged"].eq(True)]):
        yield Text(f"Flagged: {report.names.get(row['cell_id'], row['cell_id'])}: {row['why']}.")


def _of_quantity(name: str, further: Mapping[str, str]) -> TablePart:
    """The part with the predicted values of a quantity; of cells that were not measured, nothing is said about a
    difference."""
    shown = column(name)

    def of_cells(predictions: pd.DataFrame) -> pd.DataFrame:
        rows = predictions[(predictions["quantity"] == name) & predictions["predicted"].notna()]
        of_table = {"measured": "measured", "predicted": "predicted", "predicted_low": "low", "predicted_high": "high"}
        flagged = rows["flagged"].astype(object).where(rows["measured"].notna(), None)
        return rows.assign(flagged=flagged, **{column: shown.scaled(rows[name]) for column, name in of_table.items()})

    headings = {"measured": heading(name, "Measured"), "predicted": heading(name, "Predicted (band)")}
    return TablePart(
        "predictions",
        {**CELL, **headings, "error_pct": "Error", **further},
        f"{shown.label} of every cell, predicted and measured",
        of_cells,
        note="A prediction without a band has the bound that the data sheet sets for its schedule in the band's place."
        + " The bound of a rate counts the padding of static batches, which the ceiling does not." * (name == RATE),
        optional=name != RATE,
    )


SUBJECT = Subject(
    id="predictions",
    title="Predicted and measured",
    asked="predict",
    sentence=sentence,
    figures=[prediction_errors],
    answers=answers,
    why=[made_from],
    tables=[
        _of_quantity(
            RATE,
            {
                "flagged": "Flagged",
                "published": "Published",
                "running_peak_measured": "Peak of sequences at once, measured (of servers: as sampled)",
                "running_peak_predicted": "Peak of sequences at once, predicted",
            },
        ),
        *(_of_quantity(latency, {"in_band": "In its band"}) for latency in FORESEEN),
    ],
)
