"""Write a first study for this machine: nine or twelve cells on its first GPU that the catalogue knows, or on its CPU.

    kvsweep init my-study.yaml

The name of the file is the name of the study. docs/studies.md says what else a study can hold.
"""

import re
from argparse import Namespace
from pathlib import Path
from shlex import quote

from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.command import command, option
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_text
from workflow_scripts.study.gpus_here import gpus_here
from workflow_scripts.study.study import NAME_PATTERN, NAMES, StudyError

# Models with random weights, and the memory of a GPU in GB that each needs at least; the first that fits is taken.
_MODELS = (("llama-3.1-8b-instruct", 40), ("qwen2.5-0.5b-instruct", 0))
# A study with places for what depends on the machine, which `str.format` fills.
TEMPLATE = Path(__file__).with_name("templates") / "first_study.yaml.in"
_ON_GPU = {"prompt": 150, "output": 100, "maximum": 512, "defaults": "{max_model_len: 2048}"}
_ON_GPU |= {"block_sizes": "[16, 32, 64, 128]", "sequences": "[1, 16, 64]", "per_seq": 8}
_ON_CPU = {"prompt": 20, "output": 8, "maximum": 48, "model": "tiny-llama-57m", "gpu": "cpu-all", "what": "CPU"}
_ON_CPU["defaults"] = "{max_model_len: 128, enforce_eager: true, cpu_kv_cache_gib: 1}"
_ON_CPU |= {"block_sizes": "[32, 64, 128]", "sequences": "[1, 4, 16]", "per_seq": 4}


def first_study(name: str, nvml_names: list[str]) -> str:
    """The text of the study for a machine with these GPUs. Raises StudyError if a study cannot have this name."""
    known = [(gpu, facts) for said in nvml_names for gpu, facts in load_gpus().items() if facts.is_called(said)]
    values = _ON_CPU
    if known:
        gpu, facts = known[0]
        model = next(model for model, needed_gb in _MODELS if (facts.memory_bytes or 0) >= needed_gb * 1e9)
        values = _ON_GPU | {"gpu": gpu, "model": model, "what": "GPU"}
    if not re.fullmatch(NAME_PATTERN, name):
        raise StudyError(f"{name!r}: a study cannot have this name; {NAMES}")
    return TEMPLATE.read_text(encoding="utf-8").format(name=name, **values)


@command("init", option("study", type=Path, help="the file to write, such as my-study.yaml"))
def main(args: Namespace) -> None:
    if args.study.exists():
        raise InputError(f"{args.study}: there is a file of this name; allowed: a new one")
    here = gpus_here()
    text = first_study(args.study.stem, here)
    write_text(args.study, text)
    if here and "gpu: cpu-all" in text:
        print(f"note: {here[0]} is not in config/gpus.yaml (docs/extending.md), so the study is for the CPU")
    is_here = Path("Snakefile").exists() or Path("workflow/Snakefile").exists()
    snakemake = "snakemake" if is_here else f"snakemake -s {quote(str(CHECKOUT / 'Snakefile'))}"
    print(f"{args.study}: now")
    print(f"    kvsweep check {args.study}")
    print(f"    {snakemake} --cores all --configfile {args.study} plan    # what to expect, without a GPU")
    print(f"    {snakemake} --cores all --configfile {args.study}")
