"""Rates, latencies, concurrency, memory and energy of a repeat, by hand-worked numbers."""

import pandas as pd
import pytest

from workflow_scripts.analyse.cells.timeline import (
    REPEAT,
    request_facts,
    running_over_time,
    steady_rate,
    step_facts,
    trace_facts,
)

REQUEST = ("request_id", "prompt_tokens", "output_tokens", "queued_s", "scheduled_s", "first_token_s", "last_token_s")


def requests(*rows: tuple[object, ...], preemptions: int | None = 0, cached: object = None) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=REQUEST).assign(cell_id="c", start=1, repeat=0, preemptions=preemptions)
    frame["cached_prompt_tokens"] = cached
    counts = ("prompt_tokens", "output_tokens", "preemptions", "cached_prompt_tokens")
    return frame.astype(dict.fromkeys(counts, "Int64"))


def began(times_s: dict[tuple[str, int], float | None]) -> pd.Series:
    """When the first request of each repeat was scheduled."""
    return pd.Series(times_s, index=pd.MultiIndex.from_tuples(times_s, names=REPEAT), dtype="Float64")


NO_STEPS = pd.DataFrame(columns=[*REPEAT, "time_s", "generation_tokens"])
RATE = "steady_output_tokens_per_s"


def steady(table: pd.DataFrame, **allowed: int) -> pd.Series:
    return steady_rate(table, NO_STEPS, pd.Series(allowed))[RATE]


NOT_KNOWN = began({("c", 1, 0): None})


def only(frame: pd.DataFrame) -> pd.Series:
    assert frame.index.tolist() == [("c", 1, 0)]
    return frame.iloc[0]


def test_latencies_count_from_being_queued():
    facts = only(request_facts(requests(("0", 10, 5, 1.0, 2.0, 4.0, 8.0), ("1", 20, 1, 0.0, 1.0, 3.0, 3.0))))
    expected = {"num_requests": 2, "prompt_tokens": 30, "output_tokens": 6, "preemptions": 0}
    expected |= {"ttft_s_p50": 3, "e2e_s_p50": 5, "e2e_s_p99": 3 + 0.99 * 4, "decode_s_mean": 2}
    expected |= {"tpot_s_p50": 1}  # 4 s for four tokens after the first; one token has no TPOT
    expected |= {"prefill_s_mean": 2, "prefill_s_p50": 2, "queue_s_mean": 1, "queue_s_p50": 1}
    assert facts[list(expected)].to_dict() == pytest.approx(expected)


def test_an_answer_that_was_seen_at_one_moment_has_no_tpot():
    facts = only(request_facts(requests(("0", 10, 5, 0.0, 0.0, 4.0, 8.0), ("1", 10, 5, 0.0, 0.0, 9.0, 9.0))))
    assert facts["tpot_s_p50"] == pytest.approx(1.0)


def test_requests_that_found_a_prefix_are_counted_where_the_engine_tells():
    rows = [(str(i), 10, 5, 0.0, 0.0, 1.0, 2.0) for i in range(3)]
    assert only(request_facts(requests(*rows, cached=[0, 8, 4])))["requests_with_prefix_hits"] == 2
    assert only(request_facts(requests(*rows, cached=[0, 0, 0])))["requests_with_prefix_hits"] == 0
    assert pd.isna(only(request_facts(requests(*rows)))["requests_with_prefix_hits"])


def test_quantiles_lie_between_the_values():
    # Times to the first token of 0 to 10 s, four tokens a request in 4, 8, ..., 44 s after it.
    rows = [(str(i), 1, 5, 0.0, 0.0, float(i), float(i + 4 * (i + 1))) for i in range(11)]
    facts = only(request_facts(requests(*rows)))
    assert facts[["ttft_s_p50", "ttft_s_p90", "ttft_s_p99"]].tolist() == pytest.approx([5, 9, 9.9])
    assert facts[["tpot_s_p50", "tpot_s_p99"]].tolist() == pytest.approx([6, 10.9])
    assert facts[["e2e_s_p50", "e2e_s_p99"]].tolist() == pytest.approx([29, 53.5])


