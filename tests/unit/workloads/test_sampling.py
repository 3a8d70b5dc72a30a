"""Sampling as a field of a workload: what it may say, who applies it, and that cells without it stay what they were."""

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from tests.unit.made_studies import fixed, made_study
from workflow_scripts.catalog.endpoints import SamplingSetting
from workflow_scripts.study.definition import Definition, cell_definition, definition_sha256, resolved_models
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study import Study, StudyError
from workflow_scripts.workloads.sampling import SETTINGS, Sampling

PENALTY = {"repetition_penalty": 1.2}


def study(sampling: dict[str, Any] | None, engine: str, knobs: dict[str, Any], **changes: Any) -> Study:
    workload = fixed() if sampling is None else fixed(sampling=sampling)
    sweep = {"gpu": "cpu-all", "engine": engine, "model": "tiny-llama-57m", "knobs": knobs}
    return made_study(sweep, workloads={"w": workload}, **changes)


def definition(*arguments: Any, **changes: Any) -> Definition:
    content = study(*arguments, **changes)
    (cell,) = expand(content)
    return cell_definition(content, cell, resolved_models(content))


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({}, "it sets nothing"),
        ({"temperature": 0.0}, "it sets nothing"),
        ({"top_p": 0.9}, "top_p: without effect unless temperature is above 0"),
        ({"seed": 1, "repetition_penalty": 1.1}, "seed: without effect"),
        ({"temperature": 1.0, "top_p": 0.0}, "greater than 0"),
    ],
)
def test_settings_without_effect_or_meaning_are_refused(sampling, message):
    with pytest.raises(ValidationError, match=message):
        Sampling.model_validate(sampling)


@pytest.mark.parametrize(
    ("engine", "knobs", "place"),
    [
        ("hf-continuous", {"page_size": 16, "num_blocks": 8, "max_batch_tokens": 64}, "hf-continuous"),
        ("openai", {"endpoint": "tgi", "users": 2}, "tgi"),
    ],
)
def test_a_setting_that_an_engine_does_not_apply_is_an_error_before_anything_runs(engine, knobs, place):
    with pytest.raises(StudyError, match=f"'w' sets repetition_penalty of sampling; {place} applies only .*top_p"):
        expand(study({"temperature": 0.8, **PENALTY}, engine, knobs))
    assert expand(study({"temperature": 0.8, "top_p": 0.9, "seed": 4}, engine, knobs))


def test_only_a_server_ends_reasoning():
    budget = {"thinking_token_budget": 8}
    assert expand(study(budget, "vllm-serve", {"reasoning_parser": "qwen3"}))
    with pytest.raises(StudyError, match="'w' sets thinking_token_budget of sampling; vllm applies only"):
        expand(study(budget, "vllm", {}))


@pytest.mark.parametrize(
    ("engine", "knobs"), [("vllm", {"max_num_seqs": 2}), ("openai", {"endpoint": "running-vllm", "users": 2})]
)
def test_sampling_is_another_cell_and_none_is_the_same_as_before(engine, knobs):
    greedy = definition(None, engine, knobs)
    assert not {"sampling", "keep_answers", "chat", "chat_path"} & set(str(greedy.as_json()).split("'"))
    sampled = definition({"temperature": 0.8, **PENALTY}, engine, knobs)
    assert definition_sha256(sampled) != definition_sha256(greedy)
    assert Definition.model_validate(sampled.as_json()) == sampled


def test_what_a_server_gets_if_tokens_are_drawn_is_no_part_of_a_greedy_cell():
    server = {"base_url": "http://127.0.0.1:1", "served_model": "m", "extra_body": {"a": 1}}
    drawn = {**server, "sampled_body": {"a": 2}, "sampling": ["temperature"], "chat_path": "/chat/completions"}
    knobs = {"endpoint": "mine", "users": 1}
    plain, other = (definition(None, "openai", knobs, endpoints={"mine": entry}) for entry in (server, drawn))
    assert plain.as_json() == other.as_json()
    found = definition({"temperature": 0.5}, "openai", knobs, endpoints={"mine": drawn}).endpoint
    assert found is not None
    assert found.sampled_body == {"a": 2}
    # An endpoint may name every setting.
    assert set(get_args(SamplingSetting)) == SETTINGS
