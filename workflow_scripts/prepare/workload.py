"""Write the requests of a workload, tokenised for a model, and those that warm an engine up.

    kvsweep prepare-workload --study config/studies/demo.yaml --workload chat \\
        --model tiny-llama-57m --model-dir results/demo/prepared/models/tiny-llama-57m \\
        --out results/demo/prepared/workloads/tiny-llama-57m/chat/workload.jsonl

OUT has one request per line. Beside it, warmup.jsonl has other prompts of the same kind, and workload.json says what
the requests really are, and how long they are. docs/workloads.md describes the kinds of workload.
"""

from argparse import Namespace
from pathlib import Path
from statistics import median

from workflow_scripts.common.command import STUDY, command, option, out, positive
from workflow_scripts.common.files import write_json, write_jsonl
from workflow_scripts.physics.model_facts import read_config, vocabulary_and_context
from workflow_scripts.prepare.tokenizer import load_vocabulary
from workflow_scripts.study.grid import expand
from workflow_scripts.study.paths import MANIFEST, WARMUP
from workflow_scripts.study.requests import requests_of
from workflow_scripts.study.study import StudyError
from workflow_scripts.study.study_file import load_study


@command(
    "prepare-workload",
    STUDY,
    option("--workload", required=True, help="a name under the study's `workloads`"),
    option("--model", required=True, help="a model of the study"),
    option("--model-dir", type=Path, required=True, help="the folder that `kvsweep prepare-model` wrote"),
    option(
        "--num-prompts", type=positive, help="number of requests (default: the maximum that a cell of the study needs)"
    ),
    out("workload.jsonl to write"),
)
def main(args: Namespace) -> None:
    study, workload, model = load_study(args.study), args.workload, args.model
    cells = [cell for cell in expand(study) if (cell.workload, cell.model) == (workload, model)]
    if not cells:
        raise StudyError(f"study {study.name!r}: no cell has the workload {workload!r} and the model {model!r}")
    spec = study.workloads[workload]
    config = read_config(args.model_dir)
    vocabulary = load_vocabulary(args.model_dir, vocabulary_and_context(config)[0])
    requests, warmup = requests_of(workload, spec, cells, vocabulary, config, args.num_prompts)
    manifest = {"workload": workload, "kind": spec.actual_kind, "num_requests": len(requests)}
    counts = {
        "prompt_tokens": [len(request.prompt_token_ids) for request in requests],
        "output_tokens": [request.output_tokens for request in requests],
    }
    lengths = {name: {"min": min(n), "median": float(median(n)), "max": max(n)} for name, n in counts.items()}
    write_json(args.out.with_name(MANIFEST), manifest | lengths)
    write_jsonl(args.out.with_name(WARMUP), (r.as_line(f"warmup-{i}") for i, r in enumerate(warmup)))
    write_jsonl(args.out, (r.as_line(str(i)) for i, r in enumerate(requests)))
