"""Checks of claims about KV memory: sizes, waste, capacity and prefix caching."""

import math
from collections.abc import Iterator
from statistics import fmean

from workflow_scripts.catalog.gpus_and_models import resolve
from workflow_scripts.catalog.published import Claim, Stated
from workflow_scripts.common.wording import plural
from workflow_scripts.questions.claims.evidence import (
    ARITHMETIC,
    Evidence,
    Under,
    check,
    contradicts_at_most,
    facts_of,
    measured,
    number,
    run,
    together,
    unstated,
    within,
)
from workflow_scripts.questions.claims.study_tables import Row, StudyTables, highest, pairs
from workflow_scripts.tables.summary import PLACE

_RESERVED = run("published_claims", "sweep reserved-slots; table fragmentation")
_NO_LENGTHS = "the source does not state the lengths of prompts; {} shows how they matter"
_BY_LENGTH = (*PLACE, "max_model_len_effective")


def cards(*names: str) -> list[tuple[str, float]]:
    """The devices that published names may mean, with their bytes of memory."""
    of_names = [card for name in names for card in resolve(name)]
    return [(card.name, card.usable_memory_bytes or card.memory_bytes or math.nan) for card in of_names]


# --- sizes -----------------------------------------------------------------------------------------------------------


@check("kv-of-llama-3-70b", "block-size", ARITHMETIC)
@check("kv-of-a-batch-of-llama-3-70b", "block-size", ARITHMETIC)
def kv_of_llama_3_70b(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    facts, stated = facts_of(claim.models[0]), {quantity.name: quantity.value or 0 for quantity in claim.quantities}
    requests, tokens = stated.get("requests", 1), stated["tokens"]
    token = f"{facts.bytes_per_token():,} bytes ({facts.layers} layers, {facts.attention.kv_heads} KV heads, BF16)"
    what = f"{plural(int(requests), 'request')} of {tokens:,.0f} tokens of {token}"
    size_gb = requests * tokens * facts.bytes_per_token() / 1e9
    yield number(claim, what, size_gb, " GB", "kv_cache", scope=claim.models[0], tolerance_pct=10)


@check("llama-70b-on-a100s", "devices", ARITHMETIC)
def llama_70b_on_a100s(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    for bits, model in zip((16, 4), claim.models, strict=True):
        weights = facts_of(model).weight_bytes
        for gpu, memory in cards(*claim.gpus):
            what = f"Devices for {weights:,} bytes of weights, {gpu} with 0.9 of {memory:,.0f} bytes"
            needed = math.ceil(weights / (0.9 * memory))
            yield number(claim, what, needed, "", claim.quantity("gpus", weight_bits=bits), scope=f"{gpu}, {model}")


@check("pages-of-4-kib", "block-size", ARITHMETIC)
def pages_of_4_kib(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    size = claim.value("block_size")
    yield number(claim, f"Empty slots of a sequence's last block of {size:g}, mean", (size - 1) / 2, "", "empty_slots")


_SHARE = run("published_claims", "sweep utilization; table memory")
_UNSTATED = f"the source states neither model nor GPU; {_SHARE} shows what it depends on"


@check("utilization-is-for-the-kv-cache", "block-size", ARITHMETIC)
@check("kv-share-of-memory", "block-size", _UNSTATED)
def share_of_the_kv_cache(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    """What weights leave of some devices."""
    stated, model = claim.quantity("kv_share"), "llama-3.1-8b-instruct"
    for gpu, memory in cards("H200", "H100", "A100 PCIe", "L40S"):
        what, left_pct = (
            f"Left of {gpu} by the weights of {model} at utilization 0.9",
            0.9 - facts_of(model).weight_bytes / memory,
        )
        least = None if stated.value is None else Stated(min=stated.value)
        yield number(claim, what, 100 * left_pct, " %", least, scope=f"{gpu}, {model}")


# --- waste -----------------------------------------------------------------------------------------------------------


def fifty_tokens(cell: Row) -> Under:
    holds = cell.max_model_len_effective == 512 and cell.output_tokens == 50 * cell.num_requests
    return Under(holds, "50 generated tokens")


def a_fifth_of_512(cell: Row, also: bool = True) -> Under:
    held = (cell.prompt_tokens + cell.output_tokens / 2) / cell.num_requests
    return Under(fifty_tokens(cell).holds and 77 <= held <= 128 and also, "requests that hold a fifth of 512 slots")


@check(
    "empty-slots-per-sequence",
    "block-size",
    run("paged_attention", "sweep block-size-and-max-num-seqs; table fragmentation"),
)
def empty_slots_per_sequence(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    size, name = claim.value("block_size"), "empty_slots_per_sequence"
    yield number(claim, f"Empty slots of a last block of {size:g} that holds one token", size - 1, "", name)
    for row in tables.waste("block_size_whatif", block_size=16):
        what, slots = "Empty slots of a measured sequence, mean", row.wasted_slots_per_sequence
        yield contradicts_at_most(number(claim, what, slots, "", name, row=row))


@check("waste-of-512-slots", "block-size", ARITHMETIC)
@check("contiguous-allocation-example", "block-size", ARITHMETIC)
def waste_of_reserved_slots(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    used = next(q for q in claim.quantities if q.name in ("tokens_used", "tokens_generated"))
    slots = claim.value("tokens_reserved_per_request")
    tokens, tolerance = fmean(used.values or (used.value or 0,)), 5 if claim.quantity("waste").approximate else 0.05
    what = f"Empty of {slots:,g} slots with {tokens:,g} tokens"
    yield number(claim, what, 100 * (1 - tokens / slots), " %", "waste", tolerance=tolerance)


unstated("contiguous-allocation-waste", "block-size", _NO_LENGTHS.format(_RESERVED))


@check("memory-used-by-paging", "block-size", _RESERVED)
def memory_used_by_paging(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    for row in tables.waste("block_size_whatif", _BY_LENGTH, block_size=16):
        what, name = "Slots of blocks of 16 that hold a token of the measured requests", "kv_memory_used_paged"
        yield number(claim, what, 100 - row.waste_pct, " %", name, row=row, tolerance=5, under=a_fifth_of_512(row))


@check("concurrency-gained-by-paging", "block-size", run("published_claims", "sweep reserved-slots"))
def concurrency_gained_by_paging(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    """Requests that run in blocks, over those in whole reservations of the same memory."""
    cells = [cell for cell in tables.cells if cell.knob_num_gpu_blocks_override > 0 < cell.running_while_others_wait]
    paged = [cell for cell in cells if cell.block_size_effective < cell.max_model_len_effective]
    whole = [cell for cell in cells if cell.block_size_effective >= cell.max_model_len_effective]
    for cell, other in pairs(paged, whole, "study source gpu model workload max_model_len_effective"):
        slots, others = ((each.num_gpu_blocks - 1) * each.block_size_effective for each in (cell, other))
        if slots == others:
            what = (
                f"Requests at once while others wait, in blocks of {cell.block_size_effective:g} over reservations of "
                f"{cell.max_model_len_effective:g} slots of the same memory (at most {cell.running_peak:g} and "
                f"{other.running_peak:g} ran, {cell.max_concurrency_allowed:g} allowed)"
            )
            gained = cell.running_while_others_wait / other.running_while_others_wait
            # KV blocks, not max-num-seqs, end the growth.
            limited_by_blocks = all(each.running_peak < each.max_concurrency_allowed for each in (cell, other))
            under = a_fifth_of_512(cell, limited_by_blocks)
            yield number(claim, what, gained, " times", "concurrency_ratio", row=cell, beside=other, under=under)


@check("hf-reserves-max-new-tokens", "engines", run("paged_attention", "sweep hf-baseline; table fragmentation"))
def hf_reserves_max_new_tokens(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    """The size of transformers' default cache, over that of a buffer for prompt and max_new_tokens from the start."""
    held, reserved = (tables.waste(layout, ["cell_id"]) for layout in ("hf_dynamic_cache", "contiguous_request_length"))
    for row, buffer in pairs(held, reserved, "cell_id"):
        if row.engine == "hf-static" and row.knob_batch_size == 1:
            what = f"Slots that generate() held, mean, over {buffer.slots_held_mean:.4g} of prompt and max_new_tokens"
            times = row.slots_held_mean / buffer.slots_held_mean
            yield number(claim, what, times, " times", "held_over_reserved", row=row, tolerance_pct=1)


# --- capacity --------------------------------------------------------------------------------------------------------


@check("blocks-linear-in-utilization", "block-size", run("published_claims", "sweep utilization"))
def blocks_linear_in_utilization(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    """Blocks over the straight line through all blocks of a device. Two published points lie on a line; its intercept
    must be about the predicted overhead, a small difference of large numbers."""
    rows, one = tables.rows("memory"), Stated(value=1)
    published = [row for row in rows if row.source == "published" and not math.isnan(row.implied_overhead_bytes)]
    for row in highest(published, lambda row: row.implied_overhead_bytes, lambda row: row.gpu):
        times = row.implied_overhead_bytes / row.predicted_overhead_bytes
        what = "Overhead that the published blocks imply over the predicted one"
        yield number(claim, what, times, " times", one, row=row, tolerance_pct=25)
    for row in rows:
        if row.source != "published" and row.implied_memory_bytes > 0:
            kv_bytes = row.implied_memory_bytes * row.gpu_memory_utilization - row.implied_overhead_bytes
            what = f"Blocks over those of a straight line, at utilization {row.gpu_memory_utilization:g}"
            times = row.observed_num_blocks / (kv_bytes / row.bytes_per_block)
            yield number(claim, what, times, " times", one, row=row, tolerance_pct=1)


@check("capacity-of-an-l4", "block-size", run("published_claims", "sweep utilization"))
def capacity_of_an_l4(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    for row in (row for row in tables.rows("memory") if row.gpu_memory_utilization == 0.5):
        error_pct, holds = row.kv_cache_tokens_error_pct, row.observed_kv_cache_tokens
        if row.source == "published" and not math.isnan(error_pct):
            what = "The prediction for a whole L4 differs by"
            yield number(claim, what, error_pct, " %", Stated(value=0), row=row, tolerance=5)
        if row.source != "published" and holds > 0:
            what = "Tokens of KV cache at utilization 0.5"
            yield number(claim, what, holds, "", "kv_cache_tokens", row=row, tolerance_pct=5)


@check("max-model-len-is-a-capacity-knob", "block-size", run("published_claims", "sweep max-model-len"))
def max_model_len_is_a_capacity_knob(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    alike = "study source gpu engine model workload block_size_effective max_num_seqs_effective"
    alike += " knob_gpu_memory_utilization knob_cpu_kv_cache_gib"
    printed = [cell for cell in tables.cells if cell.max_concurrency > 0]
    for half, whole in pairs(printed, printed, alike):
        if half.max_model_len_effective * 2 == whole.max_model_len_effective:
            text = (
                f"With max-model-len {half.max_model_len_effective:g} instead of {whole.max_model_len_effective:g} the "
                f"printed concurrency is {half.max_concurrency:.2f} instead of {whole.max_concurrency:.2f}, in "
                f"{half.num_gpu_blocks:,.0f} instead of {whole.num_gpu_blocks:,.0f} blocks."
            )
            requests, blocks = half.max_concurrency / whole.max_concurrency, half.num_gpu_blocks / whole.num_gpu_blocks
            of_requests = within(requests, claim.quantity("concurrency_ratio"), tolerance_pct=10)
            of_blocks = within(blocks, claim.quantity("blocks_ratio"), tolerance_pct=1)
            yield measured(claim, half, text, together(of_requests, of_blocks), beside=whole)


@check("capacity-of-32k-for-4k-chats", "block-size", ARITHMETIC)
def capacity_of_32k_for_4k_chats(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    """Blocks are taken as tokens come, so no more than the printed number changes."""
    what, times = "Tokens over max-model-len, the printed concurrency, is lower by", claim.value("max_model_len")
    times /= claim.value("p99_tokens")
    yield number(claim, what, times, " times", "concurrency_ratio", tolerance_pct=10)


@check("short-max-model-len", "block-size", run("concurrency", "sweep users"))
def short_max_model_len(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    served = [cell for cell in tables.cells if cell.engine == "vllm-serve" and cell.kv_cache_usage_mean > 0]
    short, long = ([cell for cell in served if cell.max_model_len_effective == length] for length in (64, 512))
    for cell, other in pairs(short, long, "study source gpu model workload knob_users"):
        held, by_other = (c.kv_cache_usage_mean * c.kv_cache_tokens / c.running_mean for c in (cell, other))
        what = f"Slots of a running request with a length of 64 over 512, with {plural(int(cell.knob_users), 'user')}"
        yield number(claim, what, held / by_other, " times", "kv_slots_ratio", row=cell, beside=other)


# --- prefix caching --------------------------------------------------------------------------------------------------

_PREFIX_LENGTHS = _NO_LENGTHS.format(run("prefix_caching", "sweep prefix-length"))


@check("prefix-hit-rate-of-identical-prompts", "prefix-caching", ARITHMETIC)
def hit_rate_of_identical_prompts(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    """vLLM finds only whole blocks, and never the last token."""
    prompts, tokens, size = map(claim.value, ("identical_prompts", "prompt_tokens", "block_size"))
    hits_pct = 100 * (prompts - 1) / prompts * ((tokens - 1) // size) * size / tokens
    what = f"Hits in whole blocks of {size:g}, of {prompts:g} prompts of {tokens:g} tokens"
    yield number(claim, what, hits_pct, " %", "prefix_hit_rate", tolerance=0.05)


unstated("speedup-of-a-shared-system-prompt", "prefix-caching", _PREFIX_LENGTHS)
unstated("computation-saved-by-prefix-caching", "prefix-caching", _PREFIX_LENGTHS)


@check("eviction-by-lowest-utility", "prefix-caching", run("kv_pressure", "sweep prefixes"))
def eviction_by_lowest_utility(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    """Blocks of no future use would go first, so no seen prompt is computed again while the cache holds all."""
    for row, cell in tables.with_cells(tables.rows("predictions")):
        if row.quantity == "prefix_cache_hit_rate" and row.evicted_blocks_predicted > 0:
            found, possible = cell.prefix_cache_hit_rate, cell.prefix_cache_hit_rate_predicted
            what = f"Prompt tokens found less than without eviction ({found:.1%}; predicted: {row.predicted:.1%})"
            holds_all = cell.num_gpu_blocks * cell.block_size_effective >= cell.prompt_tokens * (1 - possible)
            lost = 100 * (possible - found)
            yield number(claim, what, lost, " %", "hits_lost", row=row, tolerance=0.5, under=Under(holds_all))
