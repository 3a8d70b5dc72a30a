"""Whether a published speed-up of one device over another follows memory bandwidth.

The one comparison that is no record: it reads names that may mean several cards, and the explanation of a ratio.
"""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from workflow_scripts.analyse.claims.claim_tables import Evidence
from workflow_scripts.analyse.claims.evidence import (
    COMPUTED,
    CONTRADICTED,
    MEASURED,
    PUBLISHED,
    SAME_PCT,
    SUPPORTED,
    Finding,
    Setting,
    against,
)
from workflow_scripts.analyse.claims.published_table import published_table
from workflow_scripts.analyse.intervals.repeats import Row, records
from workflow_scripts.analyse.limits.explanation import EXPECTED, NEAR_PCT
from workflow_scripts.analyse.limits.ratios import published_ratios, published_readings
from workflow_scripts.catalog.gpus_and_models import get_model
from workflow_scripts.catalog.published import Check, Claim, Stated
from workflow_scripts.common.wording import interval_text, plural


def speed_follows_bandwidth(claim: Claim, check: Check, evidence: Evidence) -> Iterator[Finding]:
    """Whether a published speed-up equals the ratio of bandwidths, for every card that the two names may mean."""
    (a, b), (model,) = check.gpus, check.models
    ratio, dtype = claim.value(str(check.quantity)), get_model(model).dtype
    own = published_ratios(published_table(evidence.published, claim), dtype=dtype)
    for row in records(own[(own["label_a"] == a) & (own["label_b"] == b)].head(1)):
        text = f"The claim's own table gives {row['ratio']:.4g}x, the geometric mean over {row['settings']} settings."
        yield Finding(text, PUBLISHED, f"{a} over {b}", (str(claim.table),))
    part = str(check.quantity)
    yield replace(_published_speedup(a, b, ratio, published_readings(a, b, ratio, dtype)), part=part)

    ratios = evidence.tables["ratios"]
    settings = [Setting((name,), check.models) for name in (a, b)]
    for row in records(ratios[ratios["metric"] == "output_tokens_per_s"]):
        gpus = row["gpu_a"], row["gpu_b"]
        bears = all(setting.covers(gpu, row["model"]) for setting, gpu in zip(settings, gpus, strict=True))
        ids = [f"{gpu}/{row['engine']}/{row['model']}/{row['workload']}/{row['knobs']}" for gpu in gpus]
        label = MEASURED if row["source"] == "measured" else str(row["source"])
        scope = f"{' over '.join(gpus)}, {row['model']}, {row['workload']}"
        says = _says(row, ratio) if bears else None
        ends = interval_text(row["ratio"], row["ratio_low"], row["ratio_high"], "x", row["scope"])
        nearest = f"nearest: {row['nearest']}, {row['nearest_difference_pct']:+.1f} %"
        text = f"{scope}: {ends}; explained by: {row['explanation']}; {nearest}."
        yield Finding(text, label, scope, tuple(ids), says, bears, part)


def _says(row: Row, published: float) -> str | None:
    """What a measured ratio says: nothing without an interval, or if bandwidth cannot be told from other causes."""
    if pd.isna(row["explanation"]) or pd.notna(row["cannot_show"]) or pd.isna(row["ratio_low"]):
        return None
    # What the step model expects rests on bandwidths among others, so it neither confirms nor rivals them.
    shown = ["bandwidth" in name for name in row["explanation"].split(", ") if name != EXPECTED]
    possible = any(shown) or "bandwidth" in str(row["compatible_with"])
    says = (
        against(row["ratio_low"], row["ratio_high"], *Stated(value=published).ends(tolerance_pct=SAME_PCT))
        if possible
        else CONTRADICTED
    )
    return None if says == SUPPORTED and not (shown and all(shown)) else says


def _published_speedup(a: str, b: str, ratio: float, readings: list[Row]) -> Finding:
    """Supported or contradicted if all cards that the names may mean agree; otherwise it depends on the cards."""
    near = [r for r in readings if abs(ratio / r["bandwidth_ratio"] - 1) * 100 <= NEAR_PCT]
    far = [r for r in readings if r not in near]
    text = (
        f"{a} over {b} may mean {plural(len(readings), 'pair')} of cards. Within {NEAR_PCT:g} % of {ratio:.4g}x are the"
        f" ratios of bandwidths of {_named(near)}; outside are those of {_named(far)}."
    )
    says = None if near and far else SUPPORTED if near else CONTRADICTED
    return Finding(text, COMPUTED, f"{a} over {b}, by data sheets", ("config/gpus.yaml", "analyse.limits.ratios"), says)


def _named(readings: list[Row]) -> str:
    return ", ".join(f"{r['gpu_a']} over {r['gpu_b']} ({r['bandwidth_ratio']:.3g}x)" for r in readings) or "none"
