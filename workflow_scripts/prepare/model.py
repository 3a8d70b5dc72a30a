"""Write the folder that an engine is started on: config, tokenizer and, if requested, weights.

    kvsweep prepare-model --study config/studies/demo.yaml --model tiny-llama-57m \\
        --out results/demo/prepared/models/tiny-llama-57m

A model of load_format dummy needs no network. One of load_format auto has the weights of its folder, linked. The
tokenizer is that of the folder, if it has one. One of load_format hub comes from the hub, at the commit of
config/models/NAME/model.yaml, with the token of HF_TOKEN if it is gated. A study may override load_format.
"""

import shutil
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workflow_scripts.catalog.checkpoint import (
    CONFIG_FILES,
    TOKENIZER_FILES,
    WEIGHT_FILES,
    WEIGHT_FORMATS,
    tokenizer_files,
    weight_files,
)
from workflow_scripts.catalog.gpus_and_models import Model, get_model
from workflow_scripts.catalog.hub import fetch
from workflow_scripts.common.command import STUDY, command, option, out
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import read_json
from workflow_scripts.prepare.tokenizer import write_tokenizer
from workflow_scripts.study.definition import resolved_models
from workflow_scripts.study.study import StudyError
from workflow_scripts.study.study_file import load_study


def prepare_model(
    model: Model, load_format: str, out: Path, *, weights: bool = False, trust_remote_code: bool = False
) -> None:
    """Write the folder `out` for `model`, whole or not at all; an existing folder is replaced.

    Python code of the model's repository is fetched only with `trust_remote_code`; it is never run here. Raises
    CatalogError if `load_format` is `hub` and the catalogue names no commit; InputError if the hub does not provide the
    files or has no weights, or its config differs from the catalogue's or has too small a vocabulary for a tokenizer.
    """
    with _replaced_folder(out) as folder:
        if load_format == "hub":
            _from_hub(model, folder, weights, ("*.py",) if trust_remote_code else ())
        elif model.files is not None:
            _from_folder(model.config.parent, folder, load_format == "auto")
        else:
            shutil.copyfile(model.config, folder / "config.json")
            write_tokenizer(folder, read_json(model.config))


def _from_hub(model: Model, folder: Path, weights: bool, code: tuple[str, ...]) -> None:
    repo, revision = model.pinned()
    for path in fetch(repo, revision, CONFIG_FILES + TOKENIZER_FILES + code):
        shutil.copyfile(path, folder / path.name)
    _check_same_config(model, folder / "config.json")
    if weights:
        files = next(filter(None, (fetch(repo, revision, patterns) for patterns in WEIGHT_FILES)), None)
        if files is None:
            raise InputError(f"{repo} at {revision} has no weights in the formats {WEIGHT_FORMATS}")
        # The hub's cache holds weights once for all studies; it must remain while the study is measured.
        for path in files:
            (folder / path.name).symlink_to(path.resolve())


def _from_folder(given: Path, folder: Path, weights: bool) -> None:
    tokenizer = tokenizer_files(given)
    if not tokenizer:
        raise InputError(f"{given}: the folder with tokenizer and weights is gone, only its config was stored here")
    for path in [*(given / name for name in CONFIG_FILES if (given / name).is_file()), *tokenizer]:
        shutil.copyfile(path, folder / path.name)
    for path in weight_files(given) if weights else []:
        (folder / path.name).symlink_to(path.resolve())


def _check_same_config(model: Model, fetched: Path) -> None:
    """Predictions are made from the catalogue's config; if the two differed, they would be about another model."""
    if not fetched.is_file():
        raise InputError(f"{model.hub_repo} has no config.json at {model.revision}")
    ours, theirs = read_json(model.config), read_json(fetched)
    if differing := sorted(key for key in ours.keys() & theirs.keys() if ours[key] != theirs[key]):
        raise InputError(
            f"{model.config}: differs from {model.hub_repo} at {model.revision} in "
            + ", ".join(f"{key} ({ours[key]!r}, hub: {theirs[key]!r})" for key in differing)
        )


@contextmanager
def _replaced_folder(path: Path) -> Iterator[Path]:
    """A new folder beside `path` that replaces it if the block succeeds, and is removed if it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.", ignore_cleanup_errors=True) as scratch:
        new = Path(scratch, "new")
        new.mkdir()
        yield new
        if path.exists():
            path.rename(Path(scratch, "old"))
        new.rename(path)


@command(
    "prepare-model",
    STUDY,
    option("--model", required=True, help="a model of the study"),
    out("the folder to write; replaced if it exists"),
    option(
        "--weights", action="store_true", help="fetch a hub model's weights too, linked to the hub's cache (HF_HOME)"
    ),
)
def main(args: Namespace) -> None:
    models = resolved_models(load_study(args.study))
    if args.model not in models:
        raise StudyError(f"{args.study}: no sweep has the model {args.model!r}; allowed: {', '.join(models)}")
    asked = models[args.model]
    prepare_model(
        get_model(args.model),
        asked.load_format,
        args.out,
        weights=args.weights,
        trust_remote_code=asked.trust_remote_code,
    )
