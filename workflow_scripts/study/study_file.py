"""Read and check a study file; `study.py` defines what it holds."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workflow_scripts.catalog.any_model import model_of_folder, model_of_hub
from workflow_scripts.catalog.checkpoint import HASHES, QUANTIZATION_FILE
from workflow_scripts.catalog.gpus_and_models import MODELS, Model, load_gpus, study_gpus, study_models
from workflow_scripts.common.checkout import own_or_of_checkout
from workflow_scripts.common.files import write_bytes
from workflow_scripts.common.records import read_yaml
from workflow_scripts.common.wording import allowed_names
from workflow_scripts.study.definition import json_sha256
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study import Study, StudyError, study_of


def load_study(path: Path, results: Path | None = None) -> Study:
    """Read and check a study file, and make its own models known by name. `results`: folder of all results, where their
    configs may be stored; by default what the workflow says ($RESULTS), or `results`. Raises StudyError if the file
    cannot be used, and InputError if the config of one of its models cannot be read or fetched."""
    if not path.exists():
        raise StudyError(f"{path}: there is no such study file")
    content = read_yaml(path, StudyError)
    if not isinstance(content, dict):
        raise StudyError(f"{path}: a study is a mapping with the keys {', '.join(Study.model_fields)}")
    study = study_of(content, str(path))
    paths = StudyPaths(results or Path(os.environ.get("RESULTS", "results")), study.name)
    for name in study.gpus.keys() & load_gpus().keys() - study_gpus.keys():
        raise StudyError(f"study {study.name!r}, gpus.{name}: config/gpus.yaml has a GPU of this name; choose another")
    study_gpus.update({name: numbers.gpu(name) for name, numbers in study.gpus.items()})
    study_models.update({model.name: model for model, _ in _own_models(study, paths)})
    return study


def _own_models(study: Study, paths: StudyPaths) -> Iterator[tuple[Model, Path]]:
    """The models that a study names by folder or repository, and where their configs are stored."""
    for name, entry in study.models.items():
        if (entry.folder or entry.hub) and (MODELS / name).exists():
            raise StudyError(
                f"study {study.name!r}, models.{name}: config/models/ has a model of this name; choose another"
            )
        # By the folder as it is written, so that nothing stands in for a misspelt one.
        stored = paths.model_config(name, entry.revision or json_sha256(entry.folder)[:8])
        if entry.folder is not None:
            folder, weights = (
                own_or_of_checkout(Path(entry.folder).expanduser()).absolute(),
                entry.load_format == "auto",
            )
            yield model_of_folder(name, folder, stored, weights), stored
        elif entry.hub is not None:
            yield model_of_hub(name, entry.hub, str(entry.revision), stored), stored


def store_configs(study: Study, paths: StudyPaths) -> None:
    """Store the configs of the study's own models, so that no later command needs the network or the folder."""
    for model, stored in _own_models(study, paths):
        content = model.config.read_bytes()
        if not stored.is_file() or stored.read_bytes() != content:
            write_bytes(stored, content)
            if (beside := model.config.with_name(QUANTIZATION_FILE)).is_file():
                write_bytes(stored.with_name(QUANTIZATION_FILE), beside.read_bytes())
        if model.files and model.config != stored:
            model.files.write(stored.with_name(HASHES))


def study_file(config: Mapping[str, Any], configfiles: Sequence[str | Path]) -> Path:
    """The study of a snakemake call: the last `--configfile` that is one, or the file that the key `study` names."""
    # A file with any key of a study counts, so that misspelt `sweeps` are reported instead of another study being run.
    for path in map(Path, reversed(configfiles)):
        if isinstance(content := read_yaml(path, StudyError), dict) and Study.model_fields.keys() & content.keys():
            return path
    if "study" not in config:
        raise StudyError("config/config.yaml: the key `study` must name a study file, e.g. config/studies/demo.yaml")
    return own_or_of_checkout(config["study"])


def check_config(config: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise StudyError for the first key of a snakemake call that is neither a key of a study nor known."""
    if unknown := [key for key in config if key not in Study.model_fields and key not in known]:
        raise StudyError(f"--config {unknown[0]}=: there is no such key; {allowed_names(unknown[0], known)}")


def without_tokenizer(study: Study) -> list[str]:
    """A note for each model whose folder has no tokenizer."""
    return [
        f"model {name!r}: {entry.folder} has no tokenizer; each byte of a text is one token"
        for name, entry in study.models.items()
        if entry.folder is not None and study_models[name].files is None
    ]
