"""Predict one cell, as JSON: KV blocks, the limit, tokens/s, latencies and time, with bands.

    kvsweep predict --model llama-3.1-8b-instruct --gpu h200 --block-size 16 \\
        --max-num-seqs 256 --workload sharegpt-300 --study config/studies/paged_attention.yaml

The settings are those of the engine; `--engine` names another one. The workload is one of the study's; without one,
every request has `--prompt-tokens` and `--output-tokens`. Every number is predicted; docs/plan.md says how.
"""

import json
import math
from argparse import BooleanOptionalAction, Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from workflow_scripts.catalog.any_gpu import GPU_NUMBERS, asked_gpu
from workflow_scripts.catalog.any_model import ANY_MODEL, find_model
from workflow_scripts.common.command import RESULTS, AddOption, command, option, positive
from workflow_scripts.engines.description import EngineDescription
from workflow_scripts.engines.registry import load_engines
from workflow_scripts.engines.vllm.knobs import VLLM
from workflow_scripts.predict.prediction_record import Band, Prediction
from workflow_scripts.predict.predictions import VLLM_VERSION, at_version, predict_cells
from workflow_scripts.study.grid import COORDINATES, expand
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study import Study, StudyError, study_of
from workflow_scripts.study.study_file import load_study

# Types of the JSON schema -> types of the command line.
TYPES = {"integer": int, "number": float}

ASKED = (*COORDINATES, "knobs")
ALWAYS_TOLD = ("speed_source", "error_pct", "ttft_error_pct", "how")


def predictable() -> Mapping[str, EngineDescription]:
    return {name: engine for name, engine in load_engines().items() if engine.predicted}


def knob_options() -> Iterator[AddOption]:
    """One option for each knob of these engines; the study checks the values, and which engine has the knob."""
    schemas = [engine.knobs.model_json_schema()["properties"] for engine in predictable().values()]
    for name, schema in {name: schema for part in schemas for name, schema in part.items()}.items():
        kinds = {kind.get("type"): kind.get("description") for kind in schema.get("anyOf", [schema])}
        flag, about = f"--{name.replace('_', '-')}", next(filter(None, kinds.values()), None)
        if "boolean" in kinds:
            yield option(flag, action=BooleanOptionalAction, help=about)
        else:
            yield option(flag, type=next((TYPES[kind] for kind in kinds if kind in TYPES), str), help=about)


def one_cell(args: Namespace, workload: dict[str, Any] | None = None) -> Study:
    """A study with only the requested cell, which serves a workload of the study, a given one or, without these, one of
    fixed lengths. Raises StudyError or CatalogError if a name or value is not allowed."""
    of_any = {name for engine in predictable().values() for name in engine.knobs.described()}
    knobs = {name: value for name, value in vars(args).items() if name in of_any and value is not None}
    defaults: dict[str, Any] = {}
    if args.study:
        study = load_study(args.study)
        if args.workload not in study.workloads:
            names = ", ".join(study.workloads)
            raise StudyError(f"{args.study}: there is no workload {args.workload!r}; it has {names}")
        workload = study.workloads[args.workload].model_dump(exclude_unset=True)
        defaults = study.engine_defaults.get(args.engine, {})
    elif workload is None:
        sizes = {"prompt_tokens": args.prompt_tokens, "output_tokens": args.output_tokens}
        workload = {"kind": "fixed", "num_prompts": 300, **sizes}
    if args.num_prompts:
        workload["num_prompts"] = args.num_prompts
    name, coordinates = args.workload or "fixed", {"gpu": asked_gpu(args).name, "engine": args.engine}
    coordinates |= {"model": find_model(args.model).name, "workload": name}
    sweep = {"name": "one", **coordinates, "knobs": {**defaults, **knobs}}
    content: dict[str, Any] = {"schema_version": 1, "name": "one-cell", "question": "How fast is this cell?"}
    return study_of({**content, "workloads": {name: workload}, "sweeps": [sweep]}, "predict")


def answer(record: Prediction) -> dict[str, JsonValue]:
    fields: dict[str, JsonValue] = {}
    for name, value in vars(record).items():
        if isinstance(value, Band):
            ends = {"predicted": value.value, "low": value.low, "high": value.high}
            fields[name] = {end: _rounded(at) for end, at in ends.items()}
        elif name in ALWAYS_TOLD or (value is not None and name not in ASKED):
            fields[name] = _rounded(value)
    return fields


def _rounded(value: JsonValue) -> JsonValue:
    """A number rounded to five digits; no prediction is more precise.

    >>> _rounded(123456.7), _rounded(0.00123456789), _rounded(256)
    (123457, 0.0012346, 256)
    """
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    return round(value) if abs(value) >= 1e5 else float(f"{value:.5g}")


@command(
    "predict",
    option("--model", required=True, help=ANY_MODEL),
    option("--gpu", help="name in config/gpus.yaml"),
    *GPU_NUMBERS,
    option("--engine", choices=list(predictable()), default=VLLM.name, help="default: %(default)s"),
    *knob_options(),
    option("--study", type=Path, help="a study with the workload; its engine defaults apply too"),
    option("--workload", help="a workload of the study"),
    option("--prompt-tokens", type=positive, help="prompt tokens of every request, without a study"),
    option("--output-tokens", type=positive, help="output tokens of every request, without a study"),
    option("--num-prompts", type=positive, help="requests per repeat (default: the workload's, or 300)"),
    VLLM_VERSION,
    RESULTS,
)
def main(args: Namespace) -> None:
    given = [args.study, args.workload, args.prompt_tokens, args.output_tokens]
    if [value is not None for value in given] not in ([True, True, False, False], [False, False, True, True]):
        raise StudyError("give either --study and --workload, or --prompt-tokens and --output-tokens")
    study = one_cell(args)
    prepared = StudyPaths(args.results, load_study(args.study).name).prepared if args.study else None
    (record,) = predict_cells(study, at_version(expand(study), args.vllm_version), prepared)
    print(json.dumps(answer(record), indent=2))
