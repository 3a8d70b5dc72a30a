"""Hold the checks of a claim against tables: a range, flatness over a knob, or a speed-up that follows bandwidth.

A check finds pieces of evidence, each with the source of its numbers, from which the verdict on the claim follows.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import nan

import pandas as pd
from scipy.stats import gmean

from workflow_scripts.analyse.claims.claim_tables import Evidence, means, table_of
from workflow_scripts.analyse.intervals.repeats import Row, cell_ids, records
from workflow_scripts.analyse.intervals.statistics import CHANGES, FLAT
from workflow_scripts.analyse.limits.predictions import published_table
from workflow_scripts.analyse.limits.ratios import EXPECTED, NEAR_PCT, capability_ratios
from workflow_scripts.analyse.settings.effects import PAIR
from workflow_scripts.catalog.gpus_and_models import load_gpus, resolve
from workflow_scripts.catalog.published import CLAIMS, Check, Claim, PublishedError, Rows, Stated
from workflow_scripts.common.wording import interval_text, plural
from workflow_scripts.engines.vllm_engines import why_block_size_is_refused

MEASURED, COMPUTED, PUBLISHED = "measured here", "computed from a formula", "published"
SUPPORTED, CONTRADICTED, NOT_TESTABLE = "supported", "contradicted", "not testable here"


@dataclass(frozen=True)
class Finding:
    """One piece of evidence on a `part` (quantity) of a claim; `says` is None if it decides nothing.

    `label` is the source of its numbers, `ids` are cells, tables and formulas. If it is not about the claim's subject
    (`bears`), it decides nothing and is shown separately.
    """

    text: str
    label: str
    scope: str
    ids: tuple[str, ...]
    says: str | None = None
    bears: bool = True
    part: str = ""


def covers(names: Sequence[str], models: Collection[str], gpu: str, model: str) -> bool:
    """Whether what was measured on this device with this model bears on a claim about published names of devices (none:
    any GPU) and models (none: any).

    >>> [covers(["A100 PCIe"], [], gpu, "opt-125m") for gpu in ("a100-pcie-80gb", "a100-sxm-80gb", "h200")]
    [True, False, False]
    """
    of_gpu = load_gpus().get(gpu)
    is_gpu = of_gpu is not None and not of_gpu.simulated and of_gpu.kind in ("cuda", "rocm")
    is_named = not names or any(gpu == card.name for name in names for card in resolve(name))
    return is_gpu and is_named and (not models or model in models)


# A published number differs from what was found if the difference is larger than this.
SAME_PCT = 10.0


def against(low: float, high: float, least: float, most: float) -> str | None:
    """What a measured interval says about a published range.

    It says nothing if only a part of the interval lies in the range, or if there is no interval.

    >>> against(2.8, 3.0, 2.7, 3.2), against(2.0, 2.5, 2.7, 3.2), against(2.5, 3.0, 2.7, 3.2)
    ('supported', 'contradicted', None)
    """
    if least <= low and high <= most:
        return SUPPORTED
    return CONTRADICTED if high < least or low > most else None


def verdict(findings: Iterable[Finding], parts: Collection[str] = ("",)) -> str:
    """A claim is about all that it covers: one contradicting finding decides, and each part needs support."""
    verdicts = {(finding.says, finding.part) for finding in findings if finding.bears}
    if any(says == CONTRADICTED for says, _ in verdicts):
        return CONTRADICTED
    supported = {part for says, part in verdicts if says == SUPPORTED}
    return SUPPORTED if supported and supported >= set(parts) else NOT_TESTABLE


# What `source` says of rows in which a published or a predicted number stands beside another prediction.
_LABELS = {"measured": MEASURED, "predicted": COMPUTED, "published": COMPUTED}
_IDS = ("cell_id", "baseline_cell_id", "cell_id_b")


def findings(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """What the checks of a claim find.

    Raises:
        PublishedError: a check names a column, a number or a table that does not exist.
    """
    for check in claim.checks:
        try:
            yield from _COMPARE[check.compare](claim, check, evidence)
        except (KeyError, NameError, SyntaxError, TypeError, ValueError) as e:
            raise PublishedError(f"{CLAIMS}: {claim.id}: {check.rows.table}: {e}") from None


def parts(claim: Claim) -> set[str]:
    """The parts of a claim that need support."""
    return {_part(check) for check in claim.checks if check.quantity and SUPPORTED in check.decides}


def _part(check: Check) -> str:
    return " ".join([str(check.quantity), *(f"{name} {value:g}" for name, value in check.at.items())])


def rows_of(claim: Claim, check: Check, evidence: Evidence) -> pd.DataFrame:
    """The rows that a check compares, with the columns `found`, `found_low`, `found_high` and `is_as_stated`."""
    numbers = {quantity.name: quantity.value for quantity in claim.quantities}
    rows = _rows(claim, check, check.rows, evidence)
    for beside, suffix in zip(check.beside, ("_b", "_c"), strict=False):
        other, there, here = _rows(claim, check, beside, evidence), list(beside.same), list(beside.same.values())
        keys = {"left_on": there, "right_on": here} if beside.same else {"how": "cross"}
        rows = rows.merge(other, suffixes=("", suffix), **keys)
    rows = rows[_holds(rows, check.where)] if check.where else rows
    if check.by:
        rows = means(rows, check.by)
    value = _of(rows, check.value, numbers)
    low, high = (value if end is None else _of(rows, end, numbers) for end in (check.low, check.high))
    as_stated = _holds(rows, check.under) if check.under else True
    rows = rows.assign(found=value, found_low=low, found_high=high, is_as_stated=as_stated)
    if check.highest:
        rows = rows.sort_values(list(check.highest), ascending=False, kind="stable")
        rows = rows.drop_duplicates(list(check.per)).sort_index()
    return rows.sort_values("is_as_stated", ascending=False, kind="stable")


def _rows(claim: Claim, check: Check, rows: Rows, evidence: Evidence) -> pd.DataFrame:
    table = table_of(claim, check, rows, evidence)
    if rows.table == "cells":  # no cell of the study may set a knob
        table = table.assign(**{name: nan for name in re.findall(r"\bknob_\w+", repr(check)) if name not in table})
    return table[_holds(table, rows.where)] if rows.where and len(table) else table


def _of(rows: pd.DataFrame, expression: str | None, numbers: Mapping[str, float | None] | None = None) -> pd.Series:
    """An expression of columns and, as `@name`, of the claim's numbers."""
    if rows.empty or expression is None:
        return pd.Series(nan, index=rows.index)
    return pd.Series(rows.eval(expression, local_dict=dict(numbers or {})), index=rows.index)


