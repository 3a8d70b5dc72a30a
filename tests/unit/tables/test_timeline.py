"""Rates, latencies, concurrency, memory and energy of a repeat, by hand-worked numbers."""

import pandas as pd
import pytest

from tests.unit.questions import parsed_tables
from workflow_scripts.tables.timeline import (
    request_facts,
    running_over_time,
    steady_rate,
    step_facts,
    trace_facts,
    with_sequences,
)

NO_STEPS = pd.DataFrame(columns=["number", "time_s", "generation_tokens", "in_step"])
RATE = "steady_output_tokens_per_s"
NOT_KNOWN = pd.Series([None], dtype="Float64")


def requests(*rows: tuple[object, ...], **columns: object) -> pd.DataFrame:
    """Requests of the repeat with the number 0."""
    return parsed_tables.requests("c", *rows, **columns).assign(number=0)


def steady(*rows: tuple[object, ...], allowed: int = 2) -> pd.Series:
    return steady_rate(requests(*rows), NO_STEPS, pd.Series([allowed]))[RATE]


def only(frame: pd.DataFrame) -> pd.Series:
    assert frame.index.tolist() == [0]
    return frame.iloc[0]


def test_latencies_count_from_being_queued():
    two = requests((10, 5, 0, 2.0, 4.0, 8.0), (20, 1, 0, 1.0, 3.0, 3.0), queued_s=[1.0, 0.0], preemptions=0)
    facts = only(request_facts(two))
    expected = {"num_requests": 2, "prompt_tokens": 30, "output_tokens": 6, "preemptions": 0}
    expected |= {"ttft_s_p50": 3, "e2e_s_p50": 5, "e2e_s_p99": 3 + 0.99 * 4}
    expected |= {"tpot_s_p50": 1}  # 4 s for four tokens after the first; one token has no TPOT
    expected |= {"prefill_s_p50": 2, "queue_s_p50": 1}
    assert facts[list(expected)].to_dict() == pytest.approx(expected)
    # Nor has an answer that was seen at one moment. An engine that counts no preemptions is not one without.
    facts = only(request_facts(requests((10, 5, 0, 0.0, 4.0, 8.0), (10, 5, 0, 0.0, 9.0, 9.0))))
    assert (facts["tpot_s_p50"], pd.isna(facts["preemptions"])) == (pytest.approx(1.0), True)


def test_repeats_are_kept_apart():
    one = requests((10, 2, 0, 0.0, 1.0, 2.0), (10, 2, 8, 0.0, 1.0, 2.0))
    late = requests((30, 4, None, 11.0, 13.0, 19.0), queued_s=10.0, preemptions=3)
    table = pd.concat([late.assign(number=2), one.assign(number=1, cached_prompt_tokens=0), one])
    facts, running = request_facts(table), running_over_time(table)
    counts = {0: 2, 1: 2, 2: 1}
    for found in (facts["num_requests"], running["running_peak"], running["running_mean"]):
        assert found.to_dict() == counts
    assert facts.loc[2, ["prompt_tokens", "output_tokens", "preemptions"]].tolist() == [30, 4, 3]
    assert facts.loc[2, ["ttft_s_p50", "prefill_s_p50"]].tolist() == [3, 2]
    # Requests that found a prefix are counted where the engine tells.
    assert facts["requests_with_prefix_hits"].dropna().to_dict() == {0: 1, 1: 0}


@pytest.mark.parametrize(
    ("times", "peak", "mean"),
    [
        # The third starts at the instant when the others end.
        ([(0.0, 1.0, 4.0), (2.0, 3.0, 4.0), (4.0, 5.0, 6.0)], 2, (1 * 2 + 2 * 2 + 1 * 2) / 6),
        ([(0.0, 1.0, 4.0), (2.0, 3.0, None)], 1, 1),  # not known when the second ended
        ([(0.0, 0.1, 0.2), (0.6, 0.7, 0.8)], 1, 0.5),  # a gap counts for the mean
        ([(1.0, 1.0, 1.0)], 0, None),
    ],
)
def test_running_is_counted_between_scheduling_and_last_token(times, peak, mean):
    facts = only(running_over_time(requests(*((1, 1, 0, *of) for of in times))))
    assert facts["running_peak"] == peak
    assert (None if pd.isna(facts["running_mean"]) else facts["running_mean"]) == pytest.approx(mean)


