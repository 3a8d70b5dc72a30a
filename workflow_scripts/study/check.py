"""Check a study file as far as this machine can without an engine, and count its cells.

    kvsweep check config/studies/demo.yaml

It makes the requests of every workload as `snakemake prepare` does. A model with a tokenizer of its own gets the fewest
tokens that a text can have.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from workflow_scripts.catalog.gpus_and_models import get_model
from workflow_scripts.common.command import command, option
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import read_json
from workflow_scripts.common.wording import plural
from workflow_scripts.physics.model_facts import vocabulary_and_context
from workflow_scripts.study.calibrations import calibrations_of, check_calibrations
from workflow_scripts.study.definition import ResolvedModel, resolved_models
from workflow_scripts.study.gpus_here import unmeasurable
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.requests import requests_of
from workflow_scripts.study.study import Study, StudyError
from workflow_scripts.study.study_file import load_study, without_tokenizer
from workflow_scripts.workloads.byte_tokens import vocabulary_of_bytes
from workflow_scripts.workloads.request import Vocabulary
from workflow_scripts.workloads.texts import MIN_TOKENS
from workflow_scripts.workloads.workload_kinds import FileWorkload, ShareGptWorkload


def missing_files(study: Study) -> Iterator[str]:
    """A note for each workload that its fallback makes, because its file is missing. Raises StudyError if a file that
    is needed is missing, or its content differs from its sha256."""
    for name, workload in study.workloads.items():
        if not isinstance(workload, FileWorkload):
            continue
        if fault := workload.file_fault():
            raise StudyError(f"study {study.name!r}, workload {name!r}: {fault}")
        if isinstance(workload, ShareGptWorkload) and not workload.path.is_file():
            yield f"workload {name!r}: {workload.file} is not there; its fallback makes the requests"


def check_requests(study: Study, cells: Sequence[Cell]) -> None:
    """Raise StudyError for the first model or workload that cannot be prepared: special tokens beyond the vocabulary,
    too few texts, or a request that fits no context."""

    def place(cell: Cell) -> tuple[str, str]:
        return cell.model, cell.workload

    try:
        configs = {name: read_json(get_model(name).config) for name in resolved_models(study)}
        vocabularies = {name: _vocabulary(model, configs[name]) for name, model in resolved_models(study).items()}
        for (model, name), group in groupby(sorted(cells, key=place), place):
            requests_of(name, study.workloads[name], [*group], vocabularies[model], configs[model])
    except InputError as e:
        raise StudyError(f"study {study.name!r}: {e}") from None


def _vocabulary(model: ResolvedModel, config: Mapping[str, Any]) -> Vocabulary:
    """That of the tokenizer that is written for the model; for one of its own, one in which every text is short."""
    if model.load_format != "hub" and not model.files_sha256:
        return vocabulary_of_bytes(config)
    ids = np.arange(vocabulary_and_context(config)[0])
    return Vocabulary(ids, lambda _: ids[:MIN_TOKENS].tolist(), lambda _: ids[:MIN_TOKENS].tolist())


@command("check", option("study", type=Path, help="the study's YAML file"))
def main(args: Namespace) -> None:
    study = load_study(args.study)
    cells = expand(study)
    check_calibrations(study, calibrations_of(study, cells))
    notes = [*without_tokenizer(study), *missing_files(study), unmeasurable(study, cells)]
    check_requests(study, cells)
    print(f"{args.study}: {plural(len(cells), 'cell')} on {', '.join(sorted({c.gpu for c in cells}))}")
    for note in filter(None, notes):
        print(f"note: {note}")
