"""kvsweep in Python: the tables of a study, the capacity of a GPU, audits of tables and readers of logs.

Bad input raises an `InputError`, whose message says what is wrong and what is allowed.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from workflow_scripts.catalog.gpus_and_models import resolve_one
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.records import validated
from workflow_scripts.common.wording import allowed_names
from workflow_scripts.engines.capacity import Term
from workflow_scripts.engines.vllm.capacity import asked_settings, predict_capacity
from workflow_scripts.engines.vllm.knobs import VllmKnobs
from workflow_scripts.engines.vllm.memory import EngineSettings
from workflow_scripts.parse.engine_log import EngineLogFacts, read_engine_log
from workflow_scripts.physics.rate_ceiling import MeanLengths
from workflow_scripts.questions.claims import audit as _audit

__all__ = (
    *("EngineLogFacts", "EngineSettings", "InputError", "Results", "Term"),
    *("audit", "capacity", "load", "read_log"),
)


class Results:
    """The tables of one study, by name: `results.cells`, `results.intervals`; `dir(results)` lists them. Each has the
    types of docs/tables.md, and the meaning of each column in `results.meanings("cells")`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def cells(self) -> pd.DataFrame:
        """One row per cell of the study: its settings, its outcome and why."""
        return self.table("cells")

    def table(self, name: str) -> pd.DataFrame:
        # Here, because importing all modules that make a table takes seconds.
        from workflow_scripts.questions.table_docs import schemas
        from workflow_scripts.tables.typed_tables import read_table

        schemas()
        return read_table(self._folder / f"{name}.parquet")

    @property
    def rates(self) -> pd.DataFrame:
        """One row per cell: its settings, and each measure with its interval, such as `output_tokens_per_s`,
        `output_tokens_per_s_low` and `output_tokens_per_s_high`."""
        wide = self.table("intervals").pivot_table(
            index="cell_id", columns="measure", values=["value", "low", "high"], observed=True
        )
        ends = {"value": "", "low": "_low", "high": "_high"}
        wide.columns = pd.Index([f"{column[1]}{ends[column[0]]}" for column in wide.columns])
        return self.cells.merge(wide.sort_index(axis=1).reset_index(), on="cell_id", how="left")

    def meanings(self, name: str) -> dict[str, str]:
        """What each column of a table means, with its unit. Raises InputError if no table has this name."""
        from workflow_scripts.questions.table_docs import meanings

        try:
            said = meanings(name)
        except KeyError:
            raise InputError(f"there is no table {name!r}; {allowed_names(name, self._names())}") from None
        columns = [*self.table(name)] if name in self._names() else []
        alike = {pattern: [*filter(re.compile(pattern).match, columns)] for pattern in said if pattern.startswith("^")}
        return {column: text for key, text in said.items() for column in alike.get(key, [key])}

    def _names(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob("*.parquet"))

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name.startswith("_") or name not in self._names():
            raise AttributeError(f"there is no table {name!r}; {allowed_names(name, self._names())}")
        return self.table(name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._names()]

    def __repr__(self) -> str:
        return f"Results({str(self._folder.parent)!r}): {', '.join(self._names())}"


def load(folder: str | Path) -> Results:
    """The tables of a study's folder of results, such as `results/demo`. Raises InputError if it has none."""
    tables = Path(folder) / "tables"
    if not (tables / "cells.parquet").is_file():
        raise InputError(
            f"{folder}: no tables of a study; `snakemake --config partial=1` makes them from the cells there are"
        )
    return Results(tables)


def capacity(
    model: str,
    gpu: str,
    settings: EngineSettings,
    *,
    quantization: str | None = None,
    log_facts: Mapping[str, float | str] | None = None,
) -> dict[str, Term]:
    """What `kvsweep capacity` predicts: memory, blocks, tokens and requests, each with its unit and how it was found.

    `model` is a name of the catalogue, a folder, a config.json or `ORG/REPO`; `gpu` a name of the catalogue. Raises
    InputError for a setting that the command refuses.
    """
    known = {name: getattr(settings, name) for name in VllmKnobs.model_fields.keys() & vars(settings).keys()}
    del known["kv_cache_dtype"]  # the capacity knows more types than studies may set, and refuses others itself
    validated(VllmKnobs.in_part(), known, "settings")
    device, log = resolve_one(gpu), log_facts or {}
    facts, settings = asked_settings(model, device, settings, quantization, log)
    logged = log.get("available_kv_cache_gib")
    return predict_capacity(facts, device, settings, None if logged is None else float(logged))


def audit(
    table: str | Path,
    model: str,
    *,
    tokens_per_request: tuple[float, float] | None = None,
    gpu: str | None = None,
    quantization: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """The rates of a published table, one per row, with the verdicts of `kvsweep audit`.

    `tokens_per_request` are the mean tokens of prompt and output; `gpu` is that of a table that names none; `columns`
    names columns that are not recognised, for example `{"sequences": "Parallel"}`.
    """
    args = _audit.main.parser().parse_args([str(table), "--model", model])
    args.table, args.gpu, args.quantization = Path(table), gpu, quantization
    args.tokens_per_request = MeanLengths(*tokens_per_request) if tokens_per_request else None
    args.column = [*(columns or {}).items()]
    return pd.DataFrame(_audit.audited_rows(*_audit.audit_table(args)))


def read_log(path: str | Path) -> EngineLogFacts:
    """The facts of an engine's log or a benchmark's results. Raises InputError if it cannot be read."""
    try:
        return read_engine_log(Path(path))
    except OSError as e:
        raise InputError(f"{path}: {e.strerror}") from None
