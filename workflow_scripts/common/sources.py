"""Which files a module's results depend on: its own source, and all that it imports from this package."""

import re
from functools import cache
from pathlib import Path

from workflow_scripts.common.checkout import CHECKOUT

PACKAGE = CHECKOUT / "workflow_scripts"
# Read as text: parsing all modules would take longer than the rest of Snakemake's planning, in every cluster job.
_IMPORT = re.compile(r"^\s*from (workflow_scripts[\w.]*) import (?:\(([^)]*)\)|(.*))", re.MULTILINE)


def sources(*modules: str) -> list[str]:
    """Files of the package that modules use, including themselves, as paths relative to the checkout's root.

    Modules imported by name at run time are not found; a rule whose command does that names them too.

    >>> [Path(file).name for file in sources("common.sources")]
    ['__init__.py', '__init__.py', 'checkout.py', 'sources.py']

    Raises:
        ValueError: the package has no such module.
    """
    found: set[Path] = set()
    waiting: list[Path] = []
    for module in modules:
        if (file := _file(f"workflow_scripts.{module}")) is None:
            raise ValueError(f"no module workflow_scripts.{module}")
        waiting.append(file)
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting += _imported(file)
    return sorted(str(Path(PACKAGE.name, file.relative_to(PACKAGE))) for file in found)


@cache
def _imported(file: Path) -> list[Path]:
    """Files of the modules that a file imports, and of the packages that contain them."""
    names = {"workflow_scripts"}
    for origin, listed, line in _IMPORT.findall(file.read_text(encoding="utf-8")):
        names.add(origin)
        names |= {f"{origin}.{name}" for name in re.findall(r"\w+", (listed or line).partition("#")[0])}
    parents = {name.rpartition(".")[0] for name in names} - {""}
    return [path for name in names | parents if (path := _file(name)) is not None]


def _file(module: str) -> Path | None:
    place = PACKAGE.parent.joinpath(*module.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)
