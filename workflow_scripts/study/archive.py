"""Pack a study into one archive: study file, evidence, results and the code that links them.

    kvsweep archive --study config/studies/demo.yaml --out results/demo/demo.zip

The archive is a complete checkout: after unpacking, `snakemake --config study=study.yaml partial=1` draws the report
again from its cells. `sha256sum --check` checks `manifest-sha256.txt`, and `ro-crate-metadata.json` describes content
and runs to programs, as a Workflow Run RO-Crate (https://w3id.org/ro/wfrun/workflow).
"""

import hashlib
import json
import zipfile
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from rocrate.model.contextentity import ContextEntity
from rocrate.rocrate import ROCrate

from workflow_scripts import __version__
from workflow_scripts.common.checkout import CHECKOUT, commit_of
from workflow_scripts.common.command import RESULTS, STUDY, command, out
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_bytes
from workflow_scripts.study.grid import expand
from workflow_scripts.study.outcome import Provenance, outcome_in
from workflow_scripts.study.paths import StudyPaths, within
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study

CODE = (
    *("Snakefile", "LICENSE", "CITATION.cff", "rules", "workflow_scripts", "config"),
    *("profiles", "slurm", "envs", "report"),
)
MANIFEST, METADATA, STUDY_FILE = "manifest-sha256.txt", "ro-crate-metadata.json", "study.yaml"
# The profiles of runs, and the version of RO-Crate that they build on.
PROFILES = {f"https://w3id.org/ro/wfrun/{kind}/0.5": f"{kind.title()} Run Crate" for kind in ("process", "workflow")}
PROFILES["https://w3id.org/workflowhub/workflow-ro-crate/1.0"] = "Workflow RO-Crate"
RO_CRATE = "1.1"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that zip can store; a fixed time makes equal contents equal archives


def contents(study: Study, study_file: Path, paths: StudyPaths) -> dict[str, Path]:
    """The files of the archive but manifest and description: its name there, and where it is. Raises InputError if no
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
    # Weights belong to the model and are larger than everything else; its manifest holds their hashes. What an engine
    # or a command that was killed left behind is no evidence.
    kept = (path for path in paths if path.suffix != ".safetensors" and "__pycache__" not in path.parts)
    kept = (path for path in kept if not path.name.startswith("."))
    return (path for path in kept if not any(part.endswith(".partial") for part in path.parts))


def description(study: Study, paths: StudyPaths, files: Mapping[str, Path]) -> dict[str, Any]:
    """The RO-Crate metadata: the parts of the archive, and for each device what measured it, where and when."""
    read = ((cell, outcome_in(path)) for cell in expand(study) for path in paths.outcomes(cell).values())
    outcomes = [(cell, outcome) for cell, outcome in read if outcome is not None]
    results = f"results/{study.name}"
    crate = ROCrate(version=RO_CRATE)
    crate.name = f"kvsweep study {study.name}"
    crate.description = study.question
    crate.license = "https://spdx.org/licenses/Apache-2.0"
    # The time of the last measurement, not of packing: equal contents give equal archives.
    crate.root_dataset["datePublished"] = _last_end(outcome.provenance for _, outcome in outcomes)

    for url, title in PROFILES.items():
        properties = {"@type": "CreativeWork", "name": title, "version": url.rpartition("/")[2]}
        crate.root_dataset.append_to("conformsTo", crate.add(ContextEntity(crate, url, properties=properties)))

    def add_file(name: str, title: str, encoding: str = "text/plain") -> Any:
        return crate.add_file(files.get(name), name, properties={"name": title, "encodingFormat": encoding})

    def add_action(name: str, title: str, ended: str, **properties: str) -> Any:
        properties = {"@type": "CreateAction", "name": title, "endTime": ended, **properties}
        action = crate.add(ContextEntity(crate, name, properties=properties))
        crate.root_dataset.append_to("mentions", action)
        action["object"] = study_entity
        return action

    study_entity = add_file(STUDY_FILE, "the study", "text/yaml")
    drawn = [add_file(f"{results}/report.html", "report", "text/html")]
    add_file(MANIFEST, "SHA-256 of every file")
    for name in sorted(name for name in files if name.startswith("envs/") and name.endswith(".txt")):
        add_file(name, f"lock {Path(name).stem}")
    for name, title in (("tables", "tables of results"), ("figures", "figures"), ("prepared", "models and requests")):
        if any(file.startswith(f"{results}/{name}/") for file in files):
            drawn.append(crate.add_directory(dest_path=f"{results}/{name}/", properties={"name": title}))
    about = {"name": "kvsweep", "version": __version__}
    pipeline = crate.add_workflow(files["Snakefile"], "Snakefile", main=True, lang="snakemake", properties=about)
    commit, dirty = commit_of(CHECKOUT)
    if commit:
        pipeline["identifier"] = f"{commit}-dirty" if dirty else commit
    run = add_action("#run", f"the study {study.name}", crate.root_dataset["datePublished"])
    run["instrument"], run["result"] = pipeline, drawn
    for gpu in dict.fromkeys(cell.gpu for cell, _ in outcomes):
        where = [outcome.provenance for cell, outcome in outcomes if cell.gpu == gpu]
        cells = {cell.id for cell, _ in outcomes if cell.gpu == gpu}
        hosts = "hosts: " + ", ".join(sorted({str(p.get("host")) for p in where}))
        title = f"measuring {len(cells)} cells on {gpu}"
        action = add_action(f"#measuring-{gpu}", title, _last_end(where), description=hosts)
        evidence = {"name": f"evidence measured on {gpu}"}
        action["result"] = crate.add_directory(dest_path=f"{results}/cells/{gpu}/", properties=evidence)
        engines = sorted({engine for p in where if (engine := p.get("engine_version"))})
        locks = (crate.dereference(f"envs/{lock}") for lock in sorted({str(p.get("lock")) for p in where}))
        software = []
        for name, version in (engine.partition(" ")[::2] for engine in engines):
            about = {"@type": "SoftwareApplication", "name": name, "softwareVersion": version}
            software.append(crate.add(ContextEntity(crate, f"#{name}-{version}", properties=about)))
        action["instrument"] = [pipeline, *software, *filter(None, locks)]
    metadata: dict[str, Any] = crate.metadata.generate()
    return metadata


def _last_end(provenances: Iterable[Provenance]) -> str:
    return max((p.get("ended_at") or "" for p in provenances), default="")


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
        described = description(study, paths, files)
        for folder in sorted(entity["@id"] for entity in described["@graph"] if entity["@type"] == "Dataset"):
            if folder != "./":  # programs that check the description look for entries of folders
                archive.writestr(zipfile.ZipInfo(folder, _EPOCH), b"")
        add(METADATA, json.dumps(described, indent=2).encode())
        add(MANIFEST, "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items())).encode())
    write_bytes(args.out, buffer.getvalue())
    print(f"{args.out}: {len(hashes)} files")
