"""Models that are not in config/models/: a folder with `config.json`, or a repository of the hub at a commit.

A study names its own under `models`; tools take them as `--model PATH` and `--model ORG/REPO@REVISION`.
"""

import re
from pathlib import Path
from typing import Any, get_args

from workflow_scripts.catalog.checkpoint import (
    HASHES,
    QUANTIZATION_FILE,
    WEIGHT_FORMATS,
    HashedFiles,
    hashed,
    read_config_json,
    tokenizer_files,
    weight_files,
)
from workflow_scripts.catalog.gpus_and_models import (
    CatalogError,
    Dtype,
    Model,
    ModelDtype,
    get_model,
    load_models,
    study_models,
)
from workflow_scripts.common.checkout import how_to_install
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.wording import allowed_names

ANY_MODEL = "name in config/models, a folder with config.json, or ORG/REPO[@REVISION] of the hub"
_REPO = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+?)(@(?P<revision>[\w./-]+))?")


def model_of_folder(name: str, folder: Path, stored: Path | None = None, weights: bool = False) -> Model:
    """A model with the config and the tokenizer of a folder, and with its `weights` or random ones. `stored` is a copy
    of the config, beside the record of the hashed files, that stands in for a lost folder. Raises CatalogError if the
    folder has no `config.json`, or one that cannot be read, or if it lacks weights or a tokenizer to them."""
    config = folder / "config.json"
    known = HashedFiles.read(stored.with_name(HASHES)) if stored and stored.with_name(HASHES).is_file() else None
    if config.is_file():
        of_tokenizer, of_weights = tokenizer_files(folder), weight_files(folder) if weights else []
        if weights and not of_weights:
            raise CatalogError(f"model {name!r}: {folder} has no weights in the formats {WEIGHT_FORMATS}")
        if weights and not of_tokenizer:
            raise CatalogError(f"model {name!r}: {folder} has no tokenizer, such as tokenizer.json, for its weights")
        known = hashed([*of_tokenizer, *of_weights], known)
    elif stored is not None and stored.is_file():
        config = stored
    else:
        raise CatalogError(f"model {name!r}: {config}: there is no such file; the folder of a model needs one")
    return _model(name, config, load_format="dummy", files=known if known and known.files else None)


def model_of_hub(name: str, repo: str, revision: str, stored: Path | None = None) -> Model:
    """A model with the config and the weights of a repository at a commit or, for tools, at a branch. The config is
    read from `stored` if it is there, else from the hub or its cache (HF_HOME). Raises InputError if neither has it."""
    pinned = revision if re.fullmatch(r"[0-9a-f]{40}", revision) else None
    if stored is not None and stored.is_file():
        return _model(name, stored, load_format="hub", hub_repo=repo, revision=pinned)
    try:
        from workflow_scripts.catalog.hub import fetch  # takes half a second to import
    except ModuleNotFoundError as e:
        raise InputError(
            f"model {name!r}: {e.name}, which reads the hub, is not installed here: use the environment of an engine"
            f" ({how_to_install('cpu')}), or give a folder with the config.json"
        ) from None

    configs = [path for path in fetch(repo, revision, ("config.json", QUANTIZATION_FILE)) if path.name == "config.json"]
    if not configs:
        raise CatalogError(f"model {name!r}: {repo} has no config.json at {revision}")
    return _model(name, configs[0], load_format="hub", hub_repo=repo, revision=pinned)


def _model(name: str, config: Path, **fields: Any) -> Model:
    return Model(name=name, config=config.absolute(), dtype=_own_dtype(config), licence="not known", **fields)


def _own_dtype(config: Path) -> ModelDtype:
    """The type that a config names; `native` if it names none that a device computes in."""
    content = read_config_json(config, CatalogError)
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
            + allowed_names(asked, load_models()).removeprefix("allowed: ")
        )
    if (namesake := load_models().get(model.name)) is not None:
        if namesake.config.resolve() == model.config.resolve():
            return namesake
        model = model.model_copy(update={"name": f"{model.name}-as-given"})
    study_models[model.name] = model
    return model


def _plain(text: str) -> str:
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]", "", text) or "model"
