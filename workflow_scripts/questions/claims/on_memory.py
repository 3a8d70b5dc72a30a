"""Checks of claims about KV memory: sizes, waste, capacity and prefix caching."""

import math
from collections.abc import Iterator
from statistics import fmean

from workflow_scripts.catalog.gpus_and_models import resolve
from workflow_scripts.catalog.published import Claim, Stated
from workflow_scripts.common.wording import plural
from workflow_scripts.questions.claims.evidence import (
    ARITHMETIC,
    CONTRADICTED,
    Evidence,
    Under,
    check,
    computed,
    facts_of,
    measured,
    run,
    together,
    within,
)
from workflow_scripts.questions.claims.on_rates import effect_text
from workflow_scripts.questions.claims.study_tables import Row, StudyTables, highest, pairs
from workflow_scripts.questions.knobs.table import PAIR
from workflow_scripts.statistics.summary import PLACE

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
def kv_of_llama_3_70b(claim: Claim, tables: StudyTables) -> Iterator[Evidence]:
    facts, stated = facts_of(claim.models[0]), {quantity.name: quantity.value or 0 for quantity in claim.quantities}
    requests, tokens = stated.get("requests", 1), stated["tokens"]
    token = f"{facts.bytes_per_token():,} bytes ({facts.layers} layers, {facts.attention.kv_heads} KV heads, BF16)"
    size_gb = requests * tokens * facts.bytes_per_token() / 1e9
    text = f"{plural(int(requests), 'request')} of {tokens:,.0f} tokens of {token}: {size_gb:.3g} GB."
    yield computed(claim, text, within(size_gb, claim.quantity("kv_cache"), tolerance_pct=10), claim.models[0])


@check("llama-70b-on-a100s", "devices", ARITHMETIC)
def llama_70b_on_a100s(claim: Claim, tables: StudyTables) -> Iterator[Evidence]:
    for bits, model in zip((16, 4), claim.models, strict=True):
        weights = facts_of(model).weight_bytes
        for gpu, memory in cards(*claim.gpus):
            needed = math.ceil(weights / (0.9 * memory))
            text = f"{weights:,} bytes of weights need {needed} of {gpu} with 0.9 of their {memory:,.0f} bytes."
            says = within(needed, claim.quantity("gpus", weight_bits=bits))
            yield computed(claim, text, says, f"{gpu}, {model}")


@check("pages-of-4-kib", "block-size", ARITHMETIC)
def pages_of_4_kib(claim: Claim, tables: StudyTables) -> Iterator[Evidence]:
    size = claim.value("block_size")
    empty = (size - 1) / 2
    text = f"A sequence of any length leaves {empty:g} of the {size:g} slots of its last block empty on average."
    yield computed(claim, text, within(empty, claim.quantity("empty_slots")))
    for model in ("opt-125m", "llama-3.1-8b-instruct", "llama-3-70b"):
        text = f"A block of {size:g} tokens has {size * facts_of(model).bytes_per_token():,.0f} bytes with {model}."
        yield computed(claim, text, scope=model)


_SHARE = run("published_claims", "sweep utilization; table capacity")


@check("utilization-is-for-the-kv-cache", "block-size", ARITHMETIC)
@check(
    "kv-share-of-memory", "block-size", f"the source states neither model nor GPU; {_SHARE} shows what it depends on"
)
def share_of_the_kv_cache(claim: Claim, tables: StudyTables) -> Iterator[Evidence]:
    """What weights leave of some devices, and what the cache took."""
    stated, model = claim.quantity("kv_share"), "llama-3.1-8b-instruct"
    for gpu, memory in cards("H200", "H100", "A100 PCIe", "L40S"):
        share_pct = 100 * (0.9 - facts_of(model).weight_bytes / memory)
        text = f"At utilization 0.9 the weights of {model} leave at most {share_pct:.0f} % of {gpu}."
        says = CONTRADICTED if stated.value is not None and share_pct < stated.value else None
        yield computed(claim, text, says, f"{gpu}, {model}")
    for row in tables.rows("memory"):
        at = row.gpu_memory_utilization
        share_pct = 100 * row.observed_kv_cache_bytes / row.predicted_device_memory_bytes
        if row.source != "published" and share_pct > 0 and stated.at in ({}, {"gpu_memory_utilization": at}):
            text = f"The KV cache takes {share_pct:.0f} % of the memory at utilization {at:g}."
            yield measured(claim, row, text, is_stated=False)


# --- waste -----------------------------------------------------------------------------------------------------------


