"""Block traces: worked out by hand, and consistent with the schedule."""

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.predict.planned import study, sweep, write_study
from tests.unit.predict.test_scheduler import SETTINGS, sharing_requests
from workflow_scripts.predict.block_trace import BlockEvent, Traced, main
from workflow_scripts.predict.plan import plan
from workflow_scripts.predict.scheduler import make_schedule
from workflow_scripts.study.grid import expand


@settings(max_examples=25)
@given(sharing_requests(), st.integers(12, 40), st.booleans(), st.booleans())
def test_a_trace_has_the_blocks_and_the_preemptions_of_the_schedule(requests, blocks, is_async, caching):
    limits = replace(SETTINGS, num_blocks=blocks, async_scheduling=is_async, enable_prefix_caching=caching)
    events: list[BlockEvent] = []
    schedule = make_schedule(requests, limits, kind=partial(Traced, events))
    held: Counter[int] = Counter()
    tables: dict[tuple[int, int], int] = {}
    peak, lost = 0, set()
    for e, step in zip(events, [*(e.step for e in events[1:]), None], strict=True):
        if e.event in ("allocated", "appended", "shared"):
            assert e.request is not None
            assert (e.request, e.place) not in tables
            tables[e.request, e.place] = e.block
            held[e.block] += 1
            assert held[e.block] == e.users
            assert (e.users > 1) <= (e.event == "shared")
        elif e.event == "evicted":
            assert held[e.block] == e.users == 0
        else:
            assert e.request is not None
            assert tables.pop((e.request, e.place)) == e.block
            held[e.block] -= 1
            assert held[e.block] == e.users
            lost |= {(e.request, e.step)} if e.event == "preempted" else set()
        if step != e.step:
            peak = max(peak, sum(users > 0 for users in held.values()))
    assert not tables
    assert max(held) < blocks
    assert peak == schedule.peak_blocks_held
    times = Counter(request for request, _ in lost)
    assert all(times[request] <= count for request, count in enumerate(schedule.preemptions.tolist()))
    assert set(times) == set(np.flatnonzero(schedule.preemptions).tolist())


def test_the_command_traces_every_request_of_a_cell_or_says_why_not(tmp_path, capsys):
    path = write_study(tmp_path)
    table = plan(study(tmp_path), expand(study(tmp_path)), None)
    feasible, refused = (table["cell_id"][mask].iloc[0] for mask in (table["steps"].notna(), table["steps"].isna()))
    options = ["--study", str(path), "--results", str(tmp_path), "--out", str(tmp_path / "blocks.csv"), "--cell"]
    assert main([*options, feasible]) == 0
    traced = pd.read_csv(tmp_path / "blocks.csv")
    asked = table.set_index("cell_id")["num_requests"][feasible]
    assert traced["request"].nunique() == asked
    assert main([*options, refused]) == 2
    assert "blocks of 8 tokens" in capsys.readouterr().err
    assert main([*options, "no/such/cell"]) == 2
    assert "has no cell 'no/such/cell'" in capsys.readouterr().err


def test_the_blocks_of_one_of_several_engines_are_its_own(tmp_path):
    knobs = {"block_size": 16, "max_num_seqs": 16, "data_parallel_size": 2, "num_gpu_blocks_override": 40}
    knobs |= {"max_model_len": 128}
    path = write_study(tmp_path, [sweep(engine="vllm-serve", knobs=knobs)])
    (cell,) = expand(study(tmp_path, sweeps=[sweep(engine="vllm-serve", knobs=knobs)]))
    options = ["--study", str(path), "--results", str(tmp_path), "--out", str(tmp_path / "blocks.csv")]
    assert main([*options, "--cell", cell.id]) == 0
    # One block of the engine is never given out.
    assert pd.read_csv(tmp_path / "blocks.csv")["block"].max() == 39
