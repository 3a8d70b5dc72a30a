"""A cell's evidence becomes typed rows; damage is a column, not an exception."""

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from workflow_scripts.common.files import write_json, write_jsonl
from workflow_scripts.parse.cell_tables import CellFacts, parse_cell, parse_cells, start_row
from workflow_scripts.parse.engine_log import EngineLogFacts
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.study.parsed_columns import table_columns

HITS = "vllm:prefix_cache_hits"
CELL = "cpu-all/vllm/tiny-llama-57m/chat/bs32-seqs4"
LOG = (
    "INFO 11-21 07:50:55 [kv_cache_utils.py:2327] CPU KV cache size: 65,536 tokens, "
    "Maximum concurrency for 512 tokens per request: 128.00x\n"
)
OUTCOME: dict[str, Any] = {
    "schema_version": 1,
    "cell_id": CELL,
    "outcome": "ok",
    "reason": None,
    "definition": {"protocol": 1},
    "definition_sha256": "d" * 64,
    "effective": {"block_size": 32, "enable_prefix_caching": True, "quantization": None},
    "phases_s": {"start": 5.5},
    "repeats": [
        {"repeat": 0, "start_unix_s": 1000.0, "start_monotonic_s": 10.0, "end_monotonic_s": 14.0},
        {"repeat": 1, "start_unix_s": 1005.0, "start_monotonic_s": 15.0, "end_monotonic_s": 17.0},
    ],
    "device": {"name": "a CPU", "cores": [0, 1]},
    "host_load": {"cpu_steal_pct": 0.5},
    "provenance": {"host": "here"},
}
REQUEST = {"prompt_tokens": 8, "output_tokens": 4, "queued_s": 10.5, "scheduled_s": 10.5, "first_token_s": 11.0}


@pytest.fixture
def cells(tmp_path):
    folder = tmp_path / "cells" / CELL
    write_json(folder / "outcome.json", OUTCOME)
    raw = folder / "raw"
    request = {"request_id": "0", **REQUEST, "last_token_s": None}
    write_jsonl(raw / "requests.jsonl", [{"repeat": repeat, **request} for repeat in (0, 1)])
    write_jsonl(
        raw / "steps.jsonl", [{"repeat": 1, "time_s": 16.0, "running": 3, "kv_cache_usage": 0.25, "graph": "FULL"}]
    )
    peak = "torch_max_memory_allocated_bytes"
    counters = {HITS: 7, "gauge": 0.5, "hist": {"sum": 3.0, "count": 2, "buckets": {}}, peak: 3}
    later = {HITS: 9, "gauge": 0.75, "hist": {"sum": 5.0, "count": 6, "buckets": {}}, peak: 5}
    write_jsonl(raw / "metrics.jsonl", [{"repeat": 0, "before": counters, "after": later}])
    samples = [{"time_unix_s": 0, "time_monotonic_s": t, "process_memory_bytes": t * 1e6} for t in (9, 11, 13, 16)]
    write_jsonl(raw / "device_trace.jsonl", [{"schema": "device_trace/1"}, *samples])
    (raw / "engine.log").write_text(LOG, encoding="utf-8")
    return tmp_path / "cells"


def parsed(cells: Path) -> CellFacts:
    return parse_cell(cells / CELL)


def test_a_start_and_its_repeats_have_what_was_recorded_in_typed_columns(cells):
    rows = parsed(cells)
    expected = {"outcome": "ok", "protocol": 1, "round": 1, "block_size_effective": 32, "kv_cache_tokens": 65536}
    expected |= {"max_concurrency": 128.0, "device_cores": 2, "start_s": 5.5, "host": "here", "cpu_steal_pct": 0.5}
    expected |= {"process_memory_bytes_before": 9e6, "damaged": None, "device_name": "a CPU"}
    assert {name: rows.of_start[name] for name in expected} == expected
    assert json.loads(rows.of_start["effective"]) == {"block_size": 32, "enable_prefix_caching": True}
    # Counters are their growth in the repeat, and a peak is its value at the end.
    counted = {"prefix_cache_hits": 2, "torch_memory_bytes_max": 5}
    assert rows.repeats[0].items() >= {"wall_s": 4, "start_unix_s": 1000, **counted}.items()
    assert rows.repeats[1].items() >= {"wall_s": 2}.items()
    assert counted.keys().isdisjoint(rows.repeats[1])


