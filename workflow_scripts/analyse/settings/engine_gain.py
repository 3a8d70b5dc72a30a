"""Compare vLLM with HuggingFace at equal work, and split the gain into batching and engine.

    kvsweep table-engines --study config/studies/demo.yaml \\
        --cells results/demo/tables/cells.parquet --out results/demo/tables/engines.parquet \\
        --decomposition-out results/demo/tables/engine_decomposition.parquet

docs/tables.md documents every column of both tables.
"""

import math
from argparse import Namespace

import numpy as np
import pandas as pd

from workflow_scripts.analyse.intervals.further_starts import ONE_LOOK, Looks
from workflow_scripts.analyse.intervals.repeats import PLACE, RATE, Row, cell_ids, cell_summary, records
from workflow_scripts.analyse.intervals.statistics import (
    ANOTHER_RUN,
    FASTER,
    SCOPE_MEANING,
    Samples,
    compare,
    directions,
    is_higher,
)
from workflow_scripts.analyse.settings.knob_pairs import WORK, looks_at
from workflow_scripts.analyse.table_command import table_command
from workflow_scripts.analyse.tables import FLAG, INTEGER, NUMBER, TEXT, table_schema
from workflow_scripts.engines.hf_engines import HF_CONTINUOUS, HF_STATIC
from workflow_scripts.engines.registry import every_knob
from workflow_scripts.engines.vllm_engines import VLLM
from workflow_scripts.study.study import Study

BATCH_1, STATIC_BATCH, CONTINUOUS = "batch 1", "static batch", "continuous batching"

_VERDICT_MEANING = "`faster` or `slower` with an error of at most 5 % for all rows together, else `not decided`"

SCHEMA = table_schema(
    "engines",
    "Every vLLM cell beside every HuggingFace cell of the same device, model and workload. They are "
    "comparable with equal work ([how](statistics.md#equal-work-of-engines)) and the same lock.",
    TEXT("study source gpu model workload", "as in `cells`"),
    TEXT("vllm_knobs", "settings of vLLM"),
    INTEGER("vllm_max_num_seqs", "sequences that may run at once"),
    INTEGER("vllm_repeats", "valid repeats of all starts"),
    NUMBER("vllm_output_tokens_per_s", "geometric mean over the starts"),
    TEXT("hf_engine hf_knobs", "engine and settings of HuggingFace"),
    TEXT("hf_kind", "`batch 1`, `static batch` or `continuous batching`"),
    INTEGER("hf_batch_size", "null for continuous batching"),
    INTEGER("hf_repeats", "valid repeats of all starts"),
    NUMBER("hf_output_tokens_per_s", "geometric mean over the starts"),
    FLAG("comparable", "equal work and environment"),
    TEXT("reason", "why not"),
    NUMBER("improvement_ratio improvement_ratio_low improvement_ratio_high", "vLLM's rate over HuggingFace's"),
    NUMBER("improvement_ratio_again_low improvement_ratio_again_high", ANOTHER_RUN),
    TEXT("scope", SCOPE_MEANING),
    TEXT("verdict", _VERDICT_MEANING),
)
DECOMPOSITION_SCHEMA = table_schema(
    "engine_decomposition",
    "The gain of each batching vLLM cell over HuggingFace with single requests, as a product: "
    "`total` = `static_batching` x `continuous_batching` x `engine`. HuggingFace's continuous "
    "batching also has a paged cache, so paging is part of that step.",
    TEXT("study source gpu model workload", "as in `cells`"),
    TEXT("vllm_knobs", "settings of vLLM"),
    INTEGER("vllm_max_num_seqs", "as in `engines`"),
    TEXT("factor", "`static_batching`, `continuous_batching`, `engine` or `total`"),
    TEXT("numerator denominator", "the two cells, `engine/knobs`; null if missing"),
    FLAG("comparable", "as in `engines`"),
    TEXT("reason", "as in `engines`"),
    NUMBER("ratio ratio_low ratio_high", "the step; null if not comparable"),
    TEXT("scope", SCOPE_MEANING),
    TEXT("verdict", _VERDICT_MEANING),
    NUMBER("share_pct", "share of the total's logarithm; negative for a loss; null if no gain is shown"),
    TEXT("ties", "of steps with continuous batching: `knobs` of others not shown to be slower, comma-separated"),
)

# Steps from single requests on HuggingFace to vLLM; the last one, the total, is their product.
STATIC_BATCHING, CONTINUOUS_BATCHING, ENGINE, TOTAL = "static_batching", "continuous_batching", "engine", "total"

NOT_MEASURED = -1
# Knobs that change what is computed, in how many steps or on how many devices, with their neutral values.
_UNEQUAL = {f"knob_{name}": knob.neutral for name, knob in every_knob().items() if knob.neutral is not None}


