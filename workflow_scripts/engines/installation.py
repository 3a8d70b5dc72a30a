"""The installation that measures: packages of engines, the lock that they are from, and what an engine lacks."""

import hashlib
import re
from importlib import metadata
from pathlib import Path

from workflow_scripts.catalog.environments import installed_version
from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.files import sha256_of
from workflow_scripts.engines.description import EngineDescription
from workflow_scripts.engines.registry import get_engine, load_engines

_FURTHER_PACKAGES = ("torch", "transformers", "accelerate", "nvidia-ml-py", "snakemake")


def missing_packages(engine: EngineDescription) -> list[str]:
    """The distributions that an engine needs and that this environment lacks."""
    return [name for name in engine.needs if installed_version(name) is None]


def installed_versions() -> dict[str, str]:
    """The versions of the packages that decide what is measured."""
    of_engines = [package for engine in load_engines().values() for package in engine.packages]
    names = dict.fromkeys((*of_engines, *_FURTHER_PACKAGES))
    return {name: version for name in names if (version := installed_version(name)) is not None}


def lock_of(engine: str, lock: Path | None = None) -> Path | None:
    """The lock that this environment has been installed from, or `lock` if it was: the packages that decide what is
    measured have its versions. None if no lock describes it."""
    locks = (
        CHECKOUT / "envs" / name for package, name in get_engine(engine).locks.items() if installed_version(package)
    )
    lock = lock or next(locks, None)
    if lock is None or not lock.exists():
        return None
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", lock.read_text(encoding="utf-8"), flags=re.MULTILINE))
    # Builds of one version for different hardware differ in their local version, as in 2.13.0+cpu.
    installed = installed_versions().items()
    same = all(version.split("+")[0] == pins.get(name, version).split("+")[0] for name, version in installed)
    return lock if same else None


def lock_sha256(lock: Path | None) -> str:
    """The hash of a lock; without one, of the names and versions of all installed packages but this one, which has its
    commit."""
    if lock:
        return sha256_of(lock)
    packages = {(d.metadata["Name"], d.version) for d in metadata.distributions()}
    pins = {f"{name}=={version}" for name, version in packages if name != "kvsweep"}
    return hashlib.sha256("\n".join(sorted(pins)).encode()).hexdigest()