def _holds(rows: pd.DataFrame, condition: str) -> pd.Series:
    return _of(rows, condition).fillna(False).astype(bool)


# --- a range ---------------------------------------------------------------------------------------------------------


def _range(claim: Claim, check: Check, evidence: Evidence) -> Iterator[Finding]:
    """The whole interval of each row must lie in what is stated."""
    stated = check.stated or (claim.quantity(check.quantity, **check.at) if check.quantity else None)
    for row in records(rows_of(claim, check, evidence)):
        says = None
        if stated and check.quantity:
            says = against(row["found_low"], row["found_high"], *stated.ends(check.tolerance, check.tolerance_pct))
        yield _finding(claim, check, row, check.text.format(**row), says)


def _finding(claim: Claim, check: Check, row: Row, text: str, says: str | None) -> Finding:
    """A finding on one row. What was measured under other conditions than the stated ones bears not on the claim."""
    source = row.get("source")
    label = _LABELS.get(str(source), str(source)) if source else COMPUTED
    place = [str(row[name]) for name in ("gpu", "model", "workload") if pd.notna(row.get(name))]
    bears = not check.unstated and bool(row["is_as_stated"])
    if check.condition:
        text = f"{'With' if row['is_as_stated'] else 'Not with'} {check.condition}: {text}"
    if source and source != "published":
        bears &= covers(check.gpus, check.models, row["gpu"], row["model"])
        text = f"{', '.join(place)}: {text}"
    ids = [str(row[name]) for name in _IDS if pd.notna(row.get(name))]
    says = says if bears and says in check.decides else None
    return Finding(
        text=text,
        label=label,
        scope=", ".join(place) or "arithmetic",
        ids=tuple(ids) or (claim.table or CLAIMS, check.rows.table),
        says=says,
        bears=bears,
        part=_part(check),
    )


# --- flatness --------------------------------------------------------------------------------------------------------


