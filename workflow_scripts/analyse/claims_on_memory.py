"""Rules for claims on KV memory: what layouts waste, how many blocks fit.

Waste in layouts that no engine had is computed from the measured lengths and times of requests.
"""

from collections.abc import Iterator

import pandas as pd

from workflow_scripts.analyse.capacity import DISAGREES_PCT, GIB
from workflow_scripts.analyse.capacity import PUBLISHED as PUBLISHED_ROW
from workflow_scripts.analyse.claims_on_devices import CLAIMS_STUDY, SWEEP_STUDY
from workflow_scripts.analyse.evidence import (
    COMPUTED,
    CONTRADICTED,
    ON_GPUS,
    PUBLISHED,
    SUPPORTED,
    Evidence,
    Finding,
    Setting,
    measured,
    rule,
)
from workflow_scripts.analyse.repeats import Row, counted, records
from workflow_scripts.catalog.published import Claim, plain
from workflow_scripts.engines.block_sizes import default_block_size
from workflow_scripts.physics import formulas

ON_AN_L4 = Setting(("L4",), model="opt-125m")
L4_STUDY = f"{CLAIMS_STUDY} (sweep utilization)"

# Percentages of published examples are rounded to a tenth; a percentage stated as a rule holds within a few points.
ROUNDED_POINTS, SAME_POINTS = 0.05, 5.0

# vLLM's default block size on a GPU.
_BLOCK_SIZE = default_block_size("cuda")

# Numbers of blocks lie on a line if none deviates from it by more than this.
ON_A_LINE_PCT = 1.0

# The overhead from two points agrees with the prediction within this; it is a small difference of large numbers.
OVERHEAD_PCT = 25.0


# --- waste -----------------------------------------------------------------------------------------------------------


_PLACE = ["study", "gpu", "model", "workload", "max_model_len_effective"]


def _waste(evidence: Evidence, layout: str, block_size: int | None = None) -> list[Row]:
    """For one layout, means over the cells with the same device, model, workload and longest request, and their ids."""
    waste, cells = evidence.tables["waste"], evidence.tables["cells"]
    of_layout = (waste["layout"] == layout) & waste["layer_kind"].isna()
    rows = waste[of_layout & (waste["block_size"].eq(block_size) if block_size else True)]
    rows = rows.merge(cells[["cell_id", *_PLACE]].drop_duplicates("cell_id"), on="cell_id")
    means = rows.groupby(_PLACE, sort=False).agg(
        waste_pct=("waste_pct", "mean"),
        slots_held_mean=("slots_held_mean", "mean"),
        wasted_slots_per_sequence=("wasted_slots_per_sequence", "max"),
        ids=("cell_id", lambda ids: tuple(dict.fromkeys(ids))),
    )
    return records(means.reset_index())


def _of_requests(row: Row, text: str, says: str | None) -> Finding:
    """A finding computed from measured lengths and times of requests; on a CPU it decides nothing."""
    scope = f"{row['gpu']}, {row['model']}, {row['workload']}, max_model_len {row['max_model_len_effective']}"
    bears = ON_GPUS.covers(row["gpu"], row["model"])
    return Finding(f"{scope}: {text}", COMPUTED, scope, ("waste", *row["ids"]), says if bears else None, bears)


