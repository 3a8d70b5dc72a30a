"""vLLM against HuggingFace at equal work, and how much of the gain is batching and how much the engine.

    python -m workflow_scripts.analyse.engines --study config/studies/demo.yaml \
        --cells results/demo/tables/cells.parquet --out results/demo/tables/engines.parquet \
        --decomposition-out results/demo/tables/engine_decomposition.parquet

docs/tables.md documents every column of both tables.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from workflow_scripts.analyse.command import Output, run, table_parser
from workflow_scripts.analyse.repeats import Record, cell_summary, records
from workflow_scripts.analyse.statistics import LogSamples, interval_text, ratio_interval
from workflow_scripts.analyse.tables import FLAG, INTEGER, NUMBER, TEXT, table_schema
from workflow_scripts.study import Study

METRIC = "output_tokens_per_s"
PLACE = ("study", "source", "gpu", "model", "workload")
BATCH_1, STATIC_BATCH, CONTINUOUS = "batch 1", "static batch", "continuous batching"

SCHEMA = table_schema(
    "engines",
    {
        "study": TEXT,
        "source": TEXT,
        "gpu": TEXT,
        "model": TEXT,
        "workload": TEXT,
        "vllm_knobs": TEXT,
        "vllm_max_num_seqs": INTEGER,
        "vllm_repeats": INTEGER,
        "vllm_output_tokens_per_s": NUMBER,
        "hf_engine": TEXT,
        "hf_knobs": TEXT,
        "hf_kind": TEXT,
        "hf_batch_size": INTEGER,
        "hf_repeats": INTEGER,
        "hf_output_tokens_per_s": NUMBER,
        "comparable": FLAG,
        "reason": TEXT,
        "improvement_ratio": NUMBER,
        "improvement_ratio_low": NUMBER,
        "improvement_ratio_high": NUMBER,
        "explanation": TEXT,
    },
)
DECOMPOSITION_SCHEMA = table_schema(
    "engine_decomposition",
    {
        "study": TEXT,
        "source": TEXT,
        "gpu": TEXT,
        "model": TEXT,
        "workload": TEXT,
        "vllm_knobs": TEXT,
        "vllm_max_num_seqs": INTEGER,
        "factor": TEXT,
        "numerator": TEXT,
        "denominator": TEXT,
        "comparable": FLAG,
        "reason": TEXT,
        "ratio": NUMBER,
        "ratio_low": NUMBER,
        "ratio_high": NUMBER,
        "share_pct": NUMBER,
        "explanation": TEXT,
    },
)

# Steps from single requests on HuggingFace to vLLM; their product is the last row.
STATIC_BATCHING, CONTINUOUS_BATCHING, ENGINE, TOTAL = "static_batching", "continuous_batching", "engine", "total"

NOT_MEASURED = -1
_WORK = ("num_requests", "prompt_tokens", "output_tokens")
# Settings that change what is computed, or on how many devices, with the values that change nothing.
_UNEQUAL = {
    "knob_quantization": (),
    "knob_kv_cache_dtype": ("auto", "bfloat16", "float16"),
    "knob_tensor_parallel_size": (1,),
    "knob_pipeline_parallel_size": (1,),
}


def engine_tables(cells: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables `engines` (every vLLM cell against every HuggingFace cell of its device, model and workload) and
    `engine_decomposition` (the gain of vLLM cells that batch over single requests on HuggingFace, split into steps).

    Cells are compared that did equal work: the same requests with the same numbers of tokens, in every repeat.
    """
    rows = _work_summary(cells)
    return _improvements(rows), _decompositions(rows)


