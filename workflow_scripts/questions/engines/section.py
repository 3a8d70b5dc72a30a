"""HuggingFace against vLLM at equal work, and the steps that make up the difference."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from workflow_scripts.common.columns import column
from workflow_scripts.page.blocks import Block, Finding
from workflow_scripts.page.plot import Plot
from workflow_scripts.page.ratio_plot import plot_bars
from workflow_scripts.page.report import PLACE_HEADINGS, FigurePart, Report, Subject, TablePart
from workflow_scripts.page.sentences import (
    MOST_SENTENCES,
    NOT_DECIDED,
    claims_on,
    place,
    ratio_finding,
    some,
    with_interval,
)
from workflow_scripts.page.series import PLACES
from workflow_scripts.page.style import marks
from workflow_scripts.questions.engines.table import with_cell_ids
from workflow_scripts.study.setting_words import labels, setting_phrase
from workflow_scripts.tables.results import RATE, Tables, records, require

# Step from single HuggingFace requests to vLLM -> what it replaces; the size of a static batch is one of all settings.
STEPS: Mapping[str, str] = {
    "continuous_batching": "HuggingFace with continuous batching over a paged cache instead of static batches",
    "engine": "vLLM instead of HuggingFace with continuous batching",
    "total": "vLLM with {} instead of HuggingFace on single requests",
}

_MEMORY, _WASTE = column("kv_bytes_used_mean"), column("waste_pct")


def engines(tables: Tables) -> Plot:
    pairs = equal_work(tables)
    both = [pairs[PLACES].assign(knobs=pairs[knobs]) for knobs in ("vllm_knobs", "hf_knobs")]
    rows = tables.measured.merge(pd.concat(both).drop_duplicates()).dropna(subset=RATE)
    keys = [place_name for place_name in PLACES if rows[place_name].nunique() > 1] or ["workload"]
    settings = labels(rows, tables.knobs)
    return plot_bars(
        rows.assign(
            panel=rows[keys].agg(" · ".join, axis=1), label=rows["engine"] + " · " + settings, name=rows["engine"]
        ),
        tables,
        [RATE],
        marks(rows["engine"].sort_values(ascending=False)),
        title=f"{column(RATE).label} of vLLM and HuggingFace for equal work",
        panels_are="combinations of device, model and workload",
    )


def equal_work(tables: Tables) -> pd.DataFrame:
    """The pairs of cells of the two engines that did equal work, the fastest vLLM cell and HuggingFace cell first."""
    pairs = tables.need("engines")
    rows = pairs[pairs["comparable"].eq(True)]
    require(rows, "no cells of the two engines did equal work; the table gives the reasons")
    return rows.sort_values(["vllm_output_tokens_per_s", "hf_output_tokens_per_s"], ascending=False)


def fastest_of_both(report: Report) -> Iterator[Block]:
    fastest = with_cell_ids(equal_work(report.tables).drop_duplicates(PLACES))
    fastest = fastest.rename(columns=lambda name: name.removeprefix("improvement_"))
    yield from some(
        [_finding(row, _pair(report, row), _kv_memory(report.tables, row)) for row in records(fastest)], "engines"
    )


def _kv_memory(tables: Tables, row: Mapping[str, Any]) -> str:
    """The KV memory of the running requests of both engines, if both are known."""
    cells = [row["cell_id"], row["baseline_cell_id"]]
    used, empty = (of.reindex(cells).tolist() for of in (tables.value(_MEMORY.name), tables.waste_pct))
    if pd.isna(used).any():
        return ""
    of_vllm, of_hf = map(_MEMORY.text, used)
    held = (
        ""
        if pd.isna(empty).any()
        else ", beside {} and {} of empty slots of all that is held for them".format(*map(_WASTE.text, empty))
    )
    return f"; the tokens of running requests take {of_vllm} of keys and values against {of_hf}{held}"


def steps_between(report: Report) -> Iterator[Block]:
    """Steps from single HuggingFace requests to vLLM at the highest max-num-seqs of a device, model and workload."""
    factors = report.tables.need("engine_decomposition")
    most = factors.groupby(PLACES)["vllm_max_num_seqs"].transform("max")
    rows = factors[(factors["vllm_max_num_seqs"] == most) & factors["ratio"].notna() & factors["factor"].isin(STEPS)]
    rows = rows.drop_duplicates([*PLACES, "factor"])
    findings = [
        _finding(row, STEPS[row["factor"]].format(setting_phrase("max_num_seqs", row["vllm_max_num_seqs"])))
        for row in records(rows)
    ]
    yield from some(findings, "engine_decomposition", 4 * MOST_SENTENCES)


def _pair(report: Report, row: Mapping[str, Any]) -> str:
    vllm, hf = (report.setting_of(row, row[name]) for name in ("vllm_knobs", "hf_knobs"))
    return f"vLLM ({vllm}) against HuggingFace {row['hf_kind']} ({hf})"


def _finding(row: Mapping[str, Any], words: str, memory: str = "") -> Finding:
    text = f"{place(row)}: {words}: {with_interval(row, 'ratio', ' times the output tokens/s')}"
    if row["verdict"] == NOT_DECIDED:
        alone = row["ratio_low"] > 1 or row["ratio_high"] < 1
        text += f", {NOT_DECIDED}{' together with all other comparisons' * alone}"
    ties = " Other continuous batching is not shown to be slower." if isinstance(row.get("ties"), str) else ""
    return ratio_finding(row["ratio"], row["verdict"], f"{text}{memory}.{ties}")


SUBJECT = Subject(
    id="engines",
    title="HuggingFace against vLLM",
    asked="HuggingFace|engine|TGI",
    parts=[
        FigurePart(engines),
        TablePart(
            "engines",
            {
                **PLACE_HEADINGS,
                "vllm_knobs": "vLLM settings",
                "hf_engine": "HuggingFace engine",
                "hf_knobs": "HuggingFace settings",
                "vllm_output_tokens_per_s": "vLLM",
                "hf_output_tokens_per_s": "HuggingFace",
                "improvement_ratio": "vLLM over HuggingFace (95 % interval)",
                "scope": "Interval covers",
                "reason": "Why not comparable",
            },
            "Every vLLM cell against every HuggingFace cell",
        ),
        claims_on("engines"),
    ],
    findings=[fastest_of_both, steps_between],
)