def test_cells_and_repeats_are_kept_apart():
    one = requests(("0", 10, 2, 0.0, 0.0, 1.0, 2.0), ("1", 10, 2, 0.0, 0.0, 1.0, 2.0))
    late = requests(("0", 30, 4, 10.0, 11.0, 13.0, 19.0), preemptions=3)
    table = pd.concat([late.assign(cell_id="d"), one.assign(repeat=1), one])
    facts = request_facts(table)
    assert facts["num_requests"].to_dict() == {("c", 1, 0): 2, ("c", 1, 1): 2, ("d", 1, 0): 1}
    assert facts.loc[("d", 1, 0), ["prompt_tokens", "output_tokens", "preemptions"]].tolist() == [30, 4, 3]
    assert facts.loc[("d", 1, 0), ["ttft_s_p50", "prefill_s_mean", "decode_s_mean"]].tolist() == [3, 2, 6]
    running = running_over_time(table)
    assert running["running_peak"].to_dict() == {("c", 1, 0): 2, ("c", 1, 1): 2, ("d", 1, 0): 1}
    assert running["running_mean"].to_dict() == {("c", 1, 0): 2, ("c", 1, 1): 2, ("d", 1, 0): 1}


def test_an_engine_that_counts_no_preemptions_is_not_one_without():
    assert pd.isna(only(request_facts(requests(("0", 1, 1, 0.0, 0.0, 1.0, 1.0), preemptions=None)))["preemptions"])


def test_running_is_counted_between_scheduling_and_last_token():
    facts = only(
        running_over_time(
            requests(("0", 1, 1, 0.0, 0.0, 1.0, 4.0), ("1", 1, 1, 0.0, 2.0, 3.0, 4.0), ("2", 1, 1, 0.0, 4.0, 5.0, 6.0))
        )
    )
    assert facts["running_peak"] == 2  # the third starts at the instant when the others end
    assert facts["running_mean"] == pytest.approx((1 * 2 + 2 * 2 + 1 * 2) / 6)


def test_a_request_without_its_times_does_not_run():
    known, unknown = ("0", 1, 1, 0.0, 0.0, 1.0, 4.0), ("1", 1, 1, 0.0, 2.0, 3.0, None)
    facts = only(running_over_time(requests(known, unknown, preemptions=None)))
    assert facts[["running_peak", "running_mean"]].tolist() == [1, 1]


def test_a_gap_in_which_nothing_runs_counts_for_the_mean():
    facts = only(running_over_time(requests(("0", 1, 1, 0.0, 0.0, 0.1, 0.2), ("1", 1, 1, 0.0, 0.6, 0.7, 0.8))))
    assert facts["running_mean"] == pytest.approx(0.5)


def test_no_time_has_no_mean():
    facts = only(running_over_time(requests(("0", 1, 1, 0.0, 1.0, 1.0, 1.0))))
    assert pd.isna(facts["running_mean"])


def test_the_steady_rate_leaves_out_ramp_and_tail():
    # Two at once, one token a second each: full from the second's first token (2 s) until one is left (8 s).
    rows = [
        ("0", 1, 5, 0.0, 0.0, 1.0, 5.0),
        ("1", 1, 5, 0.0, 1.0, 2.0, 6.0),
        ("2", 1, 3, 0.0, 5.0, 6.0, 8.0),
        ("3", 1, 5, 0.0, 6.0, 7.0, 11.0),
    ]
    rate = steady(requests(*rows), c=2)
    # In 2..8 s: request 0 makes 3, request 1 its first and 4, request 2 its first and 2, request 3 its first and 1.
    assert rate.loc[("c", 1, 0)] == pytest.approx((3 + 5 + 3 + 2) / 6)


