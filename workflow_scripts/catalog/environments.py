"""Environments: other versions of an engine than the installed one, each with a Python of its own.

    kvsweep install-environment --environment vllm-0.25.1 --kind cpu --out RECORD.json

installs the environment of some cells from its lock, if it is not there. One that the site has put there, as a virtual
environment or as a script `bin/python`, is left as it is. If the installation fails, the record says why, and the
command still ends with 0: only the cells of this environment end, with that reason.

A lock `envs/PACKAGE-VERSION-KIND.txt` makes the environment `PACKAGE-VERSION` for devices of that kind, such as
`vllm-0.25.1` by `envs/vllm-0.25.1-cpu.txt`. The default environment is the one that runs the pipeline; in code its name
is empty.
"""

import os
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.command import command, option, out
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_json

_LOCKS = CHECKOUT / "envs"
# What a study calls the default environment beside others.
DEFAULT = "default"
# Variable that names the folder of all environments, instead of the checkout.
FOLDER = "KVSWEEP_ENVIRONMENTS"
# What the measuring code imports besides the engine; envs/measuring.in holds the packages.
NEEDED = ("aiohttp", "numpy", "prometheus_client", "psutil", "pydantic", "pynvml", "yaml")
_LOCK = re.compile(r"((?P<package>[a-z][a-z-]*)-\d[\w.]*)-(?P<kind>cpu|cuda)\.txt")


def load_environments(folder: Path = _LOCKS) -> Mapping[str, Mapping[str, Path]]:
    """The locks of each environment, by the kind of device."""
    locks: dict[str, dict[str, Path]] = {}
    for lock in sorted(folder.glob("*.txt")):
        if named := _LOCK.fullmatch(lock.name):
            locks.setdefault(named[1], {})[named["kind"]] = lock
    return locks


def package_of(environment: str) -> str:
    """The package whose version an environment is of.

    >>> package_of("vllm-0.25.1"), version_of("vllm-0.25.1"), version_of("")
    ('vllm', '0.25.1', '')
    """
    return re.split(r"-(?=\d)", environment)[0]


def version_of(environment: str) -> str:
    return environment.removeprefix(package_of(environment)).removeprefix("-")


def installed_version(package: str) -> str | None:
    """The version of a package in this environment; None if it is not there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def python_of(environment: str, kind: str) -> Path:
    """The program that runs Python in an environment: of a virtual environment, or the site's own script."""
    return Path(os.environ.get(FOLDER) or CHECKOUT) / f".venv-{environment}-{kind}" / "bin/python"


def is_installed(environment: str, kind: str) -> bool:
    python = python_of(environment, kind)
    return python.exists() and not installing(python).exists()


def install(environment: str, kind: str) -> str | None:
    """Install an environment if it is not there; why that failed, or None. Of all processes, one does and others
    wait."""
    if is_installed(environment, kind):
        return None
    from filelock import FileLock  # which the environments' own Pythons may lack

    mark = installing(python_of(environment, kind))
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(mark.with_suffix(".lock"), mode=0o666):
            return None if is_installed(environment, kind) else _install(f"{environment}-{kind}", mark)
    except OSError as e:
        return f"{e.filename or mark}: {e.strerror}"


def _install(lock: str, mark: Path) -> str | None:
    mark.touch()
    words = ["envs/setup.sh", "install", lock, str(mark.parent)]
    ended = subprocess.run(words, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    sys.stdout.write(ended.stdout)
    if ended.returncode == 0:
        mark.unlink()
        return None
    last_line = next((line.strip() for line in reversed(ended.stdout.splitlines()) if line.strip()), "without a word")
    return f"envs/setup.sh ended with status {ended.returncode}: {last_line}"


def installing(python: Path) -> Path:
    """The file that is in an environment's folder until its installation ends."""
    return python.parents[1] / "installing"


@command(
    "install-environment",
    option("--environment", required=True, help="its name, e.g. vllm-0.25.1"),
    option("--kind", required=True, help="kind of device: cpu or cuda"),
    out("record of how it went"),
)
def main(args: Namespace) -> None:
    environments = load_environments()
    locks = [f"{name} for {kind}" for name, of_kind in environments.items() for kind in of_kind]
    if args.kind not in environments.get(args.environment, {}):
        raise InputError(f"{args.environment} for {args.kind}: there is no such lock; allowed: {', '.join(locks)}")
    python = python_of(args.environment, args.kind)
    write_json(args.out, {"python": str(python), "fault": install(args.environment, args.kind)})
