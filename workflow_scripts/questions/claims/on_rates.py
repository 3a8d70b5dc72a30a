"""Checks of claims about rates by max-num-seqs, block size, device, engine and users."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product

from workflow_scripts.catalog.gpus_and_models import resolve
from workflow_scripts.catalog.published import Claim, Stated
from workflow_scripts.common.wording import interval_text, plural
from workflow_scripts.engines.vllm.knobs import why_block_size_is_refused
from workflow_scripts.physics.rate_ceiling import JudgedRate, judge_rate
from workflow_scripts.questions.claims.evidence import (
    COMPUTED,
    CONTRADICTED,
    MEASURED_HERE,
    SUPPORTED,
    Evidence,
    check,
    computed,
    covers,
    facts_of,
    may_mean,
    measured,
    number,
    within,
)
from workflow_scripts.questions.claims.study_tables import ClaimRow, Estimate, StudyTables, highest, pairs
from workflow_scripts.questions.devices.table import PREDICTED
from workflow_scripts.statistics.comparisons import CHANGES, FLAT, NOT_DECIDED
from workflow_scripts.study.setting_words import instead_of, setting_phrase
from workflow_scripts.tables.expected_ratios import NEAR_PCT, capability_ratios
from workflow_scripts.tables.summary import STEADY

# The versions whose attention backends were read; those before had another one that took blocks of 8 tokens.
ALL_VERSIONS = "vLLM 0.11 to 0.32"
# A published number differs from what was found if the difference is larger than this.
SAME_PCT = 10.0
_AT_LEAST_ONE = Stated(min=1)


def like_sharegpt(cell: ClaimRow) -> bool:
    """Whether the workload's lengths are like ShareGPT's."""
    return bool(150 <= cell.prompt_tokens_mean <= 300 and 120 <= cell.output_tokens_mean <= 300)


def effect_text(effect: ClaimRow) -> str:
    full = " while full" * (effect.metric == STEADY)
    return (
        f"{instead_of(effect.name, effect.value_b, effect.value_a)}, {effect.ratio:.3g} times the output "
        f"tokens/s{full} (95 % interval {effect.low:.3g} to {effect.high:.3g}): {effect.verdict}."
    )


# --- ceilings --------------------------------------------------------------------------------------------------------


def over_ceilings(
    claim: Claim,
    rates: Iterable[tuple[str, float, float | None]],
    at: str,
    what: str = "The",
    output_only: bool = False,
) -> Iterator[Evidence | None]:
    """What published rates, as (GPU, tokens per second, sequences at once) of any lengths, need on their devices.

    Of each device the rate that needs the most counts. `at` is what the source calls the sequences.
    """
    facts = facts_of(claim.models[0])
    judged = [(*rate, judge_rate(*rate, facts, None, output_only=output_only)) for rate in rates]
    known = [each for each in judged if each[3].times_ceiling >= 0]
    for gpu, rate, sequences, judged_rate in highest(known, lambda each: _needs(each[3]), lambda each: each[0]):
        setting = "" if sequences is None else f" at {at} {sequences:g}"
        tokens = "output tokens/s" if output_only else "tokens/s"
        text = f"{what} {rate:,.0f} {tokens} of {gpu}{setting}: {judged_rate.verdict}, {judged_rate.reason}."
        says = CONTRADICTED if judged_rate.verdict == "impossible" else None
        yield computed(text, says)


def _needs(judged: JudgedRate) -> tuple[float, float]:
    """The larger, the less is a rate possible."""
    return max(judged.times_ceiling, 1), judged.least_prompt_share


# --- flatness --------------------------------------------------------------------------------------------------------


def flat(
    claim: Claim, tables: StudyTables, under: Callable[[ClaimRow], bool] = lambda cell: True
) -> Iterator[Evidence | None]:
    """What all values of a group show, or its pairs within the claimed range if the group has values beyond that.

    Rates that differ by at most SAME_PCT are flat too. Support needs all values, or both ends, that the engine accepts.
    """
    stated = claim.quantities[0]
    values = stated.values or stated.ends()
    accepted = {v for v in values if stated.name != "block_size" or not why_block_size_is_refused("cuda", int(v))}

    def is_within(group: Iterable[float]) -> bool:
        return all(min(values) <= value <= max(values) for value in group)

    groups = [(effect, cell, True) for effect, cell in tables.with_cells(tables.overall(stated.name))]
    of_pairs = [(effect, cell, False) for effect, cell in tables.with_cells(tables.effects(stated.name))]
    for effect, cell, is_group in (*of_pairs, *groups):
        if effect.engine != "vllm":
            continue
        group = {float(value) for value in effect.values.split(", ")}
        compared = group if is_group else {float(effect.value_a), float(effect.value_b)}
        if not is_within(compared) or (is_within(group) and not is_group):
            continue
        says = None
        most_pct = 100 * (max(effect.high, 1 / effect.low) - 1)
        if effect.verdict == CHANGES:
            says = CONTRADICTED
        elif accepted <= compared:
            says = SUPPORTED if effect.verdict == FLAT or most_pct <= SAME_PCT else NOT_DECIDED
        yield measured(claim, effect, effect_text(effect), says, under=under(cell))


def refused_sizes(claim: Claim, says: str | None = None) -> Iterator[Evidence | None]:
    """Which of the claim's block sizes no GPU accepts."""
    sizes = (quantity for quantity in claim.quantities if quantity.name.startswith("block_size"))
    for size in (size for quantity in sizes for size in quantity.values or (quantity.value,) if size):
        if why := why_block_size_is_refused("cuda", int(size)):
            yield computed(f"{ALL_VERSIONS} refuse {size:g}: {why}.", says)


