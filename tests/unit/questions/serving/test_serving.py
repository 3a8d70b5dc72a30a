"""Latency, goodput and limits of servers, from requests made up for the purpose."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.unit.questions.parsed_tables import repeated, served, started, write_parsed
from tests.unit.questions.synthetic_cells import cell, table
from workflow_scripts.questions.serving.table import (
    SCHEMA,
    SUMMARY_SCHEMA,
    e2e_grows,
    load_kind,
    serving_tables,
    summarise_pass,
)
from workflow_scripts.statistics.comparisons import own_interval
from workflow_scripts.tables.parsed_facts import REPEAT

OPEN = {"request_rate_per_s": 2.0, "users": np.nan}
CLOSED = {"request_rate_per_s": np.nan, "users": 2}
ARRIVALS = np.arange(40) / 2


def prompt_server(**options):
    """Answers each request within 0.6 s: a first token after 0.1 s and ten more, 0.05 s each."""
    return served(ARRIVALS, ARRIVALS + 0.1, ARRIVALS + 0.6, **options)


def test_latencies_count_from_the_scheduled_arrival_also_where_a_request_was_sent_late():
    found = summarise_pass(prompt_server(sent=ARRIVALS + 0.04), OPEN, {})
    expected = {"ttft_s_p50": 0.1, "tpot_s_p99": 0.05, "itl_s_p90": 0.05, "e2e_s_p99": 0.6}
    expected |= {"client_lag_s_p99": 0.04, "arrivals_per_s": 2.0}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["load"] == "open loop"
    # Gaps between tokens are pooled over requests: 390 gaps of 0.05 s and as many of 1 s.
    slow = prompt_server()
    slow.at[0, "itl_s"] = [1.0] * 390
    assert summarise_pass(slow, OPEN, {})["itl_s_p50"] == pytest.approx(0.525)


HALF = ARRIVALS + np.where(np.arange(40) % 2, 0.1, 0.3)


@pytest.mark.parametrize(
    ("requests", "slo", "kept"),
    [
        (prompt_server(), {"ttft_s": 0.11}, 1.0),
        (prompt_server(), {"ttft_s": 0.09}, 0.0),
        (prompt_server(), {"ttft_s": 0.11, "tpot_s": 0.04}, 0.0),
        (prompt_server(), {"e2e_s": 0.7}, 1.0),
        (prompt_server(), {}, np.nan),
        (served(ARRIVALS, HALF, HALF + 0.5), {"ttft_s": 0.2}, 0.5),
        # A request of one token keeps a bound on further ones.
        (served(ARRIVALS, ARRIVALS + 0.1, ARRIVALS + 0.1, outputs=1), {"tpot_s": 0.01}, 1.0),
    ],
)
def test_a_request_counts_for_goodput_if_it_keeps_every_bound(requests, slo, kept):
    assert summarise_pass(requests, OPEN, slo)["slo_attainment"] == pytest.approx(kept, nan_ok=True)


def test_an_answer_that_came_in_one_piece_has_no_time_between_tokens():
    """Half of the answers are seen at their end alone: theirs is no time of 0 s."""
    first = ARRIVALS + np.where(np.arange(40) % 2, 0.6, 0.1)
    found = summarise_pass(served(ARRIVALS, first, ARRIVALS + 0.6), OPEN, {})
    assert found["tpot_s_p50"] == pytest.approx(0.05)
    assert found["ttft_s_p90"] == pytest.approx(0.6)
    assert np.isnan(summarise_pass(served(ARRIVALS, ARRIVALS + 1, ARRIVALS + 1), OPEN, {})["tpot_s_p50"])


def test_the_first_token_of_the_answer_comes_after_reasoning():
    assert np.isnan(summarise_pass(prompt_server(), OPEN, {})["ttfa_s_p50"])
    found = summarise_pass(prompt_server(first_answer_s=ARRIVALS + 0.35), OPEN, {})
    assert (found["ttft_s_p50"], found["ttfa_s_p50"]) == pytest.approx((0.1, 0.35))


LENGTHS = np.tile([10.0, 40.0], 20)
LONGER = np.arange(40) + LENGTHS  # the later, the longer


@pytest.mark.parametrize(
    ("e2e_s", "lengths", "grows"),
    [
        (0.1 * LENGTHS, LENGTHS, False),
        (0.3 * LONGER, LONGER, False),
        (0.1 * LENGTHS + 0.2 * ARRIVALS, LENGTHS, True),
        (0.1 * LENGTHS + 0.05 * ARRIVALS, LENGTHS, False),
        (1 + 0.2 * ARRIVALS, np.full(40, 8.0), True),
        (1 - 0.2 * ARRIVALS, np.full(40, 8.0), False),
        (1 + 0.2 * ARRIVALS[:5], np.full(5, 8.0), False),
    ],
)
def test_later_requests_that_take_longer_are_told_from_longer_ones(e2e_s, lengths, grows):
    assert e2e_grows(ARRIVALS[: len(e2e_s)], e2e_s, lengths) == grows


@pytest.mark.parametrize(
    ("asked", "queued", "sent", "kind"),
    [
        (OPEN, [0.0, 1.0], [0.0, 1.1], "open loop"),
        (CLOSED, [0.0, 1.0], [0.0, 1.0], "closed loop"),
        (CLOSED, [0.0], [0.0], "closed loop"),
        (CLOSED, [0.0, 1.0], [0.001, 1.1], "replay"),
        ({**CLOSED, "users": np.nan}, [0.0, 1.0], [0.0, 1.1], "replay"),
        ({**CLOSED, "users": np.nan}, [0.0, 0.0], [0.0, 0.1], "all at once"),
    ],
)
def test_kinds_of_load(asked, queued, sent, kind):
    assert load_kind(asked, np.array(queued), np.array(sent)) == kind


def tables(tmp_path, knobs, requests, of_repeat=(), slo=None, **columns):
    """The two tables of one cell with these requests in each of its repeats."""
    columns = {"num_requests": 40, "wall_s": 20.0, "requests_per_s": 2.0, "memory_used_bytes_max": 5e9, **columns}
    knobs = {"max_num_seqs": 4, **knobs}
    cells = cell(knobs, [22.0] * len(requests), engine="vllm-serve", gpu="cpu-all", **columns)
    passes = (r.assign(**{at: row[at] for at in REPEAT}) for r, row in zip(requests, cells, strict=True))
    write_parsed(tmp_path / "cpu-all", "requests", *passes)
    starts = started(cells[0]["cell_id"], device_memory_total_bytes=20_000_000_000)
    write_parsed(tmp_path / "cpu-all", "starts", starts)
    write_parsed(tmp_path / "cpu-all", "repeats", repeated(cells[0]["cell_id"], *of_repeat or [{}] * len(requests)))
    found, summary = serving_tables(table(cells), tmp_path, slo or {})
    return SCHEMA.validate(found), SUMMARY_SCHEMA.validate(summary)


def one_after_the_other():
    """Requests that come every 0.5 s and take 1 s each, one after the other."""
    last = 1 + np.arange(40, dtype=float)
    return served(ARRIVALS, last - 0.5, last)


OPEN_LOAD = {"request_rate_per_s": 2.0}


def test_a_server_that_keeps_up_is_limited_by_its_load_and_another_by_itself(tmp_path):
    rows, summary = tables(tmp_path / "keeps up", OPEN_LOAD, [prompt_server()] * 2, slo={"ttft_s": 0.2})
    row = rows.iloc[0]
    assert (row["limited_by"], row["saturated"]) == ("load", False)
    assert (row["goodput_requests_per_s"], row["slo"], row["memory_utilization"]) == (2.0, "TTFT <= 200 ms", 0.25)
    assert summary[["repeats", "saturated"]].to_numpy().tolist() == [[2, False]]
    assert summary["ttft_s_p50"].tolist() == pytest.approx([0.1])


BURST = np.append(np.arange(30.0), 29.5 + np.arange(10) / 100)
IN_TURN = np.repeat(np.arange(20.0), 2)


def held_back(until, seconds=0.6):
    """Requests that the client sends no earlier than this, and that are answered in so many seconds."""
    sent = np.maximum(ARRIVALS, until)
    return served(ARRIVALS, sent + 0.1, sent + seconds, sent=sent)


def in_its_own_time(lengths):
    """Each request is answered in its own time, however many there are; they come within 5 s."""
    arrivals = np.arange(40) / 8
    return served(arrivals, arrivals + 0.1, arrivals + lengths, outputs=lengths.astype(int) * 10)


@pytest.mark.parametrize(
    ("knobs", "requests", "requests_per_s", "limited_by", "saturated"),
    [
        (OPEN_LOAD, one_after_the_other(), 1.0, "server", True),
        # A queue that a burst at the end leaves is cleared quickly.
        (OPEN_LOAD, served(BURST, BURST + 0.1, BURST + 0.6), 40 / 30.2, "load", False),
        # A run shorter than its answers does not say what the server sustains.
        (OPEN_LOAD, in_its_own_time(np.full(40, 10.0)), 40 / 19, "unknown", None),
        (OPEN_LOAD, in_its_own_time(np.tile([6.0, 14.0], 20)), 40 / 19, "unknown", None),
        # A cap, or a client that saturates, is not put on the server.
        (OPEN_LOAD | {"users": 1}, held_back(np.arange(40), 0.9), 1.0, "users", True),
        (OPEN_LOAD, held_back(np.arange(40), 0.9), 1.0, "client", True),
        (OPEN_LOAD | {"users": 1}, held_back(np.arange(40) * 0.6), 2.0, "users", False),
        # Users wait for the server, and a replay may be capped to users too.
        ({"users": 2}, served(IN_TURN, IN_TURN + 0.1, IN_TURN + 1), 2.0, "server", None),
        ({"users": 1}, held_back(np.arange(40) * 0.6 + 0.001), 2.0, "users", False),
    ],
)
def test_what_limits_a_load(tmp_path, knobs, requests, requests_per_s, limited_by, saturated):
    rows, summary = tables(tmp_path, knobs, [requests], wall_s=40 / requests_per_s, requests_per_s=requests_per_s)
    row = rows.iloc[0]
    assert (row["limited_by"], row["saturated"] if pd.notna(row["saturated"]) else None) == (limited_by, saturated)
    assert (summary["limited_by"][0], summary["saturated"].isna()[0]) == (limited_by, saturated is None)
    assert pd.isna(row["arrivals_per_s"]) == (row["load"] == "closed loop")


def test_an_interval_over_several_cards_is_said_to_be(tmp_path):
    of_starts = {"start": [1, 2], "round": [1, 2], "device_uuid": ["GPU-1", "GPU-2"]}
    _, summary = tables(tmp_path, OPEN_LOAD, [prompt_server()] * 2, **of_starts)
    assert summary["scope"].tolist() == ["between cards"]


def test_few_requests_have_a_row_and_say_nothing_of_what_the_server_sustains(tmp_path):
    few = served(queued=[0.0, 0.5], first=[0.1, 0.6], last=[1.0, 1.5])
    rows, summary = tables(tmp_path / "few", {"users": 1}, [few], num_requests=2)
    assert (len(rows), len(summary)) == (1, 1)
    one = served([0.0], [0.1], [0.6], sent=[0.001])
    rows, summary = tables(tmp_path / "one", OPEN_LOAD, [one], num_requests=1, requests_per_s=1.6)
    assert rows["limited_by"].tolist() == ["unknown"]
    assert summary["e2e_s_p50"].tolist() == pytest.approx([0.6])


@pytest.mark.parametrize("count", [120, 90])
def test_a_99th_percentile_is_a_mean_over_starts_of_many_requests(tmp_path, count):
    arrivals = np.arange(count) / 2
    requests = [served(arrivals, arrivals + first, arrivals + 0.6) for first in (0.1, 0.2)]
    _, summary = tables(tmp_path, OPEN_LOAD, requests, num_requests=count, start=[1, 2], round=[1, 2])
    assert summary["ttft_s_p99"][0] == pytest.approx(0.02**0.5 if count >= 100 else np.nan, nan_ok=True)


@pytest.mark.parametrize("starts", [[1, 1, 2], [1, 2, 3]])
def test_a_median_latency_has_an_interval_by_its_own_starts_and_below_three_a_range(tmp_path, starts):
    arrivals, firsts = np.arange(40) / 2, [0.1, 0.2, 0.4]
    requests = [served(arrivals, arrivals + first, arrivals + 0.6) for first in firsts]
    _, summary = tables(tmp_path, OPEN_LOAD, requests, num_requests=40, start=starts, round=starts)
    value, low, high = summary[["ttft_s_p50", "ttft_s_p50_low", "ttft_s_p50_high"]].iloc[0]
    if starts[-1] == 3:
        half = stats.t.ppf(0.975, 2) * np.log(2) / 3**0.5
        assert np.log([low, value, high]) == pytest.approx(np.log(0.2) + half * np.array([-1, 0, 1]))
    else:
        # Of two repeats of a start and one of another.
        assert [low, value, high] == pytest.approx([0.1, np.sqrt(np.sqrt(0.1 * 0.2) * 0.4), 0.4])


@pytest.mark.parametrize(("queued", "sd"), [(0.0, 0.01), (0.3, 0.3), (0.7, 1.0), (1.0, 1.0)])
def test_a_median_latency_is_covered_below_saturation_and_near_it(queued, sd):
    """In some starts a queue makes most requests wait, so their median is many times that of the others."""
    rng, starts = np.random.default_rng(1), (1000, 3)
    logs = rng.normal(0, 0.02, starts) + np.where(rng.random(starts) < queued, np.abs(rng.normal(0, sd, starts)), 0)
    many = rng.normal(0, 0.02, 10**5) + np.where(rng.random(10**5) < queued, np.abs(rng.normal(0, sd, 10**5)), 0)
    _, low, high = np.log(own_interval(logs))
    assert ((low <= np.median(many)) & (np.median(many) <= high)).mean() >= 0.88
    assert queued or np.median(high - low) / 2 <= 0.15


def test_a_repeat_that_is_too_short_leaves_open_what_the_others_do_not_show(tmp_path):
    short = served(ARRIVALS / 4, ARRIVALS / 4 + 0.1, ARRIVALS / 4 + 10)
    repeats, rates = [prompt_server(), short, one_after_the_other()], [2.0, 2.1, 1.0]
    for number, saturated in ((2, pd.NA), (3, True)):
        _, summary = tables(tmp_path / str(number), OPEN_LOAD, repeats[:number], requests_per_s=rates[:number])
        assert summary["saturated"].tolist() == [saturated]


@pytest.mark.parametrize(("growing_s", "grows"), [(0.2, True), (0.05, False)])
def test_growth_is_measured_by_the_rate_and_length_of_the_second_half(growing_s, grows):
    """20 requests come in 20 s and as many in one; a queue that grows by 1 a second is little to these."""
    arrivals = np.concatenate([np.arange(20.0), 20 + np.arange(20) / 20])
    last = arrivals + 0.01 + np.concatenate([np.zeros(20), growing_s * np.arange(20) / 20])
    found = summarise_pass(served(arrivals, last, last, outputs=1), OPEN, {})
    assert found["queue_growth_per_s"] > 0.1 * 39 / 20.95
    assert found["queue_grows"] == grows


def test_a_cell_is_summed_up_by_its_worst_repeat(tmp_path):
    late = prompt_server(sent=ARRIVALS + 0.05)
    repeats = [prompt_server(), late, one_after_the_other()]
    rows, summary = tables(tmp_path / "all", OPEN_LOAD, repeats, requests_per_s=[2.0, 2.0, 1.0])
    assert rows["limited_by"].tolist() == ["load", "client", "server"]
    assert rows["client_lag_s_p99"].tolist() == pytest.approx([0, 0.05, 0])
    assert summary[["limited_by", "saturated"]].to_numpy().tolist() == [["client,load,server", True]]
    cpu = [{"client_cpu_s": 19.0}]
    rows, _ = tables(tmp_path / "busy", OPEN_LOAD, [prompt_server()], of_repeat=cpu)
    assert (rows["limited_by"][0], rows["client_cpu_cores"][0]) == ("client", pytest.approx(0.95))


def test_only_cells_of_servers_that_ended_ok_have_rows(tmp_path):
    offline = cell({"max_num_seqs": 4}, (1.0,), gpu="cpu-all")
    broken = cell({"request_rate_per_s": 2.0}, (1.0,), engine="vllm-serve", gpu="cpu-all", outcome="engine_error")
    rows, summary = serving_tables(table(offline, broken), tmp_path, {})
    assert rows.empty
    assert SUMMARY_SCHEMA.validate(summary).empty
