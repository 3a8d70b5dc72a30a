"""What changed throughput, ranked: every setting, the model and the engine, each with its largest effect."""

from collections.abc import Iterator
from contextlib import suppress

import pandas as pd

from workflow_scripts.catalog.environments import DEFAULT
from workflow_scripts.common.columns import column
from workflow_scripts.common.wording import number, sentence
from workflow_scripts.page.blocks import Finding
from workflow_scripts.page.plot import Plot
from workflow_scripts.page.ratio_plot import plot_ratios
from workflow_scripts.page.report import FigurePart, Report, Subject, TablePart
from workflow_scripts.page.sentences import (
    EFFECT_COLUMNS,
    NOT_DECIDED,
    OWN_SECTION,
    overall,
    pairs_that_differ_in,
    size_of,
    verdicts_of_others,
)
from workflow_scripts.page.series import PLACES
from workflow_scripts.page.style import marks
from workflow_scripts.questions.engines.section import equal_work
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.study.setting_words import instead_of
from workflow_scripts.tables.results import RAN_IN, RATE, STEADY, MissingError, Tables, records, require

MOST_CHANGES = 10
ENGINE = "vLLM instead of HuggingFace, each at its highest mean"
WHILE_FULL = " (while full)"


def largest_changes(tables: Tables) -> pd.DataFrame:
    """For each setting and device the comparison with the largest effect, and that of the engines; largest first."""
    effects = tables.get("knobs", "comparison", "knob", "value", "baseline", "metric", "ratio")
    rows = effects[effects["comparison"] == "overall"]
    labels = [
        sentence(instead_of(knob, value, baseline)) + WHILE_FULL * (metric == STEADY)
        for knob, value, baseline, metric in rows[["knob", "value", "baseline", "metric"]].itertuples(index=False)
    ]
    comparisons = [rows.assign(label=labels, about=rows["knob"])]
    with suppress(MissingError):
        fastest = equal_work(tables).drop_duplicates(PLACES).assign(label=ENGINE, about="engine")
        comparisons.append(fastest.rename(columns=lambda name: name.replace("improvement_", "")))
    rows = pd.concat(comparisons)
    rows = require(rows[rows["ratio"] > 0], "no two measured cells differ in one setting alone")
    ranked = rows.assign(size=size_of(rows["ratio"])).sort_values("size", ascending=False, kind="stable")
    return ranked.drop_duplicates(["about", "gpu"]).reset_index(drop=True)


def effects(tables: Tables) -> Plot:
    rows = largest_changes(tables)
    labels = list(dict.fromkeys(rows["label"]))
    drawn = rows[rows["label"].isin(labels[:MOST_CHANGES])]
    return plot_ratios(
        drawn.assign(name=drawn["gpu"], hollow=drawn["verdict"].eq(NOT_DECIDED)),
        marks(tables.devices),
        title=f"What changed {column(RATE).in_words}, largest effect first",
        notes=["ratios are over whole repeats, those labelled (while full) while the engine is full"],
    )


# Another model, or the same one with weights of another type.
models_compared = pairs_that_differ_in(
    "model", "kv_cache_tokens", lambda cell: f"Its KV cache holds {cell['kv_cache_tokens']:,.0f} tokens."
)


def not_compared(report: Report) -> Iterator[Finding]:
    """Two settings of each knob that was varied only between environments, and the sizes of their KV caches."""
    tables = report.tables
    compared = set(tables.get("knobs", "knob")["knob"])
    cells = tables.measured.drop_duplicates("cell_id")
    for knob in [of for of in tables.knobs if of.removeprefix("knob_") not in compared]:
        name, others = knob.removeprefix("knob_"), [of for of in tables.knobs if of != knob]
        for _, alike in cells.groupby([*COORDINATES, *others], dropna=False, sort=False):
            rows = alike.sort_values(knob, na_position="first").drop_duplicates([knob])
            if len(rows) > 1 and rows[RAN_IN].nunique() > 1:
                baseline, *_, other = records(rows)
                words = instead_of(name, other[knob], DEFAULT if pd.isna(baseline[knob]) else baseline[knob])
                sizes = [float(of["kv_cache_tokens"]) for of in (other, baseline)]
                tokens = f"{sizes[0]:,.0f} and {sizes[1]:,.0f} tokens (ratio {number(sizes[0] / sizes[1])})"
                yield Finding("not compared", f"{sentence(words)}: the environments differ; KV caches hold {tokens}.")
                break


SUBJECT = Subject(
    id="knobs",
    title="All settings",
    asked="another model|experts|8-bit|parallel",
    parts=[
        FigurePart(effects),
        TablePart(
            "knobs",
            {"knob": "Setting", **EFFECT_COLUMNS},
            f"Effects of other settings on {column(RATE).in_words}",
            lambda effects: overall(effects[~effects["knob"].isin(OWN_SECTION)]),
        ),
    ],
    findings=[verdicts_of_others, models_compared, not_compared],
)