def test_recorded_steps_say_when_tokens_came():
    # Two at once; their steps take 1 s up to 3 s and 0.5 s from then on. Full from 2 s (both have a token) to 4.5 s.
    rows = [
        ("0", 1, 6, 0.0, 0.0, 1.0, 4.5),
        ("1", 1, 3, 0.0, 1.0, 2.0, 3.5),
        ("2", 1, 2, 0.0, 3.5, 4.0, 4.5),
        ("3", 1, 3, 0.0, 4.5, 5.0, 6.0),
    ]
    of_steps = {
        "time_s": [1.0, 2.0, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0],
        "generation_tokens": [1, 2, 2, 2, 2, 2, 1, 1, 1],
    }
    steps = pd.DataFrame({"cell_id": "c", "start": 1, "repeat": 0} | of_steps)
    found = steady_rate(requests(*rows), steps, pd.Series({"c": 2}))
    assert only(found).to_dict() == pytest.approx({RATE: 8 / 2.5, "steady_s": 2.5, "steady_end_s": 4.5})
    # Steps that do not have all tokens say nothing.
    estimated = steady_rate(requests(*rows), steps[1:], pd.Series({"c": 2}))
    assert only(estimated)[RATE] == pytest.approx((5 * 2.5 / 3.5 + 3 + 2) / 2.5) == only(steady(requests(*rows), c=2))


def test_each_cell_has_its_own_window():
    # One after the other: full from the second's first token until the last but one is done.
    rows = [(str(i), 1, 3, 0.0, 3.0 * i, 3.0 * i + 1, 3.0 * i + 3) for i in range(4)]
    slow = [(*r[:3], *(2 * t for t in r[3:])) for r in rows]
    table = pd.concat([requests(*slow).assign(cell_id="d"), requests(*rows), requests(*rows).assign(repeat=1)])
    rates = steady(table, c=1, d=2, e=1)
    of_c = steady(requests(*rows), c=1).loc[("c", 1, 0)]
    # From 1 s to 12 s: 2 + 1 tokens of each of four, all of them inside.
    assert of_c == pytest.approx(4 * 3 / 11)
    # The second's first token at 8 s, the third's last at 18 s.
    assert rates.to_dict() == pytest.approx({("c", 1, 0): of_c, ("c", 1, 1): of_c, ("d", 1, 0): (3 + 3) / 10})


def test_requests_of_one_token_count_where_it_comes():
    rows = [(str(i), 1, 1, 0.0, float(i), float(i), float(i)) for i in range(4)]
    # From the second's token (1 s) to the third's (2 s), both inside.
    assert steady(requests(*rows), c=2).loc[("c", 1, 0)] == pytest.approx(2.0)


def test_twice_what_is_allowed_is_just_enough():
    rows = [(str(i), 1, 3, 0.0, 0.0, 1.0 + i / 10, 3.0 + i / 10) for i in range(4)]
    assert len(steady(requests(*rows), c=2)) == 1
    assert steady(requests(*rows[:3]), c=2).empty
    lost = [*rows[:3], (*rows[3][:5], None, 3.3)]
    assert steady(requests(*lost), c=2).empty


def test_a_window_without_length_has_no_rate():
    rows = [(str(i), 1, 1, 0.0, 0.0, 1.0, 1.0) for i in range(2)]
    assert steady(requests(*rows), c=1).isna().tolist() == [True]