def fifty_tokens(cell: Row) -> Under:
    holds = cell.max_model_len_effective == 512 and cell.output_tokens == 50 * cell.num_requests
    return Under(holds, "50 generated tokens")


def a_fifth_of_512(cell: Row, also: bool = True) -> Under:
    held = (cell.prompt_tokens + cell.output_tokens / 2) / cell.num_requests
    return Under(fifty_tokens(cell).holds and 77 <= held <= 128 and also, "requests that hold a fifth of 512 slots")


@check("empty-slots-per-sequence", "block-size", run("paged_attention", "sweep max-num-seqs; table fragmentation"))
def empty_slots_per_sequence(claim: Claim, tables: StudyTables) -> Iterator[Evidence]:
    size, stated = claim.value("block_size"), claim.quantity("empty_slots_per_sequence")
    text = f"Only a sequence's last block has empty slots: at most {size - 1:g} of {size:g}, if it holds one token."
    yield computed(claim, text, within(size - 1, stated))
    for row in tables.waste("block_size_whatif", block_size=16):
        empty = row.wasted_slots_per_sequence
        text = f"With the measured requests, {empty:.3g} slots of a sequence would be empty on average."
        yield measured(claim, row, text, CONTRADICTED if within(empty, stated) == CONTRADICTED else None)


@check("waste-of-512-slots", "block-size", ARITHMETIC)
def waste_of_512_slots(claim: Claim, tables: StudyTables) -> Iterator[Evidence]:
    tokens, slots = claim.value("tokens_generated"), claim.value("tokens_reserved_per_request")
    waste_pct = 100 * (1 - tokens / slots)
    text = f"{tokens:g} tokens in {slots:g} slots leave {waste_pct:.1f} % empty."
    yield computed(claim, text, within(waste_pct, claim.quantity("waste"), tolerance=5))


@check("contiguous-allocation-example", "block-size", ARITHMETIC)
def contiguous_allocation_example(claim: Claim, tables: StudyTables) -> Iterator[Evidence]:
    tokens, slots = fmean(claim.quantity("tokens_used").values or ()), claim.value("tokens_reserved_per_request")
    waste_pct = 100 * (1 - tokens / slots)
    text = f"On average {tokens:,g} of {slots:,g} slots are used, so {waste_pct:g} % are wasted."
    yield computed(claim, text, within(waste_pct, claim.quantity("waste"), tolerance=0.05))


@check("contiguous-allocation-waste", "block-size", _NO_LENGTHS.format(_RESERVED))
def contiguous_waste(claim: Claim, tables: StudyTables) -> Iterator[Evidence]:
    for row in tables.waste("contiguous_max_model_len", _BY_LENGTH):
        reserved = f"With {row.max_model_len_effective:g} reserved slots for each measured request"
        text = f"{reserved}, {100 - row.waste_pct:.1f} % would hold a token and {row.waste_pct:.1f} % would be wasted."
        yield measured(claim, row, text, under=fifty_tokens(row), is_stated=False)


@check("memory-used-by-paging", "block-size", _RESERVED)
def memory_used_by_paging(claim: Claim, tables: StudyTables) -> Iterator[Evidence]:
    yield from contiguous_waste(claim, tables)
    for row in tables.waste("block_size_whatif", _BY_LENGTH, block_size=16):
        used_pct = 100 - row.waste_pct
        text = f"Of the slots in blocks of 16, {used_pct:.1f} % would hold a token with the measured requests."
        says = within(used_pct, claim.quantity("kv_memory_used_paged"), tolerance=5)
        yield measured(claim, row, text, says, under=a_fifth_of_512(row))


@check("concurrency-gained-by-paging", "block-size", run("published_claims", "sweep reserved-slots"))
def concurrency_gained_by_paging(claim: Claim, tables: StudyTables) -> Iterator[Evidence]:
    """Requests that run in blocks, over those in whole reservations of the same memory."""
    cells = [cell for cell in tables.cells if cell.knob_num_gpu_blocks_override > 0 < cell.running_while_others_wait]
    paged = [cell for cell in cells if cell.block_size_effective < cell.max_model_len_effective]
    whole = [cell for cell in cells if cell.block_size_effective >= cell.max_model_len_effective]
    for cell, other in pairs(paged, whole, "study source gpu model workload max_model_len_effective"):
        slots, others = ((each.num_gpu_blocks - 1) * each.block_size_effective for each in (cell, other))
        if slots == others:
            gained = cell.running_while_others_wait / other.running_while_others_wait
            text = (
                f"While others waited, {gained:.3g} times as many requests ran in blocks of "
                f"{cell.block_size_effective:g} as where each reserved {cell.max_model_len_effective:g} slots of the "
                f"same memory; {cell.running_peak:g} and {other.running_peak:g} ran at most, of "
                f"{cell.max_concurrency_allowed:g} allowed."
            )
            # KV blocks, not max-num-seqs, end the growth.
            limited_by_blocks = all(each.running_peak < each.max_concurrency_allowed for each in (cell, other))
            says, under = within(gained, claim.quantity("concurrency_ratio")), a_fifth_of_512(cell, limited_by_blocks)
            yield measured(claim, cell, text, says, beside=other, under=under)


