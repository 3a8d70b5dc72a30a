"""Compare vLLM with HuggingFace at equal work, and split the gain into batching and engine.

docs/tables.md documents every column of both tables.
"""

import numpy as np
import pandas as pd

from workflow_scripts.engines.hf.knobs import HF_CONTINUOUS, HF_STATIC
from workflow_scripts.engines.registry import every_knob
from workflow_scripts.engines.vllm.knobs import VLLM
from workflow_scripts.questions.knobs.pairs import WORK, columns_of, looks_at
from workflow_scripts.statistics.comparisons import ANOTHER_RUN, FASTER, SCOPE_MEANING, compare, directions, is_higher
from workflow_scripts.statistics.further_starts import ONE_LOOK, Looks
from workflow_scripts.statistics.samples import Samples
from workflow_scripts.statistics.summary import PLACE, RATE, Row, cell_ids, cell_summary, records
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import FLAG, INTEGER, NUMBER, TEXT, table_schema

BATCH_1, STATIC_BATCH, CONTINUOUS = "batch 1", "static batch", "continuous batching"

_VERDICT_MEANING = (
    "`faster` or `slower` with an error of at most 5 % for all pairs of `engines` and `engine_decomposition` together, "
    "else `not decided`"
)

SCHEMA = table_schema(
    "engines",
    "Every vLLM cell beside every HuggingFace cell of the same device, model and workload. They are "
    "comparable with equal work and the same lock.",
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
    """The tables `engines` and `engine_decomposition`; together they have the error of the study's present plan of
    `looks`, in which a pair that is in both counts once.

    Compared cells did equal work: the same requests with the same numbers of tokens, in every repeat.
    """
    # The work of a repeat: the minimum over repeats in the columns of WORK, the maximum in `*_most`.
    most = {f"{name}_most": cells[name] for name in WORK}
    observed = dict.fromkeys(WORK, "min") | dict.fromkeys(most, "max")
    columns = dict.fromkeys([*cells.columns, *_UNEQUAL, "knob_batch_size", "knob_cache_implementation"])
    rows, samples = cell_summary(cells.reindex(columns=list(columns)).assign(**most), RATE, observed)
    pairs, steps = _pairs(rows), _steps(rows, samples)
    together = pd.concat([pairs[["a", "b"]], steps[["a", "b"]]]).drop_duplicates(ignore_index=True)
    compared = together.join(_compared(rows, samples, together["a"], together["b"], looks))
    pairs, steps = (of.merge(compared, how="left", on=["a", "b"]) for of in (pairs, steps))
    pairs = pairs.rename(columns=lambda name: f"improvement_{name}" if name.startswith("ratio") else name)
    return pairs[[*SCHEMA.columns, "at_least", "starts"]], _decompositions(rows, steps)


def with_cell_ids(engines: pd.DataFrame) -> pd.DataFrame:
    """The engines table with the ids of its two cells."""
    engines = engines.assign(vllm_engine=VLLM.name)
    return engines.assign(
        cell_id=cell_ids(engines, engine="vllm_engine", knobs="vllm_knobs"),
        baseline_cell_id=cell_ids(engines, engine="hf_engine", knobs="hf_knobs"),
    )


def _cells(rows: pd.DataFrame) -> list[Row]:
    """Cells with their `work`, as far as it is known and equal in every repeat, and the `faults` that forbid a
    comparison."""
    cells = records(rows)
    for cell in cells:
        cell["work"], cell["faults"] = {}, []
        for name in WORK:
            least, most = cell[name], cell[f"{name}_most"]
            if pd.isna(least):
                cell["faults"].append(f"{name} is not known")
            elif least != most:
                cell["faults"].append(f"{name} differs between repeats")
            else:
                cell["work"][name] = least
        unequal = [knob for knob, equal in _UNEQUAL.items() if not pd.isna(cell[knob]) and cell[knob] not in equal]
        cell["faults"] += [f"{knob.removeprefix('knob_')} {cell[knob]} on one side" for knob in unequal]
    return cells


def _why_not_comparable(a: Row, b: Row) -> str | None:
    """What makes the work or the environment of two cells unequal; None if nothing does."""
    locks = {str(cell["lock_sha256"])[:12] for cell in (a, b)}
    environment = [f"the environments differ: lock {' against '.join(sorted(locks))}"] if len(locks) > 1 else []
    processors = {str(cell["processor"]) for cell in (a, b)}
    environment += [f"the processors differ: {' against '.join(sorted(processors))}"] if len(processors) > 1 else []
    amounts = [
        f"{name} differs: {amount} against {b['work'][name]}"
        for name, amount in a["work"].items()
        if amount != b["work"].get(name, amount)
    ]
    return "; ".join(dict.fromkeys([*environment, *a["faults"], *b["faults"], *amounts])) or None


def _compared(rows: pd.DataFrame, samples: Samples, a: pd.Series, b: pd.Series, looks: Looks) -> pd.DataFrame:
    """For each pair of row numbers, or NOT_MEASURED, whether both did equal work, and if so the ratio of the rates."""
    cells = _cells(rows)
    reasons = [
        "one of the two was not measured"
        if NOT_MEASURED in pair
        else _why_not_comparable(*(cells[row] for row in pair))
        for pair in zip(a, b, strict=True)
    ]
    why_not = pd.Series(reasons, dtype=object)
    comparable = why_not.isna()
    sample = rows["sample"].to_numpy(dtype=int)
    comparisons = compare(samples, *(sample[of[comparable].to_numpy(dtype=int)] for of in (a, b)))
    shown = pd.DataFrame(columns_of(comparisons), index=why_not.index[comparable])
    shown = shown.assign(verdict=directions(comparisons, looks.of_plan)).reindex(why_not.index)
    return shown.assign(comparable=comparable, reason=why_not)


def _pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """Each vLLM cell `a` beside each HuggingFace cell `b` of its place."""
    cells = rows.assign(
        row=np.arange(len(rows)),
        output_tokens_per_s=np.exp(rows["log_mean"]),
        max_num_seqs=rows["max_concurrency_allowed"],
        batch_size=rows["knob_batch_size"],
    ).set_index(list(PLACE))
    vllm = cells[cells["engine"] == VLLM.name].add_prefix("vllm_").reset_index()
    hf = cells[cells["engine"].isin([HF_STATIC.name, HF_CONTINUOUS.name])].add_prefix("hf_").reset_index()
    pairs = vllm.merge(hf, on=list(PLACE)).rename(columns={"vllm_row": "a", "hf_row": "b"})
    is_kind = [pairs["hf_engine"].eq(HF_CONTINUOUS.name), pairs["hf_batch_size"].eq(1)]
    kind = np.select([of.to_numpy(dtype=bool, na_value=False) for of in is_kind], [CONTINUOUS, BATCH_1], STATIC_BATCH)
    return pairs.assign(hf_kind=kind)


def _steps(rows: pd.DataFrame, samples: Samples) -> pd.DataFrame:
    """The steps to each batching vLLM cell `last`, from cell `b` to cell `a`."""
    steps: list[tuple[int, str, int, int, str | None]] = []
    for _, place in rows.reset_index(names="row").groupby(list(PLACE), sort=False):
        continuous, ties = _fastest(place[place["engine"] == HF_CONTINUOUS.name], samples)
        vllm = place[(place["engine"] == VLLM.name) & (place["max_concurrency_allowed"] > 1)]
        static = place[place["engine"] == HF_STATIC.name]
        references = {n: _static_references(static, n) for n in vllm["max_concurrency_allowed"].unique()}
        for row, sequences in zip(vllm["row"], vllm["max_concurrency_allowed"], strict=True):
            single, batch = references[sequences]
            if {single, batch, continuous} != {NOT_MEASURED}:
                steps += [
                    (row, STATIC_BATCHING, batch, single, None),
                    (row, CONTINUOUS_BATCHING, continuous, batch, ties),
                    (row, ENGINE, row, continuous, ties),
                    (row, TOTAL, row, single, None),
                ]
    return pd.DataFrame(steps, columns=["last", "factor", "a", "b", "ties"])


def _decompositions(rows: pd.DataFrame, factors: pd.DataFrame) -> pd.DataFrame:
    vllm = rows.iloc[factors["last"].astype(int)].reset_index(drop=True)
    names = (rows["engine"] + "/" + rows["knobs"]).to_dict()
    # The shares of the steps add up to 100 %.
    total = factors[factors["factor"] == TOTAL].set_index("last").loc[factors["last"]].reset_index()
    share_pct = 100 * np.log(factors["ratio"].astype(float)) / np.log(total["ratio"].astype(float))
    return factors.assign(
        **{name: vllm[name] for name in PLACE},
        vllm_knobs=vllm["knobs"],
        vllm_max_num_seqs=vllm["max_concurrency_allowed"],
        numerator=factors["a"].map(names),
        denominator=factors["b"].map(names),
        share_pct=share_pct.where(total["verdict"] == FASTER),
    )[list(DECOMPOSITION_SCHEMA.columns)]


def _static_references(static: pd.DataFrame, sequences: float) -> tuple[int, int]:
    """Rows of HuggingFace with single requests and with the static batch that is closest to `sequences`.

    A type of cache that was also measured with single requests comes first, then the size. Speed does not decide,
    because the order of two equally fast cells varies from run to run.
    """
    static = static.assign(
        cache=static["knob_cache_implementation"].fillna("").astype(str), size=static["knob_batch_size"].astype(float)
    ).sort_values(["cache", "knobs"])
    single, batched = static[static["size"] == 1], static[static["size"] > 1]
    order = batched.assign(
        unpaired=~batched["cache"].isin(single["cache"]),
        too_many=batched["size"] > sequences,
        apart=(batched["size"] - sequences).abs(),
    ).sort_values(["unpaired", "too_many", "apart"], kind="stable")
    if not order.empty:
        single = single[single["cache"] == order["cache"].iloc[0]]
    return _first(single), _first(order)


def _first(rows: pd.DataFrame) -> int:
    return NOT_MEASURED if rows.empty else int(rows["row"].iloc[0])


def _fastest(cells: pd.DataFrame, samples: Samples) -> tuple[int, str | None]:
    """The row of the fastest cell, and the knobs of those that are not shown to be slower."""
    cells = cells.sort_values(["log_mean", "knobs"], ascending=[False, True])
    sample = cells["sample"].to_numpy(dtype=int)
    ties = cells["knobs"][1:][~is_higher(compare(samples, sample[:1], sample[1:]))] if len(cells) else cells["knobs"]
    return _first(cells), ", ".join(ties) or None


@makes(SCHEMA, DECOMPOSITION_SCHEMA)
def make_tables(inputs: TableInputs) -> tuple[pd.DataFrame, pd.DataFrame]:
    engines, decomposition = engine_tables(inputs.cells, looks_at(inputs.study.starts, inputs.cells))
    return engines[list(SCHEMA.columns)], decomposition
