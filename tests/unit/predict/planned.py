"""A small study of GPUs and CPUs to plan."""

from pathlib import Path

import yaml

from workflow_scripts.study.study_file import Study, load_study

EVEN = {"kind": "fixed", "num_prompts": 24, "prompt_tokens": 64, "output_tokens": 32}


def write_study(folder: Path, sweeps=None, workloads=None, **changes) -> Path:
    content = {
        "schema_version": 1,
        "name": "planned",
        "question": "What should these cells do?",
        "repeats": 3,
        "workloads": workloads
        or {"even": {"kind": "fixed", "num_prompts": 24, "prompt_tokens": 64, "output_tokens": 32}},
        "engine_defaults": {"vllm": {"max_model_len": 4096}},
        "sweeps": sweeps
        or [
            {
                "name": "all",
                "gpu": ["h200", "l40s"],
                "engine": "vllm",
                "model": "llama-3.1-8b-instruct",
                "workload": "even",
                "knobs": {"block_size": [8, 16, 32], "max_num_seqs": [1, 16, 256]},
            }
        ],
        **changes,
    }
    path = folder / "planned.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def study(folder: Path, **changes) -> Study:
    return load_study(write_study(folder, **changes))


def sweep(**changes):
    return {
        "name": "one",
        "gpu": "h200",
        "engine": "vllm",
        "model": "llama-3.1-8b-instruct",
        "workload": "even",
        "knobs": {"block_size": 16, "max_num_seqs": 16},
        **changes,
    }
