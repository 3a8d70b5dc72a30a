"""The page's script: the modules below `report/page`, joined into one text.

The page's policy allows one inline script by its digest, and a page that is opened from a file can import nothing. So
the modules are joined: each once, after those that it imports, without the words `import` and `export`. This needs no
tool and allows only what the modules use: `import { name } from "./module.js";` on one line, and declarations that
begin with `export`. As all names share one scope, no two modules may declare the same name. `columns.js` is made from
Python, so that it is not written twice.
"""

import re
from pathlib import Path

from workflow_scripts.common.columns import columns_module

_IMPORT = re.compile(r'^import \{ [\w, ]+ \} from "\./(?P<module>[\w-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|let|function\*?|class) (?P<name>\w+))", re.MULTILINE)


def joined(folder: Path, entry: str = "main.js") -> str:
    """The module `entry` with all modules that it imports, as one script.

    The script's value is an object with what `entry` exports, for tests. Raises OSError if a module does not exist.
    """
    texts: dict[str, str] = {}

    def add(module: str) -> None:
        text = columns_module() if module == "columns.js" else (folder / module).read_text(encoding="utf-8")
        for statement in _IMPORT.finditer(text):
            if statement["module"] not in texts:
                add(statement["module"])
        texts[module] = text

    add(entry)
    bodies = [_EXPORT.sub("", _IMPORT.sub("", text)) for text in texts.values()]
    exported = ", ".join(sorted(found["name"] for found in _EXPORT.finditer(texts[entry])))
    return "\n".join(["(() => {", '"use strict";', *bodies, f"return {{ {exported} }};", "})();", ""])