@rule("empty-slots-per-sequence", test=f"{SWEEP_STUDY} (sweep max-num-seqs; table waste)")
def empty_slots(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """The maximum of empty slots for any length, by arithmetic; a measured mean above it would contradict."""
    block_size, most = int(claim.value("block_size")), claim.quantity("empty_slots_per_sequence").max
    emptiest = max(-tokens % block_size for tokens in range(1, block_size + 1))
    text = f"Only a sequence's last block has empty slots: at most {emptiest} of {block_size}, if it holds one token."
    says = SUPPORTED if emptiest == most else CONTRADICTED
    yield Finding(text, COMPUTED, f"blocks of {block_size} tokens", ("formulas.internal_fragmentation",), says)
    for row in _waste(evidence, "block_size_whatif", block_size):
        found = row["wasted_slots_per_sequence"]
        text = f"With the measured requests, {found:.3g} slots of a sequence would be empty on average."
        yield _of_requests(row, text, CONTRADICTED if found > emptiest else None)


@rule("contiguous-allocation-waste", test=f"{SWEEP_STUDY} (sweep max-num-seqs; table waste)")
def contiguous_waste(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Waste with max_model_len slots per request, for each measured workload; a value outside the range contradicts."""
    low, high = claim.range("waste")
    text = (
        f"Reserving R slots for requests of n tokens wastes 1 - n/R: {low:g} to {high:g} % if requests hold"
        f" {100 - high:g} to {100 - low:g} % of the reserved slots, and another share for other lengths."
    )
    yield Finding(text, COMPUTED, "any device", ("formulas.contiguous_preallocation_waste",))
    for row in _waste(evidence, "contiguous_max_model_len"):
        found = row["waste_pct"]
        text = f"With max_model_len slots for each measured request, {found:.1f} % would be wasted."
        says = SUPPORTED if low <= found <= high else CONTRADICTED
        yield _of_requests(row, text, says)


@rule("contiguous-allocation-example", test="arithmetic decides it")
def contiguous_example(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """The example's own numbers, put into the formula."""
    used, reserved = claim.values("tokens_used"), claim.value("tokens_reserved_per_request")
    waste_pct = 100 * formulas.contiguous_preallocation_waste(used, reserved)
    slots = len(used) * reserved
    text = f"{plain(sum(used))} of {plain(slots)} slots are used, so {waste_pct:g} % are wasted."
    says = SUPPORTED if abs(waste_pct - claim.value("waste")) <= ROUNDED_POINTS else CONTRADICTED
    yield Finding(text, COMPUTED, "the example", ("formulas.contiguous_preallocation_waste",), says)


@rule("waste-of-512-slots", test=f"{CLAIMS_STUDY} (sweep block-size-by-length; table waste)")
def waste_of_reserved_slots(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """The length that gives the published waste, and what the measured requests would waste in as many slots."""
    reserved, published = claim.value("tokens_reserved_per_request"), claim.value("waste")
    text = (
        f"By arithmetic a request wastes {published:g} % of {plain(reserved)} slots if it holds"
        f" {reserved * (1 - published / 100):.0f} tokens; the claim says only that the request is short."
    )
    yield Finding(text, COMPUTED, "any device", ("formulas.contiguous_preallocation_waste",))
    for row in _waste(evidence, "contiguous_max_model_len"):
        used = (1 - row["waste_pct"] / 100) * row["max_model_len_effective"] / reserved
        if used < 1:
            waste_pct = 100 * (1 - used)
            text = f"With {plain(reserved)} slots for each measured request, {waste_pct:.1f} % would be wasted."
            yield _of_requests(row, text, SUPPORTED if abs(waste_pct - published) <= SAME_POINTS else None)


@rule("memory-used-by-paging", test=f"{SWEEP_STUDY} (sweep max-num-seqs; table waste)")
def memory_used(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Share of the slots that hold a token in both layouts, for the measured requests."""
    reserved, paged = claim.value("kv_memory_used_preallocated"), claim.value("kv_memory_used_paged")
    held = formulas.expected_slots_wasted_per_sequence(_BLOCK_SIZE) / (100 / paged - 1)
    text = (
        f"Blocks of {_BLOCK_SIZE} are {paged:g} % full if requests hold {held:.3g} tokens on average, and memory that "
        f"is reserved beforehand is {reserved:g} % full if requests use that share of it, so both depend on the "
        "lengths."
    )
    yield Finding(text, COMPUTED, "any device", ("formulas.expected_slots_wasted_per_sequence",))

    def as_said(in_blocks: float, in_reservations: float) -> str:
        alike = abs(in_blocks - paged) <= SAME_POINTS and abs(in_reservations - reserved) <= SAME_POINTS
        return SUPPORTED if alike else CONTRADICTED

    for row, contiguous in _both_layouts(evidence):
        used, used_contiguous = 100 - row["waste_pct"], 100 - contiguous["waste_pct"]
        text = (
            f"With the measured requests, {used:.1f} % of the slots in blocks of {_BLOCK_SIZE} would hold a"
            f" token, and {used_contiguous:.1f} % of max_model_len slots for each."
        )
        yield _of_requests(row, text, as_said(used, used_contiguous))
    for row in _in_the_same_pool(evidence):
        if pd.isna(row["waste_pct"]) or pd.isna(row["waste_pct_contiguous"]):
            continue
        used, used_contiguous = 100 - row["waste_pct"], 100 - row["waste_pct_contiguous"]
        text = (
            f"In a KV cache of {row['pool_tokens']:,.0f} tokens, tokens filled {used:.1f} % of the slots that requests"
            f" held in blocks of {row['block_size_effective']:.0f}, and {used_contiguous:.1f} % where each reserved"
            f" {row['max_model_len_effective']:.0f}."
        )
        yield _of_pool(row, text, as_said(used, used_contiguous))


@rule("concurrency-gained-by-paging", test=f"{SWEEP_STUDY} (sweep max-num-seqs; table waste)")
def concurrency_gained(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Ratio of the contiguous layout's slots to those of blocks: the factor by which more requests fit in memory."""
    low, high = claim.range("concurrency_ratio")
    of_memory = evidence.published.claim("memory-used-by-paging")
    used = of_memory.value("kv_memory_used_paged"), of_memory.value("kv_memory_used_preallocated")
    text = (
        f"The same text gives {used[0]:g} % and {used[1]:g} % of memory in use, which is a ratio of "
        f"{used[0] / used[1]:.3g}."
    )
    yield Finding(text, PUBLISHED, "as published", ("claims.yaml",))
    for row, contiguous in _both_layouts(evidence):
        ratio = contiguous["slots_held_mean"] / row["slots_held_mean"]
        text = (
            f"The measured requests would take {ratio:.3g} times as many slots with max_model_len for each as in"
            f" blocks of {_BLOCK_SIZE}."
        )
        yield _of_requests(row, text, SUPPORTED if low <= ratio <= high else CONTRADICTED)
    for row in _in_the_same_pool(evidence):
        users, users_contiguous = row["running_while_others_wait"], row["running_while_others_wait_contiguous"]
        ratio = users / users_contiguous
        text = (
            f"In a KV cache of {row['pool_tokens']:,.0f} tokens, {users:.3g} requests ran at once in blocks of"
            f" {row['block_size_effective']:.0f} while others waited, and {users_contiguous:.3g} where each reserved"
            f" {row['max_model_len_effective']:.0f} tokens: {ratio:.3g} times."
        )
        yield _of_pool(row, text, SUPPORTED if low <= ratio <= high else CONTRADICTED)


def _in_the_same_pool(evidence: Evidence) -> list[Row]:
    """Cells with blocks, each beside the one that reserves max_model_len slots per request in an equally large pool.

    Requests wait in both. Values are means over repeats; those of the other cell end in `_contiguous`.
    """
    cells = counted(evidence.tables["cells"])
    if "knob_num_gpu_blocks_override" not in cells:
        return []
    waste = evidence.tables["waste"]
    own = waste[waste["layout"].eq("paged") & waste["layer_kind"].isna()]
    cells = cells[cells["knob_num_gpu_blocks_override"].notna() & cells["running_while_others_wait"].notna()]
    sizes = ["num_gpu_blocks", "block_size_effective", "running_while_others_wait"]
    rows = cells.groupby(["cell_id", "source", *_PLACE])[sizes].mean().reset_index()
    rows = rows.assign(
        pool_tokens=(rows["num_gpu_blocks"] - 1) * rows["block_size_effective"],
        waste_pct=rows["cell_id"].map(own.groupby("cell_id")["waste_pct"].mean()),
    )
    is_whole = rows["block_size_effective"] >= rows["max_model_len_effective"]
    both = rows[~is_whole].merge(rows[is_whole], on=["source", *_PLACE, "pool_tokens"], suffixes=("", "_contiguous"))
    return records(both)


def _of_pool(row: Row, text: str, says: str) -> Finding:
    ids = (row["cell_id"], row["cell_id_contiguous"])
    return measured(ON_GPUS.covers(row["gpu"], row["model"]), row, text, says, ids)


def _both_layouts(evidence: Evidence) -> Iterator[tuple[Row, Row]]:
    """Blocks, and max_model_len slots per request, for each device, model and workload that has both."""
    reserved = {tuple(row[name] for name in _PLACE): row for row in _waste(evidence, "contiguous_max_model_len")}
    for row in _waste(evidence, "block_size_whatif", _BLOCK_SIZE):
        if contiguous := reserved.get(tuple(row[name] for name in _PLACE)):
            yield row, contiguous


# --- blocks ----------------------------------------------------------------------------------------------------------


@rule("blocks-linear-in-utilization", test=L4_STUDY)
def blocks_linear(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Supported by a line whose intercept is about the predicted overhead; contradicted by a different line."""
    observed = [(q.at["gpu_memory_utilization"], q.value) for q in claim.quantities if q.value is not None]
    (low, fewer), (high, more) = min(observed), max(observed)
    text = (
        f"{plain(more)} over {plain(fewer)} blocks are {more / fewer:.4g} times, the utilizations {high / low:.4g}"
        " times. Two points always lie on a line, so they alone prove nothing."
    )
    yield Finding(text, PUBLISHED, "L4, opt-125m, as published", (str(claim.table),))
    capacity = evidence.tables["capacity"]
    published = capacity[(capacity["source"] == PUBLISHED_ROW) & capacity["implied_overhead_bytes"].notna()]
    for row in records(published.drop_duplicates("implied_overhead_bytes")):
        overhead, predicted = row["implied_overhead_bytes"], row["predicted_overhead_bytes"]
        text = (
            "By the formula the number of blocks is a straight line with a negative intercept: minus weights and "
            f"overhead. The points imply {overhead / GIB:.2f} GiB for these; predicted are {predicted / GIB:.2f} GiB."
        )
        says = SUPPORTED if abs(overhead / predicted - 1) * 100 <= OVERHEAD_PCT else CONTRADICTED
        ids = ("capacity", "formulas.memory_and_overhead")
        yield Finding(text, COMPUTED, f"{row['gpu']}, {row['model']}, as published", ids, says)
    yield from _measured_lines(capacity)


def _measured_lines(capacity: pd.DataFrame) -> Iterator[Finding]:
    """Blocks at three or more utilizations, with all else equal."""
    seen = capacity[(capacity["source"] != PUBLISHED_ROW) & capacity["implied_memory_bytes"].notna()]
    for _, rows in seen.groupby(["study", "source", "gpu", "model", "implied_memory_bytes"], sort=False):
        if (count := rows["gpu_memory_utilization"].nunique()) < 3:
            continue
        memory = rows["implied_memory_bytes"] * rows["gpu_memory_utilization"] - rows["implied_overhead_bytes"]
        off_pct = 100 * (rows["observed_num_blocks"] / (memory / rows["bytes_per_block"]) - 1).abs().max()
        row = records(rows)[0]
        text = f"Blocks at {count} utilizations deviate from a straight line by at most {off_pct:.2g} %."
        says = SUPPORTED if off_pct <= ON_A_LINE_PCT else CONTRADICTED
        yield measured(ON_AN_L4.covers(row["gpu"], row["model"]), row, text, says, rows["cell_id"])


@rule("capacity-of-an-l4", test=L4_STUDY)
def capacity_of_an_l4(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Contradicted if the prediction, or a measurement on an L4, differs by more than the error of predictions."""
    tokens, concurrency = claim.value("kv_cache_tokens"), claim.value("max_concurrency")
    utilization = claim.quantity("kv_cache_tokens").at["gpu_memory_utilization"]
    length = claim.quantity("max_concurrency").at["max_model_len"]
    text = f"{plain(tokens)} over {plain(length)} tokens are {tokens / length:.2f} requests, not {plain(concurrency)}."
    if f"{tokens / length:.2f}" != f"{concurrency:.2f}":
        yield Finding(text, COMPUTED, "the published numbers", ("formulas.max_concurrency",))
    capacity = evidence.tables["capacity"]
    rows = capacity[capacity["gpu_memory_utilization"].eq(utilization) & capacity["kv_cache_tokens_error_pct"].notna()]
    for row in records(rows[rows["source"] == PUBLISHED_ROW]):
        differs = abs(row["kv_cache_tokens_error_pct"]) > DISAGREES_PCT
        text = row["explanation"] if differs else "The prediction agrees with the published number within 5 %."
        scope = f"a whole {row['gpu']}, {row['model']}"
        yield Finding(text, COMPUTED, scope, (row["cell_id"],), CONTRADICTED if differs else SUPPORTED)
    for row in records(rows[rows["source"] != PUBLISHED_ROW]):
        if ON_AN_L4.covers(row["gpu"], row["model"]):
            found = row["observed_kv_cache_tokens"]
            text = f"It holds {found:,.0f} tokens at utilization {utilization:g}."
            alike = abs(found / tokens - 1) * 100 <= DISAGREES_PCT
            yield measured(True, row, text, SUPPORTED if alike else CONTRADICTED, (row["cell_id"],))
