"""The figure of block tables."""

import numpy as np
import pandas as pd

from tests.unit.present.conftest import whole
from workflow_scripts.engines.steps import SchedulerSettings
from workflow_scripts.predict.block_trace import trace_blocks
from workflow_scripts.predict.schedule import RequestLengths
from workflow_scripts.questions.memory.block_tables_by_step import (
    block_tables,
    first_requests,
    moment_at,
    moments_of,
    of_one_cell,
)
from workflow_scripts.tables.results import Tables

SETTINGS = SchedulerSettings(16, 4096, 4, 1024, async_scheduling=False)


def events(prompt: int, output: int, shared: int, requests: int = 10, name: str = "a") -> pd.DataFrame:
    lengths = RequestLengths(
        np.full(requests, prompt),
        np.full(requests, output),
        prefix_id=np.zeros(requests, np.int64),
        prefix_tokens=np.full(requests, shared),
    )
    return pd.DataFrame(trace_blocks(lengths, SETTINGS)).assign(cell_id=name, block_size=4)


def test_a_moment_has_the_block_tables_and_the_tokens_in_them():
    traced = events(prompt=10, output=9, shared=9)
    begin, later = moment_at(traced, 0), moment_at(traced, 3)
    assert begin.tokens == dict.fromkeys(range(10), 10)
    assert later.tokens == dict.fromkeys(range(10), 13)
    assert list(begin.held[5]) == [0, 1, 2]
    assert list(later.held[5]) == [0, 1, 2, 3]
    # Two full blocks are shared by all; the third is only partly covered by the shared text.
    assert [begin.users[begin.held[5][place]] for place in range(3)] == [10, 10, 1]
    assert moment_at(traced, 99).held == {}


def test_the_moments_show_how_tables_grow_until_requests_end_or_by_a_few_blocks():
    assert [moment.step for moment in moments_of(events(prompt=10, output=5, shared=9))] == [0, 2, 4]
    assert [moment.step for moment in moments_of(events(prompt=10, output=100, shared=9))] == [0, 7, 14]
    assert [moment.step for moment in moments_of(events(prompt=10, output=1, shared=9))] == [0]


def test_the_workload_whose_requests_share_most_is_drawn(tmp_path):
    both = pd.concat([events(10, 5, 0, name="alone"), events(10, 5, 9, name="shares")])
    assert set(of_one_cell(both)["cell_id"]) == {"shares"}
    assert set(of_one_cell(both[both["cell_id"] == "alone"])["cell_id"]) == {"alone"}
    assert first_requests(both)["request"].max() == 7
    whole("blocks", both).to_parquet(tmp_path / "blocks.parquet")
    plot = block_tables(Tables(tmp_path))
    assert plot.sources == ["predicted"]
    assert all(number in plot.alt for number in ("80 tokens", "24 block", "10 blocks", "requests: 2."))
    # Of long tables the beginning and the end are drawn.
    whole("blocks", events(prompt=200, output=5, shared=150)).to_parquet(tmp_path / "blocks.parquet")
    plot = block_tables(Tables(tmp_path))
    assert all(number in plot.notes[1] for number in ("51 places", "first 6", "last 8"))
