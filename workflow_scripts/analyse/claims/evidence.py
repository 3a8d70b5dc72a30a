"""Evidence on a claim: findings, each with the source of its numbers, and the verdict that follows from them."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from workflow_scripts.catalog.gpus_and_models import load_gpus, resolve
from workflow_scripts.catalog.published import CLAIMS, Claim, Published, PublishedError

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


@dataclass(frozen=True)
class Setting:
    """What a claim is about: published names of devices (none: any GPU) and models (none: any)."""

    devices: tuple[str, ...] = ()
    models: tuple[str, ...] = ()

    @cached_property
    def gpus(self) -> frozenset[str]:
        """All devices of the catalogue that the claim may be about."""
        catalogue = load_gpus()
        named = {gpu.name for label in self.devices for gpu in resolve(label, catalogue)} or set(catalogue)
        return frozenset(n for n in named if not catalogue[n].simulated and catalogue[n].kind in ("cuda", "rocm"))

    def covers(self, gpu: str, model: str) -> bool:
        """Whether what was measured on this device with this model bears on the claim."""
        return gpu in self.gpus and (not self.models or model in self.models)


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
    said = {(finding.says, finding.part) for finding in findings if finding.bears}
    if any(says == CONTRADICTED for says, _ in said):
        return CONTRADICTED
    supported = {part for says, part in said if says == SUPPORTED}
    return SUPPORTED if supported and supported >= set(parts) else NOT_TESTABLE


def published_table(published: Published, claim: Claim) -> pd.DataFrame:
    """The table on which a claim is based.

    Raises:
        PublishedError: the claim names no table, or the table cannot be read.
    """
    if claim.table is None:
        raise PublishedError(f"{published.folder / CLAIMS}: {claim.id}: needs a table")
    path = published.folder / claim.table
    try:
        return pd.read_csv(path)
    except OSError as e:
        raise PublishedError(f"{path}: {e.strerror}") from None
    except ValueError as e:
        raise PublishedError(f"{path}: not a CSV table: {' '.join(str(e).split())}") from None
