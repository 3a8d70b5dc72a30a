"""Cells have one canonical name, a change of what they measure changes their definition, and no other change does."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.made_studies import made_study
from workflow_scripts.engines.registry import load_engines
from workflow_scripts.engines.vllm.knobs import VllmKnobs
from workflow_scripts.study.definition import (
    Definition,
    cell_definition,
    definition_sha256,
    model_key,
    resolved_models,
    session_key,
    study_sha256,
    workload_key,
)
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study

DEMO = load_study(Path("config/studies/demo.yaml"))


@pytest.mark.parametrize("kind", [engine.knobs for engine in load_engines().values()], ids=load_engines())
def test_every_knob_has_a_code_of_its_own(kind):
    codes = [knob.code for knob in kind.described().values()]
    assert set(kind.described()) == set(kind.model_fields)
    assert len(set(codes)) == len(codes)


values = st.fixed_dictionaries(
    {},
    optional={
        "block_size": st.integers(1, 512),
        "max_num_seqs": st.integers(1, 1024),
        "gpu_memory_utilization": st.sampled_from([0.5, 0.75, 0.9, 0.9000001]),
        "enable_prefix_caching": st.booleans(),
        "enforce_eager": st.booleans(),
        "quantization": st.sampled_from(["awq", "gptq", "fp8"]),
    },
)


@given(values, values)
def test_two_settings_share_a_slug_only_if_they_are_the_same(a, b):
    one, other = VllmKnobs.model_validate(a), VllmKnobs.model_validate(b)
    assert (one.slug() == other.slug()) == (one == other)


def definition_of(study: Study, index: int = 0) -> Definition:
    return cell_definition(study, expand(study)[index], resolved_models(study))


def test_what_changes_a_measurement_changes_the_definition_and_the_names_of_prepared_files():
    base = definition_sha256(definition_of(DEMO))
    others = {"cell_time_limit_s": 1.0, "question": "other", "repeats": 9, "starts": 4}
    assert definition_sha256(definition_of(DEMO.model_copy(update=others))) == base
    assert definition_sha256(definition_of(DEMO, 1)) != base
    cells, models = expand(DEMO), resolved_models(DEMO)
    keys = {(c.workload, workload_key(cell_definition(DEMO, c, models))) for c in cells}
    # Two have the same requests.
    counts = {workload: int(key.partition("-")[0]) for workload, key in keys}
    assert counts == {"chat": 32, "short-of-memory": 32, "shared-prefix": 16}
    assert len(keys) == 3
    dummy = models["tiny-llama-57m"]
    assert model_key(dummy) != model_key(dummy.model_copy(update={"dtype": "bfloat16"}))


def test_limits_are_part_of_what_is_measured_where_the_highest_load_is_searched():
    def defined(ttft_s: float) -> list[Definition]:
        knobs = [{"find": "highest_rate"}, {"request_rate_per_s": 1}]
        sweeps = [{"name": str(i), "engine": "vllm-serve", "knobs": of} for i, of in enumerate(knobs)]
        study = made_study(*sweeps, slo={"ttft_s": ttft_s})
        return [definition_of(study, index) for index in range(2)]

    one, other = defined(0.5), defined(0.7)
    assert [definition_sha256(a) == definition_sha256(b) for a, b in zip(one, other, strict=True)] == [False, True]
    assert len({session_key(definition) for definition in (*one, *other)}) == 1
    assert [Definition.model_validate(of.as_json()) for of in one] == one


def test_a_draft_model_is_part_of_what_is_measured_where_it_drafts():
    knobs = {"speculative_method": "draft_model", "num_speculative_tokens": [0, 4], "speculative_model": "smollm-135m"}
    sweep = DEMO.sweeps[0].model_copy(update={"gpu": ["cpu-all"], "knobs": knobs})
    study = DEMO.model_copy(update={"sweeps": [sweep]})
    assert set(resolved_models(study)) == {"tiny-llama-57m", "smollm-135m"}
    assert definition_of(study, 0).draft_model is None
    assert definition_of(study, 1).draft_model == resolved_models(study)["smollm-135m"]


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
    assert definition_sha256(as_then) == definition_sha256(as_then.model_copy(update={"repeats": 9}))
    assert Definition.model_validate(json.loads(found.model_dump_json())) == found
    assert (model_key(found.model), workload_key(found)) == (stored["model_key"], stored["workload_key"])


def test_the_hash_of_a_study_is_that_of_what_it_measures():
    study = Study.model_validate(STORED["study"])
    assert study_sha256(study) == study_sha256(study.model_copy(update={"question": "Another one?"}))
    assert study_sha256(study) != study_sha256(study.model_copy(update={"sweeps": study.sweeps[1:]}))
