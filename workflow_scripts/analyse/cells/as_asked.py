"""Settings that an engine replaced by others without refusing them."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

_KNOB, _EFFECTIVE = "knob_", "effective."


def not_as_asked(knobs: pd.DataFrame, effective: pd.DataFrame) -> pd.Series:
    """For each cell the effective settings that differ from the requested ones; null if none does.

    Args:
        knobs: columns `knob_NAME` with what the study sets, null or `auto` where it leaves the choice to the engine.
        effective: columns `effective.NAME` with what the engine reports, for the same cells in the same order. Settings
            that the engine does not report are not compared.

    >>> knobs = pd.DataFrame({"knob_attention_backend": ["FLASH_ATTN"], "knob_max_num_seqs": [8]})
    >>> effective = pd.DataFrame({"effective.attention_backend": ["CPU_ATTN"], "effective.max_num_seqs": [8.0]})
    >>> not_as_asked(knobs, effective).item()
    'attention_backend CPU_ATTN, not FLASH_ATTN'
    """
    names = [name.removeprefix(_KNOB) for name in map(str, knobs) if name.startswith(_KNOB)]
    compared = [name for name in names if _EFFECTIVE + name in effective]
    texts = [
        _differences({n: (asked[_KNOB + n], effective[_EFFECTIVE + n]) for n in compared}) or None
        for asked, effective in zip(knobs.to_dict("records"), effective.to_dict("records"), strict=True)
    ]
    return pd.Series(texts, index=knobs.index, dtype="string")


def _differences(values: Mapping[str, tuple[Any, Any]]) -> str:
    known = {name: pair for name, pair in values.items() if not any(map(pd.isna, pair)) and pair[0] != "auto"}
    return "; ".join(
        f"{name} {_text(effective, asked)}, not {asked}"
        for name, (asked, effective) in known.items()
        if _text(effective, asked) != str(asked)
    )


def _text(effective: Any, asked: Any) -> str:
    """The effective value, written as `asked` would be: parsed facts hold only numbers and texts."""
    if isinstance(effective, str):
        return effective
    return str(bool(effective)) if isinstance(asked, bool) else str(type(asked)(effective))