def engine_tables(cells: pd.DataFrame, looks: Looks = ONE_LOOK) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables `engines` and `engine_decomposition`; each has the error of the study's present plan of `looks`.

    Compared cells did equal work: the same requests with the same numbers of tokens, in every repeat.
    """
    # The work of a repeat: the minimum over repeats in the columns of WORK, the maximum in `*_most`.
    most = {f"{name}_most": cells[name] for name in WORK}
    observed = dict.fromkeys(WORK, "min") | dict.fromkeys(most, "max")
    columns = dict.fromkeys([*cells.columns, *_UNEQUAL, "knob_batch_size", "knob_cache_implementation"])
    rows, samples = cell_summary(cells.reindex(columns=list(columns)).assign(**most), RATE, observed)
    return _improvements(rows, samples, looks), _decompositions(rows, samples, looks)


def with_cell_ids(engines: pd.DataFrame) -> pd.DataFrame:
    """The engines table with the ids of its two cells."""
    engines = engines.assign(vllm_engine=VLLM.name)
    return engines.assign(
        cell_id=cell_ids(engines, engine="vllm_engine", knobs="vllm_knobs"),
        baseline_cell_id=cell_ids(engines, engine="hf_engine", knobs="hf_knobs"),
    )


def _cells(rows: pd.DataFrame) -> list[Row]:
    """Cells with their `work`, if it is known and equal in every repeat, and the `faults` that forbid a comparison."""
    cells = records(rows)
    for cell in cells:
        ends = {name: (cell[name], cell[f"{name}_most"]) for name in WORK}
        unknown = [name for name, (least, most) in ends.items() if pd.isna(least) or pd.isna(most)]
        varying = [name for name, (least, most) in ends.items() if name not in unknown and least != most]
        unequal = [knob for knob, equal in _UNEQUAL.items() if not pd.isna(cell[knob]) and cell[knob] not in equal]
        cell["work"] = {name: least for name, (least, _) in ends.items() if name not in (*unknown, *varying)}
        cell["faults"] = [
            *(f"{name} is not known" for name in unknown),
            *(f"{name} differs between repeats" for name in varying),
            *(f"{knob.removeprefix('knob_')} {cell[knob]} on one side" for knob in unequal),
        ]
    return cells


def _why_not_comparable(a: Row, b: Row) -> str | None:
    """What makes the work or the environment of two cells unequal; None if nothing does."""
    differing = [name for name, amount in a["work"].items() if amount != b["work"].get(name, amount)]
    amounts = [f"{name} differs: {a['work'][name]} against {b['work'][name]}" for name in differing]
    locks = {str(cell["lock_sha256"])[:12] for cell in (a, b)}
    environment = [f"the environments differ: lock {' against '.join(sorted(locks))}"] if len(locks) > 1 else []
    processors = {str(cell["processor"]) for cell in (a, b)}
    environment += [f"the processors differ: {' against '.join(sorted(processors))}"] if len(processors) > 1 else []
    return "; ".join(dict.fromkeys([*environment, *a["faults"], *b["faults"], *amounts])) or None


def _compared(
    rows: pd.DataFrame, samples: Samples, cells: list[Row], a: list[int], b: list[int], looks: Looks
) -> pd.DataFrame:
    """For each pair of row numbers, or NOT_MEASURED, whether both did equal work, and if so the ratio of the rates."""
    reasons = [
        _why_not_comparable(cells[one], cells[other])
        if NOT_MEASURED not in (one, other)
        else "one of the two was not measured"
        for one, other in zip(a, b, strict=True)
    ]
    sample = rows["sample"].to_numpy(dtype=int)
    found = compare(samples, sample[a], sample[b])
    comparable = np.array([reason is None for reason in reasons], dtype=bool)
    shown = pd.DataFrame(found.columns()).drop(columns="starts").assign(verdict=None)
    if comparable.any():
        of_comparable = compare(samples, sample[a][comparable], sample[b][comparable])
        shown.loc[comparable, "verdict"] = directions(of_comparable, looks.of_plan)
    shown.loc[~comparable] = None
    return shown.assign(comparable=comparable, reason=pd.Series(reasons, dtype=object))


def _improvements(rows: pd.DataFrame, samples: Samples, looks: Looks) -> pd.DataFrame:
    numbered = rows[[*PLACE, "engine"]].assign(row=np.arange(len(rows)))
    is_vllm, is_hf = numbered["engine"] == VLLM.name, numbered["engine"].isin([HF_STATIC.name, HF_CONTINUOUS.name])
    pairs = numbered[is_vllm].merge(numbered[is_hf], on=list(PLACE), suffixes=("_a", "_b"))
    a, b = pairs["row_a"].tolist(), pairs["row_b"].tolist()
    cells = _cells(rows)
    vllm, hf = rows.iloc[a].reset_index(), rows.iloc[b].reset_index()
    found = _compared(rows, samples, cells, a, b, looks)
    is_kind = [hf["engine"].eq(HF_CONTINUOUS.name).to_numpy(), hf["knob_batch_size"].eq(1).fillna(False).to_numpy(bool)]
    return pd.DataFrame(
        {name: vllm[name] for name in PLACE}
        | {
            "vllm_knobs": vllm["knobs"],
            "vllm_max_num_seqs": vllm["max_concurrency_allowed"],
            "vllm_repeats": vllm["repeats"],
            "vllm_output_tokens_per_s": np.exp(vllm["log_mean"]),
            "hf_engine": hf["engine"],
            "hf_knobs": hf["knobs"],
            "hf_kind": np.select(is_kind, [CONTINUOUS, BATCH_1], STATIC_BATCH),
            "hf_batch_size": hf["knob_batch_size"],
            "hf_repeats": hf["repeats"],
            "hf_output_tokens_per_s": np.exp(hf["log_mean"]),
        }
    ).join(found.rename(columns=lambda name: f"improvement_{name}" if name.startswith("ratio") else name))


def _decompositions(rows: pd.DataFrame, samples: Samples, looks: Looks) -> pd.DataFrame:
    steps: list[Row] = []
    for _, place in rows.reset_index(names="row").groupby(list(PLACE), sort=False):
        continuous, ties = _fastest(place[place["engine"] == HF_CONTINUOUS.name], samples)
        vllm = place[(place["engine"] == VLLM.name) & (place["max_concurrency_allowed"] > 1)]
        static = place[place["engine"] == HF_STATIC.name]
        references = {n: _static_references(static, n) for n in vllm["max_concurrency_allowed"].unique()}
        for row, sequences in zip(vllm["row"], vllm["max_concurrency_allowed"], strict=True):
            one, batch = references[sequences]
            if any(cell != NOT_MEASURED for cell in (one, batch, continuous)):
                steps += [
                    {"last": row, "factor": STATIC_BATCHING, "a": batch, "b": one},
                    {"last": row, "factor": CONTINUOUS_BATCHING, "a": continuous, "b": batch, "ties": ties},
                    {"last": row, "factor": ENGINE, "a": row, "b": continuous, "ties": ties},
                    {"last": row, "factor": TOTAL, "a": row, "b": one},
                ]
    cells = _cells(rows)
    a, b = ([step[side] for step in steps] for side in "ab")
    found = records(_compared(rows, samples, cells, a, b, looks))
    totals = {step["last"]: result for step, result in zip(steps, found, strict=True) if step["factor"] == TOTAL}
    table = [_step_row(cells, step, result, totals[step["last"]]) for step, result in zip(steps, found, strict=True)]
    return pd.DataFrame(table, columns=list(DECOMPOSITION_SCHEMA.columns))


def _static_references(static: pd.DataFrame, sequences: float) -> tuple[int, int]:
    """Rows of HuggingFace with single requests and with the static batch that is closest to `sequences`.

    A type of cache that was also measured with single requests comes first, then the size. Speed does not decide,
    because the order of two equally fast cells varies from run to run.
    """
    static = static.assign(cache=static["knob_cache_implementation"].fillna("").astype(str))
    sizes = static["knob_batch_size"].astype(float)
    single, batched = static[sizes == 1], static[sizes > 1]
    order = batched.assign(
        unpaired=~batched["cache"].isin(single["cache"]),
        too_many=sizes[batched.index] > sequences,
        apart=(sizes[batched.index] - sequences).abs(),
    ).sort_values(["unpaired", "too_many", "apart", "cache", "knobs"])
    if not order.empty:
        single = single[single["cache"] == order["cache"].iloc[0]]
    return _first(single.sort_values(["cache", "knobs"])), _first(order)


def _first(rows: pd.DataFrame) -> int:
    return NOT_MEASURED if rows.empty else int(rows["row"].iloc[0])


def _fastest(cells: pd.DataFrame, samples: Samples) -> tuple[int, list[int]]:
    """The row of the fastest cell, and the rows of those that are not shown to be slower."""
    if cells.empty:
        return NOT_MEASURED, []
    cells = cells.sort_values(["log_mean", "knobs"], ascending=[False, True])
    sample = cells["sample"].to_numpy(dtype=int)
    return _first(cells), cells["row"][1:][~is_higher(compare(samples, sample[:1], sample[1:]))].tolist()


def _step_row(cells: list[Row], step: Row, found: Row, total: Row) -> Row:
    vllm = cells[step["last"]]
    row: Row = {name: vllm[name] for name in PLACE}
    row |= {"vllm_knobs": vllm["knobs"], "vllm_max_num_seqs": vllm["max_concurrency_allowed"], "factor": step["factor"]}
    row |= {"numerator": _name(cells, step["a"]), "denominator": _name(cells, step["b"])} | found
    row["ties"] = ", ".join(cells[tie]["knobs"] for tie in step.get("ties", ())) or None
    if total["verdict"] == FASTER:  # the shares of the steps add up to 100 %
        row["share_pct"] = 100 * math.log(found["ratio"]) / math.log(total["ratio"])
    return row


def _name(cells: list[Row], row: int) -> str | None:
    return None if row == NOT_MEASURED else f"{cells[row]['engine']}/{cells[row]['knobs']}"


@table_command("engines", decomposition="engine_decomposition")
def main(args: Namespace, study: Study, cells: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    return engine_tables(cells, looks_at(study.starts, cells))
