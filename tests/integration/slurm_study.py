"""A separate checkout for the Slurm lab: four CPU devices, each in its own partition."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.integration.conftest import CHECKOUT
from tests.integration.slurm_lab import GPU_TYPES, GRES_TYPES, SlurmLab
from tests.unit.made_studies import fixed, write_study
from workflow_scripts.study.outcome import Outcome

# Each job imports its engine anew: HuggingFace's takes 4 CPU seconds, vLLM's 20.
KNOBS, VLLM_KNOBS = "static-batch{}-cachedynamic", "bs32-seqs4-len512-eager1-cpukv1"


def cell(gpu: str, workload: str = "short", batch: int = 4) -> str:
    """Id of a cell of the lab's study."""
    return f"{gpu}/hf-static/tiny-llama-57m/{workload}/{KNOBS.format(batch)}"


def vllm_cell(gpu: str) -> str:
    return f"{gpu}/vllm/tiny-llama-57m/short/{VLLM_KNOBS}"


class LabCheckout:
    """A copy of the working tree, whose catalogue knows the lab's devices, with a site file for the lab."""

    def __init__(self, root: Path, lab: SlurmLab, results: str | None = None) -> None:
        self.root, self.lab, self.python = root, lab, Path(sys.executable)
        self.study = root / (results or "results") / "lab"
        self.config = ["study=lab.yaml", *([f"results={results}"] if results else [])]
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=CHECKOUT,
            check=True,
            capture_output=True,
            text=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (CHECKOUT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(CHECKOUT / name, root / name)
        with (root / "config/gpus.yaml").open("a") as catalogue:
            for gpu in GPU_TYPES:
                catalogue.write(f"\nlab-{gpu}:\n  title: a core on a node with an {gpu}\n  kind: cpu\n  cpu_cores: 1\n")
        self.write_site()

    def write_site(self, **changes: Any) -> None:
        """Write the site file; the arguments replace its keys."""
        gpus = {f"lab-{gpu}": {"partition": f"gpu-{gpu}", "slurm_type": gpu, "constraint": gpu} for gpu in GPU_TYPES}
        gpus["lab-h100"] = {"partition": "gpu-h100", "slurm_type": "h100", "ask_by": "gpus"}
        gpus["lab-l40s"] |= {"slurm_type": GRES_TYPES["l40s"], "ask_by": "gpus_per_node"}
        site = {"name": "lab", "prepare": "login", "attempts": 2, "startup_minutes": 5, "gpus": gpus}
        (self.root / "config/lab_site.yaml").write_text(yaml.safe_dump({**site, **changes}))

    def write_study(self, sweeps: list[dict[str, Any]], **changes: Any) -> None:
        """Write the study: each sweep needs what it varies, the rest is filled in."""
        knobs = {"hf-static": {"batch_size": 4}, "vllm": {"block_size": 32, "max_num_seqs": 4}}
        filled = [
            {
                **{"name": f"sweep-{number}", "model": "tiny-llama-57m", "engine": "hf-static"},
                **sweep,
                "knobs": {**knobs.get(sweep.get("engine", "hf-static"), {}), **sweep.get("knobs", {})},
            }
            for number, sweep in enumerate(sweeps)
        ]
        workloads = {"short": fixed(8), "steady": fixed(8, 16, 120), "endless": fixed(64, 16, 480)}
        known = {"repeats": 2, "cell_time_limit_s": 240, "workloads": workloads}
        known |= {"engine_defaults": {"vllm": {"max_model_len": 512, "enforce_eager": True, "cpu_kv_cache_gib": 1}}}
        write_study(self.root, *filled, name="lab", **known | changes)

    def command(self, *arguments: str, partial: bool = False) -> list[str]:
        """`snakemake --profile slurm` on the study; status checks are more frequent than on a shared cluster."""
        return [
            *(str(self.python), "-m", "tests.integration.often_asking", "--profile", "slurm"),
            *("--config", "site=config/lab_site.yaml", *self.config, *["partial=1"] * partial),
            *("--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "10"),
            *arguments,
        ]

    def snakemake(
        self, *arguments: str, partial: bool = False, timeout_s: float = 580
    ) -> "subprocess.CompletedProcess[str]":
        """Run it to its end."""
        return subprocess.run(
            self.command(*arguments, partial=partial),
            cwd=self.root,
            env=self.lab.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start it and let it run; its output goes to snakemake.log in the checkout."""
        with (self.root / "snakemake.log").open("w") as log:
            return subprocess.Popen(
                self.command(*arguments), cwd=self.root, env=self.lab.environment, stdout=log, stderr=log, text=True
            )

    def folder(self, cell_id: str) -> Path:
        return self.study / "cells" / cell_id

    def outcome(self, cell_id: str) -> Outcome:
        return Outcome.read(self.folder(cell_id) / "outcome.json")


def planned_cells(checkout: LabCheckout, said: str = "") -> set[str]:
    """Cells of the batches that a dry run shows; it says this."""
    printed = checkout.snakemake("--dry-run").stdout
    assert said in printed
    return set(re.findall(r"^    (\S+), start \d+(?: \(.*\))?$", printed, re.MULTILINE))


def known_jobs(lab: SlurmLab) -> set[str]:
    return {job["JobId"] for job in lab.jobs()}
