"""Rules for claims on prefix caching: the hit rate, the computation saved, and the speed-up."""

from collections.abc import Iterator

from workflow_scripts.analyse.effects import PAIR
from workflow_scripts.analyse.evidence import (
    COMPUTED,
    CONTRADICTED,
    ON_GPUS,
    SAME_PCT,
    SUPPORTED,
    Evidence,
    Finding,
    measured,
    rule,
)
from workflow_scripts.analyse.repeats import counted, records
from workflow_scripts.catalog.published import Claim
from workflow_scripts.engines.block_sizes import default_block_size
from workflow_scripts.physics import formulas

PREFIX_STUDY = "snakemake --cores all --configfile config/studies/prefix_caching.yaml (sweep prefix-length)"
# Published hit rates are rounded to a tenth of a point.
ROUNDED_POINTS = 0.05


@rule("prefix-hit-rate-of-identical-prompts", test="`formulas.prefix_hit_rate` decides it for any prompts")
def hit_rate_of_identical_prompts(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Supported if the claimed rate is the share of all prompts but the first; also gives the rates in whole blocks."""
    prompts, published = int(claim.value("identical_prompts")), claim.value("prefix_hit_rate")
    share = 100 * (prompts - 1) / prompts
    text = f"All but the first of {prompts} prompts can be found, which is {share:g} % of them."
    says = SUPPORTED if abs(share - published) <= ROUNDED_POINTS else CONTRADICTED
    yield Finding(text, COMPUTED, f"{prompts} equal prompts of any length", ("formulas.prefix_hit_rate",), says)

    size = default_block_size("cuda")
    lengths = (size, size + 1, 3 * size, 100 * size + 1)
    rates = [f"{100 * formulas.prefix_hit_rate(prompts, n, n, size):.3g} % at {n} tokens" for n in lengths]
    text = (
        "vLLM finds only whole blocks, and never a prompt's last token, so the rate depends on the length: "
        f"{', '.join(rates)} in blocks of {size}. {published:g} % is the limit for long prompts."
    )
    yield Finding(text, COMPUTED, "vLLM", ("formulas.prefix_hit_rate",))
    yield from _measured_hit_rates(evidence)


def _measured_hit_rates(evidence: Evidence) -> Iterator[Finding]:
    """Measured hit rates of prompts that share text, beside the formula's; hit counts do not depend on the device."""
    cells = counted(evidence.tables["cells"])
    hits = cells[cells["prefix_cache_hits"].astype(float) > 0].drop_duplicates(["study", "source", "cell_id"])
    for row in records(hits):
        if row["prefix_cache_hit_rate_predicted"] > 0:
            prompts, length = int(row["num_requests"]), row["prompt_tokens"] / row["num_requests"]
            found, expected = (100 * row[f"prefix_cache_hit_rate{of}"] for of in ("", "_predicted"))
            text = (
                f"{found:.1f} % for {prompts} prompts of {length:g} tokens, in blocks of"
                f" {row['block_size_effective']:g}; {expected:.1f} % by the formula."
            )
            yield measured(True, row, text, None, (row["cell_id"],))


@rule("speedup-of-a-shared-system-prompt", test=PREFIX_STUDY)
def speedup_of_a_shared_prompt(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """The measured speed-up of cells that found prefixes in the cache; on GPUs it supports or contradicts."""
    low, high = (1 + percent / 100 for percent in claim.range("speedup"))
    text = (
        f"This speed-up needs {100 - 100 / low:.3g} to {100 - 100 / high:.3g} % of the time of a run to be spent on "
        "the prefix."
    )
    yield Finding(text, COMPUTED, "any device", ("by definition",))
    effects = evidence.tables["effects"]
    rows = effects[(effects["knob"] == "enable_prefix_caching") & (effects["comparison"] == PAIR)]
    for row in records(rows[rows["took_effect"].eq(True)]):
        # The whole interval must lie in the claimed range, or within SAME_PCT of it.
        within = 1 + SAME_PCT / 100
        least, most = row["ratio_low"], row["ratio_high"]
        says = SUPPORTED if low / within <= least and most <= high * within else None
        if least > high or most < low:
            says = CONTRADICTED
        bears = ON_GPUS.covers(row["gpu"], row["model"])
        yield measured(bears, row, row["explanation"], says, (row["cell_id"], row["baseline_cell_id"]))


@rule("computation-saved-by-prefix-caching", test=PREFIX_STUDY)
def computation_saved(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Tokens found in the cache, as a share of all tokens of the requests."""
    low, high = claim.range("computation_saved")
    text = (
        f"A token that is found in the cache is not computed, so {low:g} to {high:g} % are saved if this share is "
        "found."
    )
    yield Finding(text, COMPUTED, "any device", ("by definition",))
    cells = counted(evidence.tables["cells"])
    hits = cells[cells["prefix_cache_hits"].astype(float) > 0]
    for _, rows in hits.groupby(["study", "source", "gpu", "model", "workload"], sort=False):
        found, tokens = rows["prefix_cache_hits"].sum(), (rows["prompt_tokens"] + rows["output_tokens"]).sum()
        saved_pct = 100 * found / tokens
        text = f"{found:,.0f} of {tokens:,.0f} tokens were found in the cache, which saves {saved_pct:.3g} % of them."
        says = SUPPORTED if low <= saved_pct <= high else CONTRADICTED
        row = records(rows)[0]
        bears = ON_GPUS.covers(row["gpu"], row["model"])
        yield measured(bears, row, text, says, dict.fromkeys(rows["cell_id"]))
