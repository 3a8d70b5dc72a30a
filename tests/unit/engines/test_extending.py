"""The recipes "an engine" and "a knob" of docs/extending.md: what they show is what the tests run."""

import dataclasses
import re
import textwrap
from pathlib import Path
from typing import Annotated, Literal

import pytest
import yaml
from pydantic import Field, ValidationError

import tests.echo_engine
from tests.recipes import blocks, recipe
from tests.unit.engines.test_registry import STUDY
from workflow_scripts.common.knob import Knob
from workflow_scripts.engines import registry
from workflow_scripts.engines.registry import VARIABLE, every_knob
from workflow_scripts.engines.vllm.knobs import VLLM, VllmKnobs
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study import Study

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


@pytest.fixture
def more_knobs(monkeypatch):
    """VllmKnobs with the fields of the page, as knobs of an engine that is registered."""
    space = {"Annotated": Annotated, "Field": Field, "Knob": Knob, "Literal": Literal, "VllmKnobs": VllmKnobs}
    exec(
        "class MoreKnobs(VllmKnobs):\n" + textwrap.indent("\n".join(blocks(KNOB, "python")), "    "), space
    )  # code of this repository
    kind: type[VllmKnobs] = space["MoreKnobs"]
    more = dataclasses.replace(VLLM, name="more", knobs=kind)
    monkeypatch.setattr(tests.echo_engine, "MORE", more, raising=False)
    monkeypatch.setenv(VARIABLE, "tests.echo_engine:MORE")
    yield kind
    registry._engines.cache_clear()


def test_a_knob_is_one_field(more_knobs):
    study = {**STUDY, "sweeps": [{**STUDY["sweeps"][0], "engine": "more"}]}
    study["sweeps"][0]["knobs"] = {"block_size": 16, "scheduling_policy": ["fcfs", "priority"], "swap_space": 0.5}
    cells = expand(Study.model_validate(study))
    assert [cell.knobs.slug() for cell in cells] == ["bs16-policyfcfs-swap0.5", "bs16-policypriority-swap0.5"]
    assert "`bs16-policypriority`" in KNOB
    knobs = cells[1].knobs
    assert isinstance(knobs, VllmKnobs)
    assert knobs.engine_arguments() == {"block_size": 16, "scheduling_policy": "priority", "swap_space": 0.5}
    assert every_knob()["swap_space"].shown_in == "preemptions"
    with pytest.raises(ValidationError, match="'fcfs' or 'priority'"):
        more_knobs(scheduling_policy="last")
    assert VllmKnobs(block_size=16).slug() == "bs16"