@check("hf-reserves-max-new-tokens", "engines", run("paged_attention", "sweep hf-baseline; table fragmentation"))
def hf_reserves_max_new_tokens(claim: Claim, tables: StudyTables) -> Iterator[Evidence]:
    """The size of transformers' default cache, over that of a buffer for prompt and max_new_tokens from the start."""
    held, reserved = (tables.waste(layout, ["cell_id"]) for layout in ("hf_dynamic_cache", "contiguous_request_length"))
    for row, buffer in pairs(held, reserved, "cell_id"):
        if row.engine == "hf-static" and row.knob_batch_size == 1:
            text = (
                f"The default cache of generate() held {row.slots_held_mean:.4g} slots on average; buffers of prompt "
                f"and max_new_tokens would hold {buffer.slots_held_mean:.4g}. It grows with each token."
            )
            times = row.slots_held_mean / buffer.slots_held_mean
            yield measured(claim, row, text, within(times, claim.quantity("held_over_reserved"), tolerance_pct=1))


# --- capacity --------------------------------------------------------------------------------------------------------


@check("blocks-linear-in-utilization", "block-size", run("published_claims", "sweep utilization"))
def blocks_linear_in_utilization(claim: Claim, tables: StudyTables) -> Iterator[Evidence]:
    """Blocks over the straight line through all blocks of a device. Two published points lie on a line; its intercept
    must be about the predicted overhead, a small difference of large numbers."""
    rows = tables.rows("memory")
    published = [row for row in rows if row.source == "published" and not math.isnan(row.implied_overhead_bytes)]
    for row in highest(published, lambda row: row.implied_overhead_bytes, lambda row: row.gpu):
        times = row.implied_overhead_bytes / row.predicted_overhead_bytes
        text = f"The published blocks imply an overhead that is {times:.3g} times the predicted one."
        yield measured(claim, row, text, within(times, Stated(value=1), tolerance_pct=25))
    for row in rows:
        if row.source != "published" and row.implied_memory_bytes > 0:
            kv_bytes = row.implied_memory_bytes * row.gpu_memory_utilization - row.implied_overhead_bytes
            times, at = row.observed_num_blocks / (kv_bytes / row.bytes_per_block), row.gpu_memory_utilization
            text = f"At utilization {at:g} the blocks are {times:.4g} times those of a straight line."
            yield measured(claim, row, text, within(times, Stated(value=1), tolerance_pct=1))


@check("capacity-of-an-l4", "block-size", run("published_claims", "sweep utilization"))
def capacity_of_an_l4(claim: Claim, tables: StudyTables) -> Iterator[Evidence]:
    tokens, requests = claim.value("kv_cache_tokens"), claim.value("max_concurrency")
    text = f"{tokens:,.0f} over 2,048 tokens are {tokens / 2048:.2f} requests; {requests:g} were published."
    yield computed(claim, text)
    for row in (row for row in tables.rows("memory") if row.gpu_memory_utilization == 0.5):
        error_pct, holds = row.kv_cache_tokens_error_pct, row.observed_kv_cache_tokens
        if row.source == "published" and not math.isnan(error_pct):
            text = f"For a whole L4 the prediction differs by {error_pct:.3g} %."
            yield measured(claim, row, text, within(error_pct, Stated(value=0), tolerance=5))
        if row.source != "published" and holds > 0:
            text = f"It holds {holds:,.0f} tokens at utilization 0.5."
            yield measured(claim, row, text, within(holds, claim.quantity("kv_cache_tokens"), tolerance_pct=5))


@check("max-model-len-is-a-capacity-knob", "block-size", run("published_claims", "sweep max-model-len"))
def max_model_len_is_a_capacity_knob(claim: Claim, tables: StudyTables) -> Iterator[Evidence]:
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
def capacity_of_32k_for_4k_chats(claim: Claim, tables: StudyTables) -> Iterator[Evidence]:
    times = claim.value("max_model_len") / claim.value("p99_tokens")
    text = (
        f"The printed concurrency is the number of tokens over max-model-len, so it is {times:g} times lower. Blocks "
        "are taken as tokens come, so no more than this printed number changes."
    )
    yield computed(claim, text, within(times, claim.quantity("concurrency_ratio"), tolerance_pct=10))


