"""Where a number comes from: versions, commit, locks, host and cluster job."""

import datetime
import json
import os
import platform
import socket
import subprocess
from pathlib import Path

from workflow_scripts import __version__
from workflow_scripts.catalog.endpoints import Endpoint
from workflow_scripts.catalog.environments import load_environments, python_of
from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.checkout import CHECKOUT, commit_of
from workflow_scripts.common.files import sha256_of
from workflow_scripts.device.processor import processor_facts
from workflow_scripts.engines.installation import installed_versions, lock_of, lock_sha256
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.study.definition import Definition
from workflow_scripts.study.outcome import Provenance

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
    lock, description = lock_of(engine, lock), get_engine(engine)
    commit, dirty = commit_of(CHECKOUT)
    is_from_here = endpoint is None or (endpoint.command or ("",))[0] in description.packages
    installed = description.installed() if is_from_here else None
    return {
        "kvsweep_version": __version__,
        "git_commit": commit,
        "git_dirty": dirty,
        "versions": installed_versions(),
        "engine_version": " ".join(installed) if installed else None,
        "lock": lock.name if lock else None,
        "lock_sha256": lock_sha256(lock),
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
    kind = load_gpus()[definition.gpu].kind
    lock = load_environments()[name][kind]
    words = [str(python_of(name, kind)), "-c", _ASK, engine, str(lock)]
    try:
        output = subprocess.run(words, cwd=CHECKOUT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        nothing: Provenance = {"versions": {}, "engine_version": None, "lock": None, "lock_sha256": sha256_of(lock)}
        return {**provenance(engine), **nothing}
    record: Provenance = json.loads(output.splitlines()[-1])
    return record
