"""The recipes of docs/extending.md, for the tests that follow them."""

import re

from workflow_scripts.common.checkout import CHECKOUT

PAGE = (CHECKOUT / "docs" / "extending.md").read_text(encoding="utf-8")


def recipe(title: str) -> str:
    """The text of the recipe with this title."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def blocks(text: str, language: str) -> list[str]:
    """The blocks of code in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
