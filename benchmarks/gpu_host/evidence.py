"""Pack what is copied back from a host: cells, device rates, calibrations and a description, in small archives."""

import importlib.metadata
import subprocess
import tarfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from workflow_scripts.common.files import write_json
from workflow_scripts.study.paths import START_FOLDER, StudyPaths

# Some hosts accept files of at most 16 MiB, so archives are closed before that.
FULL_BYTES = 12 * 2**20


def describe_host(path: Path) -> None:
    """Write every installed package with its version, and all that nvidia-smi reports about the GPU."""
    try:
        smi = subprocess.run(["nvidia-smi", "-q"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired) as e:
        smi = str(e)
    packages = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions() if d.metadata["Name"]}
    write_json(path, {"packages": dict(sorted(packages.items())), "nvidia_smi": smi})


def _contents(paths: StudyPaths, gpu: str) -> Iterator[Path]:
    """The host, the devices, their calibrations, then each cell that has ended or at least wrote something."""
    describe_host(paths.root / f"host-{gpu}.json")
    yield from sorted(path for path in paths.root.glob("*.*") if path.suffix in (".json", ".log"))
    yield from sorted(paths.device("any").parent.glob("*.json"))
    yield from sorted(paths.calibration("any").parent.glob("**/*.json"))
    # The folder of a cell holds those of its further starts.
    folders = {log.parent for log in (paths.root / "cells").glob("**/measure.log")}
    cells = sorted(one for one in folders if not one.name.startswith(START_FOLDER))
    # Cells that have ended come first, so that archives left behind hold only the others.
    yield from sorted(cells, key=lambda cell: not (cell / "outcome.json").exists())


def pack(paths: StudyPaths, gpu: str, folder: Path, full_bytes: int = FULL_BYTES) -> list[Path]:
    """Pack a study's evidence, except what was prepared elsewhere; to be unpacked in the folder of all studies.

    An archive is closed when it has `full_bytes`; no cell is split.
    """
    folder.mkdir(parents=True, exist_ok=True)
    contents = deque(_contents(paths, gpu))
    archives: list[Path] = []
    while contents:
        archives.append(folder / f"evidence-{len(archives):02}.tar.gz")
        with archives[-1].open("wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
            while True:
                content = contents.popleft()
                archive.add(content, arcname=content.relative_to(paths.results))
                if not contents or raw.tell() >= full_bytes:
                    break
    return archives
