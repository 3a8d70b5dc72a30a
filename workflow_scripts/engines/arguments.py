"""The arguments that engines themselves have, by version: names, types and choices, for a study's `engine_args`.

`kvsweep write-arguments` makes the tables in config/engine_arguments/ from installed engines, so that a study can be
checked where none is. A value is a type, or the list of choices.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.files import read_json

ARGUMENT_TABLES = CHECKOUT / "config/engine_arguments"
TYPES: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "json": (dict, list),
    "list": (list,),
    "any": (bool, int, float, str, list, dict),
}
ArgumentTable = Mapping[str, str | list[Any]]


@cache
def arguments_of(package: str, version: str = "") -> ArgumentTable | None:
    """The arguments of a version, of the newest one if empty; None if there is no table of it.

    >>> table = arguments_of("vllm", "0.32.0")
    >>> table["watermark"], table["scheduling_policy"], arguments_of("vllm", "0.1")
    ('float', ['fcfs', 'priority'], None)
    """
    if not version:
        from packaging.version import Version  # not every environment that reads studies has it

        versions = (path.stem.removeprefix(f"{package}-") for path in ARGUMENT_TABLES.glob(f"{package}-*.json"))
        version = max(versions, key=Version, default="")
    # The lists of 0.11.0 and 0.11.0.post2 are one.
    found = [ARGUMENT_TABLES / f"{package}-{version}.json", *ARGUMENT_TABLES.glob(f"{package}-{version}.post*.json")]
    return next((read_json(path) for path in found if path.exists()), None)


def fault_of(values: Mapping[str, Any], package: str, version: str, reserved: Mapping[str, str]) -> str | None:
    """What is wrong with arguments for an engine; None if nothing is. `reserved`: why a name is not allowed here."""
    table = arguments_of(package, version) if package else None
    if table is None:
        return f"there is no list of arguments of {package or 'this engine'} {version}; see `kvsweep write-arguments`"
    for name, value in values.items():
        if name in reserved:
            return f"{name}: {reserved[name]}"
        if name not in table:
            near = get_close_matches(name, table, cutoff=0.5)
            return f"{name}: {package} {version} has no such argument; similar ones: {', '.join(near) or 'none'}"
        allowed = table[name]
        if isinstance(allowed, list):
            if value not in allowed:
                return f"{name}: {value!r} is not one of {', '.join(map(str, allowed))}"
        elif not isinstance(value, TYPES[allowed]) or (isinstance(value, bool) and allowed not in ("bool", "any")):
            return f"{name}: {value!r} is no {allowed}"
    return None
