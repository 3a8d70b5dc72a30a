"""KV memory by kind of layer: worked out by hand, and against the blocks that the schedule of a request holds."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.unit.made_models import shape
from workflow_scripts.engines.capacity import KvPool
from workflow_scripts.engines.steps import SchedulerSettings
from workflow_scripts.engines.vllm.kv_groups import layer_groups
from workflow_scripts.physics.model_facts import ModelFacts, model_facts
from workflow_scripts.predict.schedule import RequestLengths
from workflow_scripts.predict.scheduler import make_schedule
from workflow_scripts.questions.memory.layer_memory import (
    block_in_tokens,
    held_by_layout,
    keeps_every_token,
    kinds_of_layers,
)

BLOCK = 4
COMMON = shape(hidden=16, inner=16, heads=2, kv_heads=1, head_dim=8, vocab=100, positions=64)
WINDOWS = COMMON | shape("gemma3_text", layers=7, sliding_window=6)
STATES = COMMON | shape("falcon_h1", layers=2, mamba_d_ssm=16, mamba_n_heads=2, mamba_d_head=8)
STATES |= {"mamba_n_groups": 1, "mamba_d_state": 4}


def timeline(*lengths: tuple[int, int]) -> pd.DataFrame:
    """Requests of which each step takes a second, one after the other."""
    of_cell = {"row": 0, "prefill_s": 1.0, "block_size_effective": BLOCK, "max_num_batched_tokens_effective": 64}
    requests = pd.DataFrame(lengths, columns=["prompt_tokens", "output_tokens"]).assign(**of_cell)
    return requests.assign(decode_s=requests["output_tokens"] - 1.0)


def slot_seconds(facts: ModelFacts, *lengths: tuple[int, int]) -> dict[tuple[str, str], tuple[float, float]]:
    found = held_by_layout(timeline(*lengths), facts, "auto")
    return {(layout, kind): tuple(held.iloc[0][["token_s", "slot_s"]]) for layout, kind, held in found}


def test_the_pool_holds_what_the_schedule_of_the_request_holds():
    facts = model_facts(WINDOWS)
    groups = tuple(layer_groups(facts.stack))
    settings: dict[str, Any] = {"max_num_seqs": 1, "max_num_batched_tokens": 64, "max_model_len": 64}
    pool = KvPool(groups, 1, BLOCK, 1, 64)
    requests = RequestLengths(np.array([10, 3]), np.array([6, 12]))
    off = {"enable_prefix_caching": False, "async_scheduling": False}
    made = make_schedule(requests, SchedulerSettings(**settings, **off, block_size=BLOCK, pool=pool))
    found = slot_seconds(facts, (10, 6), (3, 12))
    in_tokens = block_in_tokens(facts, "auto", np.array([float(BLOCK)]))[0]
    held = sum(slots for (layout, _), (_, slots) in found.items() if layout == "paged")
    assert held == pytest.approx(made.segments.blocks_held.sum() * in_tokens)


def test_what_a_window_saves_and_what_equal_groups_cost():
    facts = model_facts(WINDOWS)
    kinds = {kind.mixer.kind: (kind.layers, kind.slots) for kind in kinds_of_layers(facts)}
    assert kinds == {"window of 6": (6, 6), "full": (1, 1)}
    # One request of 10 + 3 tokens, in blocks of 4: 10, 11 and 12 tokens. With the window 3, 2 and 2 blocks.
    found = slot_seconds(facts, (10, 3))
    assert found["paged", "window of 6"] == pytest.approx((6 * 18 / 7, 6 * 4 * (3 + 2 + 2) / 7))
    assert found["paged_every_token", "window of 6"] == pytest.approx((6 * 18 / 7, 6 * 4 * 9 / 7))
    assert found["paged", "full"] == found["paged_own_pages", "full"] == pytest.approx((33 / 7, 36 / 7))


def test_a_state_takes_a_whole_page():
    facts = model_facts(STATES)
    found = slot_seconds(facts, (10, 3))
    state = facts.state_bytes() / facts.bytes_per_token()
    (kind,) = {kind for _, kind in found if kind != "full"}
    assert found["paged_own_pages", kind] == pytest.approx((3 * state, 3 * state))
    assert found["paged", kind] == pytest.approx((3 * state, 3 * max(state, BLOCK)))


@pytest.mark.parametrize("model_type", ["llama", "mixtral"])
def test_a_model_that_keeps_all_tokens_in_all_layers(model_type):
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    assert keeps_every_token(model_facts(COMMON | experts | {"model_type": model_type, "num_hidden_layers": 2}))
    # Layers of which tokens differ in bytes have no layouts.
    gemma_4 = {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "sliding_window": 6}
    of_several = model_facts(COMMON | gemma_4 | {"num_hidden_layers": 6})
    assert kinds_of_layers(of_several) == ()
    assert not any(map(keeps_every_token, (of_several, model_facts(WINDOWS), model_facts(STATES))))