def test_steps_weigh_with_the_time_they_last():
    steps = pd.DataFrame(
        {
            "cell_id": "c",
            "start": 1,
            "repeat": 0,
            "time_s": [0.0, 1.0, 4.0],
            "waiting": [3, 2, 0],
            "running": [1, 2, 6],
            "kv_cache_usage": [0.1, 0.2, 0.6],
            "recomputed_tokens": [None, 5, 7],
            "kv_tokens_live": [None, None, None],
            "kv_slots_reserved": [10, 20, 40],
            "kv_bytes_reserved": [10, 20, 40],
        }
    )
    facts = only(step_facts(steps, NOT_KNOWN))
    assert facts["waiting_peak"] == 3
    assert facts["running_while_others_wait"] == 2
    longer = only(step_facts(steps.assign(waiting=[3, 2, 1]), NOT_KNOWN))
    assert longer["running_while_others_wait"] == (2 * 1 + 6 * 3) / 4
    assert pd.isna(only(step_facts(steps.assign(waiting=0), NOT_KNOWN))["running_while_others_wait"])
    assert pd.isna(only(step_facts(steps.assign(waiting=None), NOT_KNOWN))["running_while_others_wait"])
    assert facts["recomputed_tokens"] == 12
    assert facts["kv_cache_usage_peak"] == 0.6
    assert facts["kv_cache_usage_mean"] == pytest.approx((0.2 * 1 + 0.6 * 3) / 4)
    assert facts["kv_slots_reserved_mean"] == pytest.approx((20 * 1 + 40 * 3) / 4)
    assert facts["kv_bytes_reserved_mean"] == facts["kv_slots_reserved_mean"]
    assert facts["kv_bytes_reserved_peak"] == 40
    assert pd.isna(facts["kv_tokens_live_mean"])


def test_steps_may_come_in_any_order_and_of_several_repeats():
    steps = pd.DataFrame(
        {
            "cell_id": ["c", "c", "d", "c", "d"],
            "start": 1,
            "repeat": 0,
            "time_s": [0.5, 0.0, 1.0, 0.1, 0.0],
            "waiting": [0, 2, 7, 1, 5],
            "running": 1,
            "recomputed_tokens": None,
            "kv_cache_usage": [0.5, 0.9, 0.4, 0.1, 0.2],
            "kv_tokens_live": [30.0, 10.0, None, 20.0, None],
            "kv_slots_reserved": [64, 64, 8, 64, 8],
            "kv_bytes_reserved": [64, 64, 8, 64, 8],
        }
    )
    facts = step_facts(steps, NOT_KNOWN)
    assert facts["waiting_peak"].to_dict() == {("c", 1, 0): 2, ("d", 1, 0): 7}
    assert facts["kv_cache_usage_peak"].to_dict() == {("c", 1, 0): 0.9, ("d", 1, 0): 0.4}
    assert facts["kv_cache_usage_mean"].to_dict() == pytest.approx({("c", 1, 0): (0.01 + 0.2) / 0.5, ("d", 1, 0): 0.4})
    assert facts["kv_slots_reserved_mean"].to_dict() == {("c", 1, 0): 64, ("d", 1, 0): 8}
    assert facts.loc[("c", 1, 0), "kv_tokens_live_mean"] == pytest.approx((20 * 0.1 + 30 * 0.4) / 0.5)
    assert pd.isna(facts.loc[("d", 1, 0), "kv_tokens_live_mean"])


def test_the_first_step_lasts_from_when_a_request_was_scheduled():
    # Prompts are read in 3 s, then two steps of 1 s; of the other cell nothing is known.
    steps = pd.DataFrame({"cell_id": ["c"] * 3 + ["d"] * 3, "start": 1, "repeat": 0, "time_s": [3.5, 4.5, 5.5] * 2})
    held = ["kv_cache_usage", "kv_tokens_live", "kv_slots_reserved", "kv_bytes_reserved"]
    steps = steps.assign(waiting=0, running=1, recomputed_tokens=None, **dict.fromkeys(held, [10.0, 20.0, 30.0] * 2))
    facts = step_facts(steps, began({("c", 1, 0): 0.5, ("d", 1, 0): None}))
    assert facts.loc[("c", 1, 0), "kv_tokens_live_mean"] == pytest.approx((10 * 3 + 20 + 30) / 5)
    assert facts.loc[("d", 1, 0), "kv_bytes_reserved_mean"] == pytest.approx((20 + 30) / 2)


