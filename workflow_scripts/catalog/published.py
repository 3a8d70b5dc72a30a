"""What others published: claims with their quantities, and the tables behind them (`config/published/`)."""

from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from workflow_scripts.catalog.gpus_and_models import CONFIG
from workflow_scripts.common.csv_rows import read_rows
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.records import Record, read_yaml, validated
from workflow_scripts.common.wording import listed

PUBLISHED = CONFIG / "published"
CLAIMS = "claims.yaml"

_SYMBOLS = {"percent": " %", "ratio": ""}


class PublishedError(InputError):
    """Published data that cannot be read; the message says what is wrong and what is allowed."""


class Stated(Record):
    """What must hold: a value, or one or both ends of a range."""

    value: float | None = None
    min: float | None = None
    max: float | None = None

    def ends(self, tolerance: float = 0.0, tolerance_pct: float = 0.0) -> tuple[float, float]:
        """The lowest and the highest number that agree with it.

        >>> Stated(min=60, max=80).ends(tolerance=5), Stated(max=15).ends()
        ((55.0, 85.0), (-inf, 15.0))
        """
        low, high = (self.value if end is None else end for end in (self.min, self.max))
        share = tolerance_pct / 100
        return (
            -inf if low is None else low * (1 - share) - tolerance,
            inf if high is None else high * (1 + share) + tolerance,
        )


class Quantity(Stated):
    """One number of a claim: a value, several values or a range."""

    name: str
    unit: str
    values: tuple[float, ...] | None = None
    approximate: bool = False

    @model_validator(mode="after")
    def _says_something(self) -> "Quantity":
        if all(part is None for part in (self.value, self.values, self.min, self.max)):
            raise ValueError(f"{self.name}: needs one of value, values, min, max")
        return self

    def text(self) -> str:
        """What was published, with its unit.

        >>> Quantity(name="waste", unit="percent", min=60, max=80).text()
        '60 to 80 %'
        >>> Quantity(name="blocks", unit="blocks", value=9, approximate=True).text()
        'about 9 blocks'
        """
        unit = _SYMBOLS.get(self.unit, f" {self.unit.removesuffix('s') if self.value == 1 else self.unit}")
        about = "about " if self.approximate else ""
        return f"{about}{self._numbers()}{unit}"

    def _numbers(self) -> str:
        if self.value is not None:
            return plain(self.value)
        if self.values is not None:
            return listed(map(plain, self.values))
        if self.min is None or self.max is None:
            return f"at least {plain(self.min)}" if self.max is None else f"at most {plain(self.max)}"
        return f"{plain(self.min)} to {plain(self.max)}"


def plain(number: float | None) -> str:
    """A number as it was published, not rounded.

    >>> plain(140608.0), plain(68.65), plain(0.5)
    ('140,608', '68.65', '0.5')
    """
    assert number is not None
    return f"{number:,.0f}" if number == int(number) else f"{number:,}"


class Claim(Record):
    """What a source says, in our words: its quantities, the table behind them, the devices and models that it names.
    `model`, a name in config/models/, is that of a table of rates over max-num-seqs. `section`: address of the section
    of the page that shows the claim; `tested_by`: the study and its sweeps, `STUDY: SWEEPS`, that would give a verdict;
    `unstated`: the conditions that the source does not state, without which nothing tests the claim."""

    id: str
    source: str
    text: str
    table: str | None = None
    model: str | None = None
    gpus: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    section: Literal["block-size", "devices", "engines", "max-num-seqs", "prefix-caching"]
    tested_by: Annotated[str, Field(pattern=r"^\w+: .")]
    unstated: str | None = None
    quantities: Annotated[tuple[Quantity, ...], Field(min_length=1)]

    @property
    def would_test(self) -> str:
        """How to measure what would give a verdict."""
        study, _, sweeps = self.tested_by.partition(": ")
        command = f"snakemake --cores all --configfile config/studies/{study}.yaml ({sweeps})"
        return f"{self.unstated}; {command} shows how it matters" if self.unstated else command

    def quantity(self, name: str) -> Quantity:
        """The quantity with this name. Raises PublishedError if there is none."""
        by_name = {quantity.name: quantity for quantity in self.quantities}
        if name not in by_name:
            raise PublishedError(f"{CLAIMS}: {self.id}: no quantity {name!r}; there are: {', '.join(by_name)}")
        return by_name[name]

    def value(self, name: str) -> float:
        """The single number of a quantity. Raises PublishedError if it has none."""
        if (value := self.quantity(name).value) is None:
            raise PublishedError(f"{CLAIMS}: {self.id}: {name} needs value")
        return value


@dataclass(frozen=True)
class Published:
    """The folder of published data."""

    folder: Path

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """All claims, in the file's order. Raises PublishedError if the file is missing or a claim is not valid."""
        path = self.folder / CLAIMS
        claims = validated(tuple[Claim, ...], read_yaml(path, PublishedError), str(path), PublishedError)
        twice = {claim.id for claim in claims if sum(other.id == claim.id for other in claims) > 1}
        if twice:
            raise PublishedError(f"{path}: two claims have the id {min(twice)!r}")
        return claims

    def claim(self, claim_id: str) -> Claim:
        """The claim with this id. Raises PublishedError if there is none."""
        by_id = {claim.id: claim for claim in self.claims}
        if claim_id not in by_id:
            raise PublishedError(f"{self.folder / CLAIMS}: no claim {claim_id!r}; allowed: {', '.join(by_id)}")
        return by_id[claim_id]

    def table(self, claim: Claim) -> list[dict[str, Any]]:
        """The rows of the table of a claim. Raises InputError if the claim has none, or one that cannot be read."""
        if claim.table is None:
            raise PublishedError(f"{self.folder / CLAIMS}: {claim.id}: needs a table")
        return list(read_rows(self.folder / claim.table)[1])
