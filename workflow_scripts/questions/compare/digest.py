"""The digest of a study: all that a comparison with another study needs, a file among its tables."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import FailFast, Field, JsonValue, model_validator

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import read_bytes
from workflow_scripts.common.records import StrictRecord
from workflow_scripts.study.paths import DIGEST


class DigestError(InputError):
    """Something that cannot be compared; the message says what it is and what is allowed."""


# Far beyond any rate or time, and near enough to 1 that no computation with them overflows.
_Log = Annotated[float, Field(ge=-300, le=300)]
# Far more measures, devices and versions than a cell has; the first fault is enough.
_MOST = 1000
_Texts = Annotated[list[str], FailFast()]


class Mean(StrictRecord):
    """One measure of a cell: the mean of its logarithms over starts, as `mean_errors` gives it."""

    measure: str
    log_mean: _Log
    squared_error: Annotated[float, Field(ge=0)] | None
    df: Annotated[float, Field(ge=0)] | None


class DigestCell(StrictRecord):
    """A cell. `content`: its weights and requests; `environment`: with what and where it was measured; `effective`: the
    settings that took effect, empty if not known; `label`: the settings in words that tell it from others of its study.

    `comparable`: whether it was measured as its study defines it. `began`: when its first repeat began, UTC.
    """

    id: str
    outcome: str
    reason: str | None
    comparable: bool
    source: str
    began: str | None
    content: dict[str, JsonValue]
    environment: Annotated[dict[str, _Texts], Field(max_length=_MOST)]
    effective: dict[str, JsonValue]
    means: Annotated[list[Mean], Field(max_length=_MOST), FailFast()]
    label: str | None = None

    @model_validator(mode="after")
    def _one_mean_of_a_measure(self) -> "DigestCell":
        if len({mean.measure for mean in self.means}) < len(self.means):
            raise ValueError("several means of one measure")
        return self


class Digest(StrictRecord):
    """All that a comparison of a study with another one needs."""

    version: Literal[1] = 1
    study: str
    settings: dict[str, JsonValue]
    cells: Annotated[list[DigestCell], FailFast()]

    @model_validator(mode="after")
    def _has_a_margin(self) -> "Digest":
        margin = self.settings.get("equivalence_margin_pct")
        if isinstance(margin, bool) or not isinstance(margin, int | float) or not 0 < margin <= 50:
            raise ValueError(f"settings.equivalence_margin_pct: a number above 0 and up to 50, not {margin!r}")
        return self

    @property
    def margin_pct(self) -> float:
        """The study's margin."""
        return float(self.settings["equivalence_margin_pct"])  # type: ignore[arg-type]  # see _has_a_margin

    @property
    def began(self) -> str | None:
        """When the first repeat began, UTC; None if not known."""
        return min((cell.began for cell in self.cells if cell.began), default=None)


def read_digest(place: Path) -> Digest:
    """The digest of a study's results folder, of an unpacked archive, or the file itself.

    Raises:
        InputError: there is none, or what is there is not one.
    """
    if place.is_dir():
        candidates = [place / "tables" / DIGEST, *sorted(place.glob(f"results/*/tables/{DIGEST}"))]
        there = [path for path in candidates if path.is_file()]
        if len(there) != 1:
            what = f"holds {len(there)} studies; name one of their folders" if there else f"has no tables/{DIGEST}"
            raise DigestError(
                f"{place}: {what}. Allowed: a study's folder below results/, an unpacked archive, a digest.json. "
                "`snakemake --config partial=1` writes the digest of what has been measured"
            )
        place = there[0]
    return Digest.of_json(read_bytes(place), f"{place}: not a digest")
