"""What changed throughput, ranked: every setting, the model and the engine, each with its largest effect."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from workflow_scripts.common.wording import sentence
from workflow_scripts.present.blocks import Block
from workflow_scripts.present.plot import Plot
from workflow_scripts.present.ratio_plot import plot_ratios
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import STEADY, MissingError, Tables
from workflow_scripts.present.sentences import EFFECT_COLUMNS, OWN_SECTION, pairs_that_differ_in, verdicts_of_others
from workflow_scripts.present.series import PLACES
from workflow_scripts.present.style import marks
from workflow_scripts.present.subject import FigurePart, Subject, TablePart
from workflow_scripts.present.words import held_in_words
from workflow_scripts.study.setting_words import instead_of, knob_name

MOST_CHANGES = 10
ENGINE = "vLLM instead of HuggingFace, each at its fastest"
WHILE_FULL = ", while that many run"


def largest_changes(tables: Tables) -> pd.DataFrame:
    """For each setting and device the comparison with the largest effect, and that of the engines; the largest first.

    Raises:
        MissingError: nothing was compared.
    """
    effects, pairs = tables.get("effects"), tables.get("engines")
    found = []
    if effects is not None:
        rows = effects[effects["comparison"] == "overall"]
        words = [instead_of(k, v, b) for k, v, b in rows[["knob", "value", "baseline"]].itertuples(index=False)]
        full = rows["metric"].eq(STEADY) if "metric" in rows else [False] * len(rows)
        labels = [sentence(text) + WHILE_FULL * bool(steady) for text, steady in zip(words, full, strict=True)]
        found.append(rows.assign(label=labels, about=rows["knob"]))
    if pairs is not None:
        rows = pairs[pairs["comparable"].eq(True)].rename(columns=lambda name: name.replace("improvement_", ""))
        fastest = rows.sort_values(["vllm_output_tokens_per_s", "hf_output_tokens_per_s"], ascending=False)
        found.append(fastest.drop_duplicates(PLACES).assign(label=ENGINE, about="engine"))
    rows = pd.concat(found) if found else pd.DataFrame(columns=["ratio"])
    rows = rows[rows["ratio"] > 0]
    if rows.empty:
        raise MissingError("no two measured cells differ in one setting alone")
    size = rows["ratio"].where(rows["ratio"] > 1, 1 / rows["ratio"])
    ranked = rows.assign(size=size).sort_values("size", ascending=False, kind="stable")
    return ranked.drop_duplicates(["about", "gpu"]).reset_index(drop=True)


def effects(tables: Tables) -> Plot:
    """The largest effect of each setting on output tokens per second, one dot per device, the largest first."""
    rows = largest_changes(tables)
    labels = list(dict.fromkeys(rows["label"]))
    drawn = rows[rows["label"].isin(labels[:MOST_CHANGES])]
    return plot_ratios(
        drawn.assign(name=drawn["gpu"], panel=""),
        marks(tables.devices),
        title="What changed output tokens per second, largest effect first",
        panels_are="",
    )


def models_compared(report: Report) -> Iterator[Block]:
    """The effect of another model, or of the same model with weights of another type, at equal settings."""
    yield pairs_that_differ_in(report, "model", "kv_cache_tokens", _room)


def _room(cell: Mapping[str, Any]) -> str:
    return f"Its KV cache holds {cell['kv_cache_tokens']:,.0f} tokens."


def _others(effects: pd.DataFrame) -> pd.DataFrame:
    rows = effects[~effects["knob"].isin(OWN_SECTION) & (effects["comparison"] == "overall")]
    return rows.assign(held=rows["held"].map(held_in_words), knob=rows["knob"].map(knob_name))


SUBJECT = Subject(
    id="settings",
    title="All settings",
    parts=[
        FigurePart(effects, {}),
        TablePart(
            "effects",
            {"knob": "Setting", **EFFECT_COLUMNS},
            "Effects of other settings on output tokens per second",
            _others,
        ),
    ],
    findings=[verdicts_of_others, models_compared],
)
