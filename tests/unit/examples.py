"""The examples in the help of the commands."""

import importlib
import re
import shlex
from types import ModuleType

from workflow_scripts.__main__ import COMMANDS


def module_of(name: str) -> ModuleType:
    return importlib.import_module(f"workflow_scripts.{COMMANDS[name]}")


def example_of(name: str) -> list[str]:
    """The options of the first call of a command that its help shows."""
    shown = re.search(rf"^    kvsweep {name}\b((?:.*\\\n)*.*)", module_of(name).__doc__ or "", re.MULTILINE)
    assert shown, f"the help of `kvsweep {name}` has no example"
    return shlex.split(shown[1].replace("\\\n", " "))
