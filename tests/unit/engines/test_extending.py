"""The recipes "an engine" and "a knob" of docs/extending.md: what they show is what the tests run."""

import re
from pathlib import Path

import yaml

import tests.echo_engine
from tests.recipes import blocks, recipe
from tests.unit.engines.test_registry import STUDY
from workflow_scripts.engines.registry import VARIABLE

ENGINE, KNOB = recipe("An engine"), recipe("A knob")


def unindented(code: str) -> str:
    """The lines of code that are not empty, without their indentation, which the page lacks."""
    return "\n".join(line.strip() for line in code.splitlines() if line.strip())


def test_the_engine_of_the_page_is_the_one_that_is_measured():
    source = Path(tests.echo_engine.__file__).read_text(encoding="utf-8")
    shown = blocks(ENGINE, "python")
    assert len(shown) == 4
    assert [block for block in shown if unindented(block) not in unindented(source)] == []
    (sweep,) = yaml.safe_load(blocks(ENGINE, "yaml")[0])["sweeps"]
    assert [sweep] == STUDY["sweeps"]
    assert f"`{VARIABLE}=tests.echo_engine:ECHO`" in ENGINE
    assert len(re.findall(r"^\d\. ", ENGINE, flags=re.MULTILINE)) <= 6
