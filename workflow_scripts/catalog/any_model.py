"""Models that are not in config/models/: a folder with `config.json`, or a repository of the hub at a commit.

A study names its own under `models`; tools take them as `--model PATH` and `--model ORG/REPO@REVISION`.
"""

import re
from pathlib import Path
from typing import Any, get_args

from workflow_scripts.catalog.gpus_and_models import (
    CatalogError,
    Dtype,
    Model,
    ModelDtype,
    get_model,
    load_models,
    study_models,
)
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import read_json

ANY_MODEL = "name in config/models, a folder with config.json, or ORG/REPO[@REVISION] of the hub"
_REPO = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+?)(@(?P<revision>[\w./-]+))?")


def model_of_folder(name: str, folder: Path, stored: Path | None = None) -> Model:
    """A model with the config of a folder and random weights; `stored` is a copy that stands in for a lost folder.
    Raises CatalogError if the folder has no `config.json`, or one that cannot be read."""
    config = folder / "config.json"
    if not config.is_file():
        if stored is None or not stored.is_file():
            raise CatalogError(f"model {name!r}: {config}: there is no such file; the folder of a model needs one")
        config = stored
    return _model(name, config, load_format="dummy")


def model_of_hub(name: str, repo: str, revision: str, stored: Path | None = None) -> Model:
    """A model with the config and the weights of a repository at a commit or, for tools, at a branch. The config is
    read from `stored` if it is there, else from the hub or its cache (HF_HOME). Raises InputError if neither has it."""
    pinned = revision if re.fullmatch(r"[0-9a-f]{40}", revision) else None
    if stored is not None and stored.is_file():
        return _model(name, stored, load_format="hub", hub_repo=repo, revision=pinned)
    from workflow_scripts.catalog.hub import fetch  # takes half a second to import

    configs = [path for path in fetch(repo, revision, ("config.json",)) if path.name == "config.json"]
    if not configs:
        raise CatalogError(f"model {name!r}: {repo} has no config.json at {revision}")
    return _model(name, configs[0], load_format="hub", hub_repo=repo, revision=pinned)


def _model(name: str, config: Path, **fields: Any) -> Model:
    return Model(name=name, config=config.absolute(), dtype=_own_dtype(config), licence="not known", **fields)


def _own_dtype(config: Path) -> ModelDtype:
    """The type that a config names; `native` if it names none that a device computes in."""
    try:
        content = read_json(config)
    except InputError as e:
        raise CatalogError(str(e)) from None
    if not isinstance(content, dict):
        raise CatalogError(f"{config}: must hold one JSON object")
    parts = [part for part in (content, content.get("text_config")) if isinstance(part, dict)]
    named = next((part[key] for part in parts for key in ("dtype", "torch_dtype") if part.get(key)), None)
    return next((dtype for dtype in get_args(Dtype) if dtype == named), "native")


def find_model(asked: str) -> Model:
    """The model that a tool's `--model` means, see `ANY_MODEL`; from then on it is known by its name. Raises InputError
    if it cannot be found or read."""
    if asked in load_models():
        return get_model(asked)
    folder = Path(asked).expanduser()
    if folder.name == "config.json":
        folder = folder.parent
    if folder.is_dir():
        model = model_of_folder(_plain(folder.resolve().name), folder)
    elif (named := _REPO.fullmatch(asked)) and not asked.startswith("."):
        repo = named["repo"]
        model = model_of_hub(_plain(repo.split("/")[1]), repo, named["revision"] or "main")
    else:
        raise CatalogError(
            f"unknown model {asked!r}; allowed: a folder with config.json, ORG/REPO[@REVISION] of the hub, or one of "
            + ", ".join(load_models())
        )
    namesake = load_models().get(model.name)
    if namesake is not None and namesake.config.resolve() == model.config.resolve():
        return namesake
    if namesake is not None:
        model = model.model_copy(update={"name": f"{model.name}-as-given"})
    study_models[model.name] = model
    return model


def _plain(text: str) -> str:
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]", "", text) or "model"
