"""Effects of the settings that do not have their own section, and of the model."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from workflow_scripts.present.blocks import Block
from workflow_scripts.present.report import Report
from workflow_scripts.present.sentences import EFFECT_COLUMNS, OWN_SECTION, pairs_that_differ_in, verdicts_of_others
from workflow_scripts.present.subject import Subject, TablePart
from workflow_scripts.present.words import held_in_words


def models_compared(report: Report) -> Iterator[Block]:
    """The effect of another model, or of the same model with weights of another type, at equal settings."""
    yield pairs_that_differ_in(report, "model", "kv_cache_tokens", _room)


def _room(cell: Mapping[str, Any]) -> str:
    return f"Its KV cache holds {cell['kv_cache_tokens']:,.0f} tokens."


def _others(effects: pd.DataFrame) -> pd.DataFrame:
    rows = effects[~effects["knob"].isin(OWN_SECTION) & (effects["comparison"] == "overall")]
    return rows.assign(held=rows["held"].map(held_in_words))


SUBJECT = Subject(
    id="settings",
    title="Other settings",
    lead="Pairs of cells that differ in only one other setting.",
    parts=[
        TablePart(
            "effects",
            {"knob": "Setting", **EFFECT_COLUMNS},
            "Effects of other settings on output tokens per second",
            _others,
        )
    ],
    findings=[verdicts_of_others, models_compared],
)
