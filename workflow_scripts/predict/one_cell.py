"""The one cell that a command predicts: the options that name it, and its study."""

from argparse import BooleanOptionalAction, Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workflow_scripts.catalog.any_model import ANY_MODEL, find_model
from workflow_scripts.catalog.gpus_and_models import resolve_one
from workflow_scripts.common.command import RESULTS, AddOption, option, positive
from workflow_scripts.common.files import sha256_of
from workflow_scripts.engines.description import EngineDescription
from workflow_scripts.engines.registry import load_engines
from workflow_scripts.study.grid import Cell, expand, find_cell
from workflow_scripts.study.paths import CELL_PATTERN, StudyPaths
from workflow_scripts.study.study import Study, StudyError, study_of
from workflow_scripts.study.study_file import load_study
from workflow_scripts.workloads.hashed_trace import count_requests

REQUESTS = "requests.jsonl"
# Types of the JSON schema -> types of the command line.
_TYPES = {"integer": int, "number": float}
_ALLOWED = (
    "give one of: --trace FILE; --prompt-tokens N --output-tokens N; --study STUDY --workload NAME; "
    "--study STUDY --cell ID"
)


def _predictable() -> Mapping[str, EngineDescription]:
    return {name: engine for name, engine in load_engines().items() if engine.predicted}


def _knob_options() -> Iterator[AddOption]:
    """One option for each knob of these engines; the study checks the values, and which engine has the knob."""
    schemas = [engine.knobs.model_json_schema()["properties"] for engine in _predictable().values()]
    for name, schema in {name: schema for part in schemas for name, schema in part.items()}.items():
        kinds = {kind.get("type"): kind.get("description") for kind in schema.get("anyOf", [schema])}
        flag, about = f"--{name.replace('_', '-')}", next(filter(None, kinds.values()), None)
        if "boolean" in kinds:
            yield option(flag, action=BooleanOptionalAction, help=about)
        else:
            yield option(flag, type=next((_TYPES[kind] for kind in kinds if kind in _TYPES), str), help=about)


def cell_options(engine: str) -> list[AddOption]:
    """The options of a command that predicts one cell, by default of this engine."""
    return [
        option("--model", help=ANY_MODEL),
        option("--gpu", help="name in config/gpus.yaml"),
        option("--engine", choices=list(_predictable()), default=engine, help="default: %(default)s"),
        *_knob_options(),
        option("--trace", type=Path, help="a trace with hashes: JSON Lines of Mooncake, Bailian or Weka"),
        option("--hash-block-tokens", type=positive, help="tokens of a block with a hash (default: the format's)"),
        option("--max-total-tokens", type=positive, help="leave out longer requests of the trace, with their answers"),
        option("--prompt-tokens", type=positive, help="prompt tokens of each of 300 requests, without a study"),
        option("--output-tokens", type=positive, help="output tokens of each, without a study"),
        option("--study", type=Path, help="a study with the workload or the cell"),
        option("--workload", help="a workload of the study"),
        option("--num-prompts", type=positive, help="requests of the workload (default: as the study says)"),
        option("--cell", help="a cell of the study: its ID, or the raw/requests.jsonl of a measured one"),
        RESULTS,
    ]


def asked_cell(args: Namespace) -> tuple[Study, Cell, Path | None]:
    """The cell that the options name, its study, and the folder with what was measured of its devices; None without a
    study. Raises InputError."""
    given = [name for name in ("trace", "prompt_tokens", "workload", "cell") if getattr(args, name)]
    of_study = bool(args.workload or args.cell)
    if len(given) != 1 or bool(args.study) != of_study or bool(args.prompt_tokens) != bool(args.output_tokens):
        raise StudyError(_ALLOWED)
    study = load_study(args.study) if args.study else None
    prepared = StudyPaths(args.results, study.name).prepared if study else None
    if study and args.cell:
        parts = Path(args.cell).parts
        if parts[-1] == REQUESTS:
            parts = parts[parts.index("cells") + 1 :] if "cells" in parts else parts
        return study, find_cell(study, "/".join(parts[: CELL_PATTERN.count("/") + 1])), prepared
    if not (args.model and args.gpu):
        raise StudyError("give --model and --gpu")
    alone = _one_cell(args, study)
    return alone, next(iter(expand(alone))), prepared


def _one_cell(args: Namespace, study: Study | None) -> Study:
    """A study with only the requested cell. Raises InputError if a name or value is not allowed."""
    of_any = {name for engine in _predictable().values() for name in engine.knobs.described()}
    knobs = {name: value for name, value in vars(args).items() if name in of_any and value is not None}
    if study:
        if args.workload not in study.workloads:
            names = ", ".join(study.workloads)
            raise StudyError(f"{args.study}: there is no workload {args.workload!r}; it has {names}")
        workload = study.workloads[args.workload].model_dump(exclude_unset=True)
        knobs = {**study.engine_defaults.get(args.engine, {}), **knobs}
    elif args.trace:
        workload = _of_trace(args)
    else:
        workload = {"kind": "fixed", "num_prompts": 300}
        workload |= {name: getattr(args, name) for name in ("prompt_tokens", "output_tokens")}
    if args.num_prompts:
        workload["num_prompts"] = args.num_prompts
    name, coordinates = args.workload or "requests", {"gpu": resolve_one(args.gpu).name, "engine": args.engine}
    sweep = {"name": "one", **coordinates, "model": find_model(args.model).name, "workload": name, "knobs": knobs}
    content = {"schema_version": 1, "name": study.name if study else "one-cell", "question": "What does this cell do?"}
    return study_of({**content, "workloads": {name: workload}, "sweeps": [sweep]}, "one cell")


def _of_trace(args: Namespace) -> dict[str, Any]:
    limits = {name: value for name in ("hash_block_tokens", "max_total_tokens") if (value := getattr(args, name))}
    if not (count := count_requests(args.trace, args.hash_block_tokens, args.max_total_tokens)):
        limit = f" and at most --max-total-tokens {args.max_total_tokens}" if args.max_total_tokens else ""
        raise StudyError(f"{args.trace}: no request has output tokens{limit}")
    return {"kind": "trace", "file": str(args.trace), "sha256": sha256_of(args.trace), "num_prompts": count, **limits}