@pytest.mark.parametrize(
    ("effective", "logged", "found"), [(32, 16, 32), (None, 16, 16), (32, None, 32), (None, None, None)]
)
def test_what_took_effect_comes_before_what_the_log_says(effective, logged, found):
    outcome = Outcome.model_validate(OUTCOME | {"effective": {"block_size": effective}})
    row, faults = start_row(outcome, EngineLogFacts(block_size=logged))
    assert (row.get("block_size_effective"), faults) == (found, [])


def test_a_setting_of_a_wrong_type_is_a_fault_and_leaves_its_column_empty(cells):
    write_json(cells / CELL / "outcome.json", OUTCOME | {"effective": {"block_size": "many", "dtype": "bfloat16"}})
    rows = parsed(cells)
    assert "effective.block_size in outcome.json" in rows.of_start["damaged"]
    assert ("block_size_effective" in rows.of_start, rows.of_start["dtype"]) == (False, "bfloat16")


def test_without_metrics_before_a_repeat_only_the_clients_own_growth_is_known(cells):
    before, after = {"client_cpu_s": 1.0}, {"client_cpu_s": 3.0, HITS: 9}
    metrics = cells / CELL / "raw" / "metrics.jsonl"
    write_jsonl(metrics, [{"repeat": 0, "before": before, "after": after}])
    repeat = parsed(cells).repeats[0]
    assert (repeat["client_cpu_s"], "prefix_cache_hits" in repeat) == (2, False)
    # A counter may appear when it counts for the first time.
    write_jsonl(metrics, [{"repeat": 0, "before": {"gauge": 1}, "after": {"gauge": 1, HITS: 9}}])
    assert parsed(cells).repeats[0]["prefix_cache_hits"] == 9


def test_times_count_from_the_start_of_the_repeat(cells):
    rows = parsed(cells)
    assert rows.requests[0]["queued_s"] == pytest.approx(0.5)
    assert rows.requests[0]["last_token_s"] is None
    assert (rows.steps[0]["time_s"], rows.steps[0]["graph"]) == (pytest.approx(1.0), "FULL")
    assert [(s["repeat"], s["time_s"]) for s in rows.trace] == [(0, 1.0), (0, 3.0), (1, 1.0)]


@pytest.mark.parametrize("name", ["requests.jsonl", "steps.jsonl", "metrics.jsonl", "device_trace.jsonl"])
def test_a_truncated_file_is_damage_that_costs_no_repeat(cells, name):
    path = cells / CELL / "raw" / name
    path.write_bytes(path.read_bytes() + b'{"repeat": 0, "reques')
    rows = parsed(cells)
    assert rows.repeats[0]["wall_s"] == 4
    assert rows.of_start["damaged"].startswith(f"raw/{name}: line ")


def test_missing_requests_are_damage_and_absent_evidence_is_none(cells):
    write_jsonl(cells / CELL / "raw/requests.jsonl", [{"repeat": r, "request_id": "0", **REQUEST} for r in (0, 1, 1)])
    (cells / CELL / "raw/steps.jsonl").write_bytes(b"{")
    damage = parsed(cells).of_start["damaged"]
    assert all(part in damage for part in ("steps.jsonl: line 1: not JSON", "1 and 2"))
    for path in (cells / CELL / "raw").iterdir():
        path.unlink()
    rows = parsed(cells)
    assert (rows.requests, rows.steps, rows.trace) == ([], [], [])
    assert rows.of_start["damaged"] is None