def test_recorded_steps_say_when_tokens_came():
    # Two at once; their steps take 1 s up to 3 s and 0.5 s from then on. Full from 2 s (both have a token) to 4.5 s.
    rows = [
        (1, 6, 0, 0.0, 1.0, 4.5),
        (1, 3, 0, 1.0, 2.0, 3.5),
        (1, 2, 0, 3.5, 4.0, 4.5),
        (1, 3, 0, 4.5, 5.0, 6.0),
    ]
    of_steps = {
        "time_s": [1.0, 2.0, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0],
        "generation_tokens": [1, 2, 2, 2, 2, 2, 1, 1, 1],
    }
    steps = pd.DataFrame({"cell_id": "c", "number": 0, "running": 1} | of_steps)
    steps = with_sequences(steps.astype({"generation_tokens": "Int64"}))
    found = steady_rate(requests(*rows), steps, pd.Series([2]))
    assert only(found).to_dict() == pytest.approx({RATE: 8 / 2.5, "steady_s": 2.5, "steady_end_s": 4.5})
    # Steps that do not have all tokens say nothing.
    estimated = steady_rate(requests(*rows), steps[1:], pd.Series([2]))
    assert only(estimated)[RATE] == pytest.approx((5 * 2.5 / 3.5 + 3 + 2) / 2.5) == only(steady(*rows))


def test_an_engine_that_kv_blocks_limit_is_full_with_fewer_sequences():
    """Four may run, but two do, of which one ends in each step: full from the second first token to the third end."""
    rows = [(1, 3, 0, float(i), i + 1.0, i + 3.0) for i in range(4)]
    ran = with_sequences(steps(time_s=[1.0, 2.0, 3.0], running=1, generation_tokens=[1, 2, 2]))
    found = only(steady_rate(requests(*rows), ran, pd.Series([4])))
    assert (found["steady_s"], found["steady_end_s"]) == (3.0, 5.0)
    # With drafts, tokens do not tell how many sequences ran.
    assert with_sequences(ran, ["c"])["in_step"].tolist() == [1, 1, 1]
    assert steady_rate(requests(*rows), ran[:0], pd.Series([4])).empty


def test_twice_what_is_allowed_is_just_enough():
    rows = [(1, 3, 0, 0.0, 1.0 + i / 10, 3.0 + i / 10) for i in range(4)]
    assert len(steady(*rows)) == 1
    assert steady(*rows[:3]).empty
    lost = [*rows[:3], (*rows[3][:4], None, 3.3)]
    assert steady(*lost).empty
    # Requests of one token, from the second (1 s) to the third (2 s), both inside; a window without length has no rate.
    ones = [(1, 1, 0, float(i), float(i), float(i)) for i in range(4)]
    assert steady(*ones)[0] == pytest.approx(2.0)
    at_once = [(1, 1, 0, 0.0, 1.0, 1.0)] * 2
    assert steady(*at_once, allowed=1).isna().tolist() == [True]


HELD = ("kv_cache_usage", "kv_tokens_live", "kv_slots_reserved", "kv_bytes_reserved")


def steps(**columns: object) -> pd.DataFrame:
    """Steps of a cell in which one sequence runs, none waits and nothing is held, unless `columns` say otherwise."""
    known = {"cell_id": "c", "number": 0, "waiting": 0, "running": 1, "recomputed_tokens": None}
    return with_sequences(pd.DataFrame(known | dict.fromkeys((*HELD, "generation_tokens")) | columns))


def test_steps_weigh_with_the_time_they_last_in_any_order_and_of_several_repeats():
    table = steps(
        time_s=[0.0, 1.0, 4.0],
        waiting=[3, 2, 0],
        running=[1, 2, 6],
        kv_cache_usage=[0.1, 0.2, 0.6],
        recomputed_tokens=[None, 5, 7],
        kv_slots_reserved=[10, 20, 40],
        kv_bytes_reserved=[10, 20, 40],
    )
    expected = {"waiting_peak": 3, "running_while_others_wait": 2, "recomputed_tokens": 12, "kv_tokens_live_mean": None}
    expected |= {"kv_cache_usage_peak": 0.6, "kv_cache_usage_mean": (0.2 * 1 + 0.6 * 3) / 4}
    expected |= dict.fromkeys(("kv_slots_reserved_mean", "kv_bytes_reserved_mean"), (20 * 1 + 40 * 3) / 4)
    facts = step_facts(pd.concat([table.iloc[::-1], table.assign(number=1)]), NOT_KNOWN)
    assert facts.index.tolist() == [0, 1]
    for _, found in facts.astype(object).where(facts.notna(), None).iterrows():
        assert found.to_dict() == pytest.approx(expected | {"kv_bytes_reserved_peak": 40})
    longer = only(step_facts(table.assign(waiting=[3, 2, 1]), NOT_KNOWN))
    assert longer["running_while_others_wait"] == (2 * 1 + 6 * 3) / 4
    for waiting in (0, None):
        none = only(step_facts(table.assign(waiting=waiting), NOT_KNOWN))
        assert pd.isna(none["running_while_others_wait"])


