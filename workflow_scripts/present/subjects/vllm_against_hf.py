"""HuggingFace against vLLM at equal work, and the steps that make up the difference."""

from collections.abc import Iterator

import pandas as pd

from workflow_scripts.present.blocks import Block, Finding
from workflow_scripts.present.plot import Plot
from workflow_scripts.present.ratio_plot import plot_ratios
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import MissingError, Tables, records
from workflow_scripts.present.sentences import MOST_SENTENCES, place, some
from workflow_scripts.present.style import marks
from workflow_scripts.present.subject import Caption, FigurePart, Subject, TablePart


def engines(tables: Tables) -> Plot:
    """Ratio of vLLM's output tokens per second to HuggingFace's, for equal work."""
    pairs = _equal_work(tables.need("engines"))
    pairs = pairs.rename(columns=lambda name: name.replace("improvement_", ""))
    rows = pairs.assign(
        label=pairs["hf_engine"] + " · " + pairs["hf_knobs"], panel=_place(pairs), name=_max_num_seqs(pairs)
    )
    return plot_ratios(
        rows,
        marks(_max_num_seqs(pairs.sort_values("vllm_max_num_seqs"))),
        title="Speed-up of vLLM over HuggingFace: output tokens per second for equal work",
        panels_are="combinations of device, model and workload",
        repeats=("vllm_repeats", "hf_repeats"),
    )


def engine_decomposition(tables: Tables) -> Plot:
    """The speed-up of vLLM over single requests on HuggingFace, as a product of steps."""
    factors = _equal_work(tables.need("engine_decomposition"))
    rows = factors.assign(
        label=factors["factor"].str.replace("_", " "), panel=_place(factors), name=_max_num_seqs(factors)
    )
    return plot_ratios(
        rows,
        marks(_max_num_seqs(factors.sort_values("vllm_max_num_seqs"))),
        title="Steps that make up the speed-up of vLLM over single requests on HuggingFace",
        panels_are="combinations of device, model and workload",
    )


def _equal_work(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows[rows["comparable"].eq(True)]
    if rows.empty:
        raise MissingError("no cells of the two engines did equal work; the table gives the reasons")
    return rows


def _place(rows: pd.DataFrame) -> pd.Series:
    return rows[["gpu", "model", "workload"]].agg(" · ".join, axis=1)


def _max_num_seqs(rows: pd.DataFrame) -> pd.Series:
    return "vLLM, max-num-seqs " + rows["vllm_max_num_seqs"].map("{:g}".format)


def fastest_of_both(report: Report) -> Iterator[Block]:
    """The fastest vLLM cell compared with the fastest HuggingFace cell, for each device, model and workload."""
    pairs = _equal_work(report.tables.need("engines"))
    fastest = pairs.sort_values(["vllm_output_tokens_per_s", "hf_output_tokens_per_s"], ascending=False)
    rows = records(fastest.drop_duplicates(["gpu", "model", "workload"]))
    yield some(
        [Finding(f"{row['improvement_ratio']:.3g} times", f"{row['explanation']} ({place(row)})") for row in rows],
        "engines",
    )


def steps_between(report: Report) -> Iterator[Block]:
    """Steps from single HuggingFace requests to vLLM at the highest max-num-seqs of a device, model and workload."""
    factors = report.tables.need("engine_decomposition")
    most = factors.groupby(["gpu", "model", "workload"])["vllm_max_num_seqs"].transform("max")
    rows = factors[factors["vllm_max_num_seqs"] == most]
    rows = rows.drop_duplicates(["gpu", "model", "workload", "factor"])
    yield some(
        [
            Finding(str(row["factor"]).replace("_", " "), f"{row['explanation']} ({place(row)})")
            for row in records(rows)
        ],
        "engine_decomposition",
        4 * MOST_SENTENCES,
    )


SUBJECT = Subject(
    id="engines",
    title="HuggingFace against vLLM",
    lead="Both engines at equal work, and the steps that make up the difference.",
    parts=[
        FigurePart(
            engines,
            {"engines": ["improvement_ratio", "comparable"]},
            Caption(
                shows="Output tokens per second of vLLM divided by those of HuggingFace, for cells that served the "
                "same requests with the same numbers of tokens. Each label is a HuggingFace engine with its settings. "
                "The dots below it are vLLM cells, and the line through a dot is the 95 % interval of the ratio.",
                reading="To the right of 1, vLLM is faster. Against single requests (batch 1) the ratio is large, "
                "because it includes the gain from batching. Against the largest batches, what remains is the gain "
                "from the engine and its scheduling.",
                not_shown="No single number says how much faster vLLM is. A ratio against single requests and a ratio "
                "against batches cannot be compared with each other.",
            ),
        ),
        FigurePart(
            engine_decomposition,
            {"engine_decomposition": ["factor", "ratio", "comparable"]},
            Caption(
                shows="The speed-up of vLLM over single requests on HuggingFace, split into steps: static batches "
                "instead of single requests, continuous batching instead of static batches, and vLLM instead of "
                "HuggingFace's continuous batching. The total is their product. Dots are vLLM cells, and the lines "
                "through them are 95 % intervals.",
                reading="The axis is logarithmic, so the distances of the steps from 1 add up to that of the total. A "
                "step to the left of 1 loses speed.",
                not_shown="A step is what changed between two cells, not the gain from one idea. HuggingFace's "
                "continuous batching also keeps its cache in pages, so that step includes paging. A step without a "
                "dot could not be measured at equal work.",
            ),
        ),
        steps_between,
        TablePart(
            "engines",
            {
                "gpu": "Device",
                "model": "Model",
                "workload": "Workload",
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
    ],
    findings=[fastest_of_both],
)
