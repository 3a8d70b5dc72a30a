import json
import math

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.questions.parsed_tables import requests, steps, write_parsed
from tests.unit.questions.synthetic_cells import cell, table
from workflow_scripts.catalog import gpus_and_models
from workflow_scripts.catalog.gpus_and_models import get_model
from workflow_scripts.common.faults import InputError
from workflow_scripts.tables.work import forgets, reaches_of, read_work, request_sums, step_counts

lengths = st.lists(
    st.tuples(st.integers(1, 200), st.integers(1, 40), st.one_of(st.none(), st.integers(0, 199))),
    min_size=1,
    max_size=6,
)


def sums(*rows, block_size=None):
    found = request_sums(requests("c", *rows), pd.Series({"c": block_size}, dtype="Float64"))
    assert found.index.tolist() == [("c", 1, 0)]
    return found.iloc[0].to_dict()


@given(lengths, st.sampled_from([1, 4, 16]))
def test_sums_are_those_of_a_walk_through_all_steps(rows, block_size):
    rows = [(p, o, None if c is None else min(c, p - 1)) for p, o, c in rows]
    found = sums(*rows, block_size=block_size)
    longest_hit = max(c or 0 for _, _, c in rows)
    prefill = decode = read = shared = blocks = 0
    for p, o, c in rows:
        prefill += sum(range((c or 0) + 1, p + 1))
        share = min(p, longest_hit)
        blocks += math.ceil(p / block_size) - share // block_size
        for held in range(p, p + o - 1):
            read += held
            shared += share
            decode += held + 1
            blocks += math.ceil((held + 1) / block_size) - share // block_size
    output = sum(o for _, o, _ in rows)
    assert found == {
        "requests": len(rows),
        "prompt_tokens": sum(p for p, _, _ in rows),
        "output_tokens": output,
        "output_tokens_longest": max(o for _, o, _ in rows),
        "decode_tokens": output - len(rows),
        "computed_prompt_tokens": sum(p - (c or 0) for p, _, c in rows),
        "prefill_attended_tokens": prefill,
        "decode_attended_tokens": decode,
        "kv_tokens_read": read,
        "kv_tokens_shared": shared,
        "block_steps": blocks,
        "further_chunks": 0,
    }


def test_a_shared_prefix_of_one_repeat_is_none_of_another():
    table = pd.concat([requests("c", (40, 2, 32)), requests("c", (40, 2, 0), repeat=1)])
    found = request_sums(table, pd.Series({"c": 16}, dtype="Float64"))
    assert found["kv_tokens_shared"].to_dict() == {("c", 1, 0): 32, ("c", 1, 1): 0}


def test_steps_are_counted_in_parts_of_a_table_without_looks_at_the_queues_of_a_server(tmp_path):
    looks = steps("served", 5).assign(generation_tokens=pd.array([None] * 5, dtype="Int64"))
    recorded = pd.concat([steps("a", 3), looks, steps("b", 2), steps("a", 1)])
    pq.write_table(pa.Table.from_pandas(recorded, preserve_index=False), tmp_path / "steps.parquet", row_group_size=2)
    assert step_counts(tmp_path / "steps.parquet")["steps"].to_dict() == {("a", 1, 0): 4.0, ("b", 1, 0): 2.0}
    recorded.astype({"prompt_tokens": str}).to_parquet(tmp_path / "steps.parquet")
    with pytest.raises(InputError, match="not readable as Parquet"):
        step_counts(tmp_path / "steps.parquet")


def test_work_joins_ok_repeats_with_their_requests_and_steps(tmp_path):
    good = cell({"max_num_seqs": 4}, (1.0, 2.0), gpu="cpu-all", block_size_effective=32)
    elsewhere = cell({"max_num_seqs": 4}, (1.0,), gpu="h200")
    broken = cell({"max_num_seqs": 8}, (1.0,), gpu="cpu-all", outcome="timeout")
    missing = cell({"max_num_seqs": 16}, (1.0,), gpu="cpu-all", repeat=None, outcome="ok")
    name = good[0]["cell_id"]
    folder = tmp_path / "cpu-all"
    served = [requests(name, (40, 2, 0)), requests(name, (40, 3, 0), repeat=1)]
    write_parsed(folder, "requests", *served, requests(broken[0]["cell_id"], (5, 5, 0)))
    write_parsed(folder, "steps", steps(name, 7))
    before = cell({"max_num_seqs": 4}, (1.0,), gpu="a100-pcie-80gb")
    work = read_work(table(before, good, elsewhere, broken, missing), tmp_path)
    found = work[["cell_id", "repeat", "prompt_tokens", "output_tokens", "block_steps", "output_tokens_per_s"]]
    assert found.to_numpy().tolist() == [[name, 0, 40, 2, 4, 1.0], [name, 1, 40, 3, 6, 2.0]]
    assert work["steps"].tolist() == pytest.approx([7, math.nan], nan_ok=True)


def test_a_record_without_tokens_is_a_step_only_if_a_prompt_takes_several(tmp_path):
    # Two prompts of 40 computed tokens. With 16 tokens per step they need two further steps each; three records are
    # left that gave no token, so all of them may be such steps, but with 32 tokens per step only two.
    found = {}
    for budget in (16, 32, 64):
        made = cell({"max_num_seqs": budget}, (1.0,), gpu="cpu-all", max_num_batched_tokens_effective=budget)
        name = made[0]["cell_id"]
        recorded = steps(name, 7).assign(generation_tokens=[0, 1, 0, 1, 0, 1, 1], prompt_tokens=0)
        folder = tmp_path / str(budget) / "cpu-all"
        write_parsed(folder, "requests", requests(name, (40, 2, 0), (60, 2, 20)))
        write_parsed(folder, "steps", recorded)
        found[budget] = read_work(table(made), tmp_path / str(budget))["steps"].tolist()
    assert found == {16: [7], 32: [6], 64: [4]}


def test_only_a_model_without_a_layer_that_keeps_all_tokens_forgets(tmp_path, monkeypatch):
    config = json.loads(get_model("mistral-7b-instruct-v0.3").config.read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"sliding_window": 64}))
    windowed = get_model("mistral-7b-instruct-v0.3").model_copy(update={"config": tmp_path / "config.json"})
    models = {"all": get_model("opt-125m"), "windowed": windowed}
    monkeypatch.setattr(gpus_and_models, "load_models", lambda: models)
    assert [forgets(name) for name in ("all", "windowed", "not known")] == [False, True, False]
    assert [reach.suffix for reach in reaches_of(["all", "windowed"])] == ["_window_64"]
