"""Check a study file as far as this machine can without an engine, and count its cells.

    kvsweep check config/studies/demo.yaml

It makes the requests of every workload as `snakemake prepare` does. A model with a tokenizer of its own gets the fewest
tokens that a text can have.
"""

from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np

from workflow_scripts.catalog.gpus_and_models import get_model, load_gpus, load_models
from workflow_scripts.common.checkout import how_to_install
from workflow_scripts.common.command import STUDY, command
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.wording import listed, plural
from workflow_scripts.device.device_check import cpu_here
from workflow_scripts.engines.description import UnpredictableError
from workflow_scripts.engines.installation import missing_packages
from workflow_scripts.engines.registry import every_knob, get_engine, steps_of
from workflow_scripts.physics.model_facts import (
    ModelFacts,
    ModelFactsError,
    facts_on,
    read_config,
    vocabulary_and_context,
)
from workflow_scripts.study.definition import ResolvedModel, resolved_models
from workflow_scripts.study.gpus_here import unmeasurable
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.requests import requests_of
from workflow_scripts.study.study import Study, StudyError
from workflow_scripts.study.study_file import load_study, without_tokenizer
from workflow_scripts.workloads.arrivals import Load
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
        configs = {name: read_config(get_model(name).config) for name in resolved_models(study)}
        vocabularies = {name: _vocabulary(model, configs[name]) for name, model in resolved_models(study).items()}
        for (model, name), group in groupby(sorted(cells, key=place), place):
            requests_of(name, study.workloads[name], [*group], vocabularies[model], configs[model])
    except InputError as e:
        raise StudyError(f"study {study.name!r}: {e}") from None


def doubts(study: Study, cells: Sequence[Cell]) -> Iterator[str]:
    """A note for each setting that cannot show what the study asks: too few requests to fill an engine, a context that
    the model does not have, a knob of another kind of device, a list of values that holds one."""
    for name, group in groupby(sorted(cells, key=lambda cell: cell.workload), lambda cell: cell.workload):
        # Of cells whose requests all wait from the beginning, and whose number of sequences the study sets.
        closed = (cell.knobs for cell in group if not isinstance(cell.knobs, Load))
        swept = {one.max_concurrency for one in closed if any(one.described()[n].limits for n in one.set_values())}
        largest = max(swept, default=1)
        if len(swept) > 1 and (count := study.workloads[name].prompts_for(largest)) < 2 * largest:
            yield (
                f"workload {name!r}: {plural(count, 'request')} cannot keep {largest} sequences running; set"
                f" num_prompts to at least {2 * largest}, or prompts_per_seq to at least 2"
            )
    for model in sorted({cell.model for cell in cells}):
        longest = max(cell.knobs.longest_request or 0 for cell in cells if cell.model == model)
        positions = vocabulary_and_context(read_config(get_model(model).config))[1]
        if longest > positions:
            yield f"model {model!r}: max_model_len {longest} is beyond its {positions} positions"
    kinds = {load_gpus()[cell.gpu].kind for cell in cells}
    for knob in sorted({knob for cell in cells for knob in cell.knobs.set_values()}):
        only_on = every_knob()[knob].only_on
        if only_on and only_on not in kinds:
            yield f"{knob}: only for {only_on.upper()} devices; the study has none, so it changes nothing"
    for sweep in study.sweeps:
        values_of = {name: {str(cell.knobs.set_values().get(name)) for cell in cells} for name in sweep.knobs}
        if alone := [
            name for name, given in sweep.knobs.items() if isinstance(given, list) and len(values_of[name]) < 2
        ]:
            yield f"sweep {sweep.name!r}: {listed(alone)} has one value, so its effect is not measured"


