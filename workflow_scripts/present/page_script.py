"""The page's script: the modules below `report/page`, joined into one text.

The page's policy allows one inline script by its digest, and a page that is opened from a file can import nothing. So
the modules are joined: each once, after those that it imports, without the words `import` and `export`. This needs no
tool and allows only what the modules use: `import { name } from "./module.js";` on one line, and declarations that
begin with `export`. As all names share one scope, no two modules may declare the same name. `columns.js` is made from
Python, so that it is not written twice.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from workflow_scripts.common.columns import columns_module

_IMPORT = re.compile(r'^import \{ (?P<names>[\w, ]+) \} from "\./(?P<module>[\w-]+\.js)";\n', re.MULTILINE)
_DECLARATION = re.compile(
    r"^(?P<export>export )?(?:async )?(?:const|let|function\*?|class) (?P<name>\w+)", re.MULTILINE
)


MADE: Mapping[str, Callable[[], str]] = {"columns.js": columns_module}


class ScriptError(ValueError):
    """Modules that cannot be joined; the message names the module and what is wrong."""


def joined(folder: Path, entry: str = "main.js") -> str:
    """The module `entry` with all modules that it imports, as one script.

    The script's value is an object with what `entry` exports, for tests.

    Raises:
        ScriptError: a module or an imported name does not exist, modules import each other in a circle, two modules
            declare the same name, or an import or export has another form than those above.
    """
    texts = _with(folder, entry, {}, ())
    owners: dict[str, str] = {}
    for module, text in texts.items():
        for declaration in _DECLARATION.finditer(text):
            other = owners.setdefault(declaration["name"], module)
            if other != module:
                raise ScriptError(f"{module}: {declaration['name']} is also declared in {other}; rename one of them")
    bodies = [_IMPORT.sub("", text).replace("\nexport ", "\n").removeprefix("export ") for text in texts.values()]
    exported = ", ".join(sorted(exports(texts[entry])))
    return "\n".join(["(() => {", '"use strict";', *bodies, f"return {{ {exported} }};", "})();", ""])


def exports(text: str) -> set[str]:
    """Names that a module exports.

    >>> sorted(exports("export const A = 1;\\nfunction b() {}\\nexport async function c() {}\\n"))
    ['A', 'c']
    """
    return {declaration["name"] for declaration in _DECLARATION.finditer(text) if declaration["export"]}


def _with(folder: Path, module: str, texts: Mapping[str, str], importers: tuple[str, ...]) -> Mapping[str, str]:
    """The texts with that of a module, after those that it imports."""
    if module in importers:
        raise ScriptError(f"{' -> '.join([*importers, module])}: modules import each other in a circle")
    if module in texts:
        return texts
    try:
        text = MADE[module]() if module in MADE else (folder / module).read_text(encoding="utf-8")
    except OSError as e:
        raise ScriptError(f"{folder / module}: {e.strerror}") from None
    for statement in _IMPORT.finditer(text):
        texts = _with(folder, statement["module"], texts, (*importers, module))
        if unknown := set(statement["names"].split(", ")) - exports(texts[statement["module"]]):
            raise ScriptError(f"{module}: {statement['module']} does not export {', '.join(sorted(unknown))}")
    left = _DECLARATION.sub("", _IMPORT.sub("", text))
    if other := re.search(r"^(?:import|export)\b.*", left, re.MULTILINE):
        raise ScriptError(f"{module}: {other[0]!r} is not a form of import or export that can be joined")
    return {**texts, module: text}
