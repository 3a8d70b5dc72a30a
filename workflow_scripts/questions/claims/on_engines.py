"""Checks of claims about engines, and about how many requests they run at once."""

from collections.abc import Iterator

from workflow_scripts.catalog.gpus_and_models import resolve
from workflow_scripts.catalog.published import Claim, Stated
from workflow_scripts.questions.claims.evidence import (
    CONTRADICTED,
    Evidence,
    Under,
    check,
    computed,
    contradicts_at_most,
    facts_of,
    measured,
    number,
    run,
    unstated,
    within,
)
from workflow_scripts.questions.claims.on_rates import like_sharegpt, over_ceilings
from workflow_scripts.questions.claims.study_tables import Interval, Row, StudyTables, pairs
from workflow_scripts.study.setting_words import setting_phrase

_SAME_WORK = "sweeps hf-baseline and same-work-as-hf"
_AT_LEAST_ONE = Stated(min=1)


def gain(row: Row) -> Interval:
    return Interval(row.ratio, row.low, row.high)


def gain_text(row: Row) -> str:
    vllm = f"vLLM with {setting_phrase('max_num_seqs', row.sequences)}"
    hf = f"HuggingFace with {setting_phrase('batch_size', row.batch_size)}"
    return f"{vllm} makes {gain(row).value:.3g} times the output tokens/s of {hf} ({gain(row).ends()})."


@check("hf-generate-on-a100", "engines", run("paged_attention", "sweep hf-baseline"))
@check("vllm-over-hf-on-a100", "engines", run("paged_attention", _SAME_WORK))
def hf_generate(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    """The source's script counts output tokens, and sends more prompts at once than its text says."""
    for name in ("batch_size", "prompts_of_the_script"):
        rate = claim.gpus[0], claim.value("tokens_per_s"), claim.value(name)
        yield from over_ceilings(claim, [rate], "batch", "HuggingFace: the", output_only=True)
    if claim.id == "hf-generate-on-a100":
        rates = tables.intervals("output_tokens_per_s")
        for cell in tables.cells:
            if cell.engine == "hf-static" and cell.knob_batch_size == 1 and (found := rates.get(cell.cell_id)):
                what = f"Output tokens/s of HuggingFace at batch 1, {found.scope}"
                yield number(claim, what, found, stated="tokens_per_s", row=cell, tolerance_pct=10)
    else:
        yield computed(claim, "It divides a rate that may count prompt tokens by one of output tokens alone.")
        for row in tables.fastest_gains(batched=False):
            says = within(gain(row), claim.quantity("throughput_ratio"), tolerance_pct=10)
            yield measured(claim, row, gain_text(row), says)


@check("engines-on-one-a100", "engines", run("paged_attention", f"{_SAME_WORK}; without TGI"))
def engines_on_one_a100(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    """Rates that the device allows, steps no faster than reading the weights, and the order of the engines."""
    published = {row["metric"]: row for row in tables.published.table(claim)}
    gpu, model = claim.gpus[0], claim.models[0]
    bandwidth = max(card.memory_bandwidth_bytes_per_s or 0 for card in resolve(gpu))
    reading_ms = 1000 * facts_of(model).decode_weight_bytes / bandwidth
    for engine in ("vllm", "tgi", "hf"):
        rate = gpu, published["throughput"][engine], published["max_batch_size"][engine]
        yield from over_ceilings(claim, [rate], "batch", f"{engine}: the")
        step_ms = published["itl_p50"][engine]
        what = f"{engine}: {step_ms:g} ms between tokens over the time of reading the weights"
        found = number(claim, what, step_ms / reading_ms, " times", _AT_LEAST_ONE, scope=f"{gpu}, {model}")
        yield contradicts_at_most(found)
    for row in tables.fastest_gains(batched=True):
        says = within(gain(row), claim.quantity("vllm_over_hf"), tolerance_pct=10)
        is_in_order = says == CONTRADICTED and gain(row).high >= 1
        yield measured(claim, row, gain_text(row), None if is_in_order else says)


@check("thirty-to-a-hundred-times-faster", "engines", run("paged_attention", _SAME_WORK))
def thirty_to_a_hundred_times_faster(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    """Over a loop of single requests; batches are another comparison."""
    for row in tables.fastest_gains(batched=False):
        yield measured(claim, row, gain_text(row), within(gain(row), claim.quantity("throughput_ratio")))


@check("faster-for-a-single-request", "engines", run("published_claims", "sweeps single-request and single-request-hf"))
def faster_for_a_single_request(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    for row, cell in tables.with_cells(tables.engine_gains(batched=False)):
        if row.sequences == 1:
            under = Under(cell.output_tokens == 50 * cell.num_requests)
            yield measured(claim, row, gain_text(row), within(gain(row), _AT_LEAST_ONE), under=under)


_BUSY = run("paged_attention", f"{_SAME_WORK}; utilization_pct_mean in cells")
_UNSTATED = f"the source states no load; {_BUSY} shows what it depends on"


unstated("gpu-utilisation-of-continuous-batching", "max-num-seqs", _UNSTATED)


@check("concurrent-users-of-a-small-model", "block-size", run("concurrency", "sweep users"))
def concurrent_users(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    """The rate rises by more than the time of a request."""
    rates, times = tables.intervals("output_tokens_per_s"), tables.intervals("e2e_s_p50")
    served = [c for c in tables.cells if c.engine == "vllm-serve" and c.cell_id in rates and c.cell_id in times]
    many, single = [c for c in served if c.knob_users > 1], [c for c in served if c.knob_users == 1]
    for cell, one in pairs(many, single, "study source gpu model workload max_model_len_effective"):
        rise = rates[cell.cell_id] / rates[one.cell_id] / (times[cell.cell_id] / times[one.cell_id])
        what = (
            f"Rise of the output tokens/s over that of the median time of a request, {cell.knob_users:g} users over 1"
        )
        under = Under(cell.knob_users <= 20)
        yield number(claim, what, rise, " times", _AT_LEAST_ONE, row=cell, beside=one, under=under)


@check("prompts-limit-concurrency", "max-num-seqs", run("published_claims", "sweep prompts"))
def prompts_limit_concurrency(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    for cell in tables.cells:
        if cell.num_requests == 200 and cell.max_concurrency_allowed > 100 and cell.running_peak >= 0:
            what = f"Of {cell.num_requests:g} requests ran at once at most ({cell.running_mean:.0f} on average)"
            yield number(claim, what, cell.running_peak, "", "concurrency", row=cell, under=like_sharegpt(cell))


@check("slots-are-never-the-bottleneck", "max-num-seqs", run("published_claims", "sweep prompts"))
def slots_are_never_the_bottleneck(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    for cell in tables.cells:
        if cell.num_requests == 200 and cell.knob_max_num_seqs == 16 and cell.waiting_peak >= 0:
            waited = cell.waiting_peak if cell.running_peak >= 16 else 0
            what = f"Requests that waited while {cell.running_peak:.0f} ran"
            yield number(claim, what, waited, "", "waiting", row=cell, under=like_sharegpt(cell))
