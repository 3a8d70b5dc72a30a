"""Where everything of a study is below `results/{study}/`."""

import os
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import count
from pathlib import Path

from workflow_scripts.common.faults import InputError
from workflow_scripts.study.grid import Cell

CELL_PATTERN = "{gpu}/{engine}/{model}/{workload}/{knobs}"
START_FOLDER = "start-"
# In the folder of a start: those with what earlier attempts left.
ATTEMPT_FOLDER = "attempt-"
# In the folder of a start: its record, the log of the measuring command, the folder with the evidence, and the one with
# the evidence of a start that is being measured, or was killed.
OUTCOME, MEASURE_LOG, RAW, PARTIAL = "outcome.json", "measure.log", "raw", "raw.partial"
# In the evidence; `requests` and `steps` are the names of tables too.
ENGINE_LOG, TRACE, METRICS, JOB = "engine.log", "device_trace.jsonl", "metrics.jsonl", "job.json"
# Beside the requests of a workload: those that warm up, and what the requests are.
WARMUP, MANIFEST = "warmup.jsonl", "workload.json"


def start_folder(start: int) -> str:
    return f"{START_FOLDER}{start}"


def start_number(folder: Path) -> int:
    """The number of the start whose folder this is."""
    number = folder.name.removeprefix(START_FOLDER)
    return int(number) if folder.name.startswith(START_FOLDER) and number.isdecimal() else 1


def cell_of(folder: str) -> str:
    """The cell of the folder of a start below `cells/`."""
    return "/".join(folder.split("/")[:5])


def usable(text: object, what: str) -> Path:
    """The path that a text names. Raises InputError if it has signs that Snakemake does not pass on as they are: braces
    are wildcards to it, and the others keep a meaning in the commands of cluster jobs."""
    path = "" if text is None else str(text)
    if path[:1] in ("", "-") or not path.isprintable() or set(path) & {*"{}'\\$`"}:
        allowed = "a path of printable characters without { } ' \\ $ and `, which does not begin with '-'"
        raise InputError(f"{what}: {path!r} cannot be used; allowed: {allowed}")
    return Path(path)


# `kvsweep status` asks for the real path of a study's folder for each of its starts.
_real_path = cache(os.path.realpath)


def within(folder: Path, root: Path, paths: Iterable[Path]) -> list[Path]:
    """The paths, which are those of evidence in `folder` below `root`. Raises InputError if one is neither a file nor a
    folder, or is reached through a link that leads out of it: reports and archives would publish what is there. `root`
    itself may be a link."""
    listed = list(paths)
    real = f"{Path(_real_path(root), folder.relative_to(root))}/"
    folders = dict.fromkeys(path.parent for path in listed)
    highest = (path for path in folders if path.parent not in folders)
    for path in (*highest, *filter(os.path.islink, (*folders, *listed))):
        if not f"{(found := os.path.realpath(path))}/".startswith(real):
            raise InputError(f"{path}: a link leads out of {folder}, to {found}; allowed: files, and links inside it")
    for path in listed:
        if not (path.is_file() or path.is_dir()) and path.exists():
            raise InputError(f"{path}: neither a file nor a folder")
    return listed


