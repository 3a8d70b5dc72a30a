"""Where a number comes from: versions, commit, locks, host and cluster job."""

import datetime
import hashlib
import json
import os
import platform
import re
import socket
import subprocess
from importlib import metadata
from pathlib import Path

from workflow_scripts import __version__
from workflow_scripts.catalog.endpoints import Endpoint
from workflow_scripts.catalog.environments import installed_version, load_environments, python_of
from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.checkout import CHECKOUT, commit_of
from workflow_scripts.common.files import sha256_of
from workflow_scripts.device.processor import processor_facts
from workflow_scripts.engines.description import EngineDescription
from workflow_scripts.engines.registry import get_engine, load_engines
from workflow_scripts.study.definition import Definition
from workflow_scripts.study.outcome import Provenance

_FURTHER_PACKAGES = ("torch", "transformers", "accelerate", "nvidia-ml-py", "snakemake")
_OF_JOB = ("SLURM_JOB_ID", "SLURM_CLUSTER_NAME", "SLURMD_NODENAME", "SLURM_JOB_PARTITION", "CUDA_VISIBLE_DEVICES")

# What another environment's Python runs.
_ASK = (
    "import json, sys, pathlib; from workflow_scripts.measure.provenance import provenance;"
    " print(json.dumps(provenance(sys.argv[1], lock=pathlib.Path(sys.argv[2]))))"
)


def provenance(engine: str, endpoint: Endpoint | None = None, lock: Path | None = None) -> Provenance:
    """What a reader needs to know about this process and host to judge or repeat a result of `engine`. `endpoint` is
    the server, for the engine that needs one; `lock` that of this environment, if it is not the default one. If the
    server is not from this environment, its version is None. `git_dirty` is None if it is unknown whether the code is
    that of the commit. `lock` is None in an environment that no lock describes; `lock_sha256` is then the hash of the
    installed packages."""
    described_by = get_engine(engine)
    locks = (CHECKOUT / "envs" / name for package, name in described_by.locks.items() if installed_version(package))
    lock = lock or next(locks, None)
    if lock is not None and not is_installed_from(lock):
        lock = None
    commit, dirty = commit_of(CHECKOUT)
    return {
        "kvsweep_version": __version__,
        "git_commit": commit,
        "git_dirty": dirty,
        "versions": _installed(),
        "engine_version": _engine_version(described_by, endpoint),
        "lock": lock.name if lock else None,
        "lock_sha256": sha256_of(lock) if lock else installed_sha256(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "host": socket.gethostname(),
        "processor": processor_facts([])["processor"],
        "job": {name: os.environ[name] for name in _OF_JOB if name in os.environ},
    }


def now_in_utc() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def provenance_of(definition: Definition) -> Provenance:
    """The same for a cell. Another environment than the default one is asked through its own Python; there are no
    versions if that cannot be started."""
    name, engine = definition.environment, definition.engine
    if not name:
        return provenance(engine, definition.endpoint)
    kind = load_gpus()[definition.gpu].engine_kind
    lock = load_environments()[name][kind]
    words = [str(python_of(name, kind)), "-c", _ASK, engine, str(lock)]
    try:
        output = subprocess.run(words, cwd=CHECKOUT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        nothing: Provenance = {"versions": {}, "engine_version": None, "lock": None, "lock_sha256": sha256_of(lock)}
        return {**provenance(engine), **nothing}
    record: Provenance = json.loads(output.splitlines()[-1])
    return record


def is_installed_from(lock: Path) -> bool:
    """Whether the packages that decide what is measured have the versions in this lock."""
    if not lock.exists():
        return False
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", lock.read_text(encoding="utf-8"), flags=re.MULTILINE))
    # Builds of one version for different hardware differ in their local version, as in 2.13.0+cpu.
    return all(version.split("+")[0] == pins.get(name, version).split("+")[0] for name, version in _installed().items())


def _installed() -> dict[str, str]:
    of_engines = [package for engine in load_engines().values() for package in engine.packages]
    names = dict.fromkeys((*of_engines, *_FURTHER_PACKAGES))
    return {name: version for name in names if (version := installed_version(name)) is not None}


def installed_sha256() -> str:
    """SHA-256 of the names and versions of all installed packages but this one, which has its commit."""
    packages = {(d.metadata["Name"], d.version) for d in metadata.distributions()}
    pins = {f"{name}=={version}" for name, version in packages if name != "kvsweep"}
    return hashlib.sha256("\n".join(sorted(pins)).encode()).hexdigest()


def _engine_version(engine: EngineDescription, endpoint: Endpoint | None) -> str | None:
    if endpoint is not None and (endpoint.command or ("",))[0] not in engine.packages:
        return None
    return " ".join(engine.installed() or ()) or None
