"""Servers in one figure: what distinguishes them, and which of them need a warning."""

from pathlib import Path

import pandas as pd
import pytest
from matplotlib.collections import LineCollection

from tests.unit.present.conftest import report_of, told, written
from workflow_scripts.page.blocks import Table
from workflow_scripts.page.plot import use_style, write_plot
from workflow_scripts.questions.serving import section as serving
from workflow_scripts.tables.results import MissingError, Tables


def write(folder: Path, *servers: tuple[str, str | None, dict[str, object], list[float]]) -> Tables:
    """Tables of servers, each with its engine, endpoint, knobs and the numbers of users that it was measured with."""
    cells, rows = [], []
    for i, (engine, endpoint, knobs, loads) in enumerate(servers):
        for users in loads:
            place = {"gpu": "h200", "model": "m", "workload": "w", "engine": engine, "cell_id": f"{i}/{users}"}
            place |= {"start": 1, "repeat": 0, "source": "measured"}
            settings = {f"knob_{name}": value for name, value in {**knobs, "users": users}.items()}
            cells.append({**place, **settings, "outcome": "ok", "comparable": True})
            numbers = dict.fromkeys(("users", *serving.LATENCIES, *serving.RATES), users)
            rows.append({**place, **numbers, "endpoint": endpoint})
    of_cells = pd.DataFrame(rows)
    return written(
        report_of(folder),
        cells=pd.DataFrame(cells),
        serving=of_cells,
        serving_summary=of_cells.drop(columns=["start", "repeat"]),
    ).tables


def labels(plot: serving.Plot) -> list[str]:
    return [str(handle.get_label()) for handle in plot.handles]


@pytest.mark.filterwarnings("error")
def test_servers_are_told_apart_by_their_names_and_by_what_differs_among_their_own_settings(tmp_path):
    tables = write(
        tmp_path,
        ("vllm-serve", None, {"block_size": 16, "max_num_seqs": 8}, [1.0, 4.0]),
        ("vllm-serve", None, {"block_size": 32, "max_num_seqs": 8}, [1.0, 4.0]),
        ("openai", "tgi", {}, [1.0, 4.0]),
    )
    servers = ["vllm-serve, block size 16", "vllm-serve, block size 32", "tgi"]
    latency = serving.serving_latency(tables)
    assert labels(latency)[:3] == servers
    assert "users" in serving.serving_throughput(tables).panels[0].title
    # Nothing is saturated; the figure fits a column.
    use_style()
    write_plot(latency, tmp_path, "latency")


def test_more_than_six_settings_are_some_of_them_and_it_is_said(tmp_path):
    many = [("vllm-serve", None, {"block_size": 16 * i}, [1.0, 4.0]) for i in range(1, 9)]
    plot = serving.serving_latency(write(tmp_path, *many))
    assert sum("block size" in label for label in labels(plot)) == 6
    assert any("6 settings" in note for note in plot.notes)
    with pytest.raises(MissingError, match="no server"):  # a single load is no curve
        serving.serving_latency(write(tmp_path, ("openai", "tgi", {}, [4.0])))


LOAD = {"gpu": "h200", "model": "m", "workload": "w", "engine": "vllm-serve", "endpoint": None}
LOAD |= {"requests_per_s": 1.0, "arrivals_per_s": None}
LOAD |= dict.fromkeys(("queue_growth_per_s", "client_lag_s_p99", "client_cpu_cores"), 0.5)


def sustained(folder: Path, *loads: dict[str, object]) -> list[tuple[str, str]]:
    """What is told of servers, each load with what differs from that of one server at an open rate."""
    one = {**LOAD, "saturated": False, "limited_by": "load"}
    rows = pd.DataFrame([{**one, **load, "cell_id": str(i)} for i, load in enumerate(loads)])
    rows = rows.assign(requests_per_s=rows["answered"], ttft_s_p50=0.1234, ttft_s_p99=0.5678)
    cells = pd.DataFrame({"cell_id": rows["cell_id"], "outcome": "ok", "knob_request_rate_per_s": 1.0})
    cells = cells.assign(knob_block_size=rows.get("block_size", 16))
    summary = rows.drop(columns=["answered", "block_size"], errors="ignore").astype({"saturated": "boolean"})
    return told(serving.sustained, written(report_of(folder), serving_summary=summary, cells=cells))


def rate(per_s: float, answered: float, **others: object) -> dict[str, object]:
    return {"request_rate_per_s": per_s, "answered": answered, **others}


def test_what_a_server_sustains_lies_between_the_most_it_kept_up_with_and_the_least_it_did_not(tmp_path):
    too_much = {"saturated": True, "limited_by": "server"}
    ((verdict, sentence),) = sustained(
        tmp_path, rate(16, 7.5, **too_much), rate(1, 1.0), rate(4, 4.0), rate(8, 7.456, **too_much)
    )
    assert verdict == "sustains 4, not 8 requests/s"
    assert all(number in sentence for number in ("answered 7.46 requests/s", "123 ms", "568 ms"))


TOO_SHORT = {"saturated": None, "limited_by": "unknown"}


@pytest.mark.parametrize(
    ("loads", "verdict"),
    [
        ([rate(1, 1.0), rate(4, 4.0)], "sustains 4 requests/s"),
        ([rate(8, 3.0, saturated=True), rate(4, 3.0, saturated=True)], "does not sustain 4 requests/s"),
        ([rate(32, 10.0, **TOO_SHORT)], "not decided"),
        ([rate(1, 1.0), rate(32, 10.0, **TOO_SHORT)], "sustains 1 requests/s"),
    ],
)
def test_a_server_that_was_never_or_always_saturated_has_one_bound(tmp_path, loads, verdict):
    ((found, _),) = sustained(tmp_path, *loads)
    assert found == verdict
    with pytest.raises(MissingError, match="the client could"):
        sustained(tmp_path, rate(64, 9.0, saturated=True, limited_by="client,server"))


