"""Workloads of traces, from small made-up files in the formats of the published ones."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.common.files import sha256_of
from workflow_scripts.workloads.arrival_trace import read_trace
from workflow_scripts.workloads.make_requests import make_requests
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
    requests, stream = make_requests(trace(file), VOCABULARY, 5)
    assert shape(requests) == [(0.0, 12, 9), (0.250001, 300, 20), (2.25, 40, 6), (3.75, 64, 5), (6.5, 31, 4)]
    counted = {"format": "Azure LLM inference trace", "filter": {"rows": 11, "without_tokens": 1}}
    assert stream.details == {"source": str(file), "sha256": sha256_of(file), **counted}
    scaled = trace(file, time_scale=0.5, max_total_tokens=100)
    requests, stream = make_requests(scaled, VOCABULARY, 3)
    assert shape(requests) == [(0.0, 12, 9), (1.125, 40, 6), (1.875, 64, 5)]
    assert stream.details["left_out_as_too_long"] == 1
    requests, stream = make_requests(trace(TRACES / "burstgpt.csv"), VOCABULARY, 4)
    assert shape(requests) == [(0.0, 33, 12), (4.0, 58, 20), (23.0, 47, 9), (54.0, 26, 14)]
    assert stream.details["format"] == "BurstGPT"
    assert stream.details["filter"] == {"rows": 6, "without_tokens": 2}
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
    requests, _ = make_requests(spec, VOCABULARY, len(usable))
    assert [(len(r.prompt_token_ids), r.output_tokens) for r in requests] == [row[1:] for row in usable]
    since_s = [(row[0] - usable[0][0]) * time_scale for row in usable]
    assert [r.arrival_s for r in requests] == pytest.approx(since_s, abs=1e-5)
    assert make_requests(spec, VOCABULARY, min(few, len(usable)))[0] == requests[:few]
