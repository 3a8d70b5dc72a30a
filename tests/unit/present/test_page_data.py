import base64
import gzip
import json
import re
from typing import Any

import pandas as pd
import pytest

from tests.unit.present.conftest import DEMO, changed, in_table, report_of, written
from workflow_scripts.present.page_data import MOST_BYTES, MOST_POINTS, _intervals, page_data, timelines
from workflow_scripts.statistics.comparisons import ONE_START


def unpacked(text: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(text)))


def data_of(html: str) -> dict[str, Any]:
    """The data in a page."""
    found = re.search(r'<template id="page-data">([^<]*)</template>', html)
    assert found
    data: dict[str, Any] = unpacked(found[1])
    return data


def values(column: Any) -> list[Any]:
    return column if isinstance(column, list) else [None if at is None else column["of"][at] for at in column["at"]]


@pytest.fixture(scope="module")
def data(results):
    return data_of(results.html)


def test_each_environment_has_a_number_of_its_own_on_the_whole_page(report, tmp_path, cells):
    other = cells.loc[cells["outcome"] == "ok", "cell_id"].iloc[-1]
    locks = cells["lock_sha256"].mask(cells["cell_id"] == other, "c" * 64)
    of = page_data(changed(report, tmp_path, cells=cells.assign(lock_sha256=locks)), DEMO)["cells"]
    numbers = cells["cell_id"].map(dict(zip(values(of["cell_id"]), of["environment_number"], strict=True)))
    environments = pd.DataFrame({"number": numbers, "lock": locks, "processor": cells["processor"]})[locks.notna()]
    different = environments.drop_duplicates()
    assert numbers[cells["cell_id"] == other].unique().tolist() == [len(different)]
    assert sorted(different["number"]) == list(range(1, len(different) + 1))
    [label] = [label for cell, label in zip(values(of["cell_id"]), values(of["label"]), strict=True) if cell == other]
    assert label.endswith(f", environment {len(different)}")


def test_every_repeat_has_its_measured_values_and_limits(data, cells):
    measured = cells[cells["repeat"].notna()]
    repeats = data["repeats"]
    ids = values(data["cells"]["cell_id"])
    assert [ids[place] for place in repeats["cell"]] == list(measured["cell_id"])
    assert repeats["repeat"] == list(measured["repeat"])
    assert repeats["output_tokens_per_s"] == pytest.approx(list(measured["output_tokens_per_s"]), rel=1e-4)
    assert set(repeats["mbu"]) == {0.5, 2}
    # A server's latencies count from the scheduled arrival.
    served = [place for place, cell in enumerate(repeats["cell"]) if "/vllm-serve/" in ids[cell]]
    assert {repeats["ttft_s_p50"][place] for place in served} == {0.1, 0.4, 1.6}
    assert "itl_s_p90" not in repeats, "a column without values is left out"


def test_rows_name_their_cells_and_every_measured_cell_has_its_rate_and_interval(data, cells, results):
    ids = values(data["cells"]["cell_id"])
    for table in ("limits", "predictions", "intervals"):
        assert {*data[table]["cell"]} <= {*range(len(ids))}, table
        assert len({len(values(column)) for column in data[table].values()}) == 1, table
    measured = set(cells.loc[cells["outcome"].eq("ok") & cells["engine"].ne("vllm-serve"), "cell_id"])
    of_rate = [i for i, name in enumerate(values(data["intervals"]["measure"])) if name == "output_tokens_per_s"]
    assert {ids[data["intervals"]["cell"][i]] for i in of_rate} == measured
    scopes = dict(zip(ids, values(data["cells"]["scope"]), strict=True))
    assert {cell for cell, scope in scopes.items() if scope == ONE_START} >= measured
    intervals = pd.read_parquet(results.root / "tables" / "intervals.parquet")
    means = intervals[intervals["measure"] == "output_tokens_per_s"].set_index("cell_id")["value"]
    rates = dict(zip(ids, data["values"]["output_tokens_per_s"], strict=True))
    assert {cell: rates[cell] for cell in means.index} == pytest.approx(means.to_dict(), rel=1e-4)
    per_hour = dict(zip(ids, data["cells"]["output_tokens_per_device_hour"], strict=True))
    assert all(per_hour[cell] == pytest.approx(3600 * rates[cell], rel=1e-3) for cell in means.index)


def test_a_device_whose_data_sheet_lacks_a_rate_has_the_share_of_its_measured_one(results, report, tmp_path):
    limits = in_table(report, "limits")
    of_one = limits[limits["rates"] == "datasheet"]
    assert len(of_one)
    both = pd.concat([of_one.assign(mbu=float("nan")), of_one.assign(rates="measured", mbu=0.25)])
    tables = changed(report, tmp_path / "tables", limits=both).tables.folder
    assert results.write_page(tmp_path / "report.html", tables=tables) == 0
    assert set(data_of((tmp_path / "report.html").read_text(encoding="utf-8"))["repeats"]["mbu"]) == {0.25}


def test_a_server_keeps_the_intervals_that_its_own_table_does_not_have(tmp_path):
    ends = {"ttft_s_p50": [1.0], "ttft_s_p50_low": [0.9], "ttft_s_p50_high": [1.1]}
    served = pd.DataFrame({"cell_id": ["a"], "repeats": [3], "scope": ONE_START, **ends})
    rows = {"cell_id": "a", "measure": ["ttft_s_p50", "energy_j_per_output_token"], "value": 2.0, "low": 1.9}
    others = pd.DataFrame(rows | {"high": 2.1, "repeats": 3, "scope": ONE_START})
    report = written(report_of(tmp_path), serving_summary=served, intervals=others)
    found = _intervals(report, pd.Series([0], index=["a"])).set_index("measure")["value"]
    assert found.to_dict() == {"ttft_s_p50": 1.0, "energy_j_per_output_token": 2.0}


def test_the_page_holds_timelines_of_its_cells_up_to_a_size(results):
    all_of_them = timelines(results.tables)
    assert sum(map(len, all_of_them.values())) <= MOST_BYTES
    held = dict(re.findall(r'<template class="timeline" data-cell="([^"]*)">([^<]*)</template>', results.html))
    assert held == all_of_them
    few = timelines(results.tables, 30_000)
    assert 0 < len(few) < len(all_of_them)
    assert sum(map(len, few.values())) <= 30_000
    # The fastest cell of each place comes before the second fastest of any.
    places = [cell.rsplit("/", 1)[0] for cell in all_of_them]
    assert len(set(places[: len(set(places))])) == len(set(places))


def test_a_timeline_has_every_repeat_with_all_rows_or_evenly_chosen_ones(results):
    cell = "l40s/vllm/llama-3.1-8b-instruct/chat/bs16-seqs16-len4096"
    timeline = unpacked(timelines(results.tables)[cell])
    requests = timeline["requests"]["columns"]
    assert timeline["requests"]["rows"] == len(requests["repeat"]) == 3 * 64
    assert values(requests["queued_s"])[:3] == [0, 0.1, 0.2]
    assert len(timeline["steps"]["columns"]["time_s"]) == 3 * 60
    assert all(most >= 64 for most in MOST_POINTS.values())