def test_every_load_that_was_not_kept_up_with_is_a_finding_and_one_that_needs_a_warning_first(tmp_path):
    """That a closed loop or a short run saturates is not known."""
    loads = [(None, "server"), (None, "unknown"), (False, "load"), (True, "server"), (None, "client,server")]
    rows = pd.DataFrame(loads, columns=["saturated", "limited_by"]).assign(**LOAD, knobs="bs16")
    rows["cell_id"] = list("abcde")
    rows = rows.astype({"saturated": "boolean", "limited_by": "string"})
    cells = rows[["cell_id", "gpu", "engine", "model", "workload", "knobs"]].assign(outcome="ok", knob_block_size=16)
    report = written(report_of(tmp_path), serving_summary=rows, cells=cells)
    verdicts = [verdict for verdict, _ in told(serving.load_findings, report)]
    assert verdicts == ["saturated", "limited by client and server", "limited by server", "not decided"]


def test_servers_settings_ramps_and_users_are_told_apart(tmp_path):
    found = sustained(
        tmp_path,
        rate(1, 1.0, block_size=16),
        rate(2, 2.0, block_size=32),
        rate(3, 3.0, block_size=16, endpoint="tgi"),
        rate(1, 4.0, block_size=16, ramp_to_per_s=16),
        {"users": 1, "answered": 1.0, "block_size": 16},
        {"users": 8, "answered": 5.0, "block_size": 16},
        {"users": 4, "answered": 3.0, "block_size": 32},
    )
    sustains = [f"sustains {rate} requests/s" for rate in (1, 2, 3)]
    # Servers with several loads stand first.
    assert [verdict for verdict, _ in found] == ["1 to 8 users", *sustains, "ramp", "4 users"]
    servers = [sentence.split(": ")[0].removeprefix("h200, m, w, ") for _, sentence in found[1:4]]
    assert servers == ["vllm-serve, block size 16", "vllm-serve, block size 32", "tgi"]
    assert all(f"{users} it answered {rate} requests/s" in found[0][1] for users, rate in (("user", 1), ("users", 5)))


def test_a_setting_at_one_load_has_strokes_in_the_styles_of_its_latencies(tmp_path, axes_of):
    servers = [("vllm-serve", None, {"block_size": 16}, [1.0, 4.0]), ("vllm-serve", None, {"block_size": 32}, [2.0])]
    ax = axes_of(serving.serving_latency(write(tmp_path, *servers)))
    lines = [c for c in ax.collections if isinstance(c, LineCollection) and len(c.get_segments()[0])]
    strokes = [c for c in lines if (c.get_segments()[0][:, 1] == 2000).all()]
    wide = [c for c in strokes if len(c.get_segments()[0]) and c.get_segments()[0][0, 0] < c.get_segments()[0][1, 0]]
    assert len({str(c.get_linestyle()) for c in wide}) == len(serving.LATENCIES)


def test_max_num_seqs_is_put_against_the_rate_for_each_measure(tmp_path):
    settings = [(seqs, rate) for seqs in (4, 64) for rate in (2.0, 10.0)] + [(64, 20.0)]
    rows = [
        {
            **{"gpu": "h200", "engine": "vllm-serve", "model": "m", "workload": "w", "cell_id": f"{seqs}/{rate}"},
            **{"ttft_s_p50": rate / seqs, "tpot_s_p50": 0.02, "saturated": seqs == 4 and rate == 10},
        }
        for seqs, rate in settings
    ]
    summary = pd.DataFrame(rows)
    cells = pd.DataFrame({"cell_id": summary["cell_id"], "outcome": "ok", "comparable": True, "knob_block_size": 16})
    cells[[serving.SEQUENCES, serving.ARRIVALS]] = settings
    report = written(report_of(tmp_path), serving_summary=summary, cells=cells)
    ttft, _ = serving.sequences_by_rate(report)
    assert isinstance(ttft, Table)
    assert ttft.caption.startswith("Median TTFT")
    assert ttft.rows == [["4", "500", "2,500 *", "–"], ["64", "31.25", "156.2", "312.5"]]
    one_rate = written(report, cells=cells.assign(**{serving.ARRIVALS: 2.0}))
    assert list(serving.sequences_by_rate(one_rate)) == []


def test_the_wait_for_the_answer_is_told_by_workload_beside_that_for_the_first_token(tmp_path):
    rows = pd.DataFrame({"workload": ["b-16", "b-32", "chat"], "ttft_s_p50": 0.03, "ttfa_s_p50": [0.12, 0.42, None]})
    rows = rows.assign(gpu="h200", engine="vllm-serve", model="m", knobs="users1", cell_id=rows["workload"])
    report = written(report_of(tmp_path), serving_summary=rows, cells=rows.assign(outcome="ok", knob_users=1))
    ((verdict, sentence),) = told(serving.answers_after_reasoning, report)
    assert verdict == "answer after 120 to 420 ms"
    assert all(told in sentence for told in ("30 ms and 120 ms with b-16", "30 ms and 420 ms with b-32"))
    chats = written(report, serving_summary=rows.tail(1))
    assert told(serving.answers_after_reasoning, chats) == []