def test_one_step_has_peaks_and_no_mean():
    step = {"time_s": 1.0, "waiting": 1, "running": 1, "kv_cache_usage": 0.5, "kv_tokens_live": 1.0}
    step |= {"kv_slots_reserved": 2.0, "kv_bytes_reserved": 8.0, "recomputed_tokens": 0}
    facts = only(step_facts(pd.DataFrame([{"cell_id": "c", "start": 1, "repeat": 0} | step]), NOT_KNOWN))
    assert facts["waiting_peak"] == 1
    assert pd.isna(facts["kv_cache_usage_mean"])


def trace(**columns: list[object]) -> pd.DataFrame:
    names = ["memory_used_bytes", "process_memory_bytes", "utilization_pct", "process_cpu_pct"]
    names += ["power_w", "energy_j", "sm_clock_mhz"]
    empty: dict[str, object] = dict.fromkeys([*names, "throttle_reasons"])
    frame = pd.DataFrame({"cell_id": "c", "start": 1, "repeat": 0, "time_s": [0.0, 1.0, 3.0], **empty, **columns})
    return frame.astype(dict.fromkeys(names, "Float64") | {"throttle_reasons": "string"})


def cores(count: int | None) -> pd.Series:
    index = pd.MultiIndex.from_tuples([("c", 1)], names=REPEAT[:2])
    return pd.Series([count], index=index, dtype="Float64")


NO_CORES = cores(None)


def test_without_a_counter_energy_is_the_trapezoid_over_power():
    facts = only(trace_facts(trace(power_w=[100, 200, 400]), NO_CORES))
    assert facts["energy_j"] == pytest.approx(150 * 1 + 300 * 2)
    assert facts["power_w_mean"] == pytest.approx(700 / 3)
    assert facts["trace_gap_s_max"] == pytest.approx(2.0)


def test_a_machine_without_power_has_no_energy_and_its_processes_memory():
    of_processes = trace(process_memory_bytes=[1, 5, 3], process_cpu_pct=[50, 100, 150])
    facts = only(trace_facts(of_processes, cores(2)))
    assert pd.isna(facts["energy_j"])
    assert facts["memory_used_bytes_max"] == 5
    assert facts["memory_used_bytes_mean"] == pytest.approx(3)
    assert facts["utilization_pct_mean"] == pytest.approx(50)
    assert pd.isna(only(trace_facts(of_processes, NO_CORES))["utilization_pct_mean"])


def test_throttle_reasons_are_named_once_each():
    facts = only(trace_facts(trace(throttle_reasons=["", "SwPowerCap", "HwThermalSlowdown,SwPowerCap"]), NO_CORES))
    assert facts["throttle_reasons"] == "HwThermalSlowdown,SwPowerCap"
    assert facts["power_cap_share"] == pytest.approx(2 / 3)


def test_clocks_are_those_of_the_samples():
    facts = only(trace_facts(trace(sm_clock_mhz=[1980, 1140, 1800]), NO_CORES))
    assert (facts["sm_clock_mhz_median"], facts["sm_clock_mhz_min"]) == (1800, 1140)
    assert facts[["power_cap_share", "throttle_reasons"]].isna().all()  # nothing was reported


def test_what_the_device_tells_comes_before_what_its_processes_do():
    told = {"memory_used_bytes": [10, None, 40], "utilization_pct": [90, None, 96]}
    of_processes = {"process_memory_bytes": [1, 22, 3], "process_cpu_pct": [1, 60, 3]}
    facts = only(trace_facts(trace(**told, **of_processes), cores(2)))
    assert (facts["memory_used_bytes_max"], facts["memory_used_bytes_mean"]) == (40, 24)
    assert facts["utilization_pct_mean"] == 72


def test_samples_of_two_repeats_have_no_gap_between_them():
    one = trace(power_w=[100, 200, 400], throttle_reasons=["a", None, ""])
    facts = trace_facts(pd.concat([one.assign(repeat=1, time_s=one["time_s"] + 50), one.iloc[::-1]]), NO_CORES)
    assert facts["energy_j"].tolist() == [750, 750]
    assert facts["trace_gap_s_max"].tolist() == [2, 2]
    assert facts["throttle_reasons"].tolist() == ["a", "a"]
