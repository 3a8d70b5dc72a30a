import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.questions.parsed_tables import requests, steps, write_parsed
from tests.unit.questions.synthetic_cells import cell, table
from workflow_scripts.questions.memory.fragmentation import SCHEMA, layouts, timeline, waste_table
from workflow_scripts.tables.request_lives import paged
from workflow_scripts.workloads.workload_kinds import SharedPrefixWorkload


def one_cell(knobs=None, **columns):
    return cell(knobs or {"max_num_seqs": 2}, (1.0,), gpu="cpu-all", model="tiny-llama-57m", **columns)


PLAIN = table(one_cell())
PLAIN_ID = PLAIN["cell_id"][0]


def prefix_of(tokens, users=1, share=1.0):
    """A workload whose requests begin with a prefix of so many tokens."""
    sizes = {"num_prompts": 2, "prefix_tokens": tokens, "prompt_tokens": 4, "output_tokens": 1}
    return SharedPrefixWorkload(kind="shared_prefix", users=users, share=share, **sizes)


def waste(*rows, texts=None, knobs=None, **columns):
    """Rows of the table for one repeat with these requests, by layout and block size, which is 0 without blocks."""
    made = one_cell(knobs, **columns)
    lives = timeline(table(made), requests(made[0]["cell_id"], *rows), texts or {})
    found = pd.concat(list(layouts(lives))).reindex(columns=list(SCHEMA.columns))
    assert found[["cell_id", "repeat"]].drop_duplicates().values.tolist() == [[made[0]["cell_id"], 0]]
    return found.assign(block_size=found["block_size"].fillna(0)).set_index(
        ["layout", "block_size"], verify_integrity=True
    )


# --- an engine that is looked at all the time --------------------------------------------------------------------

request_lives = st.lists(
    st.tuples(
        st.integers(1, 100),  # prompt tokens
        st.integers(1, 30),  # output tokens
        st.booleans(),  # begins with the common prefix
        st.floats(0, 10),  # scheduled, s
        st.floats(0.1, 5),  # prefill, s
        st.floats(0.01, 0.5),  # a decode step, s
    ),
    min_size=1,
    max_size=6,
)


def as_rows(lives, prefix):
    """Rows of requests; the first one that is long enough fills the cache, the later ones find it there."""
    lives = sorted(lives, key=lambda life: life[3])
    rows, owned = [], False
    for prompt, output, shares, scheduled_s, prefill_s, step_s in lives:
        prompt, shares = (prompt + prefix, prefix > 0) if shares else (min(prompt, max(prefix - 1, 1)), False)
        first_s = scheduled_s + prefill_s
        last_s = first_s + step_s * (output - 1)
        rows.append((prompt, output, prefix if shares and owned else 0, scheduled_s, first_s, last_s))
        owned |= shares
    return rows


def watched(rows, block_size, prefix):
    """Token-seconds and slot-seconds held, by looking between any two moments at which anything changes."""
    moments = {t for r in rows for t in r[3:5]}
    moments |= {first + i * (last - first) / (o - 1) for _, o, _, _, first, last in rows for i in range(1, o) if o > 1}
    shared = prefix // block_size * block_size if any(cached for _, _, cached, *_ in rows) else 0
    moments = sorted(moments | {r[5] for r in rows})
    tokens_s = slots_s = 0.0
    for begins, ends in itertools.pairwise(moments):
        now, tokens, blocks, sharing = (begins + ends) / 2, 0, 0, False
        for prompt, output, _, scheduled, first, last in rows:
            if not scheduled < now < last:
                continue
            made = 0 if now < first else 1 + math.floor((now - first) / (last - first) * (output - 1))
            common = shared if prompt > prefix else 0
            sharing |= common > 0
            tokens += prompt + made - common
            blocks += math.ceil((prompt + made) / block_size) - common // block_size
        tokens_s += (ends - begins) * (tokens + shared * sharing)
        slots_s += (ends - begins) * (blocks * block_size + shared * sharing)
    return tokens_s, slots_s


@settings(max_examples=100)
@given(request_lives, st.sampled_from([1, 8, 16, 32]), st.sampled_from([0, 7, 16, 40]))
def test_waste_is_what_one_sees_who_looks_all_the_time(lives, block_size, prefix):
    rows = as_rows(lives, prefix)
    (held,) = paged(timeline(PLAIN, requests(PLAIN_ID, *rows), {}), np.full(len(rows), float(block_size))).itertuples()
    assert (held.token_s, held.slot_s) == pytest.approx(watched(rows, block_size, prefix))


# --- by hand -----------------------------------------------------------------------------------------------------


