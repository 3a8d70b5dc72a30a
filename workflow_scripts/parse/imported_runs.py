"""Read runs measured elsewhere: the result files and traces that a mapping file names.

    kvsweep read-imported --runs runs.yaml --out results/demo/imported.jsonl

The mapping file says what the files do not: which GPU, model, workload and settings a run had. docs/importing.md
describes it. The output has one record per run, with everything that its files say; what they do not say is null.
"""

from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from workflow_scripts.catalog.gpus_and_models import get_gpu, get_model
from workflow_scripts.common.command import command, option, out
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_jsonl
from workflow_scripts.common.records import validated
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.parse.device_trace import read_trace
from workflow_scripts.parse.engine_log import EngineLogFacts, read_engine_log, words_on
from workflow_scripts.study.runs_file import ImportedRun, file_of, load_runs

Read = Callable[[Path], EngineLogFacts]


def read_runs(path: Path) -> list[dict[str, Any]]:
    """One record per run of a mapping file, in its order. Raises InputError if it is not valid or a file is missing."""
    read = cache(read_engine_log)  # several runs may name one file
    return [_record(run, path, f"{path}: runs.{i}", read) for i, run in enumerate(load_runs(path))]


def _record(run: ImportedRun, mapping: Path, where: str, read: Read) -> dict[str, Any]:
    try:
        get_gpu(run.gpu)
        get_model(run.model)
    except InputError as e:
        raise InputError(f"{where}: {e}") from None
    knobs = get_engine(run.engine).knobs
    # Settings that an engine needs may be unknown here.
    known = validated(knobs.in_part(), run.knobs, f"{where}.knobs").model_dump(exclude_none=True)
    log = (_log(file_of(mapping, run.results), run.result, where, read) if run.results else {}) | run.rates or None
    return {
        "gpu": run.gpu,
        "engine": run.engine,
        "model": run.model,
        "workload": run.workload,
        "knobs": known,
        "slug": knobs.slug_of(known),
        "tokens_per_request": run.tokens_per_request or _tokens_per_request(log or {}),
        "files": [name for name in (run.results, run.trace) if name],
        "log": log,
        "trace": _trace(file_of(mapping, run.trace)) if run.trace else None,
    }


def _tokens_per_request(log: Mapping[str, Any]) -> tuple[float, float] | None:
    """Mean prompt and output tokens of a request, if the three rates of one result imply them."""
    requests, total, output = map(log.get, ("requests_per_s", "total_tokens_per_s", "output_tokens_per_s"))
    if not (requests and total and output and total > output):
        return None
    return (total - output) / requests, output / requests


def _log(path: Path, number: int | None, where: str, read: Read) -> dict[str, Any]:
    facts = read(path)
    results = facts.results or []
    if number is not None and number > max(len(results), 1):
        raise InputError(f"{where}.result: {path} has {max(len(results), 1)} results, not {number}")
    if number is not None and results:
        only = results[number - 1]
        numbers = only.model_dump(exclude={"tool", "setting", "unread"})
        facts = facts.model_copy(update=numbers | {"results": [only]})
    elif any(result.setting != results[0].setting for result in results):  # points of a sweep, no repeats
        several = f"the file has {len(results)} results with different settings: name one with `result`"
        facts = EngineLogFacts(error=several)
    stated = facts.model_dump(mode="json", exclude={"derived", "read_from", "starts"}) | facts.derived
    return stated | {"words": list(words_on(facts))}


def _trace(path: Path) -> Mapping[str, Any]:
    trace = read_trace(path)
    known = {name: trace.known(name) for name in ("memory_used_bytes", "power_w", "utilization_pct")}
    most = max(known.pop("memory_used_bytes"), default=None)
    means = {f"{name}_mean": sum(values) / len(values) if values else None for name, values in known.items()}
    return {"memory_used_bytes_max": most, **means}


@command(
    "read-imported", option("--runs", type=Path, required=True, help="the mapping file"), out("imported.jsonl to write")
)
def main(args: Namespace) -> None:
    records = read_runs(args.runs)
    write_jsonl(args.out, records)
    for record in records:
        log, trace = record["log"] or {}, record["trace"]
        for word in log.get("words") or ():
            print(f"{record['files'][0]}: {word}")
        if trace and not any(value is not None for value in trace.values()):
            print(f"{record['files'][-1]}: no value was recognised in this trace")
    print(f"{args.runs}: {len(records)} runs read")
