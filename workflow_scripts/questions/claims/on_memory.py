"""Checks of claims about KV memory: waste, capacity and requests at once."""

from collections.abc import Iterator

from workflow_scripts.catalog.published import Claim
from workflow_scripts.questions.claims.evidence import Evidence, check, computed, number, within
from workflow_scripts.questions.claims.study_tables import ClaimRow, StudyTables, pairs
from workflow_scripts.tables.summary import PLACE

# --- waste -----------------------------------------------------------------------------------------------------------


def a_fifth_of_512(cell: ClaimRow) -> bool:
    """Whether requests of 50 generated tokens hold a fifth of 512 slots."""
    held = (cell.prompt_tokens + cell.output_tokens / 2) / cell.num_requests
    has_fifty = cell.max_model_len_effective == 512 and cell.output_tokens == 50 * cell.num_requests
    return bool(has_fifty and 77 <= held <= 128)


@check("empty-slots-per-sequence")
def empty_slots_per_sequence(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    size, name = claim.value("block_size"), "empty_slots_per_sequence"
    text = f"A last block of {size:g} that holds one token has {size - 1:g} empty slots."
    yield computed(text, within(size - 1, claim.quantity(name)))
    for row in tables.waste("block_size_whatif", block_size=16):
        yield number(claim, row, "Empty slots of a measured sequence, mean", row.wasted_slots_per_sequence, name)


@check("memory-used-by-paging")
def memory_used_by_paging(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    for row in tables.waste("block_size_whatif", (*PLACE, "max_model_len_effective"), block_size=16):
        what, used_pct = "Slots of blocks of 16 that hold a token of the measured requests", 100 - row.waste_pct
        yield number(claim, row, what, used_pct, "kv_memory_used_paged", " %", tolerance=5, under=a_fifth_of_512(row))


@check("hf-reserves-max-new-tokens")
def hf_reserves_max_new_tokens(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    """The size of transformers' default cache, over that of a buffer for prompt and max_new_tokens from the start."""
    held, reserved = (tables.waste(layout, ["cell_id"]) for layout in ("hf_dynamic_cache", "contiguous_request_length"))
    for row, buffer in pairs(held, reserved, "cell_id"):
        if row.engine == "hf-static" and row.knob_batch_size == 1:
            what = f"Slots that generate() held, mean, over {buffer.slots_held_mean:.4g} of prompt and max_new_tokens"
            times = row.slots_held_mean / buffer.slots_held_mean
            yield number(claim, row, what, times, "held_over_reserved", " times", tolerance_pct=1)


# --- capacity --------------------------------------------------------------------------------------------------------


@check("max-model-len-is-a-capacity-knob")
def max_model_len_is_a_capacity_knob(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    alike = "study source gpu engine model workload block_size_effective max_num_seqs_effective"
    alike += " knob_gpu_memory_utilization knob_cpu_kv_cache_gib"
    printed = [cell for cell in tables.cells if cell.max_concurrency > 0]
    for half, whole in pairs(printed, printed, alike):
        if half.max_model_len_effective * 2 == whole.max_model_len_effective:
            lengths = f"max-model-len {half.max_model_len_effective:g} over {whole.max_model_len_effective:g}"
            requests, blocks = half.max_concurrency / whole.max_concurrency, half.num_gpu_blocks / whole.num_gpu_blocks
            for what, times, name, pct in (
                ("Printed concurrency", requests, "concurrency_ratio", 10),
                ("Blocks", blocks, "blocks_ratio", 1),
            ):
                yield number(claim, half, f"{what}, {lengths}", times, name, " times", tolerance_pct=pct)


# --- requests at once ------------------------------------------------------------------------------------------------


@check("concurrency-gained-by-paging")
def concurrency_gained_by_paging(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    """Requests that run in blocks, over those in whole reservations of the same memory."""
    # KV blocks, not max-num-seqs, end the growth.
    cells = [
        cell
        for cell in tables.cells
        if cell.knob_num_gpu_blocks_override > 0 < cell.running_while_others_wait
        and cell.running_peak < cell.max_concurrency_allowed
    ]
    paged = [cell for cell in cells if cell.block_size_effective < cell.max_model_len_effective]
    whole = [cell for cell in cells if cell.block_size_effective >= cell.max_model_len_effective]
    for cell, other in pairs(paged, whole, "study source gpu model workload max_model_len_effective"):
        slots, others = ((each.num_gpu_blocks - 1) * each.block_size_effective for each in (cell, other))
        if slots == others:
            what = (
                f"Requests at once while others wait, in blocks of {cell.block_size_effective:g} over reservations of "
                f"{cell.max_model_len_effective:g} slots of the same memory"
            )
            gained = cell.running_while_others_wait / other.running_while_others_wait
            under = a_fifth_of_512(cell)
            yield number(claim, cell, what, gained, "concurrency_ratio", " times", under=under)