def test_one_request_by_hand():
    # 10 + 3 tokens in blocks of 11: 10 tokens for 2 s, 11 for 0.5 s, 12 in two blocks for 0.5 s.
    found = waste((10, 3, 0, 1.0, 3.0, 4.0), block_size_effective=11).loc["paged", 11]
    assert found["tokens_held_mean"] == pytest.approx(31.5 / 3)
    assert found["slots_held_mean"] == pytest.approx((2.5 * 11 + 0.5 * 22) / 3)
    assert found["waste_pct"] == pytest.approx(100 * (1 - 31.5 / 38.5))
    assert found["wasted_slots_per_sequence"] == pytest.approx((38.5 - 31.5) / 3)
    assert found["expected_wasted_slots_per_sequence"] == 5


def test_tokens_enter_the_cache_at_the_steps_that_the_engine_records():
    # The request above, but its last step takes 0.9 of the second: 10 tokens for 2 s, 11 for 0.1 s, 12 for 0.9 s.
    rows = requests(PLAIN_ID, (10, 3, 0, 1.0, 3.0, 4.0))
    recorded = steps(PLAIN_ID, 3).assign(time_s=[3.0, 3.1, 4.0])
    evenly, exactly, incomplete = (
        next(layouts(timeline(PLAIN.assign(block_size_effective=16), rows, {}, of_cell)))["tokens_held_mean"].item()
        for of_cell in (None, recorded, recorded[::2])
    )
    assert exactly == pytest.approx((20 + 1.1 + 10.8) / 3)
    assert evenly == incomplete == pytest.approx(31.5 / 3)


def test_a_request_may_reserve_its_own_length_only_and_contiguous_memory_shares_no_prefix():
    found = waste((10, 3, 0, 1.0, 3.0, 4.0)).loc["contiguous_request_length", 0]
    assert found["tokens_held_mean"] == pytest.approx(31.5 / 3)
    assert (found["slots_held_mean"], found["source"]) == (13, "predicted")
    # The published example: three requests of 1024, 512 and 3072 tokens, each with 4096 slots.
    rows = [(tokens, 1, 0, 0.0, 5.0, 5.0) for tokens in (1024, 512, 3072)]
    found = waste(*rows, max_model_len_effective=4096).loc["contiguous_max_model_len", 0]
    assert (found["waste_pct"], found["slots_held_mean"]) == (62.5, 3 * 4096)
    rows = [(20, 1, 0, 0.0, 1.0, 1.0), (20, 1, 16, 0.0, 1.0, 1.0)]
    found = waste(*rows, block_size_effective=16, max_model_len_effective=100)
    assert found.loc["contiguous_max_model_len", 0]["tokens_held_mean"] == 40
    assert found.loc["contiguous_request_length", 0]["slots_held_mean"] == 42
    assert found.loc["paged", 16]["tokens_held_mean"] == 24


def test_only_the_layout_of_the_engine_is_measured():
    columns = {"block_size_effective": 16, "max_model_len_effective": 64}
    found = waste((10, 3, 0, 1.0, 3.0, 4.0), **columns, kv_cache_usage_mean=0.25, kv_cache_tokens=400)
    predicted = ("block_size_whatif", "contiguous_max_model_len", "contiguous_request_length")
    sources = found.groupby("layout")["source"].first().to_dict()
    assert sources == dict.fromkeys(predicted, "predicted") | {"paged": "measured"}
    whatif = found.loc["block_size_whatif"]
    assert whatif["expected_wasted_slots_per_sequence"].tolist() == ((whatif.index - 1) / 2).tolist()
    of_engine = ["source", "engine_slots_held_mean"]
    pd.testing.assert_series_equal(
        found.loc["paged", 16].drop(of_engine), whatif.loc[16].drop(of_engine), check_names=False
    )
    # The engine's own gauge stands beside the paged layout. What is not known has no row.
    assert found["engine_slots_held_mean"].dropna().to_dict() == {("paged", 16): 100}
    # The gauge is of the blocks without the one that vLLM keeps to itself.
    columns |= {"kv_cache_usage_mean": 0.25, "kv_cache_tokens": 400, "num_gpu_blocks": 25}
    found = waste((10, 3, 0, 1.0, 3.0, 4.0), **columns)
    assert found["engine_slots_held_mean"].dropna().to_dict() == {("paged", 16): 96}
    unknown = waste((10, 3, 0, 1.0, 3.0, 4.0)).index.get_level_values("layout")
    assert set(unknown) == {"block_size_whatif", "contiguous_request_length"}


# --- shared prefixes ---------------------------------------------------------------------------------------------