LINE = {"repeat": 0, "request_id": "9", **REQUEST}
DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requests.jsonl", "[]"),
        ("requests.jsonl", '"text"'),
        ("requests.jsonl", DEEP),
        ("requests.jsonl", json.dumps(LINE).replace("10.5", "1e999")),
        ("requests.jsonl", json.dumps(LINE).replace("10.5", "NaN")),
        ("requests.jsonl", json.dumps(LINE | {"prompt_tokens": 2**64})),
        ("requests.jsonl", json.dumps(LINE | {"output_tokens": "4"})),
        ("requests.jsonl", json.dumps(LINE | {"request_id": "../9"})),
        ("requests.jsonl", json.dumps(LINE | {"itl_s": [0.1, "x"]})),
        ("requests.jsonl", json.dumps(LINE | {"repeat": True})),
        ("requests.jsonl", "\ud800"),
        ("steps.jsonl", json.dumps({"repeat": 0, "running": 1.5})),
        ("steps.jsonl", "9" * 5000),
        ("metrics.jsonl", json.dumps({"before": {}, "after": {}})),
        ("metrics.jsonl", json.dumps({"repeat": 1, "before": 3, "after": {}})),
        ("metrics.jsonl", json.dumps({"repeat": 1, "after": {}})),
        (
            "metrics.jsonl",
            json.dumps({"repeat": 0, "before": {"hits": 1}, "after": {"hits": 10}}),
        ),  # of a repeat once more
    ],
)
def test_a_bad_line_is_damage_of_its_cell_and_of_no_other(cells, tmp_path, name, text):
    other = CELL.replace("seqs4", "seqs8")
    shutil.copytree(cells / CELL, cells / other)
    with (cells / CELL / "raw" / name).open("a", encoding="utf-8", errors="surrogatepass") as file:
        file.write(f"{text}\n")
    for processes in (2, 1):
        assert parse_cells(cells, "cpu-all", tmp_path / "parsed", processes) == 2
        starts = pd.read_parquet(tmp_path / "parsed/starts.parquet").set_index("cell_id")
        assert name in starts.at[CELL, "damaged"]
        assert (starts.at[other, "outcome"], starts.isna().at[other, "damaged"]) == ("ok", True)


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 9},
        {"device": {"cores": "all"}},
        {"device": {"cores": ["a"]}},
        {"provenance": {"ended_at": "yesterday"}},
        {"provenance": {"ended_at": "0001-01-01"}},
        {"phases_s": {"start": "long"}},
        {"repeats": [OUTCOME["repeats"][0]] * 2},
        {"repeats": [OUTCOME["repeats"][0], OUTCOME["repeats"][1] | {"start_monotonic_s": 11.0}]},
        {"repeats": [OUTCOME["repeats"][0] | {"start_unix_s": 1e300}]},
        {"repeats": [OUTCOME["repeats"][0] | {"end_monotonic_s": 10.0}]},
    ],
)
def test_a_record_of_other_types_is_damaged(cells, change):
    write_json(cells / CELL / "outcome.json", OUTCOME | change)
    assert list(parsed(cells).of_start) == ["damaged"]


def test_every_start_of_a_cell_is_read_with_its_number_and_no_copy_of_one(cells, tmp_path):
    for name in ("start-2.old", "start-02", "start-1"):
        write_json(cells / CELL / name / "outcome.json", OUTCOME | {"outcome": "timeout"})
    start = {"start": 3, "round": 2, "position": 5, "idle_before_s": 1.5, "boot_id": "b", "planned": "3"}
    start |= {"session": "s", "place_in_session": 2}
    again = OUTCOME | {"start": start}
    write_json(cells / CELL / "start-3/outcome.json", again)
    write_jsonl(cells / CELL / "start-3/raw/requests.jsonl", [{"repeat": 1, "request_id": "0", **REQUEST}])
    assert parse_cells(cells, "cpu-all", tmp_path / "parsed", 2) == 2
    requests = pd.read_parquet(tmp_path / "parsed/requests.parquet")
    assert requests[["cell_id", "start", "repeat"]].to_numpy().tolist() == [[CELL, 1, 0], [CELL, 1, 1], [CELL, 3, 1]]
    starts = pd.read_parquet(tmp_path / "parsed/starts.parquet")
    # A record from before starts were counted is the first one, in the first round.
    told = ["start", "round", "position", "planned_starts", "session", "outcome"]
    assert starts[told].astype(object).where(starts[told].notna(), None).to_numpy().tolist() == [
        [1, 1, None, None, None, "ok"],
        [3, 2, 5, "3", "s", "ok"],
    ]


def test_a_search_is_told_by_its_interval_and_what_it_sent(cells):
    passes = [{"load": load, "met": load < 10, "requests": 8, "late": 0} for load in (4, 9, 20, 11, 8, 10.5)]
    search = {"users": False, "least": 1.0, "most": 64.0, "passes": passes}
    outcome = Outcome.model_validate({**OUTCOME, "repeats": [], "search": search})
    row, faults = start_row(outcome, None)
    assert not faults
    assert 2 < row["highest_load_low"] < row["highest_load"] < row["highest_load_high"] < 20
    assert (row["search_passes"], row["search_requests"]) == (6, 48)
    assert "highest_load" not in parsed(cells).of_start


def test_a_gpu_without_cells_gives_empty_tables_of_the_same_types(cells, tmp_path):
    parse_cells(cells, "cpu-all", tmp_path / "full", 1)
    parse_cells(cells, "h200", tmp_path / "empty", 1)
    for name in table_columns():
        full, empty = (pd.read_parquet(tmp_path / side / f"{name}.parquet") for side in ("full", "empty"))
        assert empty.empty
        assert empty.dtypes.to_dict() == full.dtypes.to_dict()
