"""Rules for claims on throughput and devices: rates that do not depend on a knob, and speed-ups by bandwidth.

A published rate is compared with the ceiling of its device; uncertainties are resolved in the rate's favour
(`analyse.audit`).
"""

import math
from collections.abc import Collection, Iterator
from functools import cache

import pandas as pd

from workflow_scripts.analyse.audit import Workload, audit_table
from workflow_scripts.analyse.effects import OVERALL, PAIR
from workflow_scripts.analyse.evidence import (
    COMPUTED,
    CONTRADICTED,
    ON_GPUS,
    PUBLISHED,
    SAME_PCT,
    SUPPORTED,
    Evidence,
    Finding,
    Setting,
    against_interval,
    measured,
    rule,
)
from workflow_scripts.analyse.explanation import EXPECTED, NEAR_PCT
from workflow_scripts.analyse.published_table import published_table
from workflow_scripts.analyse.ratios import published_ratios, published_readings
from workflow_scripts.analyse.repeats import Row, cell_summary, records
from workflow_scripts.analyse.statistics import CHANGES, FLAT
from workflow_scripts.catalog.gpus_and_models import get_model
from workflow_scripts.catalog.published import Claim
from workflow_scripts.engines.block_sizes import why_block_size_is_refused
from workflow_scripts.engines.vllm_engines import VLLM
from workflow_scripts.physics import formulas
from workflow_scripts.physics.model_facts import ModelFacts, read_model_facts

LLAMA_8B = "llama-3.1-8b-instruct"
FOUR_GPUS = Setting(("H200", "H100", "A100 PCIe", "L40S"), model=LLAMA_8B)
SWEEP_STUDY = "snakemake --cores all --configfile config/studies/paged_attention.yaml"
CLAIMS_STUDY = "snakemake --cores all --configfile config/studies/published_claims.yaml"
PAIRS = {"h200-over-l40s": ("H200", "L40S"), "h100-over-a100": ("H100", "A100 PCIe")}

# ShareGPT's mean lengths with vLLM's benchmark, rounded (docs/workloads.md). Those of the published runs are unknown.
LENGTHS = Workload(200, 200)
PUBLISHED_UTILIZATION = 0.9
TOTAL_RATE = "total_tokens_per_s"


@cache
def facts_of(model: str) -> ModelFacts:
    """Facts of a model of the catalogue."""
    entry = get_model(model)
    return read_model_facts(entry.config, entry.fixed_dtype)


# --- ceilings --------------------------------------------------------------------------------------------------------


def against_ceilings(
    rates: pd.DataFrame, rate: str, where: str, utilization: float = 1.0, decides: bool = True
) -> Iterator[Finding]:
    """For each device, the published rate of Llama-3.1-8B with the highest ratio to its ceiling.

    Args:
        rates: the columns `gpu`, `rate` and, if stated, `max_num_seqs` or `batch_size`.
        rate: column of the rates; they count prompt tokens unless the column's name says output.
        where: the published file.
        utilization: largest share of the memory that the engine could use.
        decides: whether a rate above its ceiling contradicts the claim.
    """
    rows = audit_table(rates, facts_of(LLAMA_8B), LENGTHS, gpu_memory_utilization=utilization)
    rows = rows.dropna(subset="times_ceiling")
    for row in records(rows.loc[rows.groupby("gpu", sort=False)["times_ceiling"].idxmax()]):
        says = CONTRADICTED if decides and row["verdict"] == "impossible" else None
        scope = f"{row['gpu']}, {LLAMA_8B}, {LENGTHS.prompt_tokens:g} + {LENGTHS.output_tokens:g} tokens per request"
        yield Finding(_ceiling_text(row, rate), COMPUTED, scope, (where, "analyse.audit"), says)


def _ceiling_text(row: Row, rate: str) -> str:
    stated = next((name for name in ("max_num_seqs", "batch_size") if name in row), None)
    sequences = f" at {stated} {row[stated]:g}" if stated else ""
    text = f"The {row[rate]:,.0f} tokens/s of {row['gpu']}{sequences} are {row['reason']}."
    if row["verdict"] == "impossible" and stated and "prompt and output" in row["reason"]:
        # A ceiling rises at most in proportion to sequences; that of output tokens falls as prompts get longer.
        outputs = row["predicted_ceiling_tokens_per_s"] / (1 + LENGTHS.prompt_tokens / LENGTHS.output_tokens)
        least = math.ceil(row["times_ceiling"] * row[stated])
        text += f" It would be possible with at least {least} sequences at once, or with prompts that are at least"
        text += f" {row[rate] / outputs - 1:.3g} times as long as outputs."
    return text


# --- flatness --------------------------------------------------------------------------------------------------------