TWO = [(40, 1, 0, 0.0, 1.0, 1.0), (40, 1, 32, 0.0, 1.0, 1.0)]
WITHOUT_HITS = [(40, 1, 0, 0.0, 1.0, 1.0), (40, 1, None, 0.0, 1.0, 1.0)]
# Two users' requests in turn, all at once: two prefixes of 32 tokens, and 8 tokens of each request's own.
OF_TWO_USERS = [(40, 1, found, 0.0, 1.0, 1.0) for found in (0, 0, 32, 32)]
# Of two requests in a row one begins with the prefix: the second, which is long enough, does not.
HALF = [(40, 1, found, at_s, at_s + 1, at_s + 1) for found, at_s in ((0, 1.0), (0, 0.0), (32, 1.0))]


@pytest.mark.parametrize(
    ("rows", "texts", "tokens_by_block_size"),
    [
        (TWO, {}, {16: 80 - 32, 64: 80}),
        # The workload says that 36 tokens are common, of which blocks of 8 hold 32 and single tokens all.
        (TWO, {"chat": prefix_of(36)}, {8: 80 - 32, 1: 80 - 36}),
        (TWO, {"another": prefix_of(40)}, {1: 80 - 32}),
        (OF_TWO_USERS, {"chat": prefix_of(32, users=2)}, {8: 2 * 32 + 4 * 8}),
        # Taken for one prefix, the second would be held for nothing.
        (OF_TWO_USERS, {}, {8: 32 + 40 + 3 * 8}),
        (HALF, {"chat": prefix_of(32, share=0.5)}, {8: (40 + 32 + 2 * 8) / 2}),
        (WITHOUT_HITS, {"chat": prefix_of(36)}, {1: 80}),
    ],
)
def test_only_whole_blocks_of_a_prefix_that_was_found_are_shared(rows, texts, tokens_by_block_size):
    found = waste(*rows, texts=texts)
    for size, tokens in tokens_by_block_size.items():
        assert found.loc["block_size_whatif", size]["tokens_held_mean"] == tokens


def test_repeats_do_not_share():
    made = one_cell(block_size_effective=16)
    second = [row | {"repeat": 1} for row in made]
    of_repeats = (
        requests(made[0]["cell_id"], (20, 1, 0, 0.0, 1.0, 1.0), (20, 1, found, 0.0, 1.0, 1.0), repeat=repeat)
        for repeat, found in enumerate((16, 0))
    )
    lives = timeline(table(made, second), pd.concat(of_repeats), {})
    assert lives["shared_tokens"].tolist() == [16, 16, 0, 0]
    assert next(layouts(lives))["tokens_held_mean"].tolist() == [24, 40]


# --- the table ---------------------------------------------------------------------------------------------------


def test_a_repeat_with_an_unknown_time_has_no_timeline(tmp_path):
    known, unknown = one_cell({"max_num_seqs": 1}), one_cell({"max_num_seqs": 2})
    write_parsed(
        tmp_path / "cpu-all",
        "requests",
        requests(known[0]["cell_id"], (10, 3, 0, 1.0, 3.0, 4.0)),
        requests(unknown[0]["cell_id"], (10, 3, 0, 1.0, 3.0, 4.0), (10, 3, 0, 1.0, None, 4.0)),
    )
    write_parsed(tmp_path / "cpu-all", "steps", steps("another", 1))
    found = waste_table(table(known, unknown), tmp_path, {})
    assert set(found["cell_id"]) == {known[0]["cell_id"]}


def test_caches_of_huggingface_are_as_measured(tmp_path):
    held = {"kv_tokens_live_mean": 30.0, "kv_slots_reserved_mean": 120.0, "engine": "hf-static"}
    default = one_cell({"batch_size": 4}, **held)
    static = one_cell({"batch_size": 8, "cache_implementation": "static"}, **held)
    broken = one_cell({"batch_size": 2}, **held | {"outcome": "timeout"})
    found = waste_table(table(default, static, broken), tmp_path, {})
    assert found["cell_id"].tolist() == [default[0]["cell_id"], static[0]["cell_id"]]
    assert found["layout"].tolist() == ["hf_dynamic_cache", "hf_static_cache"]
    numbers = {"waste_pct": 75, "tokens_held_mean": 30, "slots_held_mean": 120}
    assert found[[*numbers, "source"]].drop_duplicates().to_dict("records") == [numbers | {"source": "measured"}]
    found = waste_table(table(one_cell()), tmp_path, {})
    assert (found.empty, list(found.columns)) == (True, list(SCHEMA.columns))
