"""What the results of modules depend on: their sources, what these import from this package, and figures."""

import hashlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.files import sha256_of

PACKAGE = CHECKOUT / "workflow_scripts"
# Read as text: parsing all modules would take longer than the rest of Snakemake's planning, in every cluster job.
_IMPORT = re.compile(r"^\s*from (workflow_scripts[\w.]*) import (?:\(([^)]*)\)|(.*))", re.MULTILINE)
# A file with figures of other studies that a module reads.
_FIGURES = re.compile(r'^\w+ = CHECKOUT / "config" / "([\w.]+)"$', re.MULTILINE)


def sources(*modules: str) -> list[str]:
    """Files of the package that modules use, including themselves, as paths relative to the checkout's root.

    Among them are files of figures in config/ that a module names. Modules imported by name at run time are not found.

    >>> [Path(file).name for file in sources("common.sources")]
    ['__init__.py', '__init__.py', 'checkout.py', 'faults.py', 'files.py', 'printable.py', 'sources.py']

    Raises ValueError if the package has no such module.
    """
    files: set[Path] = set()
    waiting: list[Path] = []
    for module in modules:
        if (file := _file(f"workflow_scripts.{module}")) is None:
            raise ValueError(f"no module workflow_scripts.{module}")
        waiting.append(file)
    while waiting:
        file = waiting.pop()
        if file not in files:
            files.add(file)
            waiting += _imported(file)
    return sorted(str(file.relative_to(PACKAGE.parent)) for file in files)


def sources_sha256(*modules: str, beside: Iterable[Path] = ()) -> str:
    """A hash of the contents of the files that modules use, and of others beside them. As a parameter of a job it makes
    the job's outputs again after an edit, also where times of files say nothing, as in a fresh checkout."""
    files = [*(PACKAGE.parent / file for file in sources(*modules)), *sorted(beside)]
    return hashlib.sha256("".join(map(_sha256, files)).encode()).hexdigest()


_sha256 = cache(sha256_of)


@cache
def _imported(file: Path) -> list[Path]:
    """Files of the modules that a file imports, and of the packages that contain them; and the figures it reads."""
    names, text = {"workflow_scripts"}, file.read_text(encoding="utf-8")
    for origin, listed, line in _IMPORT.findall(text):
        names.add(origin)
        names |= {f"{origin}.{name}" for name in re.findall(r"\w+", (listed or line).partition("#")[0])}
    parents = {name.rpartition(".")[0] for name in names} - {""}
    figures = [PACKAGE.parent / "config" / name for name in _FIGURES.findall(text)]
    return [path for name in names | parents if (path := _file(name)) is not None] + figures


def _file(module: str) -> Path | None:
    place = PACKAGE.parent.joinpath(*module.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)
