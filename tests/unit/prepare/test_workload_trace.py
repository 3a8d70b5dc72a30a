"""Workloads of traces, from small made-up files in the formats of the published ones."""

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from workflow_scripts.common.files import sha256_of
from workflow_scripts.predict.schedule import RequestLengths
from workflow_scripts.workloads.arrival_trace import read_trace
from workflow_scripts.workloads.make_requests import make_requests, make_warmup
from workflow_scripts.workloads.request import Vocabulary, WorkloadError
from workflow_scripts.workloads.workload_kinds import TraceWorkload

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"
VOCABULARY = Vocabulary(np.arange(2, 3000), list, list)


def trace(file: Path, **changed) -> TraceWorkload:
    return TraceWorkload(**{"kind": "trace", "num_prompts": 4, "file": file, "sha256": sha256_of(file), **changed})


def shape(requests):
    return [(r.arrival_s, len(r.prompt_token_ids), r.output_tokens) for r in requests]


def test_requests_of_published_traces_are_sorted_scaled_and_left_out_where_they_arrived():
    file = TRACES / "azure.csv"
    requests = make_requests(trace(file), VOCABULARY, 5)
    assert shape(requests) == [(0.0, 12, 9), (0.250001, 300, 20), (2.25, 40, 6), (3.75, 64, 5), (6.5, 31, 4)]
    scaled = trace(file, time_scale=0.5, max_total_tokens=100)
    requests = make_requests(scaled, VOCABULARY, 3)
    assert shape(requests) == [(0.0, 12, 9), (1.125, 40, 6), (1.875, 64, 5)]
    requests = make_requests(trace(TRACES / "burstgpt.csv"), VOCABULARY, 4)
    assert shape(requests) == [(0.0, 33, 12), (4.0, 58, 20), (23.0, 47, 9), (54.0, 26, 14)]
    with pytest.raises(WorkloadError, match=r"5 requests .*burstgpt.csv gives 4"):
        make_requests(trace(TRACES / "burstgpt.csv"), VOCABULARY, 5)


def test_a_file_with_other_columns_is_refused_with_those_of_each_format(tmp_path):
    (file := tmp_path / "own.csv").write_text("when,in,out\n3,5,6\n1,7,8\n")
    with pytest.raises(WorkloadError) as error:
        make_requests(trace(file), VOCABULARY, 2)
    assert all(word in str(error.value) for word in ("when, in, out", "TIMESTAMP", "Request tokens"))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("soon,1,1", "column 'arrival_s'"),
        ("0,1,1\n1,1,", "column 'output_tokens': 1 rows have no value"),
        ("0,2.5,1", "column 'prompt_tokens': 2.5 is not a number of tokens"),
        ("0,1e11,1", r"column 'prompt_tokens': 1e\+11 is not a number of tokens"),
        ("0,1,1\ninf,1,1", "column 'arrival_s': inf is not a time"),
        ("0,1,1\n0,1,1,1", "not readable as CSV"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, rows, words):
    file = tmp_path / "broken.csv"
    file.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n")
    with pytest.raises(WorkloadError, match=f"^{file}: {words}.*$"):
        make_requests(trace(file), VOCABULARY, 1)


