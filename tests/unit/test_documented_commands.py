"""Every command on a page of the project names what there is: commands, options, targets, modules and files.

Nothing is run; what a command does is tested where it is made.
"""

import importlib.util
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from snakemake.cli import get_argument_parser

from tests.unit.examples import module_of

ROOT = Path(__file__).parents[2]
MAKE = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
FILES = [ROOT / "Snakefile", *(ROOT / "rules").glob("*.smk")]
RULES = {
    name for file in FILES for name in re.findall(r"^ *(?:rule|checkpoint) (\w+):", file.read_text(), re.MULTILINE)
}
# What stands for a name of one's own.
OWN = ("NAME", "my-study")


def documented() -> Iterator[tuple[str, str]]:
    """Each page with each of its commands: from console blocks, and from indented lines that begin as commands do."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for page in listed.split():
        text = (ROOT / page).read_text().replace("\\\n", " ")
        for language, block in re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
            assert language, f"{page}: a block without a language"
            if language in ("console", "bash", "sh"):
                lines = [line.strip() for line in block.splitlines()]
                shown = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
                yield from ((page, line) for line in shown or lines)
        yield from (
            (page, line) for line in re.findall(r"^    ((?:kvsweep|python3|snakemake|make) .*)$", text, re.MULTILINE)
        )


@pytest.mark.parametrize(("page", "command"), dict.fromkeys(documented()))
def test_a_command_of_a_page_names_what_there_is(page, command):
    program, *words = shlex.split(re.sub(r"\$\(.*?\)", "SAID", command), comments=True)
    if program == "kvsweep":
        module_of(words[0]).main.parser().parse_args(words[1:])
    elif program == "snakemake":
        asked = get_argument_parser().parse_args(words)
        assert {name for name in asked.targets if not name.startswith("results/")} <= RULES
    elif program == "make":
        assert {word for word in words if "=" not in word} <= MAKE
    elif program == "python3":
        assert importlib.util.find_spec(words[1])
    named = re.findall(r"\b(?:config|envs|profiles|tests)/[\w./-]+", command)
    assert [file for file in named if not (ROOT / file).exists() and not any(own in file for own in OWN)] == []
