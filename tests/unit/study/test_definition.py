"""Definitions as they are hashed and written: results that were measured before a change of the code stay valid."""

import json
from pathlib import Path
from typing import Any

import pytest

from workflow_scripts.study.definition import (
    Definition,
    cell_definition,
    definition_sha256,
    model_key,
    recorded_sha256,
    resolved_models,
    study_sha256,
    workload_key,
)
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study import Study

# A study and the definitions of its cells, as version 0.1.0 wrote them into `outcome.json`.
STORED = json.loads((Path(__file__).parents[2] / "fixtures/definitions.json").read_text())
CELLS: dict[str, dict[str, Any]] = STORED["definitions"]


@pytest.fixture(scope="module")
def definitions():
    study = Study.model_validate(STORED["study"])
    models = resolved_models(study)
    return {cell.id: cell_definition(study, cell, models) for cell in expand(study)}


@pytest.mark.parametrize("cell", CELLS)
def test_a_definition_is_written_byte_by_byte_as_before(definitions, cell):
    stored, found = CELLS[cell], definitions[cell]
    as_then = found.model_copy(update={"protocol": stored["definition"]["protocol"]})
    assert json.dumps(as_then.as_json()) == json.dumps(stored["definition"])
    assert json.dumps(as_then.model_dump(mode="json")) == json.dumps(stored["definition"])
    assert definition_sha256(as_then) == recorded_sha256(stored["definition"])
    assert Definition.model_validate(json.loads(found.model_dump_json())) == found
    assert (model_key(found.model), workload_key(found)) == (stored["model_key"], stored["workload_key"])


def test_the_hash_of_a_study_is_that_of_what_it_measures():
    study = Study.model_validate(STORED["study"])
    assert study_sha256(study) == study_sha256(study.model_copy(update={"question": "Another one?"}))
    assert study_sha256(study) != study_sha256(study.model_copy(update={"sweeps": study.sweeps[1:]}))
