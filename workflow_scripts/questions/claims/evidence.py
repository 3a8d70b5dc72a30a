"""Evidence on a claim, and the verdict that follows from it.

A check is a function that gets a claim and the tables and finds evidence; `check` registers it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from workflow_scripts.catalog.gpus_and_models import CatalogError, get_model, load_gpus, resolve
from workflow_scripts.catalog.published import Claim, Stated
from workflow_scripts.physics.model_facts import ModelFacts, read_model_facts
from workflow_scripts.questions.claims.study_tables import ClaimRow, Estimate, StudyTables
from workflow_scripts.statistics.comparisons import NOT_DECIDED

MEASURED_HERE, COMPUTED = "measured here", "computed from a formula"
SUPPORTED, CONTRADICTED, NOT_TESTABLE = "supported", "contradicted", "not testable here"
# What `source` says of rows in which a predicted number stands beside another prediction.
_LABELS = {"measured": MEASURED_HERE, "predicted": COMPUTED}


@dataclass(frozen=True)
class Evidence:
    """One piece of evidence on a claim; `says` is None if it decides nothing. `label` is the source of its numbers."""

    text: str
    label: str
    says: str | None = None


# None is a measurement that is not about the claim's subject.
Find = Callable[[Claim, StudyTables], Iterator[Evidence | None]]
CHECKS: dict[str, Find] = {}


def check(*claims: str) -> Callable[[Find], Find]:
    """Make a function the check of the claims with these ids."""

    def register(find: Find) -> Find:
        CHECKS.update(dict.fromkeys(claims, find))
        return find

    return register


def verdict(evidence: Iterable[Evidence]) -> str:
    """A claim is about all that it covers, so one contradiction decides."""
    said = {each.says for each in evidence}
    return next((says for says in (CONTRADICTED, SUPPORTED, NOT_DECIDED) if says in said), NOT_TESTABLE)


def within(found: float | Estimate, stated: Stated, tolerance: float = 0.0, tolerance_pct: float = 0.0) -> str | None:
    """What a number, or the whole of its interval, says about a published range; nothing if it is not known."""
    value, low, high = found[:3] if isinstance(found, Estimate) else (found, found, found)
    least, most = stated.ends(tolerance, tolerance_pct)
    if least <= low and high <= most:
        return SUPPORTED
    if high < least or low > most:
        return CONTRADICTED
    return None if value != value else NOT_DECIDED


def may_mean(name: str, gpu: str) -> bool:
    """Whether a published name may mean this device."""
    try:
        return any(card.name == gpu for card in resolve(name))
    except CatalogError:
        return False


def covers(claim: Claim, gpu: str, model: str) -> bool:
    """Whether a claim is about this device (any GPU if it names none) and this model (any if it names none)."""
    card = load_gpus().get(gpu)
    is_gpu = card is not None and card.kind in ("cuda", "rocm")
    is_named = not claim.gpus or any(may_mean(name, gpu) for name in claim.gpus)
    return is_gpu and is_named and (not claim.models or model in claim.models)


@cache
def facts_of(model: str) -> ModelFacts:
    entry = get_model(model)
    return read_model_facts(entry.config, entry.fixed_dtype)


def computed(text: str, says: str | None = None) -> Evidence:
    """Evidence of a formula with the claim's numbers."""
    return Evidence(text, COMPUTED, says)


def number(
    claim: Claim,
    row: ClaimRow,
    what: str,
    found: float | Estimate,
    stated: Stated | str,
    unit: str = "",
    *,
    tolerance: float = 0.0,
    tolerance_pct: float = 0.0,
    under: bool = True,
) -> Evidence | None:
    """Evidence of one number of a row, a ratio, a share or a size, against what is stated, or the claim's quantity of
    this name; `under` is that of `measured`."""
    stated = claim.quantity(stated) if isinstance(stated, str) else stated
    value, ends = (found.value, f" ({found.ends()})") if isinstance(found, Estimate) else (found, "")
    shown = f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    says = within(found, stated, tolerance, tolerance_pct)
    return measured(claim, row, f"{what}: {shown}{unit}{ends}.", says, under=under)


def measured(claim: Claim, row: ClaimRow, text: str, says: str | None = None, *, under: bool = True) -> Evidence | None:
    """Evidence of a row; none if the claim is not about its device and model, or if it was not measured `under` the
    conditions that the source states."""
    if not under or not covers(claim, row.gpu, row.model):
        return None
    place = f"{', '.join(filter(None, (row.gpu, row.model, row.workload)))}: "
    return Evidence(place + text, _LABELS.get(row.source, row.source), says)
