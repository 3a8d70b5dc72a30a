"""Models that a study names itself, by folder or by repository; their configs are stored with the study's results."""

from pathlib import Path

from workflow_scripts.catalog.any_model import enter, model_of_folder, model_of_hub
from workflow_scripts.catalog.gpus_and_models import MODELS, Model
from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.files import write_bytes
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study import ModelOverride, Study, StudyError


def enter_models(study: Study, results: Path) -> None:
    """Make the study's own models known by name; nothing is written. Raises StudyError if one has the name of a
    catalogue entry, and CatalogError or HubError if a config cannot be read or fetched."""
    own = {name: entry for name, entry in study.models.items() if entry.is_own}
    for name in own:
        if (MODELS / name).exists():
            raise StudyError(
                f"study {study.name!r}, models.{name}: config/models/ has a model of this name; choose another"
            )
    paths = StudyPaths(results, study.name)
    if own:
        enter({name: _model(name, entry, paths) for name, entry in own.items()})


def _model(name: str, entry: ModelOverride, paths: StudyPaths) -> Model:
    stored = paths.model_config(name, entry.revision)
    if entry.folder is not None:
        return model_of_folder(name, CHECKOUT / Path(entry.folder).expanduser(), stored)
    return model_of_hub(name, str(entry.hub), str(entry.revision), stored)


def store_configs(study: Study, paths: StudyPaths) -> None:
    """Store the configs of the study's own models, so that no later command needs the network or the folder."""
    for name, entry in study.models.items():
        if entry.is_own:
            content = _model(name, entry, paths).config.read_bytes()
            stored = paths.model_config(name, entry.revision)
            if not stored.is_file() or stored.read_bytes() != content:
                write_bytes(stored, content)