@check("throughput-flat-over-max-num-seqs", "throughput-flat-over-block-size", "kv-blocks-control-throughput")
def flat_throughput(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    """The two claims with published rates are about prompts of ShareGPT."""
    yield from refused_sizes(claim)
    if not claim.table:
        yield from flat(claim, tables)
        return
    published = tables.published.table(claim)
    rates = [(row["gpu"], row["throughput_tok_s"], row.get("max_num_seqs")) for row in published]
    yield from over_ceilings(claim, rates, "max-num-seqs")
    yield from flat(claim, tables, like_sharegpt)


@check("block-size-by-length")
def block_size_by_length(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    """Throughput that is flat over the sizes leaves no best size."""
    yield from refused_sizes(claim, CONTRADICTED)
    for effect in tables.overall("block_size"):
        yield measured(claim, effect, effect_text(effect), CONTRADICTED if effect.verdict == FLAT else None)


# --- a speed-up that follows bandwidth -------------------------------------------------------------------------------


@check("h200-over-l40s", "h100-over-a100")
def follows_bandwidth(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    """Whether a published speed-up equals the ratio of bandwidths, for every card that the two names may mean."""
    (a, b), published = claim.gpus, claim.value("throughput_ratio")
    yield _published_speedup(a, b, published)

    for row in tables.device_ratios():
        both = {a: row.value_b, b: row.value_a}
        if not all(may_mean(name, gpu) and covers(claim, gpu, row.model) for name, gpu in both.items()):
            continue
        place = f"{row.value_b} over {row.value_a}, {row.model}, {row.workload}"
        ends = interval_text(row.ratio, row.low, row.high, "x", row.scope)
        nearest = f"nearest: {row.nearest}, {row.nearest_difference_pct:+.1f} %"
        text = f"{place}: {ends}; explained by: {row.explanation}; {nearest}."
        label = MEASURED_HERE if row.source == "measured" else row.source
        yield Evidence(text, label, _says(row, published))


def _says(row: ClaimRow, published: float) -> str | None:
    """What a measured ratio says: nothing without an interval, or if bandwidth cannot be told from other causes."""
    if row.explanation is None or row.cannot_show is not None or math.isnan(row.low):
        return None
    # What the step model expects rests on bandwidths among others, so it neither confirms nor rivals them.
    shown = ["bandwidth" in name for name in row.explanation.split(", ") if name != PREDICTED]
    if not any(shown) and "bandwidth" not in str(row.compatible_with):
        return CONTRADICTED
    says = within(Estimate(row.ratio, row.low, row.high), Stated(value=published), tolerance_pct=SAME_PCT)
    return NOT_DECIDED if says == SUPPORTED and not (shown and all(shown)) else says


def _published_speedup(a: str, b: str, ratio: float) -> Evidence:
    """Supported or contradicted if all cards that the names may mean agree; otherwise it depends on the cards."""
    cards = {f"{x.name} over {y.name}": capability_ratios(x, y, None)[0] for x, y in product(resolve(a), resolve(b))}
    near = {name for name, bandwidth in cards.items() if abs(ratio / bandwidth - 1) * 100 <= NEAR_PCT}
    named = {name: f"{name} ({bandwidth:.3g}x)" for name, bandwidth in cards.items()}
    inside, outside = ([named[name] for name in cards if (name in near) == is_near] for is_near in (True, False))
    text = (
        f"{a} over {b} may mean {plural(len(cards), 'pair')} of cards. Within {NEAR_PCT:g} % of {ratio:.4g}x are the"
        f" ratios of bandwidths of {', '.join(inside) or 'none'}; outside are those of {', '.join(outside) or 'none'}."
    )
    says = None if inside and outside else SUPPORTED if inside else CONTRADICTED
    return Evidence(text, COMPUTED, says)


# --- engines ---------------------------------------------------------------------------------------------------------


def gain(claim: Claim, row: ClaimRow, stated: Stated | str, tolerance_pct: float = 0.0) -> Evidence | None:
    """A ratio of vLLM to HuggingFace as a number."""
    vllm, hf = setting_phrase("max_num_seqs", row.sequences), setting_phrase("batch_size", row.batch_size)
    what = f"Output tokens/s of vLLM with {vllm} over those of HuggingFace with {hf}"
    found = Estimate(row.ratio, row.low, row.high)
    return number(claim, row, what, found, stated, " times", tolerance_pct=tolerance_pct)


@check("hf-generate-on-a100", "vllm-over-hf-on-a100")
def hf_generate(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    """The source's script counts output tokens, and sends more prompts at once than its text says."""
    for name in ("batch_size", "prompts_of_the_script"):
        rate = claim.gpus[0], claim.value("tokens_per_s"), claim.value(name)
        yield from over_ceilings(claim, [rate], "batch", "HuggingFace: the", output_only=True)
    if claim.id == "vllm-over-hf-on-a100":
        for row in tables.fastest_gains(batched=False):
            yield gain(claim, row, "throughput_ratio", tolerance_pct=10)
        return
    rates = tables.intervals("output_tokens_per_s")
    for cell in tables.cells:
        if cell.engine == "hf-static" and cell.knob_batch_size == 1 and (found := rates.get(cell.cell_id)):
            what = f"Output tokens/s of HuggingFace at batch 1, {found.scope}"
            yield number(claim, cell, what, found, "tokens_per_s", tolerance_pct=10)


@check("engines-on-one-a100")
def engines_on_one_a100(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    """Rates that the device allows, steps no faster than reading the weights, and the order of the engines."""
    published = {row["metric"]: row for row in tables.published.table(claim)}
    gpu = claim.gpus[0]
    bandwidth = max(card.memory_bandwidth_bytes_per_s or 0 for card in resolve(gpu))
    reading_ms = 1000 * facts_of(claim.models[0]).decode_weight_bytes / bandwidth
    for engine in ("vllm", "tgi", "hf"):
        rate = gpu, published["throughput"][engine], published["max_batch_size"][engine]
        yield from over_ceilings(claim, [rate], "batch", f"{engine}: the")
        step_ms = published["itl_p50"][engine]
        text = f"{engine}: {step_ms:g} ms between tokens; reading the weights takes {reading_ms:.3g} ms."
        yield computed(text, CONTRADICTED if step_ms < reading_ms else None)
    for row in tables.fastest_gains(batched=True):
        found = gain(claim, row, "vllm_over_hf", tolerance_pct=10)
        is_in_order = found and found.says == CONTRADICTED and row.high >= 1
        yield replace(found, says=None) if found and is_in_order else found


@check("thirty-to-a-hundred-times-faster")
def thirty_to_a_hundred_times_faster(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    """Over a loop of single requests; batches are another comparison."""
    return (gain(claim, row, "throughput_ratio") for row in tables.fastest_gains(batched=False))


@check("faster-for-a-single-request")
def faster_for_a_single_request(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    for row, cell in tables.with_cells(tables.engine_gains(batched=False)):
        if row.sequences == 1 and cell.output_tokens == 50 * cell.num_requests:
            yield gain(claim, row, _AT_LEAST_ONE)


# --- users -----------------------------------------------------------------------------------------------------------


@check("concurrent-users-of-a-small-model")
def concurrent_users(claim: Claim, tables: StudyTables) -> Iterator[Evidence | None]:
    """The rate rises by more than the time of a request."""
    rates, times = tables.intervals("output_tokens_per_s"), tables.intervals("e2e_s_p50")
    served = [c for c in tables.cells if c.engine == "vllm-serve" and c.cell_id in rates and c.cell_id in times]
    many, single = [c for c in served if 1 < c.knob_users <= 20], [c for c in served if c.knob_users == 1]
    for cell, one in pairs(many, single, "study source gpu model workload max_model_len_effective"):
        rise = rates[cell.cell_id] / rates[one.cell_id] / (times[cell.cell_id] / times[one.cell_id])
        what = (
            f"Rise of the output tokens/s over that of the median time of a request, {cell.knob_users:g} users over 1"
        )
        yield number(claim, cell, what, rise, _AT_LEAST_ONE, " times")
