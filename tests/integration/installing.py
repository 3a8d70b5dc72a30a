"""Calls of programs with the packages of this machine's index, and without this checkout on their path."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

from tests.integration.conftest import CHECKOUT


def run(*command: str | Path, cwd: Path = CHECKOUT, **changed: str) -> str:
    """Standard output of a command that has to succeed; `changed` are variables of its environment."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment | changed, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def uv(*words: str | Path, cwd: Path = CHECKOUT, **changed: str) -> str:
    """Call uv with the packages of pip's settings, which it does not read."""
    settings = {}
    for line in run(sys.executable, "-m", "pip", "config", "list").splitlines():
        key, _, value = line.partition("=")
        settings[key.rpartition(".")[2]] = value.strip("'")
    index = {"UV_DEFAULT_INDEX": settings["index-url"]} if "index-url" in settings else {}
    return run(Path(sys.executable).with_name("uv"), *words, cwd=cwd, **index, **changed)


class Environment:
    """A copy of this environment, of links, in which a package is missing until it is installed."""

    def __init__(self, folder: Path, package: str) -> None:
        self._from, self._package = Path(sysconfig.get_path("purelib")), package
        venv.create(folder, symlinks=True)
        self.python = folder / "bin/python"
        self._site = folder / self._from.relative_to(sys.prefix)
        self._link(lambda name: not name.startswith(package))
        for script in Path(sys.prefix, "bin").iterdir():
            if not (folder / "bin" / script.name).exists():
                (folder / "bin" / script.name).symlink_to(script)

    def install(self) -> None:
        self._link(lambda name: name.startswith(self._package))

    def _link(self, is_wanted: Callable[[str], bool]) -> None:
        for entry in self._from.iterdir():
            if is_wanted(entry.name) and not (self._site / entry.name).exists():
                (self._site / entry.name).symlink_to(entry)
