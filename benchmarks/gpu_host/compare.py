"""The overhead of measuring one cell: that of the device trace, and the pipeline compared with vLLM's own benchmark.

    python3 -m benchmarks.gpu_host.compare --study STUDY.yaml --cell CELL --out compare.json

One engine serves the cell's requests repeatedly, alternating with and without the trace. Then vLLM's own throughput
benchmark serves them in its own process, without any trace. The output has the tokens of the requests and the seconds
of each pass.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.command import run_command
from workflow_scripts.common.files import read_json, read_jsonl, write_json
from workflow_scripts.device.device_check import cpu_here
from workflow_scripts.device.processor import dtype_on
from workflow_scripts.engines.engine import Engine, EngineSetup
from workflow_scripts.engines.registry import make_engine
from workflow_scripts.engines.vllm.knobs import VllmKnobs
from workflow_scripts.measure.trace import sampled
from workflow_scripts.study.definition import cell_definition, model_key, resolved_models, workload_key
from workflow_scripts.study.grid import Cell, find_cell
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study
from workflow_scripts.workloads.request import Request

PAIRS = 4


def passes_s(engine: Engine, requests: Sequence[Request], kind: str) -> dict[str, list[float]]:
    """Seconds of alternating passes over the requests with and without the trace of a device of this kind."""
    seconds: dict[str, list[float]] = {"traced": [], "untraced": []}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(2 * PAIRS):
            # ABBA order: a drift affects both equally.
            traced = number % 4 in (0, 3)
            engine.reset()
            with sampled(kind, Path(scratch) / "trace.jsonl") if traced else nullcontext():
                began_s = time.monotonic()
                engine.run(requests)
                seconds["traced" if traced else "untraced"].append(time.monotonic() - began_s)
    return seconds


def compare(study: Study, cell: Cell, paths: StudyPaths) -> dict[str, object]:
    """Measure a cell of the engine vllm in both ways."""
    definition = cell_definition(study, cell, resolved_models(study))
    model_dir = paths.model(cell.model, model_key(definition.model))
    workload = paths.workload(cell.model, cell.workload, workload_key(definition))
    gpu = load_gpus()[cell.gpu]
    load_format, dtype = definition.model.load_format, dtype_on(definition.model.dtype, gpu, cpu_here(gpu))
    requests, warmup = (
        [Request(r["prompt_token_ids"], r["output_tokens"], request_id=r["request_id"]) for r in read_jsonl(path)]
        for path in (workload, workload.with_name("warmup.jsonl"))
    )
    engine = make_engine("vllm", EngineSetup(model_dir, load_format, dtype, 0, cell.knobs.set_values(), gpu.kind))
    engine.start()
    engine.warm_up(warmup)
    seconds = passes_s(engine, requests, gpu.kind)
    engine.stop()
    tokens = sum(len(r.prompt_token_ids) + r.output_tokens for r in requests)
    return {
        "cell_id": cell.id,
        "tokens": tokens,
        "driver_s": seconds,
        "own_benchmark_s": _own_benchmark_s(cell, model_dir, load_format, dtype, workload),
    }


def _own_benchmark_s(cell: Cell, model_dir: Path, load_format: str, dtype: str, workload: Path) -> float:
    assert isinstance(cell.knobs, VllmKnobs)
    arguments = {"model": str(model_dir), "load_format": load_format, "dtype": dtype, **cell.knobs.engine_arguments()}
    with tempfile.TemporaryDirectory() as scratch:
        job, result = Path(scratch) / "job.json", Path(scratch) / "result.json"
        write_json(job, {"engine_args": arguments, "workload": str(workload), "warm_up": True})
        subprocess.run([sys.executable, "-m", "benchmarks.vllm_throughput", str(job), str(result)], check=True)
        return float(read_json(result)["elapsed_s"])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Overhead of measuring one cell of the engine vllm.")
    parser.add_argument("--study", type=Path, required=True, help="the study's YAML file")
    parser.add_argument("--cell", required=True, help="gpu/vllm/model/workload/knobs")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of all studies (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    args = parser.parse_args(argv)
    study = load_study(args.study)
    write_json(args.out, compare(study, find_cell(study, args.cell), StudyPaths(args.results, study.name)))
    return 0


if __name__ == "__main__":
    run_command(main)
