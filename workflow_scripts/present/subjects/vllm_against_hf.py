"""HuggingFace against vLLM at equal work, and the steps that make up the difference."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from workflow_scripts.common.wording import interval_text
from workflow_scripts.present.bar_plot import plot_bars
from workflow_scripts.present.blocks import Block, Finding
from workflow_scripts.present.plot import Plot
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import RATE, MissingError, Tables, records
from workflow_scripts.present.sentences import MOST_SENTENCES, place, some
from workflow_scripts.present.series import PLACES
from workflow_scripts.present.style import marks
from workflow_scripts.present.subject import PLACE, FigurePart, Subject, TablePart
from workflow_scripts.present.subjects.claims_retested import claims_on
from workflow_scripts.study.setting_words import settings_in_words

# Step from single HuggingFace requests to vLLM -> what it replaces.
STEPS: Mapping[str, str] = {
    "static_batching": "HuggingFace in static batches instead of on single requests",
    "continuous_batching": "HuggingFace with continuous batching over a paged cache instead of static batches",
    "engine": "vLLM instead of HuggingFace with continuous batching",
    "total": "vLLM instead of HuggingFace on single requests",
}


def engines(tables: Tables) -> Plot:
    pairs = equal_work(tables)
    cells = tables.measured
    compared = pd.concat(
        [pairs[[*PLACES, knobs]].set_axis([*PLACES, "knobs"], axis=1) for knobs in ("vllm_knobs", "hf_knobs")]
    ).drop_duplicates()
    rows = cells.merge(compared, on=[*PLACES, "knobs"])
    rows = rows[rows["gpu"].notna() & rows[RATE].notna()]
    told = [place_name for place_name in PLACES if rows[place_name].nunique() > 1] or ["workload"]
    differing = [knob for knob in tables.knobs if rows.groupby("engine")[knob].nunique(dropna=False).max() > 1]
    return plot_bars(
        rows.assign(
            panel=rows[told].agg(" · ".join, axis=1),
            label=rows["engine"] + " · " + pd.Series(settings_in_words(rows, differing), index=rows.index),
            name=rows["engine"],
        ),
        {RATE: ""},
        marks(rows["engine"].sort_values(ascending=False)),
        title="Output tokens per second of vLLM and HuggingFace for equal work",
        panels_are="combinations of device, model and workload",
    )


def equal_work(tables: Tables) -> pd.DataFrame:
    """The pairs of cells of the two engines that did equal work, the fastest vLLM cell and HuggingFace cell first."""
    pairs = tables.need("engines")
    rows = pairs[pairs["comparable"].eq(True)]
    if rows.empty:
        raise MissingError("no cells of the two engines did equal work; the table gives the reasons")
    return rows.sort_values(["vllm_output_tokens_per_s", "hf_output_tokens_per_s"], ascending=False)


def fastest_of_both(report: Report) -> Iterator[Block]:
    fastest = equal_work(report.tables).drop_duplicates(PLACES)
    yield from some([_pair(report, row) for row in records(fastest)], "engines")


def steps_between(report: Report) -> Iterator[Block]:
    """Steps from single HuggingFace requests to vLLM at the highest max-num-seqs of a device, model and workload."""
    factors = report.tables.need("engine_decomposition")
    most = factors.groupby(PLACES)["vllm_max_num_seqs"].transform("max")
    rows = factors[(factors["vllm_max_num_seqs"] == most) & factors["ratio"].notna()]
    rows = rows.drop_duplicates([*PLACES, "factor"])
    yield from some([_step(row) for row in records(rows)], "engine_decomposition", 4 * MOST_SENTENCES)


def _pair(report: Report, row: Mapping[str, Any]) -> Finding:
    low, high = (row[f"improvement_ratio_{end}"] for end in ("low", "high"))
    ratio = interval_text(row["improvement_ratio"], low, high, " times the output tokens/s", row["scope"])
    vllm, hf = (report.settings.get(row[name], row[name]) for name in ("vllm_knobs", "hf_knobs"))
    words = f"vLLM ({vllm}) against HuggingFace {row['hf_kind']} ({hf}): {ratio} ({place(row)})"
    return Finding(f"{row['improvement_ratio']:.3g} times", words)


def _step(row: Mapping[str, Any]) -> Finding:
    ratio = interval_text(row["ratio"], row["ratio_low"], row["ratio_high"], " times the output tokens/s", row["scope"])
    share = f", {row['share_pct']:.0f} % of the gain on a logarithmic scale" if row["factor"] != "total" else ""
    share = share if pd.notna(row["share_pct"]) else ""
    ties = " Other continuous batching is not shown to be slower." if isinstance(row["ties"], str) else ""
    words = f"{STEPS[row['factor']]}: {ratio}{share}.{ties} ({place(row)})"
    return Finding(f"{row['ratio']:.3g} times", words)


SUBJECT = Subject(
    id="engines",
    title="HuggingFace against vLLM",
    parts=[
        FigurePart(engines),
        TablePart(
            "engines",
            {
                **PLACE,
                "vllm_knobs": "vLLM settings",
                "hf_engine": "HuggingFace engine",
                "hf_knobs": "HuggingFace settings",
                "vllm_output_tokens_per_s": "vLLM output tokens per s",
                "hf_output_tokens_per_s": "HuggingFace output tokens per s",
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