def _work_summary(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells with the work of a repeat: the least of it in the columns of _WORK, the most in `*_most`."""
    most = {f"{name}_most": cells[name] for name in _WORK}
    observed = dict.fromkeys(_WORK, "min") | dict.fromkeys(most, "max")
    columns = dict.fromkeys([*cells.columns, *_UNEQUAL, "knob_batch_size", "knob_cache_implementation"])
    return cell_summary(cells.reindex(columns=list(columns)).assign(**most), METRIC, observed)


def why_not_comparable(a: Record, b: Record) -> str | None:
    """What makes the work of two cells unequal; None if nothing does."""
    reasons: list[str] = []
    for name in _WORK:
        ends = [a[name], a[f"{name}_most"], b[name], b[f"{name}_most"]]
        if any(pd.isna(end) for end in ends):
            reasons.append(f"{name} is not known")
        elif a[name] != a[f"{name}_most"] or b[name] != b[f"{name}_most"]:
            reasons.append(f"{name} differs between repeats")
        elif a[name] != b[name]:
            reasons.append(f"{name} differs: {a[name]} against {b[name]}")
    for knob, equal in _UNEQUAL.items():
        reasons += [
            f"{knob.removeprefix('knob_')} {row[knob]} on one side"
            for row in (a, b)
            if not pd.isna(row[knob]) and row[knob] not in equal
        ]
    return "; ".join(reasons) or None


def _compared(rows: pd.DataFrame, a: list[int], b: list[int]) -> list[Record]:
    """For each pair of row numbers whether the two did equal work, and if so the ratio of their rates.

    NOT_MEASURED stands for a cell that there is not.
    """
    cells = records(rows)
    ends = ratio_interval(LogSamples.of(rows.iloc[a]), LogSamples.of(rows.iloc[b]))
    compared: list[Record] = []
    for row_a, row_b, *interval in zip(a, b, *ends, strict=True):
        known = NOT_MEASURED not in (row_a, row_b)
        reason = why_not_comparable(cells[row_a], cells[row_b]) if known else "one of the two was not measured"
        ratio, low, high = (math.nan if reason else float(end) for end in interval)
        compared.append(
            {"comparable": reason is None, "reason": reason, "ratio": ratio, "ratio_low": low, "ratio_high": high}
        )
    return compared


def _improvements(rows: pd.DataFrame) -> pd.DataFrame:
    numbered = rows[[*PLACE, "engine"]].assign(row=np.arange(len(rows)))
    is_vllm = numbered["engine"] == "vllm"
    pairs = numbered[is_vllm].merge(numbered[~is_vllm], on=list(PLACE), suffixes=("_a", "_b"))
    a, b = pairs["row_a"].tolist(), pairs["row_b"].tolist()
    cells = records(rows)
    table = [
        _improvement(cells[row_a], cells[row_b], found)
        for row_a, row_b, found in zip(a, b, _compared(rows, a, b), strict=True)
    ]
    return pd.DataFrame(table, columns=list(SCHEMA.columns))


def _improvement(vllm: Record, hf: Record, found: Record) -> Record:
    kind = _kind(hf)
    row: Record = {name: vllm[name] for name in PLACE}
    return row | {
        "vllm_knobs": vllm["knobs"],
        "vllm_max_num_seqs": vllm["max_concurrency_allowed"],
        "vllm_repeats": vllm["repeats"],
        "vllm_output_tokens_per_s": math.exp(vllm["log_mean"]),
        "hf_engine": hf["engine"],
        "hf_knobs": hf["knobs"],
        "hf_kind": kind,
        "hf_batch_size": hf["knob_batch_size"],
        "hf_repeats": hf["repeats"],
        "hf_output_tokens_per_s": math.exp(hf["log_mean"]),
        "comparable": found["comparable"],
        "reason": found["reason"],
        "improvement_ratio": found["ratio"],
        "improvement_ratio_low": found["ratio_low"],
        "improvement_ratio_high": found["ratio_high"],
        "explanation": _improvement_text(vllm, hf, kind, found),
    }


def _kind(hf: Record) -> str:
    if hf["engine"] == "hf-continuous":
        return CONTINUOUS
    return BATCH_1 if hf["knob_batch_size"] == 1 else STATIC_BATCH


def _improvement_text(vllm: Record, hf: Record, kind: str, found: Record) -> str:
    seqs = vllm["max_concurrency_allowed"]
    subject = f"vLLM with at most {seqs} sequence{'s' * (seqs > 1)} against HuggingFace {kind} ({hf['knobs']})"
    if not found["comparable"]:
        return f"{subject}: not comparable, {found['reason']}."
    ratio = interval_text(found["ratio"], found["ratio_low"], found["ratio_high"], "x")
    if kind == CONTINUOUS:
        what = f"Both take in requests as others end, over a paged cache; vLLM has up to {seqs} at a time."
    elif kind == STATIC_BATCH:
        batch = f"HuggingFace has {hf['knob_batch_size']:g} at a time, each batch until its longest ends"
        what = f"{batch}; vLLM takes in requests as others end, up to {seqs} at a time."
    elif seqs > 1:
        what = f"HuggingFace has one request at a time, vLLM up to {seqs}, so part of it is batching."
    else:
        what = "Both have one request at a time, so no batching is in it."
    return f"{subject}: {ratio} the output tokens/s. {what}"


def _decompositions(rows: pd.DataFrame) -> pd.DataFrame:
    steps: list[Record] = []
    for _, place in rows.reset_index(names="row").groupby(list(PLACE), sort=False):
        one, batch, continuous = _references(place)
        if any(row != NOT_MEASURED for row in (one, batch, continuous)):
            for vllm in place.loc[(place["engine"] == "vllm") & (place["max_concurrency_allowed"] > 1), "row"]:
                steps += [
                    {"vllm": vllm, "factor": STATIC_BATCHING, "a": batch, "b": one},
                    {"vllm": vllm, "factor": CONTINUOUS_BATCHING, "a": continuous, "b": batch},
                    {"vllm": vllm, "factor": ENGINE, "a": vllm, "b": continuous},
                    {"vllm": vllm, "factor": TOTAL, "a": vllm, "b": one},
                ]
    cells = records(rows)
    found = _compared(rows, [step["a"] for step in steps], [step["b"] for step in steps])
    totals = {step["vllm"]: result for step, result in zip(steps, found, strict=True) if step["factor"] == TOTAL}
    table = [_step_row(cells, step, result, totals[step["vllm"]]) for step, result in zip(steps, found, strict=True)]
    return pd.DataFrame(table, columns=list(DECOMPOSITION_SCHEMA.columns))


def _references(place: pd.DataFrame) -> tuple[int, int, int]:
    """Rows of HuggingFace on single requests, in the fastest static batch (with the same kind of cache), and in the
    fastest continuous batching.
    """
    static = place[place["engine"] == "hf-static"]
    batch = _fastest(static[static["knob_batch_size"] > 1])
    single = static[static["knob_batch_size"] == 1]
    if batch != NOT_MEASURED:
        cache = place.loc[place["row"] == batch, "knob_cache_implementation"].item()
        single = single[single["knob_cache_implementation"] == cache]
    return _fastest(single), batch, _fastest(place[place["engine"] == "hf-continuous"])


def _fastest(cells: pd.DataFrame) -> int:
    return NOT_MEASURED if cells.empty else int(cells.sort_values("log_mean", kind="stable")["row"].iloc[-1])


def _step_row(cells: list[Record], step: Record, found: Record, total: Record) -> Record:
    vllm = cells[step["vllm"]]
    row: Record = {name: vllm[name] for name in PLACE}
    share_pct = _share_pct(found, total)
    return (
        row
        | {"vllm_knobs": vllm["knobs"], "vllm_max_num_seqs": vllm["max_concurrency_allowed"], "factor": step["factor"]}
        | {"numerator": _name(cells, step["a"]), "denominator": _name(cells, step["b"])}
        | found
        | {"share_pct": share_pct, "explanation": _step_text(step["factor"], vllm, found, share_pct)}
    )


def _name(cells: list[Record], row: int) -> str | None:
    return None if row == NOT_MEASURED else f"{cells[row]['engine']}/{cells[row]['knobs']}"


def _share_pct(found: Record, total: Record) -> float:
    """Part of the total that a step is, as logarithms, so that the steps add up to 100 %; a loss is negative.

    NaN where the total is not shown to be a gain.
    """
    return 100 * math.log(found["ratio"]) / math.log(total["ratio"]) if total["ratio_low"] > 1 else math.nan


def _step_text(factor: str, vllm: Record, found: Record, share_pct: float) -> str:
    seqs = vllm["max_concurrency_allowed"]
    subject = {
        STATIC_BATCHING: "HuggingFace in static batches instead of on single requests",
        CONTINUOUS_BATCHING: "HuggingFace with continuous batching over a paged cache instead of static batches",
        ENGINE: f"vLLM with at most {seqs} sequences instead of HuggingFace with continuous batching",
        TOTAL: f"vLLM with at most {seqs} sequences instead of HuggingFace on single requests",
    }[factor]
    if not found["comparable"]:
        return f"{subject}: not comparable, {found['reason']}."
    ratio = interval_text(found["ratio"], found["ratio_low"], found["ratio_high"], "x")
    has_share = factor != TOTAL and not math.isnan(share_pct)
    return f"{subject}: {ratio}" + (f", {share_pct:.0f} % of the gain on a logarithmic scale." if has_share else ".")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the engines and engine_decomposition tables of a study."""
    parser = table_parser("engines", "vLLM against HuggingFace at equal work.")
    parser.add_argument(
        "--decomposition-out",
        type=Path,
        required=True,
        help="engine_decomposition.parquet: the gain split into batching and engine; .csv is written beside it",
    )

    def make(args: argparse.Namespace, _: Study, cells: pd.DataFrame) -> list[Output]:
        improvements, decomposition = engine_tables(cells)
        return [
            (args.out, "engines", improvements),
            (args.decomposition_out, "engine_decomposition", decomposition),
        ]

    return run(parser, argv, make)


if __name__ == "__main__":
    raise SystemExit(main())
