"""The digest of a study: all that a comparison with another study needs, as `kvsweep digest` writes it.

It is a file among the tables of a study, and the report embeds it.
"""

import base64
import fnmatch
import gzip
import re
import zipfile
from pathlib import Path
from typing import Literal

from pydantic import JsonValue, PositiveFloat, ValidationError

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.records import StrictRecord, faults
from workflow_scripts.study.paths import DIGEST

_IN_PAGE = re.compile(r'<template id="digest">([A-Za-z0-9+/=\s]*)</template>')


class DigestError(InputError):
    """Something that cannot be compared; the message says what it is and what is allowed."""


class Mean(StrictRecord):
    """One measure of a cell: the mean of its logarithms over starts, as `statistics.mean_errors` gives it."""

    measure: str
    log_mean: float
    squared_error: float | None
    df: float | None


class DigestCell(StrictRecord):
    """A cell. `content`: its weights and requests; `environment`: with what and where it was measured; `effective`: the
    settings that took effect, empty if not known.

    `comparable`: whether it was measured as its study defines it. `began`: when its first repeat began, UTC.
    `ceilings`: the highest output tokens/s that its device allows, by the source of the device's rates. `device_rate`:
    output tokens per second of the GPU's own work, by the table `waiting`; `start_s`: mean time of a start of the
    engine. None if not known.
    """

    id: str
    outcome: str
    reason: str | None
    comparable: bool
    source: str
    began: str | None
    content: dict[str, JsonValue]
    environment: dict[str, list[str]]
    effective: dict[str, JsonValue]
    means: list[Mean]
    ceilings: dict[str, float]
    device_rate: PositiveFloat | None = None
    start_s: PositiveFloat | None = None


class Found(StrictRecord):
    """What a study's own comparison of two of its cells shows. A comparison without a test has no verdict."""

    ratio: PositiveFloat
    low: float | None
    high: float | None
    scope: str | None
    verdict: str | None


class Pair(StrictRecord):
    """Two cells that a study compares, by their ids: `cell` over `baseline`.

    `kind`: `setting`, `device` or `engine`; `name`: the setting.
    """

    kind: Literal["setting", "device", "engine"]
    name: str
    cell: str
    baseline: str
    found: Found


class Digest(StrictRecord):
    """All that a comparison of a study with another one needs."""

    version: Literal[1] = 1
    study: str
    settings: dict[str, JsonValue]
    cells: list[DigestCell]
    pairs: list[Pair]

    @property
    def began(self) -> str | None:
        """When the first repeat began, UTC; None if not known."""
        return min((cell.began for cell in self.cells if cell.began), default=None)


def read_digest(place: Path) -> Digest:
    """The digest of a study's results folder, of an archive, unpacked or not, in a report, or the file itself.

    Raises:
        DigestError: there is none, or what is there is not one.
    """
    if place.is_dir():
        candidates = [place / "tables" / DIGEST, *sorted(place.glob(f"results/*/tables/{DIGEST}"))]
        there = [path for path in candidates if path.is_file()]
        if len(there) != 1:
            what = f"holds {len(there)} studies; name one of their folders" if there else f"has no tables/{DIGEST}"
            raise DigestError(
                f"{place}: {what}. Allowed: a study's folder below results/, an archive, a report, a digest.json. "
                "`snakemake partial_report` writes the digest of what has been measured"
            )
        place = there[0]
    if zipfile.is_zipfile(place):
        with zipfile.ZipFile(place) as archive:
            names = fnmatch.filter(archive.namelist(), f"results/*/tables/{DIGEST}")
            if not names:
                raise DigestError(f"{place}: an archive without results/STUDY/tables/{DIGEST}")
            text = archive.read(names[0]).decode()
    else:
        try:
            text = place.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise DigestError(f"{place}: neither a report, an archive nor a digest") from None
        text = text if place.suffix == ".json" else _unpacked(text, place)
    try:
        return Digest.model_validate_json(text)
    except ValidationError as e:
        first = ": ".join(filter(None, next(faults(e, Digest, {}))))
        raise DigestError(f"{place}: not a digest: {first}") from None


def _unpacked(html: str, place: Path) -> str:
    match = _IN_PAGE.search(html)
    if match is None:
        raise DigestError(f"{place}: a report without a digest, or no report; draw it again with `snakemake`")
    try:
        return gzip.decompress(base64.b64decode(match[1])).decode()
    except (OSError, EOFError, ValueError) as e:
        raise DigestError(f"{place}: its digest is damaged: {e}") from None
