"""The mapping file of runs that were measured elsewhere: which files there are, and what they do not say."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.records import StrictRecord, read_yaml, validated
from workflow_scripts.common.wording import allowed_names
from workflow_scripts.engines.registry import load_engines
from workflow_scripts.study.study import Name

# Variable with the folder in which a mapping file may name files, if that is not its own folder.
RUNS_FOLDER = "KVSWEEP_RUNS_FOLDER"
UNKNOWN_WORKLOAD = "unknown"
Rate = Literal["output_tokens_per_s", "total_tokens_per_s", "requests_per_s"]


class ImportedRun(StrictRecord):
    """The files of one run, relative to the mapping file, and what they do not say."""

    gpu: str = Field(description="a name in config/gpus.yaml")
    engine: str = Field(description="an engine, such as vllm or hf-static")
    model: str = Field(description="a name in config/models/")
    workload: Name = Field(UNKNOWN_WORKLOAD, description="a name for the requests; runs are compared if it is the same")
    knobs: dict[str, Any] = Field({}, description="the engine's settings, as far as they are known")
    tokens_per_request: list[Annotated[float, Field(ge=1)]] | None = Field(
        None, min_length=2, max_length=2, description="mean prompt and output tokens; needed to check the rates"
    )
    rates: dict[Rate, Annotated[float, Field(gt=0)]] = Field({}, description="rates that no file says")
    results: str | None = Field(None, description="the output of vLLM or of its benchmark, as text")
    result: int | None = Field(None, ge=1, description="which of several results of a file counts, from 1")
    trace: str | None = Field(None, description="a CSV of nvidia-smi")

    @model_validator(mode="after")
    def _is_complete(self) -> "ImportedRun":
        if self.results is None and self.trace is None and not self.rates:
            raise ValueError("name at least one file: results or trace; or rates")
        if self.engine not in load_engines():
            raise ValueError(f"engine {self.engine!r} is unknown; {allowed_names(self.engine, sorted(load_engines()))}")
        return self


class Runs(StrictRecord):
    """The mapping file."""

    schema_version: Literal[1]
    runs: list[ImportedRun] = Field(min_length=1)


def load_runs(path: Path) -> list[ImportedRun]:
    """The runs of a mapping file, in its order. Raises InputError if it is not valid; the message names the place."""
    return validated(Runs, read_yaml(path), str(path)).runs


def files_of(path: Path) -> Iterator[Path]:
    """The files that a mapping file names. Raises InputError if the mapping is not valid."""
    for run in load_runs(path):
        yield from (file_of(path, name) for name in (run.results, run.trace) if name)


def file_of(path: Path, name: str) -> Path:
    """A file that a mapping file names. Raises InputError if it is not in the folder of the mapping, or in the one that
    the user allows, because it may be from somebody else."""
    folder = Path(os.environ.get(RUNS_FOLDER) or path.parent)
    if "\0" in name or not (path.parent / name).resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{path}: {name!r} is not in {folder}; {RUNS_FOLDER} names another folder of files to read")
    return path.parent / name