class StudyPaths:
    """Paths of one study; `results` is the folder that holds all studies."""

    def __init__(self, results: Path, study: str) -> None:
        self.results, self.study = results, study
        self.root = root = results / study
        self._cells = root / "cells"
        # Everything that is there before cells are measured.
        self.prepared = root / "prepared"
        self.calibrations = self.prepared / "calibrations"
        # Runs that were measured elsewhere, one record per run; it exists once some were imported.
        self.imported = root / "imported.jsonl"
        # What jobs have measured: manifests of batches, and lists of what they name.
        self.measured = root / "measured"
        # The predictions for every cell, what knobs can change, and what the study costs.
        self.plan = root / "plan"
        self.capacity = self.plan / "capacity.jsonl"
        # Tidy tables and verdicts.
        self.tables = root / "tables"
        self.figures, self.report = root / "figures", root / "report.html"
        # Files to serve one setting, as the study promises.
        self.deploy = root / "deploy"

    def cell(self, cell: Cell | str) -> Path:
        """Folder of a cell (given as a cell, as its id, or as the pattern of all cells)."""
        return self._cells / (cell.id if isinstance(cell, Cell) else cell)

    def start(self, cell: Cell | str, start: int = 1) -> Path:
        """Folder with the evidence of one engine start of a cell: the cell's own for the first, or one in it."""
        return self.cell(cell) if start == 1 else self.cell(cell) / start_folder(start)

    def tried_beyond(self, cell: Cell | str, start: int) -> list[int]:
        """The numbers above `start` of the starts of a cell that have a log or have ended, in order."""
        beyond = (number for number in self._further(cell) if number > start)
        return [n for n in beyond if self.log(cell, n).exists() or self.outcome(cell, n).exists()]

    def _further(self, cell: Cell | str) -> list[int]:
        """The numbers of the starts of a cell that have a folder of their own, in order."""
        return sorted(number for path in self.cell(cell).glob(f"{START_FOLDER}*") if (number := start_number(path)) > 1)

    def log(self, cell: Cell | str, start: int = 1) -> Path:
        return self.start(cell, start) / MEASURE_LOG

    def outcome(self, cell: Cell | str, start: int = 1) -> Path:
        """The outcome record of a start of a cell; it exists only when the start has ended."""
        return self.start(cell, start) / OUTCOME

    def outcomes(self, cell: Cell | str) -> dict[int, Path]:
        """The outcome records of all starts of a cell that have ended, by the start's number."""
        return {start: path for start in (1, *self._further(cell)) if (path := self.outcome(cell, start)).exists()}

    def model(self, model: str, key: str) -> Path:
        """Folder with a model's `config.json` and tokenizer; `key` is the `model_key` of its definition."""
        return self.prepared / "models" / f"{model}-{key}"

    def workload(self, model: str, workload: str, key: str) -> Path:
        """Requests of a workload for a model, beside its warm-up; `key` is the definition's `workload_key`."""
        return self.prepared / "workloads" / model / workload / key / "workload.jsonl"

    def model_config(self, model: str, source: str) -> Path:
        """The config of a model that is not in config/models/; `source`: its commit on the hub, or a key of its
        folder."""
        return self.prepared / "configs" / f"{model}-{source}" / "config.json"

    def device(self, gpu: str) -> Path:
        """Record of the rates at which a device copies, reads and multiplies."""
        return self.prepared / "devices" / f"{gpu}.json"

    def environment(self, environment: str, kind: str, attempt: str = "") -> Path:
        """Record of an attempt to install an environment; the second one is `-2`."""
        return self.prepared / "environments" / f"{environment}-{kind}{attempt}.json"

    def environments(self, environment: str, kind: str) -> Iterator[Path]:
        """The records of all attempts to install an environment, which have ended or will."""
        return (self.environment(environment, kind, f"-{n}" if n > 1 else "") for n in count(1))

    def calibration(self, name: str) -> Path:
        """Record of a calibration, named GPU/ENGINE/MODEL/VARIANT."""
        return self.calibrations / f"{name}.json"

    def calibrated(self, gpus: str) -> Path:
        """The calibrations of a device for the study, or of several devices, joined by `+`, with their hashes."""
        return self.calibrations / f"{gpus}.json"

    def manifest(self, gpus: str, number: int | str, batch: str) -> Path:
        """What a job measured: a batch of a round, of devices that are joined by `+`."""
        return self.measured / gpus / f"round-{number}" / f"{batch}.json"

    def manifests(self) -> list[Path]:
        return sorted(self.measured.glob("*/round-*/*.json"))

    def round_list(self, gpu: str, number: int | str) -> Path:
        """The starts of a device's cells that a round has measured."""
        return self.measured / gpu / f"round-{number}.json"

    def round_plan(self, gpus: str, number: int | str) -> Path:
        """What was decided before a round: which cells on these devices it measures again, or why there is none."""
        return self.root / "rounds" / gpus / f"round-{number}.json"

    def lock(self, cell: Cell | str) -> Path:
        return self.root / "locks" / f"{(cell.id if isinstance(cell, Cell) else cell).replace('/', '--')}.lock"

    def wrong_nodes(self, gpu: str) -> Path:
        """Folder with one file per cluster node that did not have the requested GPU type."""
        return self.root / "wrong_nodes" / gpu

    def parsed(self, gpu: str) -> Path:
        return self.root / "parsed" / gpu