def test_the_first_step_lasts_from_when_a_request_was_scheduled():
    # Prompts are read in 3 s, then two steps of 1 s; of the other cell nothing is known.
    table = steps(number=[0] * 3 + [1] * 3, time_s=[3.5, 4.5, 5.5] * 2, **dict.fromkeys(HELD, [10.0, 20, 30] * 2))
    facts = step_facts(table, pd.Series([0.5, None], dtype="Float64"))
    assert facts.loc[0, "kv_tokens_live_mean"] == pytest.approx((10 * 3 + 20 + 30) / 5)
    assert facts.loc[1, "kv_bytes_reserved_mean"] == pytest.approx((20 + 30) / 2)
    one_step = only(step_facts(steps(time_s=[1.0], waiting=1, kv_cache_usage=0.5), NOT_KNOWN))
    assert (one_step["waiting_peak"], pd.isna(one_step["kv_cache_usage_mean"])) == (1, True)


def trace(**columns: list[object]) -> pd.DataFrame:
    names = ["memory_used_bytes", "process_memory_bytes", "utilization_pct", "process_cpu_pct"]
    names += ["power_w", "energy_j", "sm_clock_mhz"]
    empty: dict[str, object] = dict.fromkeys([*names, "throttle_reasons"])
    frame = pd.DataFrame({"cell_id": "c", "number": 0, "time_s": [0.0, 1.0, 3.0], **empty, **columns})
    return frame.astype(dict.fromkeys(names, "Float64") | {"throttle_reasons": "string"})


def test_without_a_counter_energy_is_the_trapezoid_over_power_in_each_repeat():
    one = trace(power_w=[100, 200, 400], throttle_reasons=["a", None, ""])
    facts = trace_facts(pd.concat([one.assign(number=1, time_s=one["time_s"] + 50), one.iloc[::-1]]), NOT_KNOWN)
    assert facts["energy_j"].tolist() == pytest.approx([150 * 1 + 300 * 2] * 2)
    assert facts["power_w_mean"].tolist() == pytest.approx([700 / 3] * 2)
    assert facts["throttle_reasons"].tolist() == ["a", "a"]


def test_a_machine_without_power_has_no_energy_and_its_processes_memory():
    of_processes = trace(process_memory_bytes=[1, 5, 3], process_cpu_pct=[50, 100, 150])
    facts = only(trace_facts(of_processes, pd.Series([2])))
    assert pd.isna(facts["energy_j"])
    assert facts["memory_used_bytes_max"] == 5
    assert facts["utilization_pct_mean"] == pytest.approx(50)
    assert pd.isna(only(trace_facts(of_processes, NOT_KNOWN))["utilization_pct_mean"])


def test_throttle_reasons_are_named_once_each_and_clocks_are_those_of_the_samples():
    facts = only(trace_facts(trace(throttle_reasons=["", "SwPowerCap", "HwThermalSlowdown,SwPowerCap"]), NOT_KNOWN))
    assert facts["throttle_reasons"] == "HwThermalSlowdown,SwPowerCap"
    assert facts["power_cap_share"] == pytest.approx(2 / 3)
    facts = only(trace_facts(trace(sm_clock_mhz=[1980, 1140, 1800]), NOT_KNOWN))
    assert (facts["sm_clock_mhz_median"], facts["sm_clock_mhz_min"]) == (1800, 1140)
    assert facts[["power_cap_share", "throttle_reasons"]].isna().all()  # nothing was reported


def test_what_the_device_tells_comes_before_what_its_processes_do():
    told = {"memory_used_bytes": [10, None, 40], "utilization_pct": [90, None, 96]}
    of_processes = {"process_memory_bytes": [1, 22, 3], "process_cpu_pct": [1, 60, 3]}
    facts = only(trace_facts(trace(**told, **of_processes), pd.Series([2])))
    assert facts["memory_used_bytes_max"] == 40
    assert facts["utilization_pct_mean"] == 72
