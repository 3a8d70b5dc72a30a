"""What must hold after any faults, read from files and processes alone: this module imports nothing of the pipeline."""

import fcntl
import hashlib
import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOOK_S = 0.2
# What each cell is to do.
REPEATS, REQUESTS, OUTPUT_TOKENS = 2, 4, 8


@dataclass
class Watch:
    """Looks at the folders of cells all the time, from a thread of its own, until `stop`.

    `attempts` has every attempt that was seen, told from others by the inode of its folder, `hashes` what had ended;
    `faults` what must never be seen: an attempt to measure a cell that has its outcome, and evidence or an outcome that
    changed afterwards."""

    cells: Path
    wanted: Iterable[str]
    attempts: set[tuple[str, int]] = field(default_factory=set)
    hashes: dict[str, dict[str, str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            for cell in self.wanted:
                with suppress(OSError):
                    self._look(cell)

    def _look(self, cell: str) -> None:
        folder, ended_before = self.cells / cell, cell in self.hashes
        # The engine's log appears when the device is held.
        with suppress(FileNotFoundError):
            if (folder / "raw.partial/engine.log").exists():
                key = cell, (folder / "raw.partial").stat().st_ino
                if key not in self.attempts and ended_before and (folder / "outcome.json").exists():
                    self.faults.append(f"{cell}: measured again, though it has its outcome")
                self.attempts.add(key)
        if (folder / "outcome.json").exists():
            hashes = file_hashes(folder)
            if self.hashes.setdefault(cell, hashes) != hashes:
                changed = {
                    name for name in {*hashes, *self.hashes[cell]} if hashes.get(name) != self.hashes[cell].get(name)
                }
                self.faults.append(f"{cell}: changed after its end: {', '.join(sorted(changed))}")
                self.hashes[cell] = hashes


def file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of a cell's outcome and of all its evidence, by path."""
    paths = [folder / "outcome.json", *sorted((folder / "raw").rglob("*"))]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()
    }


def faults_of_cell(folder: Path, cell: str, knobs: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a cell that should have ended ok: its outcome, its evidence, or what lies beside them."""
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if "outcome.json" not in names:
        yield f"{cell}: no outcome"
        return
    if names != {"measure.log", "outcome.json", "raw"}:
        yield f"{cell}: its folder has {', '.join(sorted(names))}"
    record = json.loads((folder / "outcome.json").read_text())
    if record["outcome"] != "ok":
        yield f"{cell}: {record['outcome']}: {record['reason']}"
        return
    definition = {name: value for name, value in record["definition"].items() if name != "repeats"}
    if hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest() != record["definition_sha256"]:
        yield f"{cell}: the hash is not that of its definition"
    said = definition["engine"], {name: definition["knobs"].get(name) for name in knobs}, record["cell_id"]
    if said != (cell.split("/")[1], dict(knobs), cell):
        yield f"{cell}: its outcome is of {said}"
    durations = [one["end_monotonic_s"] - one["start_monotonic_s"] for one in record["repeats"]]
    if len(durations) != REPEATS or not all(0 < seconds < 600 for seconds in durations):
        yield f"{cell}: repeats of {durations} s"
    rows = [json.loads(line) for line in (folder / "raw/requests.jsonl").read_text().splitlines()]
    if [row["output_tokens"] for row in rows] != [OUTPUT_TOKENS] * REPEATS * REQUESTS:
        yield f"{cell}: {len(rows)} requests in its evidence"
    for path in (folder / "raw").rglob("*"):
        if path.name.startswith(".") or path.name in ("scratch", "measured.json", "job.json"):
            yield f"{cell}: {path.name} was left in its evidence"
        elif path.suffix in (".json", ".jsonl") and path.stat().st_size:
            text = path.read_text()
            [json.loads(line) for line in (text.splitlines() if path.suffix == ".jsonl" else [text])]


def faults_of_lists(study: Path, cells: Iterable[str]) -> Iterator[str]:
    """What is wrong with the lists of ended cells: each has the hash of its outcome."""
    listed: dict[str, str] = {}
    for path in study.glob("measured/*/round-*.json"):
        listed |= {folder: one["sha256"] for folder, one in json.loads(path.read_text()).items() if one}
    for cell in cells:
        outcome = study / "cells" / cell / "outcome.json"
        if outcome.exists() and listed.get(cell) != hashlib.sha256(outcome.read_bytes()).hexdigest():
            yield f"{cell}: is not listed with the hash of its outcome"


def faults_of_locks(folders: Iterable[Path]) -> Iterator[str]:
    """Locks that somebody still holds."""
    for path in (path for folder in folders for path in folder.rglob("*.lock")):
        with path.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield f"{path} is held"


def faults_of_device_locks(scopes: Iterable[str]) -> Iterator[str]:
    """Locks of devices that somebody still holds."""
    prefixes = tuple(f"@kvsweep-{hashlib.sha256(scope.encode()).hexdigest()[:12]}-" for scope in scopes)
    for line in Path("/proc/net/unix").read_text().splitlines():
        if (name := line.split()[-1]).startswith(prefixes):
            yield f"{name} is held"


def faults_of_scratch(folders: Iterable[Path]) -> Iterator[str]:
    """Files that were being written when their writer was killed, and folders that only a running cell needs."""
    for folder in folders:
        for path in folder.rglob("*"):
            if re.fullmatch(r"\..+\.[a-z0-9_]{8}|raw\.partial|scratch", path.name):
                yield f"{path} was left"
