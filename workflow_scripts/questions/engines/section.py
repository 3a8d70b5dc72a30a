"""HuggingFace against vLLM at equal work."""

from collections.abc import Iterator

import pandas as pd

from workflow_scripts.page.answers import Answer, bars_of, factor, verdict_on
from workflow_scripts.page.comparisons import comparisons
from workflow_scripts.page.kit import Plot, strip
from workflow_scripts.page.main_line import rate_words
from workflow_scripts.page.parts import claims_on, compared, four_metrics
from workflow_scripts.page.report import Report, Subject
from workflow_scripts.page.series import PLACES, coloured, told_apart
from workflow_scripts.study.setting_words import labels
from workflow_scripts.tables.results import RATE, Tables, records

HF = "HuggingFace"


def fastest_pairs(tables: Tables) -> pd.DataFrame:
    """The fastest vLLM cell over the fastest HuggingFace cell of each device, model and workload."""
    rates = tables.value(RATE)
    rows = comparisons(tables, "engine")
    rows = rows.assign(**{f"rate_{side}": rows[side].map(rates) for side in "ab"})
    rows = rows.sort_values(["rate_b", "rate_a"], ascending=False, kind="stable").drop_duplicates(PLACES)
    return rows.sort_values("place", kind="stable")


def engines(tables: Tables) -> Plot:
    """Rate of each cell with its 95 % interval, and each repeat as a dot; the cells of a place did equal work."""
    pairs = comparisons(tables, "engine")
    cells = tables.cells[tables.cells["cell_id"].isin({*pairs["a"], *pairs["b"]})]
    ends = tables.intervals_of(RATE)
    names = told_apart(cells, PLACES[1:])
    engine = cells["engine"].map(lambda name: "vLLM" if name == "vllm" else HF)
    own = labels(cells, tables.knobs)
    words = cells[names].agg(" · ".join, axis=1) + " · " if names else ""
    rows = cells.assign(name=words + engine + " · " + own).join(ends, on="cell_id").dropna(subset="value")
    rows = coloured(tables, rows).assign(hollow=rows["engine"] != "vllm").sort_values("value", ascending=False)
    repeats = tables.measured[["cell_id", RATE]].merge(rows[["cell_id", "name"]], on="cell_id")
    return strip(
        rows,
        repeats.rename(columns={RATE: "value"}),
        "vLLM and HuggingFace at equal work",
        f"{rate_words(RATE)}; hollow: {HF}",
        measure=RATE,
    )


def answers(report: Report) -> Iterator[Answer]:
    rows = fastest_pairs(report.tables)
    row = records(rows)[0]
    many = f" with {row['x']:g} sequence{'s' * (row['x'] != 1)}" if pd.notna(row["x"]) else ""
    said, bars = factor(report.tables, row), bars_of(report.tables, rows)
    yield Answer(verdict_on(row, helps=True), f"vLLM over {HF}?", f"{said}{many}", bars, f"vLLM over {HF} {said}")


def sentence(report: Report) -> str:
    said = factor(report.tables, records(fastest_pairs(report.tables))[0])
    return f"The fastest vLLM cell has {said} the rate of the fastest {HF} cell."


SUBJECT = Subject(
    id="engines",
    title="HuggingFace against vLLM",
    asked="HuggingFace|engine|TGI",
    sentence=sentence,
    figures=[engines],
    answers=answers,
    tables=[
        four_metrics("batch_size"),
        compared("engine"),
        claims_on("engines"),
    ],
)
