"""Compare the predicted and measured values of every cell, with the error.

One row per cell and quantity. docs/plan.md says how predictions are made, docs/tables.md documents every column.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from workflow_scripts.catalog.gpus_and_models import resolve
from workflow_scripts.catalog.published import Published
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.parquet import read_parquet
from workflow_scripts.engines.vllm.knobs import VLLM
from workflow_scripts.study.study import Study
from workflow_scripts.tables.summary import RAN, RATE
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import FLAG, NUMBER, TEXT, TableError, table_schema

# A cell is flagged only if its rate is outside its band: latencies of single requests depend on the order within a
# step, which no band covers. Whether they are in it is said too.
QUANTITIES = (
    *(RATE, "total_tokens_per_s", "ttft_s_p50", "tpot_s_p50", "preemptions", "recomputed_tokens"),
    *("prefix_cache_hit_rate", "running_while_others_wait"),
)

# (engine, model, device, max-num-seqs) -> tokens per s.
Rates = Mapping[tuple[str, str, str, float], float]

# Shares of the predicted time, in the order in which the page names them.
SHARES = ("weights_share", "kv_share", "operations_share", "fixed_share", "launch_share")
# What else the plan says of a cell's rate.
_BESIDE = ("scaled_output_tokens_per_s", "published")
# Where prompt tokens go in the prefix cache; their sum is `prompt_tokens`.
_PROMPT_TOKENS = (
    *("cached_tokens", "never_seen_tokens", "shorter_than_block_tokens", "last_token_tokens", "evicted_tokens"),
    "not_retained_tokens",
)

SCHEMA = table_schema(
    "predictions",
    f"Predicted and measured {', '.join(f'`{name}`' for name in QUANTITIES)}: one row per cell and quantity "
    "([how](plan.md)). The last four follow from the schedule and have no band.",
    TEXT("cell_id gpu engine model workload knobs", "as in `cells`"),
    TEXT("quantity", "a column of `cells`"),
    NUMBER(
        "predicted low high", "the prediction and its band; without a band, only the end that the data sheet allows"
    ),
    NUMBER("measured", "value in `intervals`"),
    NUMBER("error_pct", "predicted over measured, minus 1"),
    NUMBER("band_pct", "`high` over `predicted`, minus 1; null without a band"),
    TEXT("band_group", "the public runs whose band it is, if not that of the calibration"),
    FLAG("in_band", "whether `measured` is between `low` and `high`; null without one of the three"),
    FLAG(
        "flagged",
        "measured output tokens/s are outside the band, or prediction and engine disagree on "
        "`infeasible`; without a band, only above what the data sheet allows",
    ),
    TEXT("why", "`outside the band`, `ran, predicted infeasible` or `infeasible, not predicted`"),
    TEXT(
        "speed_source",
        "source of the costs of steps: `calibrated` (on this device), `project file`, `measured rates` or `data sheet`",
    ),
    TEXT("calibrated_at calibrated_of", "when that calibration was measured (UTC), and its engine and model"),
    TEXT("bound_by", "predicted limit of the running sequences, as in `knobs`"),
    NUMBER("running_peak_predicted running_peak_measured", "sequences that run at once"),
    NUMBER(
        _PROMPT_TOKENS,
        "predicted prompt tokens by what the prefix cache finds of them ([words](hits.md)); only the first where no "
        "prompts share tokens, or they have more than a million blocks",
    ),
    NUMBER(
        "scaled_output_tokens_per_s",
        "predicted from the study's other devices, scaled by the measured rates; geometric mean of several",
    ),
    NUMBER(
        SHARES,
        "predicted shares of time: reading weights, reading KV, further operations, fixed costs, and waiting for "
        "launches and arrival",
    ),
    NUMBER("published", "published tokens/s for this model, device and max-num-seqs"),
    TEXT("source", "`predicted`"),
)


def predictions_table(
    cells: pd.DataFrame, intervals: pd.DataFrame, plan: pd.DataFrame, published: Rates | None = None
) -> pd.DataFrame:
    """The table for all cells of the plan (rows of `predict.plan`), from the cells table and the values of cells."""
    rates = published or {}
    points = zip(plan["engine"], plan["model"], plan["gpu"], plan["max_num_seqs"], strict=True)
    cached = plan["cached_tokens"] / plan["prompt_tokens"].where(plan["prompt_tokens"] > 0)
    plan = plan.assign(prefix_cache_hit_rate=cached, published=[rates.get(point, np.nan) for point in points])
    measured = intervals.drop_duplicates(["cell_id", "measure"]).pivot(
        index="cell_id", columns="measure", values="value"
    )
    measured = measured.reindex(columns=[*QUANTITIES, "running_peak"]).astype(float)
    # A cell whose first start failed has run if a later one did.
    ran_first = cells.sort_values("outcome", key=lambda outcomes: ~outcomes.isin(RAN), kind="stable")
    became = ran_first.groupby("cell_id")[["outcome"]].first()
    table = plan.join(measured.add_prefix("measured_"), on="cell_id").join(became, on="cell_id")
    parts = [_of_quantity(table, quantity) for quantity in QUANTITIES]
    whole = pd.concat(parts).assign(source="predicted")
    order = pd.Index(cells["cell_id"].unique()).get_indexer
    return whole.sort_values("cell_id", key=order, kind="stable")[list(SCHEMA.columns)]


def _of_quantity(table: pd.DataFrame, quantity: str) -> pd.DataFrame:
    names = [quantity, f"{quantity}_low", f"{quantity}_high"]
    predicted, low, high = (column.astype(float) for _, column in table.reindex(columns=names).items())
    measured = table[f"measured_{quantity}"].astype(float)
    why = pd.Series(pd.NA, index=table.index, dtype="string")
    flagged = pd.Series(False, index=table.index, dtype="boolean")
    if quantity == RATE:
        ran, refused = (table["outcome"].isin(outcomes) for outcomes in (RAN, ["infeasible"]))
        foreseen = table["infeasible"].notna()
        why = why.mask((measured < low) | (measured > high), "outside the band")
        why = why.mask(refused & ~foreseen, "infeasible, not predicted")
        why = why.mask(ran & foreseen, "ran, predicted infeasible")
        flagged = flagged.mask(low.isna() & measured.notna()).mask(why.notna(), True)
    named = ["cell_id", "gpu", "engine", "model", "workload", "knobs", "speed_source", "bound_by"]
    named += ["band_group", "calibrated_at", "calibrated_of"]
    return table.reindex(columns=named).assign(
        quantity=quantity,
        predicted=predicted,
        low=low,
        high=high,
        measured=measured,
        error_pct=100 * (predicted / measured.where(measured > 0) - 1),
        band_pct=(100 * (high / predicted - 1)).where(low.notna()),
        in_band=measured.between(low, high).astype("boolean").mask(measured.isna() | low.isna() | high.isna()),
        flagged=flagged,
        why=why,
        running_peak_predicted=table["running_peak"],
        running_peak_measured=table["measured_running_peak"],
        **table.reindex(columns=[*_BESIDE, *_PROMPT_TOKENS, *SHARES]).astype(float),
    )


def published_rates(study: Study, published: Published) -> Rates:
    """What the claims that the study names state for vLLM by model, device and max-num-seqs.

    The sources do not say which tokens they count, nor of which lengths. A name that may mean several devices counts
    for each.

    Raises:
        TableError: a table is no sweep over max-num-seqs, or names a device that is not in the catalogue.
    """
    rates: dict[tuple[str, str, str, float], float] = {}
    for claim in map(published.claim, study.claims):
        if claim.model is not None:
            try:
                for row in published.table(claim):
                    seqs, rate = float(row["max_num_seqs"]), float(row["throughput_tok_s"])
                    rates |= {(VLLM.name, claim.model, gpu.name, seqs): rate for gpu in resolve(row["gpu"])}
            except (ValueError, KeyError) as e:
                words = " ".join(str(e).split())
                raise TableError(f"{claim.table}: no published sweep over max-num-seqs: {words}") from None
    return rates


@makes(SCHEMA)
def make_tables(inputs: TableInputs) -> pd.DataFrame:
    plan = _of_plan(inputs.paths.plan / "plan.parquet")
    published = published_rates(inputs.study, Published(inputs.published))
    # An imported run of a planned cell counts as one.
    return predictions_table(inputs.cells, inputs.table("intervals"), plan, published)


def _of_plan(path: Path) -> pd.DataFrame:
    try:
        return read_parquet(path)
    except (OSError, InputError) as e:
        raise TableError(f"{path}: not a plan: {e}") from None
