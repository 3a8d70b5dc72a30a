"""The engines of transformers on a model of two layers: equal tokens for any batch, and the memory that they use."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workflow_scripts.engines.engine import EngineSetup
from workflow_scripts.engines.hf import static as hf_static
from workflow_scripts.engines.registry import make_engine
from workflow_scripts.measure.failures import run_failure, start_failure
from workflow_scripts.workloads.request import Request
from workflow_scripts.workloads.sampling import Sampling

torch = pytest.importorskip("torch")

LAYERS, KV_HEADS, HEAD_DIM, FLOAT32 = 2, 2, 8, 4
BYTES_PER_TOKEN = 2 * LAYERS * KV_HEADS * HEAD_DIM * FLOAT32
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": LAYERS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "initializer_range": 0.5,  # so that the next token is no close call
}
# Prompt lengths that differ, so that a batch is padded, and output lengths that differ, so that it runs on for one.
REQUESTS = [
    Request([(7 * i + 3 * j) % 120 + 1 for j in range(length)], output, request_id=str(i))
    for i, (length, output) in enumerate([(3, 9), (17, 4), (8, 9), (11, 6), (5, 2)])
]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return folder


def started(model_dir: Path, name: str, sampling: Sampling | None = None, **knobs: Any) -> Any:
    setup = EngineSetup(
        model_dir, load_format="dummy", dtype="float32", seed=0, knobs=knobs, device_kind="cpu", sampling=sampling
    )
    engine = make_engine(name, setup)
    engine.effective = engine.start()  # type: ignore[attr-defined]
    return engine


@pytest.fixture(scope="module")
def paged(model_dir):
    engine = started(model_dir, "hf-continuous", page_size=16, num_blocks=12, max_batch_tokens=64)
    yield engine
    engine.stop()


def static_tokens(engine: Any, requests: list[Request]) -> list[list[int]]:
    """Tokens that each request gets, of its own length."""
    rows: list[list[int]] = []
    generate = engine._model.generate

    def noted(**arguments: Any) -> Any:
        output = generate(**arguments)
        rows.extend(output[:, arguments["input_ids"].shape[1] :].tolist())
        return output

    engine._model.generate = noted
    engine.run(requests)
    engine._model.generate = generate
    return [row[: r.output_tokens] for row, r in zip(rows, requests, strict=True)]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_padded_batch_gives_the_tokens_of_single_requests(model_dir, cache):
    alone = static_tokens(started(model_dir, "hf-static", batch_size=1, cache_implementation="dynamic"), REQUESTS)
    together = started(model_dir, "hf-static", batch_size=4, cache_implementation=cache)
    assert static_tokens(together, REQUESTS) == alone
    assert len({tuple(row) for row in alone}) > 1

    # The comparison can fail: without the mask, padding is read as text.
    generate = together._model.generate
    together._model.generate = lambda **a: generate(**{**a, "attention_mask": torch.ones_like(a["attention_mask"])})
    assert static_tokens(together, REQUESTS) != alone


def test_what_a_model_says_of_sampling_plays_no_part(model_dir, monkeypatch):
    plain = static_tokens(started(model_dir, "hf-static", batch_size=4, cache_implementation="dynamic"), REQUESTS)
    load = hf_static.load_hf_model
    own = {"repetition_penalty": 9.0, "eos_token_id": plain[0][1], "suppress_tokens": plain[1]}

    def loaded(setup: EngineSetup) -> Any:
        model = load(setup)
        model.generation_config.update(**own)
        return model

    monkeypatch.setattr(hf_static, "load_hf_model", loaded)
    engine = started(model_dir, "hf-static", batch_size=4, cache_implementation="dynamic")
    assert static_tokens(engine, REQUESTS) == plain
    engine._model.generation_config.update(**own)
    assert static_tokens(engine, REQUESTS) != plain


def test_static_batches_are_sampled_as_the_workload_says(model_dir):
    def tokens(sampling: Sampling | None) -> list[list[int]]:
        knobs = {"batch_size": 4, "cache_implementation": "dynamic"}
        engine = started(model_dir, "hf-static", sampling, **knobs)
        first, again = (static_tokens(engine, REQUESTS) for _ in range(2))
        assert first == again  # greedy, or each pass begins with the seed
        assert [len(row) for row in first] == [r.output_tokens for r in REQUESTS]
        return first

    greedy = tokens(None)
    drawn = Sampling(temperature=5.0, seed=1)
    assert greedy != tokens(drawn) != tokens(drawn.model_copy(update={"seed": 2}))
    assert tokens(drawn.model_copy(update={"top_p": 1e-6})) == greedy  # only the most probable token is left
    never_again = tokens(Sampling(repetition_penalty=100.0))
    assert all(
        len({*row, *r.prompt_token_ids}) == len(row) + len({*r.prompt_token_ids})
        for row, r in zip(never_again, REQUESTS, strict=True)
    )


def test_continuous_batching_is_sampled_as_the_workload_says(model_dir, paged):
    knobs = {"page_size": 16, "num_blocks": 12, "max_batch_tokens": 64}
    engine = started(model_dir, "hf-continuous", Sampling(temperature=5.0, top_p=0.9, seed=1), **knobs)
    processors = [type(p).__name__ for p in engine._manager.logit_processor.logits_processor]
    records = engine.run(REQUESTS)
    engine.stop()
    assert engine._manager.generation_config.do_sample
    assert processors == ["TemperatureLogitsWarper", "TopPLogitsWarper"]
    assert [r.output_tokens for r in records] == [r.output_tokens for r in REQUESTS]
    assert not paged._manager.logit_processor.logits_processor


def test_continuous_batching_gives_the_tokens_of_single_requests(model_dir, paged, monkeypatch):
    alone = static_tokens(started(model_dir, "hf-static", batch_size=1, cache_implementation="dynamic"), REQUESTS)
    monkeypatch.setattr(paged, "_setup", replace(paged._setup, keep_answers=True))
    records = paged.run(REQUESTS)
    assert [record.token_ids for record in records] == alone
    assert [r.output_tokens for r in records] == [r.output_tokens for r in REQUESTS]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_step_that_computes_more_than_one_token_of_a_row_is_an_error(tmp_path: Path, batch_size: int) -> None:
    family = {"model_type": "falcon_h1", "mamba_rms_norm": True, "mamba_n_heads": 4, "mamba_d_head": 8}
    sizes = {"mamba_d_ssm": 32, "mamba_d_state": 4, "mamba_n_groups": 1}
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **family, **sizes}))
    engine = started(tmp_path, "hf-static", batch_size=batch_size, cache_implementation="dynamic")
    requests = [Request([5, 6, 7], 4, request_id=str(i)) for i in range(3)]
    if batch_size == 1:
        assert [r.output_tokens for r in engine.run(requests)] == [4, 4, 4]
    else:
        with pytest.raises(RuntimeError, match=r"holds 12 tokens of rows of 3 \+ 4"):
            engine.run(requests)


def test_a_request_of_a_static_batch_ends_with_its_own_last_token(model_dir):
    engine = started(model_dir, "hf-static", batch_size=4, cache_implementation="dynamic")
    first_batch = engine.run(REQUESTS)[:4]
    assert len({(r.scheduled_s, r.first_token_s) for r in first_batch}) == 1
    by_length = sorted(first_batch, key=lambda r: r.output_tokens)
    times = [r.last_token_s for r in by_length]
    assert times == sorted(times)
    assert times[0] < times[1] < times[2] == times[3]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_bytes_that_a_static_batch_reserves_and_uses(model_dir, cache):
    engine = started(model_dir, "hf-static", batch_size=4, cache_implementation=cache)
    engine.run(REQUESTS)
    steps = engine.take_steps()
    assert len(steps) == 9 + 2
    # Each row is padded to 17 prompt tokens; the token of a step enters the cache in the next one.
    whole = 17 + 9
    slots = [4 * (17 + i if cache == "dynamic" else whole) for i in range(9)]
    assert [s["kv_slots_reserved"] for s in steps[:9]] == slots
    assert [s["kv_bytes_reserved"] for s in steps[:9]] == [n * BYTES_PER_TOKEN for n in slots]
    live = [3 + 17 + 8 + 11, 3 + 17 + 8 + 11 + 4, *[s["kv_tokens_live"] for s in steps[2:9]]]
    assert [s["kv_tokens_live"] for s in steps[:9]] == live
    assert steps[8]["kv_tokens_live"] == (3 + 8) + (8 + 8)  # the two that are not done yet


def test_windows_and_states_of_a_static_batch_reserve_what_they_hold(tmp_path):
    windows = {"model_type": "gemma3_text", "num_hidden_layers": 3, "head_dim": HEAD_DIM, "sliding_window": 8}
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **windows, "layer_types": kinds}))
    engine = started(tmp_path, "hf-static", batch_size=4, cache_implementation="dynamic")
    engine.run(REQUESTS[:4])
    last = engine.take_steps()[-1]
    per_layer = BYTES_PER_TOKEN // LAYERS
    assert last["kv_slots_reserved"] == 4 * (17 + 8)
    assert last["kv_bytes_reserved"] == 4 * per_layer * ((17 + 8) + 2 * (8 - 1))  # all but the newest of a window

    keys, values, kernel = 2 * 8, 4 * 8, 4
    states = {
        **{"model_type": "qwen3_next", "num_hidden_layers": 4, "head_dim": HEAD_DIM, "mlp_only_layers": [0, 1, 2, 3]},
        **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8},
        **{"linear_value_head_dim": 8, "linear_conv_kernel_dim": kernel, "num_experts": 0},
    }
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **states}))
    engine = started(tmp_path, "hf-static", batch_size=4, cache_implementation="dynamic")
    engine.run(REQUESTS[:4])
    last = engine.take_steps()[-1]
    of_states = 3 * ((2 * keys + values) * kernel + values * 8) * FLOAT32
    assert last["kv_slots_reserved"] == 4 * (17 + 8)
    assert last["kv_bytes_reserved"] == 4 * (per_layer * (17 + 8) + of_states)


def test_bytes_that_continuous_batching_reserves_and_uses(paged):
    # The pool is there from the start, with two blocks for padding that no request is given.
    assert paged.effective["kv_cache_bytes"] == (12 + 2) * 16 * BYTES_PER_TOKEN
    paged.take_steps()
    paged.run(REQUESTS)
    steps = paged.take_steps()
    assert paged.take_steps() == []
    assert max(s["running"] for s in steps) == len(REQUESTS)
    assert 0 < max(s["kv_cache_usage"] for s in steps) <= 1
    longest = max(steps, key=lambda s: s["kv_tokens_live"])
    assert 0 < longest["kv_tokens_live"] <= longest["kv_cache_usage"] * 12 * 16
    # What took effect is read off the cache.
    names = ("block_size", "num_gpu_blocks", "max_num_batched_tokens", "enable_prefix_caching")
    assert [paged.effective[name] for name in names] == [16, 12, 64, False]


def test_a_step_of_continuous_batching_is_noted_at_its_end(paged, monkeypatch):
    processor, ended = paged._manager.batch_processor, []
    step = processor._generation_step

    def timed(model: Any) -> None:
        step(model)
        ended.append(time.monotonic())

    monkeypatch.setattr(processor, "_generation_step", timed)
    paged.take_steps()
    (record,) = paged.run([Request(list(range(1, 21)), 3, request_id="a")])
    steps = paged.take_steps()
    assert [s["kv_tokens_live"] for s in steps] == [20, 21, 22]
    assert [s["kv_cache_usage"] for s in steps] == pytest.approx([2 / 12] * 3)
    assert all(step["time_s"] >= end_s for step, end_s in zip(steps, ended, strict=True))
    assert steps[-1]["time_s"] <= record.last_token_s


def test_a_request_that_the_pool_does_not_hold_makes_a_cell_infeasible(model_dir, tmp_path):
    engine = started(model_dir, "hf-continuous", page_size=16, num_blocks=2, max_batch_tokens=64)
    with pytest.raises(RuntimeError, match="request 1/a failed") as failed:
        engine.run([Request([1] * 40, 2, request_id="a")])
    engine.stop()
    assert run_failure(failed.value, tmp_path / "no.log") == ("infeasible", f"RuntimeError: {failed.value}")


GPT_OSS = {"model_type": "gpt_oss", "head_dim": HEAD_DIM, "layer_types": ["sliding_attention", "full_attention"]}


def test_continuous_batching_serves_a_family_whose_attention_has_no_sdpa(tmp_path: Path) -> None:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8, "pad_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **experts, "eos_token_id": None, **GPT_OSS}))
    alone = started(tmp_path, "hf-static", batch_size=1, cache_implementation="dynamic")
    assert alone.effective["attention_backend"] == "eager"
    engine = started(tmp_path, "hf-continuous", page_size=16, num_blocks=24, max_batch_tokens=64)
    engine._setup = replace(engine._setup, keep_answers=True)
    answers = [record.token_ids for record in engine.run(REQUESTS)]
    engine.stop()
    assert answers == static_tokens(alone, REQUESTS)


LATENT = {
    **{"model_type": "deepseek_v3", "kv_lora_rank": 16, "q_lora_rank": None, "qk_rope_head_dim": 4, "v_head_dim": 8},
    **{"qk_nope_head_dim": 8, "first_k_dense_replace": 2, "n_routed_experts": 4, "moe_intermediate_size": 16},
}
OWN_HEADS = {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "head_dim": 8, "global_head_dim": 16}


@pytest.mark.parametrize(
    ("family", "told"),
    [
        (LATENT, "or of a window (deepseek_v3)"),
        (OWN_HEADS, "or of a window (gemma4_text)"),
    ],
)
def test_what_the_paged_cache_does_not_hold_is_refused_before_the_start(tmp_path, family, told):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | family))
    with pytest.raises(NotImplementedError) as refused:
        started(tmp_path, "hf-continuous", page_size=16, num_blocks=24, max_batch_tokens=64)
    verdict, words = start_failure(refused.value, tmp_path / "no.log")
    assert (verdict, told in words) == ("infeasible", True)


@pytest.mark.parametrize("trusted", [False, True])
def test_code_that_comes_with_a_model_runs_only_where_it_is_trusted(tmp_path, trusted):
    ran = tmp_path / "ran"
    (tmp_path / "own.py").write_text(
        "from pathlib import Path\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        f"Path({str(ran)!r}).touch()\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
        "class OwnModel(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "model_type": "own", "auto_map": auto_map}))
    knobs = {"batch_size": 1, "cache_implementation": "dynamic"}
    engine = make_engine(
        "hf-static",
        EngineSetup(tmp_path, "dummy", "float32", seed=0, knobs=knobs, device_kind="cpu", trust_remote_code=trusted),
    )
    if trusted:
        engine.start()
    else:
        with pytest.raises(ValueError, match="trust_remote_code"):
            engine.start()
    assert ran.exists() == trusted