def beyond_graphs(study: Study, cells: Sequence[Cell]) -> Iterator[str]:
    """A note for each limit of sequences of which the last ones are predicted to decode without a full CUDA graph, and
    for each limit of tokens with which full steps with prompts are a little larger than any graph; with the nearest
    limits of which none does."""
    found: Counter[tuple[str, str]] = Counter()
    gpus, models = load_gpus(), load_models()

    @cache
    def facts_of(model: str, gpu: str, quantization: str | None) -> ModelFacts:
        return facts_on(models[model], gpus[gpu], cpu_here(gpus[gpu]), quantization)

    for cell in cells:
        knobs, gpu = cell.knobs, gpus[cell.gpu]
        if gpu.kind == "cpu" or knobs.why_unpredicted:
            continue
        try:
            facts = facts_of(cell.model, cell.gpu, knobs.quantized_as)
            steps = steps_of(get_engine(cell.engine), knobs, gpu, facts, cell.environment)
        except (UnpredictableError, ModelFactsError):
            continue
        requests = study.workloads[cell.workload].prompts_for(knobs.max_concurrency)
        at, most = f"{cell.gpu}, {cell.engine_at}", steps.decides.max_num_seqs
        users = getattr(knobs, "users", None) or requests
        running = min(most, -(-min(requests, users) // steps.engines))
        per_sequence = 1 + (steps.drafts.tokens if steps.drafts else 0)
        captured = ((steps.graphs and steps.graphs.decode_tokens) or 0) // per_sequence
        if steps.graphs and steps.graphs.sizes and captured < running:
            more = [f"{size // per_sequence} or " for size in steps.graphs.sizes if size >= (most + 1) * per_sequence]
            without = f"steps of {captured + 1} to {running} sequences decode without a full CUDA graph (predicted)"
            found[at, f"max_num_seqs {most} {without}; with {''.join(more[:1])}{captured} none do"] += 1
        tokens, budget = (steps.graphs.tokens if steps.graphs else 0), steps.decides.max_num_batched_tokens or 0
        # Twice as many steps would undo what launching them faster saves.
        if most <= tokens < budget < 2 * tokens:
            without = f"steps with prompts of over {tokens} tokens are launched kernel by kernel (predicted)"
            found[at, f"max_num_batched_tokens {budget} {without}; with {tokens} none are"] += 1
    for (at, note), count in found.items():
        yield f"{at}: with {note} ({plural(count, 'cell')})"


def _vocabulary(model: ResolvedModel, config: Mapping[str, Any]) -> Vocabulary:
    """That of the tokenizer that is written for the model; for one of its own, one in which every text is short."""
    if model.load_format != "hub" and not model.files_sha256:
        return vocabulary_of_bytes(config)
    ids = np.arange(vocabulary_and_context(config)[0])
    return Vocabulary(ids, lambda _: ids[:MIN_TOKENS].tolist(), lambda _: ids[:MIN_TOKENS].tolist())


def lacking(cells: Iterable[Cell]) -> list[str]:
    """A note for each engine that this environment lacks, or of whose packages it lacks some: it measures elsewhere."""
    kinds = {cell.engine: load_gpus()[cell.gpu].kind for cell in cells if not cell.environment}
    engines = [get_engine(name) for name in kinds]
    lacks = {one.name: missing_packages(one) if one.installed() else [one.packages[0]] for one in engines}
    words = ((name, listed(names), how_to_install(kinds[name])) for name, names in lacks.items() if names)
    return [f"{name} needs {names}, which is not installed here; to measure: {how}" for name, names, how in words]


@command("check", STUDY)
def main(args: Namespace) -> None:
    study = load_study(args.study)
    cells = expand(study)
    notes = [
        *without_tokenizer(study),
        *missing_files(study),
        *doubts(study, cells),
        *beyond_graphs(study, cells),
        *lacking(cells),
        unmeasurable(study, cells),
    ]
    check_requests(study, cells)
    print(f"{args.study}: {plural(len(cells), 'cell')} on {', '.join(sorted({c.gpu for c in cells}))}")
    for note in filter(None, notes):
        print(f"note: {note}")
