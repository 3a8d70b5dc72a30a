"""Arrival times: the requested mean rate, the requested shape, and the same times in every run."""

import statistics
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.recipes import blocks, recipe
from tests.unit.made_studies import fixed, made_study
from workflow_scripts.catalog.endpoints import SamplingSetting
from workflow_scripts.engines.openai.knobs import OpenAiKnobs
from workflow_scripts.engines.vllm.knobs import VllmServeKnobs
from workflow_scripts.predict.predictions import lengths_of
from workflow_scripts.study.definition import Definition, cell_definition, definition_sha256, resolved_models
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study import Study, StudyError
from workflow_scripts.workloads import workload_kinds
from workflow_scripts.workloads.arrivals import Load
from workflow_scripts.workloads.make_requests import make_requests, make_warmup
from workflow_scripts.workloads.request import Vocabulary
from workflow_scripts.workloads.sampling import SETTINGS, Sampling


def gaps(arrivals: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(arrivals)]


@given(rate=st.floats(0.01, 1000), shape=st.floats(0.05, 50), count=st.integers(1, 200), seed=st.integers(0, 5))
def test_arrivals_never_go_back_and_keep_the_mean_rate(rate, shape, count, seed):
    arrivals = Load(request_rate_per_s=rate, burstiness=shape).arrivals_s([0.0] * count, seed)
    assert len(arrivals) == count
    assert arrivals[0] == 0.0
    assert all(gap >= 0 for gap in gaps(arrivals))
    assert arrivals[-1] == pytest.approx((count - 1) / rate, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_the_shape_sets_how_much_gaps_vary(shape):
    """A gamma distribution of shape k has a coefficient of variation of 1 / sqrt(k)."""
    found = gaps(Load(request_rate_per_s=10.0, burstiness=shape).arrivals_s([0.0] * 20_000, seed=1))
    assert statistics.pstdev(found) / statistics.mean(found) == pytest.approx(shape**-0.5, rel=0.05)


def test_without_a_shape_arrivals_are_poisson_with_the_same_gaps_at_every_rate():
    slow, fast = (Load(request_rate_per_s=rate).arrivals_s([0.0] * 30, 7) for rate in (1.0, 8.0))
    assert slow == Load(request_rate_per_s=1.0, burstiness=1.0).arrivals_s([0.0] * 30, 7)
    assert slow != Load(request_rate_per_s=1.0).arrivals_s([0.0] * 30, 8)
    assert fast == pytest.approx([at / 8 for at in slow], abs=1e-7)


def test_what_shapes_a_rate_needs_one():
    with pytest.raises(ValidationError, match="needs request_rate_per_s"):
        Load(burstiness=2.0)


def test_the_load_is_in_the_cells_name_and_limits_its_concurrency():
    knobs = VllmServeKnobs(block_size=32, request_rate_per_s=4, burstiness=0.5, users=8)
    assert knobs.slug() == "bs32-rate4-burst0.5-users8"
    assert knobs.engine_arguments() == {"block_size": 32}
    assert OpenAiKnobs(endpoint="tgi", users=5).slug() == "at-tgi-users5"
    assert VllmServeKnobs(max_num_seqs=16, users=4).max_concurrency == 4
    assert VllmServeKnobs(max_num_seqs=16, users=40).max_concurrency == 16
    assert VllmServeKnobs(max_num_seqs=16, request_rate_per_s=4).max_concurrency == 16


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


def retried() -> Any:
    space = dict(vars(workload_kinds))
    exec(blocks(recipe("A workload"), "python")[0], space)  # code of this repository
    return space["RetriedWorkload"](kind="retried", num_prompts=6, prompt_tokens=32, output_tokens=4)


def test_a_class_is_a_workload():
    spec, vocabulary = retried(), Vocabulary(np.arange(1000), list, list)
    requests = make_requests(spec, vocabulary, 6)
    prompts = [tuple(request.prompt_token_ids) for request in requests]
    assert prompts[0::2] == prompts[1::2]
    assert (len(set(prompts)), {len(prompt) for prompt in prompts}) == (3, {32})
    # The warm-up repeats other prompts in the same way.
    warmup = [tuple(request.prompt_token_ids) for request in make_warmup(spec, vocabulary, requests)]
    assert warmup[0::2] == warmup[1::2]
    assert not set(warmup) & set(prompts)
    lengths, _ = lengths_of(spec, 6)
    assert lengths.prefix_id is not None
    assert lengths.prefix_id.tolist() == [0, 0, 1, 1, 2, 2]