@rule("throughput-flat-over-max-num-seqs", test=f"{SWEEP_STUDY} (sweep max-num-seqs)")
def flat_over_max_num_seqs(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Contradicted by a rate above its ceiling or by a measured change within the range; supported by flat cells."""
    table = published_table(evidence.published, claim)
    yield from against_ceilings(table, "throughput_tok_s", str(claim.table), PUBLISHED_UTILIZATION)
    ends = claim.range("max_num_seqs")
    yield from _flatness(evidence, "max_num_seqs", ends, must_cover=ends)
    yield from _beside_published(evidence, table, str(claim.table))


def _beside_published(evidence: Evidence, table: pd.DataFrame, where: str) -> Iterator[Finding]:
    """For each device of the table that was measured, its rates with the fewest and the most sequences of the table."""
    cells = evidence.tables["cells"]
    summary, _ = cell_summary(cells[cells["engine"] == VLLM.name], TOTAL_RATE)
    if summary.empty or "knob_max_num_seqs" not in summary:
        return
    for label, published in table.groupby("gpu", sort=False):
        of_card = Setting((str(label),), model=LLAMA_8B)
        rows = summary[[of_card.covers(*place) for place in zip(summary["gpu"], summary["model"], strict=True)]]
        rows = rows.merge(published, left_on="knob_max_num_seqs", right_on="max_num_seqs", suffixes=("", "_published"))
        for _, of_one in rows.sort_values("max_num_seqs").groupby(["gpu", "workload"], sort=False):
            ends = records(of_one.iloc[[0, -1]])
            rates = [math.exp(row["log_mean"]) for row in ends]
            if ends[0]["max_num_seqs"] == ends[1]["max_num_seqs"]:
                continue
            told = [
                f"{rate:,.0f} at {row['max_num_seqs']} ({label} as published: {row['throughput_tok_s']:,.0f}, which is"
                f" {row['throughput_tok_s'] / rate:.3g} times that)"
                for row, rate in zip(ends, rates, strict=True)
            ]
            text = f"Tokens/s, prompt and output: {told[0]} and {told[1]}; measured, {rates[1] / rates[0]:.3g} times."
            yield measured(True, ends[0], text, None, (where, *(row["cell_id"] for row in ends)))


@rule("throughput-flat-over-block-size", test=f"{SWEEP_STUDY} (sweep block-size)")
def flat_over_block_size(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Contradicted by a rate above its ceiling or a measured change; supported by flat cells of the accepted sizes."""
    table = published_table(evidence.published, claim)
    yield from against_ceilings(table, "throughput_tok_s", str(claim.table), PUBLISHED_UTILIZATION)
    sizes = claim.values("block_size")
    refused = dict(_refused_on_gpus(sizes))
    for text in refused.values():
        yield Finding(text, PUBLISHED, "vLLM on GPUs", ("workflow_scripts.engines.block_sizes",))
    accepted = [size for size in sizes if size not in refused]
    yield from _flatness(evidence, "block_size", (min(sizes), max(sizes)), must_cover=accepted)


def _flatness(
    evidence: Evidence, knob: str, ends: tuple[float, float], must_cover: Collection[float]
) -> Iterator[Finding]:
    """What all values of a group show, or its pairs within the claimed range if the group has values beyond that.

    Rates that differ by at most SAME_PCT are as flat as the claim says, also if the study's own margin is narrower.
    """

    def is_within(values: Collection[float]) -> bool:
        return ends[0] <= min(values) and max(values) <= ends[1]

    effects = evidence.tables["effects"]
    for row in records(effects[(effects["knob"] == knob) & (effects["engine"] == VLLM.name)]):
        group = [float(value) for value in row["values"].split(", ")]
        is_pair = row["comparison"] == PAIR
        values = [float(row["value"]), float(row["baseline"])] if is_pair and not is_within(group) else group
        if is_pair and (values == group or not is_within(values)):
            continue
        says, text = None, row["explanation"]
        most_pct = 100 * (max(row["ratio_high"], 1 / row["ratio_low"]) - 1)
        if is_within(values) and row["verdict"] == CHANGES:
            says = CONTRADICTED
        elif is_within(values) and set(must_cover) <= set(values):
            if row["verdict"] == FLAT:
                says = SUPPORTED
            elif most_pct <= SAME_PCT:
                says = SUPPORTED
                text += f" Any difference is within {most_pct:.2g} %, and published numbers count as equal within"
                text += f" {SAME_PCT:g} %."
        bears = FOUR_GPUS.covers(row["gpu"], row["model"])
        yield measured(bears, row, text, says, (row["cell_id"], row["baseline_cell_id"]))


def _refused_on_gpus(sizes: Collection[float]) -> Iterator[tuple[float, str]]:
    """Block sizes that vLLM does not accept on a GPU, from the declarations of its attention backends."""
    for size in sizes:
        if why := why_block_size_is_refused("cuda", int(size)):
            yield size, f"In vLLM 0.32 {why}."


@rule("block-size-by-length", test=f"{CLAIMS_STUDY} (sweep block-size-by-length)")
def block_size_by_length(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Contradicted by a size that GPUs do not accept, and by throughput that is flat over the sizes."""
    sizes = [claim.value(f"block_size_{length}") for length in ("short", "general", "long")]
    for text in dict(_refused_on_gpus(sizes)).values():
        yield Finding(text, PUBLISHED, "vLLM on GPUs", ("workflow_scripts.engines.block_sizes",), CONTRADICTED)
    waste = ", ".join(f"{formulas.expected_slots_wasted_per_sequence(int(size)):g} of {size:g}" for size in sizes)
    text = f"A sequence of any length leaves {waste} slots of its last block empty on average."
    yield Finding(text, COMPUTED, "any device", ("formulas.expected_slots_wasted_per_sequence",))
    effects = evidence.tables["effects"]
    for row in records(effects[(effects["knob"] == "block_size") & (effects["comparison"] == OVERALL)]):
        says = CONTRADICTED if row["verdict"] == FLAT else None
        bears = ON_GPUS.covers(row["gpu"], row["model"])
        yield measured(bears, row, row["explanation"], says, (row["cell_id"], row["baseline_cell_id"]))


# --- speed-ups of devices --------------------------------------------------------------------------------------------


@rule(*PAIRS, test=f"{SWEEP_STUDY} (all sweeps; table ratios)")
def speed_follows_bandwidth(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Whether a published speed-up equals the ratio of bandwidths, for every card that the names may mean."""
    a, b = PAIRS[claim.id]
    ratio, dtype = claim.value("throughput_ratio"), get_model(LLAMA_8B).dtype
    own = published_ratios(published_table(evidence.published, claim), dtype=dtype)
    for row in records(own[(own["label_a"] == a) & (own["label_b"] == b)].head(1)):
        text = f"The claim's own table gives {row['ratio']:.4g}x, the geometric mean over {row['settings']} settings."
        yield Finding(text, PUBLISHED, f"{a} over {b}", (str(claim.table),))
    yield _published_speedup(a, b, ratio, published_readings(a, b, ratio, dtype))

    ratios = evidence.tables["ratios"]
    settings = [Setting((name,), model=LLAMA_8B) for name in (a, b)]
    for row in records(ratios[ratios["metric"] == "output_tokens_per_s"]):
        gpus = row["gpu_a"], row["gpu_b"]
        bears = all(setting.covers(gpu, row["model"]) for setting, gpu in zip(settings, gpus, strict=True))
        ids = [f"{gpu}/{row['engine']}/{row['model']}/{row['workload']}/{row['knobs']}" for gpu in gpus]
        yield measured(bears, row | {"gpu": " over ".join(gpus)}, row["verdict_text"], _says(row, ratio), ids)


def _says(row: Row, published: float) -> str | None:
    """What a measured ratio says: nothing without an interval, or if bandwidth cannot be told from other causes."""
    if pd.isna(row["explanation"]) or pd.notna(row["cannot_show"]) or pd.isna(row["ratio_low"]):
        return None
    # What the step model expects rests on bandwidths among others, so it neither confirms nor rivals them.
    shown = ["bandwidth" in name for name in row["explanation"].split(", ") if name != EXPECTED]
    possible = any(shown) or "bandwidth" in str(row["compatible_with"])
    says = against_interval(row["ratio_low"], row["ratio_high"], published) if possible else CONTRADICTED
    return None if says == SUPPORTED and not (shown and all(shown)) else says


def _published_speedup(a: str, b: str, ratio: float, readings: list[Row]) -> Finding:
    """Supported or contradicted if all cards that the names may mean agree; otherwise it depends on the cards."""
    near = [r for r in readings if abs(formulas.relative_difference(ratio, r["bandwidth_ratio"])) * 100 <= NEAR_PCT]
    far = [r for r in readings if r not in near]
    says = None
    if len(readings) == 1:
        text = str(readings[0]["verdict_text"])
    else:
        text = f"{a} over {b} may mean {len(readings)} pairs of cards. Within {NEAR_PCT:g} % of {ratio:.4g}x are the"
        text += f" ratios of bandwidths of {_named(near)}; outside are those of {_named(far)}."
    if not (near and far):
        says = SUPPORTED if near else CONTRADICTED
    return Finding(text, COMPUTED, f"{a} over {b}, by data sheets", ("config/gpus.yaml", "analyse.ratios"), says)


def _named(readings: list[Row]) -> str:
    return ", ".join(f"{r['gpu_a']} over {r['gpu_b']} ({r['bandwidth_ratio']:.3g}x)" for r in readings) or "none"
