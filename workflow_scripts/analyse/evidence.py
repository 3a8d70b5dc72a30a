"""Evidence on a claim: findings, each with the source of its numbers, and the verdict that follows from them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from workflow_scripts.analyse import capacity, effects, fragmentation, predictions, ratios
from workflow_scripts.analyse import engine_gain as engines
from workflow_scripts.analyse.repeats import Row
from workflow_scripts.analyse.tables import TABLE_SCHEMAS, read_table
from workflow_scripts.catalog.gpus_and_models import load_gpus, resolve
from workflow_scripts.catalog.published import Claim, Published
from workflow_scripts.physics.formulas import relative_difference
from workflow_scripts.study.study_file import Study

# Modules that register the schemas of their tables when they are imported, and the tables.
TABLE_MODULES = (capacity, effects, engines, fragmentation, predictions, ratios)
TABLES = ("cells", "capacity", "effects", "engines", "predictions", "ratios", "waste")

MEASURED, COMPUTED, PUBLISHED = "measured here", "computed from a formula", "published"
SUPPORTED, CONTRADICTED, NOT_TESTABLE = "supported", "contradicted", "not testable here"


@dataclass(frozen=True)
class Finding:
    """One piece of evidence.

    Attributes:
        text: sentences with numbers.
        label: source of the numbers: MEASURED, COMPUTED, PUBLISHED, or the `source` of rows from elsewhere.
        scope: what the finding holds for: devices, models, workloads, or a formula.
        ids: cells, tables and formulas that the finding is based on.
        says: SUPPORTED or CONTRADICTED; None if the finding decides nothing.
        bears: whether the finding is about the claim's subject. If not, it decides nothing and is shown separately.
    """

    text: str
    label: str
    scope: str
    ids: tuple[str, ...]
    says: str | None = None
    bears: bool = True


@dataclass(frozen=True)
class Setting:
    """What a claim is about: published names of devices (none: any), kinds of devices (none: any), and a model."""

    devices: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    model: str | None = None

    @cached_property
    def gpus(self) -> frozenset[str]:
        """All devices of the catalogue that the claim may be about."""
        catalogue = load_gpus()
        named = {gpu.name for label in self.devices for gpu in resolve(label, catalogue)} or set(catalogue)
        real = {name for name in named if not catalogue[name].simulated}
        return frozenset(name for name in real if not self.kinds or catalogue[name].kind in self.kinds)

    def covers(self, gpu: str, model: str) -> bool:
        """Whether what was measured on this device with this model bears on the claim."""
        return gpu in self.gpus and self.model in (None, model)


# A claim that names no device is about serving, and therefore about GPUs.
ON_GPUS = Setting(kinds=("cuda", "rocm"))


@dataclass(frozen=True)
class Evidence:
    """What a rule may use: the study, its tables by name, and the published data."""

    study: Study
    tables: Mapping[str, pd.DataFrame]
    published: Published


def read_tables(folder: Path) -> dict[str, pd.DataFrame]:
    """The tables that rules use; a table that was not made has no rows.

    Raises:
        TableError: a table does not fit its schema.
    """
    return {name: _read(folder / f"{name}.parquet", name) for name in TABLES}


def _read(path: Path, name: str) -> pd.DataFrame:
    if path.exists():
        return read_table(path, name)
    schema = TABLE_SCHEMAS[name]
    empty: pd.DataFrame = schema.validate(pd.DataFrame(columns=[c for c in schema.columns if not c.startswith("^")]))
    return empty


# A published number differs from what was found if the difference is larger than this.
SAME_PCT = 10.0


def is_same(found: float, published: float) -> bool:
    """Whether what was found is within SAME_PCT of the published number.

    >>> is_same(2.7, 2.95), is_same(2.6, 2.95)
    (True, False)
    """
    return abs(relative_difference(found, published)) * 100 <= SAME_PCT


def against_interval(low: float, high: float, published: float) -> str | None:
    """What a measured interval says about a published number.

    It says nothing if only a part of the interval agrees with the number, or if there is no interval.

    >>> against_interval(2.8, 3.0, 2.95), against_interval(2.0, 2.5, 2.95)
    ('supported', 'contradicted')
    >>> against_interval(2.5, 3.5, 2.95), against_interval(float("nan"), float("nan"), 2.95)
    (None, None)
    """
    same = is_same(low, published), is_same(high, published)
    if all(same):
        return SUPPORTED
    return CONTRADICTED if not any(same) and (high < published or low > published) else None


def measured(bears: bool, row: Row, text: str, says: str | None, ids: Iterable[str]) -> Finding:
    """A finding from measured cells: `row` has their source, gpu, model and, if they share one, workload."""
    label = MEASURED if row["source"] == "measured" else str(row["source"])
    scope = ", ".join([row["gpu"], row["model"], *([row["workload"]] if row.get("workload") else [])])
    return Finding(f"{scope}: {text}", label, scope, tuple(ids), says if bears else None, bears)


def verdict(findings: Iterable[Finding]) -> str:
    """One contradicting finding decides, because a claim is about all that it covers; else one supporting finding."""
    said = {finding.says for finding in findings if finding.bears}
    return next((v for v in (CONTRADICTED, SUPPORTED) if v in said), NOT_TESTABLE)


Find = Callable[[Claim, Evidence], Iterator[Finding]]


@dataclass(frozen=True)
class Rule:
    """How a claim is tested: the function that looks for evidence, and what would give evidence if there is none."""

    find: Find
    test: str


RULES: dict[str, Rule] = {}


def rule(*claim_ids: str, test: str) -> Callable[[Find], Find]:
    """Register a function as the rule of these claims."""

    def enter(find: Find) -> Find:
        RULES.update(dict.fromkeys(claim_ids, Rule(find, test)))
        return find

    return enter
