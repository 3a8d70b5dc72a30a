"""Calls of programs with the packages of this machine's index, and without this checkout on their path."""

import os
import subprocess
import sys
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