@check("short-max-model-len", "block-size", run("concurrency", "sweep users"))
def short_max_model_len(claim: Claim, tables: StudyTables) -> Iterator[Evidence]:
    served = [cell for cell in tables.cells if cell.engine == "vllm-serve" and cell.kv_cache_usage_mean > 0]
    short, long = ([cell for cell in served if cell.max_model_len_effective == length] for length in (64, 512))
    for cell, other in pairs(short, long, "study source gpu model workload knob_users"):
        held, by_other = (c.kv_cache_usage_mean * c.kv_cache_tokens / c.running_mean for c in (cell, other))
        slots = f"{held / by_other:.3g} times the slots that it held with 512"
        says = within(held / by_other, claim.quantity("kv_slots_ratio"))
        text = f"With {plural(int(cell.knob_users), 'user')} a running request held {slots}."
        yield measured(claim, cell, text, says, beside=other)


# --- prefix caching --------------------------------------------------------------------------------------------------

_PREFIX_LENGTHS = _NO_LENGTHS.format(run("prefix_caching", "sweep prefix-length"))


@check("prefix-hit-rate-of-identical-prompts", "prefix-caching", ARITHMETIC)
def hit_rate_of_identical_prompts(claim: Claim, tables: StudyTables) -> Iterator[Evidence]:
    prompts, tokens, size = map(claim.value, ("identical_prompts", "prompt_tokens", "block_size"))
    hits_pct = 100 * (prompts - 1) / prompts * ((tokens - 1) // size) * size / tokens
    text = (
        f"vLLM finds only whole blocks, and never the last token: {prompts:g} prompts of {tokens:g} tokens in blocks "
        f"of {size:g} give {hits_pct:.3g} %. All but the first prompt are the limit for long prompts."
    )
    yield computed(claim, text, within(hits_pct, claim.quantity("prefix_hit_rate"), tolerance=0.05))
    for cell in tables.cells:
        if cell.prefix_cache_hits > 0 and cell.prefix_cache_hit_rate_predicted > 0:
            by_formula = f"{cell.prefix_cache_hit_rate_predicted:.1%} by the formula"
            of = f"for {cell.num_requests:g} prompts in blocks of {cell.block_size_effective:g}"
            text = f"{100 * cell.prefix_cache_hit_rate:.1f} % {of}; {by_formula}."
            yield measured(claim, cell, text, is_stated=False)


@check("speedup-of-a-shared-system-prompt", "prefix-caching", _PREFIX_LENGTHS)
def speedup_of_a_shared_prompt(claim: Claim, tables: StudyTables) -> Iterator[Evidence]:
    for effect in tables.rows("knobs"):
        if effect.knob == "enable_prefix_caching" and effect.comparison == PAIR and effect.took_effect:
            yield measured(claim, effect, effect_text(effect), is_stated=False)


@check("computation-saved-by-prefix-caching", "prefix-caching", _PREFIX_LENGTHS)
def computation_saved(claim: Claim, tables: StudyTables) -> Iterator[Evidence]:
    for cell in tables.cells:
        if (hits := cell.prefix_cache_hits) > 0:
            saved_pct = 100 * hits / (cell.prompt_tokens + cell.output_tokens)
            text = f"{hits:,.0f} tokens were found in the cache, which saves {saved_pct:.3g} % of all."
            yield measured(claim, cell, text, is_stated=False)


@check("eviction-by-lowest-utility", "prefix-caching", run("kv_pressure", "sweep prefixes"))
def eviction_by_lowest_utility(claim: Claim, tables: StudyTables) -> Iterator[Evidence]:
    """Blocks of no future use would go first, so no seen prompt is computed again while the cache holds all."""
    for row, cell in tables.with_cells(tables.rows("predictions")):
        if row.quantity == "prefix_cache_hit_rate" and row.evicted_blocks_predicted > 0:
            found, possible = cell.prefix_cache_hit_rate, cell.prefix_cache_hit_rate_predicted
            text = (
                f"{found:.1%} of the prompt tokens were found in the cache; {possible:.1%} without eviction, and "
                f"{row.predicted:.1%} if the blocks that were freed longest ago are evicted."
            )
            says = within(100 * (possible - found), claim.quantity("hits_lost"), tolerance=0.5)
            holds_all = cell.num_gpu_blocks * cell.block_size_effective >= cell.prompt_tokens * (1 - possible)
            yield measured(claim, row, text, says, under=Under(holds_all))
