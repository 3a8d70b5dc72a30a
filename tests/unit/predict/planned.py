"""A small study of GPUs and CPUs to plan."""

from pathlib import Path

from tests.unit import made_studies
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study

EVEN = made_studies.fixed(24, 64, 32)
PLACE = {"gpu": "h200", "model": "llama-3.1-8b-instruct"}
ALL = PLACE | {"gpu": ["h200", "l40s"], "knobs": {"block_size": [8, 16, 32], "max_num_seqs": [1, 16, 256]}}


def write_study(folder: Path, sweeps=(ALL,), **changes) -> Path:
    known = {"name": "planned", "repeats": 3, "workloads": {"even": EVEN}}
    known |= {"engine_defaults": {"vllm": {"max_model_len": 4096}}}
    return made_studies.write_study(folder, *sweeps, **known | changes)


def study(folder: Path, **changes) -> Study:
    return load_study(write_study(folder, **changes))


def sweep(**changes):
    known = {"name": "one", "engine": "vllm", "workload": "even", "knobs": {"block_size": 16, "max_num_seqs": 16}}
    return PLACE | known | changes
