"""Pack a study into one archive: study file, evidence, results and the code that links them.

    kvsweep archive --study config/studies/demo.yaml --out results/demo/demo.zip

The archive is a complete checkout: after unpacking, `snakemake --config study=study.yaml partial=1` draws the report
again from its cells. `sha256sum --check manifest-sha256.txt` checks it, and `version.txt` names version and commit of
the code. What measured each cell, where and when is in the cell's `outcome.json`.
"""

import hashlib
import zipfile
from argparse import Namespace
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from workflow_scripts import __version__
from workflow_scripts.common.checkout import CHECKOUT, commit_of
from workflow_scripts.common.command import RESULTS, STUDY, command, out
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_bytes
from workflow_scripts.study.grid import expand
from workflow_scripts.study.paths import StudyPaths, within
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study

CODE = (
    *("Snakefile", "LICENSE", "CITATION.cff", "rules", "workflow_scripts", "config"),
    *("profiles", "slurm", "envs", "report"),
)
_MANIFEST, VERSION, STUDY_FILE = "manifest-sha256.txt", "version.txt", "study.yaml"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that zip can store; a fixed time makes equal contents equal archives


def contents(study: Study, study_file: Path, paths: StudyPaths) -> dict[str, Path]:
    """The files of the archive but manifest and version: its name there, and where it is. Raises InputError if no
    cell has ended, or tables or report are missing."""
    for needed in (paths.tables, paths.report):
        if not needed.exists():
            raise InputError(f"{needed} is not there; `snakemake --config partial=1` makes it from the cells there are")
    ended = [cell.id for cell in expand(study) if paths.outcomes(cell)]
    if not ended:
        raise InputError(f"{paths.root / 'cells'}: no cell of study {study.name!r} has ended")
    files = {STUDY_FILE: study_file}
    for name in CODE:
        files |= {file.relative_to(CHECKOUT).as_posix(): file for file in _kept(CHECKOUT / name) if file.is_file()}
    measured = [paths.prepared, paths.tables, paths.figures, paths.report]
    measured += [paths.root / "measured", *paths.root.glob("rounds/*/round-*.json")]
    folders = [(paths.root, measured), *((cell, [cell]) for cell in map(paths.cell, ended))]
    for folder, parts in folders:
        kept = [path for part in parts for path in _kept(part)]
        # A model's files of weights are links to the hub's cache.
        kept = [path for path in kept if not (path.is_symlink() and path.parent.parent == paths.prepared / "models")]
        for file in filter(Path.is_file, within(folder, paths.root, kept)):
            files[f"results/{file.relative_to(paths.results).as_posix()}"] = file
    return files


def _kept(folder: Path) -> Iterator[Path]:
    paths = sorted(folder.rglob("*")) if folder.is_dir() else [folder]
    # Weights belong to the model and are larger than everything else; definitions of cells have their hash. What an
    # engine or a command that was killed left behind is no evidence.
    kept = (path for path in paths if path.suffix != ".safetensors" and "__pycache__" not in path.parts)
    kept = (path for path in kept if not path.name.startswith("."))
    return (path for path in kept if not any(part.endswith(".partial") for part in path.parts))


@command("archive", STUDY, RESULTS, out("the zip file to write"))
def main(args: Namespace) -> None:
    study = load_study(args.study)
    paths = StudyPaths(args.results, study.name)
    files = contents(study, args.study, paths)
    buffer = BytesIO()
    hashes: dict[str, str] = {}
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name: str, data: bytes) -> None:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
            hashes[name] = hashlib.sha256(data).hexdigest()

        for name, path in sorted(files.items()):
            add(name, path.read_bytes())
        commit, is_dirty = commit_of(CHECKOUT)
        of_commit = f"{commit}, with changes" if is_dirty else commit or "unknown"
        add(VERSION, f"kvsweep {__version__}, commit {of_commit}\n".encode())
        add(_MANIFEST, "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items())).encode())
    write_bytes(args.out, buffer.getvalue())
    print(f"{args.out}: {len(hashes)} files")
