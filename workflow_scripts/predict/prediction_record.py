"""The record of a predicted cell; docs/plan.md says what its fields hold."""

from dataclasses import astuple, dataclass, fields
from itertools import zip_longest
from typing import Literal

# What keeps more sequences from running at once, in the terms of the analysis of measured cells.
PROMPTS, SEQUENCES, KV_BLOCKS, TOKEN_BUDGET = "prompts", "sequences", "kv_blocks", "token_budget"


@dataclass(frozen=True)
class Band:
    """A predicted value and the ends of its band; an unknown end is None."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Prediction:
    """What one cell should do; a value that is not predicted is None. `unknown` says why there is no prediction,
    `infeasible` why the engine would refuse the cell."""

    cell_id: str
    gpu: str
    engine: str
    model: str
    workload: str
    knobs: str
    infeasible: str | None = None
    unknown: str | None = None
    lengths: str | None = None
    bound_by: str | None = None
    num_blocks: int | None = None
    kv_cache_tokens: float | None = None
    max_concurrency: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    num_requests: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    steps: int | None = None
    running_peak: int | None = None
    running_mean: float | None = None
    running_while_others_wait: float | None = None
    waiting_peak: int | None = None
    blocks_peak: int | None = None
    preemptions: int | None = None
    cached_tokens: int | None = None
    never_seen_tokens: int | None = None
    shorter_than_block_tokens: int | None = None
    last_token_tokens: int | None = None
    evicted_tokens: int | None = None
    not_retained_tokens: int | None = None
    recomputed_tokens: int | None = None
    evicted_blocks: int | None = None
    graph_sizes: str | None = None
    beyond_graphs_steps_share: float | None = None
    beyond_graphs_time_share: float | None = None
    output_tokens_per_s: Band | None = None
    total_tokens_per_s: Band | None = None
    wall_s: Band | None = None
    ttft_s_p50: Band | None = None
    ttft_s_p99: Band | None = None
    tpot_s_p50: Band | None = None
    tpot_s_p99: Band | None = None
    scaled_output_tokens_per_s: float | None = None
    weights_share: float | None = None
    kv_share: float | None = None
    operations_share: float | None = None
    fixed_share: float | None = None
    launch_share: float | None = None
    start_s: float | None = None
    warmup_s: float | None = None
    stop_s: float | None = None
    cell_s: float | None = None
    gpus: int | None = None
    speed_source: str | None = None
    calibrated_at: str | None = None
    calibrated_of: str | None = None
    error_pct: float | None = None
    ttft_error_pct: float | None = None
    kv_error_pct: float | None = None
    band_group: str | None = None
    how: str | None = None
    source: Literal["predicted"] = "predicted"

    def row(self) -> dict[str, str | float | None]:
        """The record as a row of the plan: a value with a band takes three columns."""
        row: dict[str, str | float | None] = {}
        for name, columns in _COLUMNS.items():
            value = getattr(self, name)
            row |= zip_longest(columns, astuple(value) if isinstance(value, Band) else [value])
        return row


_COLUMNS = {
    field.name: (field.name, f"{field.name}_low", f"{field.name}_high") if field.type == Band | None else (field.name,)
    for field in fields(Prediction)
}
FIELDS = tuple(column for columns in _COLUMNS.values() for column in columns)
TEXTS = tuple(field.name for field in fields(Prediction) if field.type in (str, str | None, Literal["predicted"]))