# To a microsecond: pandas does not read the last digits of longer numbers.
times_s = st.floats(0, 1e6).map(lambda at_s: round(at_s, 6))
rows_of_trace = st.lists(st.tuples(times_s, st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=30)


@given(rows=rows_of_trace, time_scale=st.floats(0.01, 10), few=st.integers(1, 10))
def test_every_request_of_a_trace_is_there_in_order(tmp_path_factory, rows, time_scale, few):
    file = tmp_path_factory.mktemp("trace") / "trace.csv"
    pd.DataFrame(rows, columns=["arrival_s", "prompt_tokens", "output_tokens"]).to_csv(file, index=False)
    read_trace.cache_clear()
    usable = sorted((row for row in rows if row[1] and row[2]), key=lambda row: row[0])
    spec = trace(file, time_scale=time_scale)
    requests = make_requests(spec, VOCABULARY, len(usable))
    assert [(len(r.prompt_token_ids), r.output_tokens) for r in requests] == [row[1:] for row in usable]
    since_s = [(row[0] - usable[0][0]) * time_scale for row in usable]
    assert [r.arrival_s for r in requests] == pytest.approx(since_s, abs=1e-5)
    assert make_requests(spec, VOCABULARY, min(few, len(usable))) == requests[:few]


# --- hashes that say which blocks of prompts are equal ----------------------------------------------------------------

CALL = {"type": "s", "model": "m", "in": 130, "out": 4, "hash_ids": [0, 1]}
SUB_AGENT = {"type": "subagent", "t": 9.0, "requests": [CALL | {"t": 1.0}, CALL | {"t": 2.5}]}
SESSION = {"id": "a", "block_size": 64, "hash_id_scope": "local", "requests": [CALL | {"t": 0.5}, SUB_AGENT]}
LINE = {"timestamp": 250, "input_length": 600, "output_length": 3, "hash_ids": [7, 8]}


def written(folder: Path, *lines: object, **fields):
    file = folder / "trace.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return trace(file, **fields)


def in_common(a: list[int], b: list[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


@pytest.mark.parametrize(
    ("lines", "name", "shapes"),
    [
        ([LINE | {"timestamp": 2000}, LINE], "Mooncake", [(0, 600), (1.75, 600)]),
        (
            [{"chat_id": 4, "timestamp": 1.5, "input_length": 32, "output_length": 1, "hash_ids": [5, 5]}],
            "Bailian",
            [(0, 32)],
        ),
        # The times of this sub-agent count from its beginning, and those of the other from the session's.
        ([SESSION], "Weka", [(0, 130), (9.5, 130), (11, 130)]),
        (
            [{**SESSION, "requests": [SUB_AGENT | {"requests": [CALL | {"t": 9.5}, CALL | {"t": 12, "out": 0}]}]}],
            "Weka",
            [(0, 130)],
        ),
    ],
)
def test_published_forms_are_told_apart_with_their_units_and_blocks(tmp_path, lines, name, shapes):
    requests = make_requests(written(tmp_path, *lines), VOCABULARY, len(shapes))
    assert [(r.arrival_s, len(r.prompt_token_ids)) for r in requests] == shapes
    sizes = {"Mooncake": 512, "Bailian": 16, "Weka": 64}
    assert {r.hashed.tokens for r in requests} == {sizes[name]}


def test_sessions_of_weka_have_hashes_of_their_own_that_their_sub_agents_share(tmp_path):
    requests = make_requests(written(tmp_path, SESSION, SESSION | {"id": "b"}), VOCABULARY, 6)
    for a, b in itertools.combinations(requests, 2):
        same = a.hashed.ids == b.hashed.ids
        assert in_common(a.prompt_token_ids, b.prompt_token_ids) == (128 if same else 0)
    assert len({r.hashed.ids for r in requests}) == 2


ids = st.lists(st.integers(0, 5), min_size=1, max_size=6)
hashed = st.lists(st.tuples(ids, st.integers(0, 7), st.integers(1, 4)), min_size=1, max_size=12)


@given(drawn=hashed, block_tokens=st.integers(2, 8), engine_block=st.integers(1, 12), vocabulary=st.integers(3, 500))
def test_prompts_share_the_blocks_before_the_first_hash_that_differs_and_a_cache_finds_them(
    tmp_path_factory, drawn, block_tokens, engine_block, vocabulary
):
    """Blocks of one hash are equal, others differ, also in a small vocabulary; and the blocks of an engine that the
    schedule calls shared are those whose tokens are."""
    lines = [
        {
            "timestamp": at,
            "input_length": max(1, len(ids) * block_tokens - short % block_tokens),
            "output_length": outputs,
            "hash_ids": ids,
        }
        for at, (ids, short, outputs) in enumerate(drawn)
    ]
    spec = written(tmp_path_factory.mktemp("trace"), *lines, hash_block_tokens=block_tokens)
    of_text = Vocabulary(np.arange(2, 2 + vocabulary), list, list)
    requests = make_requests(spec, of_text, len(lines))
    assert make_requests(spec, of_text, 1) == requests[:1]
    blocks: dict[int, tuple[int, ...]] = {}
    for line, request in zip(lines, requests, strict=True):
        prompt = request.prompt_token_ids
        assert len(prompt) == line["input_length"]
        for position, hash_id in enumerate(line["hash_ids"]):
            block = tuple(prompt[position * block_tokens : (position + 1) * block_tokens])
            if len(block) == block_tokens:
                assert blocks.setdefault(hash_id, block) == block
    assert len(set(blocks.values())) == len(blocks)
    shared = RequestLengths.of(requests).shared_runs(engine_block)
    prompts = [tuple(request.prompt_token_ids) for request in requests]
    ends = [[prompt[:end] for end in range(engine_block, len(prompt) + 1, engine_block)] for prompt in prompts]
    for one, other in itertools.combinations(range(len(requests)), 2):
        in_both = sum(a == b for a, b in zip(ends[one], ends[other], strict=False))
        said = in_common(*([number for run in shared[of] for number in run] for of in (one, other)))
        # A block that ends behind the first token of a hashed one may be equal by chance.
        assert said <= in_both <= said + (engine_block > 1 or vocabulary < len(blocks))


def test_tokens_after_the_last_hash_are_a_prompts_own_and_warm_up_shares_nothing(tmp_path):
    lines = [{**LINE, "timestamp": at, "input_length": 35, "hash_ids": [3, 9]} for at in range(3)]
    requests = make_requests(written(tmp_path, *lines, hash_block_tokens=16), VOCABULARY, 3)
    assert {in_common(a.prompt_token_ids, b.prompt_token_ids) for a, b in itertools.combinations(requests, 2)} == {32}
    warmup = make_warmup(trace(TRACES / "mooncake.jsonl"), VOCABULARY, requests)
    assert not {tuple(r.prompt_token_ids[:16]) for r in requests} & {tuple(r.prompt_token_ids[:16]) for r in warmup}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 3: "),
        ("[1]", "line 3: not a JSON object"),
        ({**LINE, "timestamp": "soon"}, "line 3: timestamp: .*valid number.*'soon'"),
        ({**LINE, "timestamp": -1}, "line 3: timestamp: .*greater than or equal to 0"),
        ({**LINE, "input_length": 10**9}, "line 3: input_length: .*less than or equal to 10000000"),
        ({"timestamp": 1, "input_length": 3, "output_length": 1}, "line 3: hash_ids: Field required"),
        ({**LINE, "hash_ids": [1, "x"]}, "line 3: hash_ids.1: .*valid integer"),
        ({**LINE, "hash_ids": [1]}, None),
        ({**LINE, "hash_ids": [1, 2, 3]}, r"line 3: 3 hash_ids for 600 tokens in blocks of 512; allowed: 1 or 2 "),
        ({**SESSION, "block_size": 0}, "line 3: block_size: "),
        ({**SESSION, "requests": [{**CALL, "t": 1, "in": -3}]}, "line 3: requests.0: in: .*greater than or equal to 0"),
    ],
)
def test_a_bad_line_is_named_with_what_is_allowed(tmp_path, line, words):
    spec = written(tmp_path, LINE, "", line)
    if words is None:
        assert len(make_requests(spec, VOCABULARY, 2)) == 2
        return
    with pytest.raises(Exception, match=f"^{spec.file}: {words}") as error:
        make_requests(spec, VOCABULARY, 1)
    assert type(error.value).__name__ in ("WorkloadError", "InputError")


def test_an_empty_trace_and_fields_of_the_other_kind_of_file_are_refused(tmp_path):
    with pytest.raises(WorkloadError, match="no request"):
        make_requests(written(tmp_path, ""), VOCABULARY, 1)
    with pytest.raises(ValidationError, match=r"hash_block_tokens is for a \.jsonl file"):
        trace(TRACES / "azure.csv", hash_block_tokens=16)