def _flat(claim: Claim, check: Check, evidence: Evidence) -> Iterator[Finding]:
    """What all values of a group show, or its pairs within the claimed range if the group has values beyond that.

    Rates that differ by at most SAME_PCT are flat too. Support needs all values, or both ends, that the engine accepts.
    """
    stated = claim.quantity(str(check.quantity))
    values = stated.values or stated.ends()
    accepted = {v for v in values if check.quantity != "block_size" or not why_block_size_is_refused("cuda", int(v))}

    def is_within(group: Collection[float]) -> bool:
        return min(values) <= min(group) and max(group) <= max(values)

    rows = rows_of(claim, check, evidence)
    for row in records(rows[rows["knob"] == check.quantity]):
        group = [float(value) for value in row["values"].split(", ")]
        is_pair = row["comparison"] == PAIR
        compared = [float(row["value"]), float(row["baseline"])] if is_pair else group
        if is_pair and (is_within(group) or not is_within(compared)):
            continue
        says, text = None, check.text.format(**row)
        most_pct = 100 * (max(row["ratio_high"], 1 / row["ratio_low"]) - 1)
        if is_within(compared) and row["verdict"] == CHANGES:
            says = CONTRADICTED
        elif is_within(compared) and accepted <= set(compared) and (row["verdict"] == FLAT or most_pct <= SAME_PCT):
            says = SUPPORTED
            if row["verdict"] != FLAT:
                text += f" Any difference is within {most_pct:.2g} %, and published numbers count as equal within"
                text += f" {SAME_PCT:g} %."
        yield _finding(claim, check, row, text, says)


# --- a speed-up that follows bandwidth -------------------------------------------------------------------------------


def _bandwidth(claim: Claim, check: Check, evidence: Evidence) -> Iterator[Finding]:
    """Whether a published speed-up equals the ratio of bandwidths, for every card that the two names may mean."""
    (a, b), part = check.gpus, str(check.quantity)
    ratio = claim.value(part)
    table = published_table(evidence.published, claim)
    rates = table.pivot(index="max_num_seqs", columns="gpu", values="throughput_tok_s")
    own = (rates[a] / rates[b]).dropna()
    text = f"The claim's own table gives {gmean(own):.4g}x, the geometric mean over {len(own)} settings."
    yield Finding(text, PUBLISHED, f"{a} over {b}", (str(claim.table),))
    yield replace(_published_speedup(a, b, ratio), part=part)

    ratios = evidence.tables["ratios"].query("metric == 'output_tokens_per_s'")
    ids = zip(cell_ids(ratios, "gpu_a"), cell_ids(ratios, "gpu_b"), strict=True)
    for row, cells in zip(records(ratios), ids, strict=True):
        both = {a: row["gpu_a"], b: row["gpu_b"]}
        bears = all(covers([name], check.models, gpu, row["model"]) for name, gpu in both.items())
        label = MEASURED if row["source"] == "measured" else str(row["source"])
        scope = f"{' over '.join(both.values())}, {row['model']}, {row['workload']}"
        says = _says(row, ratio) if bears else None
        ends = interval_text(row["ratio"], row["ratio_low"], row["ratio_high"], "x", row["scope"])
        nearest = f"nearest: {row['nearest']}, {row['nearest_difference_pct']:+.1f} %"
        text = f"{scope}: {ends}; explained by: {row['explanation']}; {nearest}."
        yield Finding(text, label, scope, cells, says, bears, part)


def _says(row: Row, published: float) -> str | None:
    """What a measured ratio says: nothing without an interval, or if bandwidth cannot be told from other causes."""
    if pd.isna(row["explanation"]) or pd.notna(row["cannot_show"]) or pd.isna(row["ratio_low"]):
        return None
    # What the step model expects rests on bandwidths among others, so it neither confirms nor rivals them.
    shown = ["bandwidth" in name for name in row["explanation"].split(", ") if name != EXPECTED]
    if not any(shown) and "bandwidth" not in str(row["compatible_with"]):
        return CONTRADICTED
    says = against(row["ratio_low"], row["ratio_high"], *Stated(value=published).ends(tolerance_pct=SAME_PCT))
    return None if says == SUPPORTED and not (shown and all(shown)) else says


def _published_speedup(a: str, b: str, ratio: float) -> Finding:
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
    return Finding(text, COMPUTED, f"{a} over {b}, by data sheets", ("config/gpus.yaml", "analyse.limits.ratios"), says)


_COMPARE: dict[str, Callable[[Claim, Check, Evidence], Iterator[Finding]]] = {
    "range": _range,
    "flat": _flat,
    "bandwidth": _bandwidth,
}
