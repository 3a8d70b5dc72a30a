"""Results from a repeat's requests, steps and samples: rates, latencies, concurrency, memory, energy.

All functions take a parsed table with the `number` of each row's repeat (`parsed_facts.of_repeats`), and return one row
for each repeat, by its number.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd

_PERCENTS = {"ttft_s": (50, 90, 99), "queue_s": (50,), "prefill_s": (50,), "tpot_s": (50, 99), "e2e_s": (50, 99)}
POWER_CAP = "SwPowerCap"  # NVML's name for clocks lowered to stay within the power limit


def request_facts(requests: pd.DataFrame) -> pd.DataFrame:
    """Counts and latencies (s) over the requests of each repeat.

    TTFT and end-to-end latency count from being queued, or from the scheduled arrival at a server, as in the table
    `serving`. TPOT is the mean time of an output token after the first; an answer that arrived completely at one moment
    has no TPOT.
    """
    decode_s = requests["last_token_s"] - requests["first_token_s"]
    r = requests.assign(
        ttft_s=requests["first_token_s"] - requests["queued_s"],
        e2e_s=requests["last_token_s"] - requests["queued_s"],
        tpot_s=decode_s.where(decode_s > 0) / (requests["output_tokens"] - 1).where(requests["output_tokens"] > 1),
        queue_s=requests["scheduled_s"] - requests["queued_s"],
        prefill_s=requests["first_token_s"] - requests["scheduled_s"],
        found=(requests["cached_prompt_tokens"] > 0).astype("Int64"),
    )
    groups = r.groupby("number")
    return pd.DataFrame(
        {
            "num_requests": groups.size(),
            "prompt_tokens": groups["prompt_tokens"].sum(),
            "output_tokens": groups["output_tokens"].sum(),
            # Without a count of preemptions, it is not known whether there were any.
            "preemptions": groups["preemptions"].sum(min_count=1),
            "requests_with_prefix_hits": groups["found"].sum(min_count=1),
            **{
                f"{column}_p{percent}": groups[column].quantile(percent / 100)
                for column, percents in _PERCENTS.items()
                for percent in percents
            },
        }
    )


def running_over_time(requests: pd.DataFrame) -> pd.DataFrame:
    """Peak and time-weighted mean of the sequences that run at once, from the times of the requests."""
    r = requests.dropna(subset=["scheduled_s", "last_token_s"])
    changes = {"scheduled_s": 1, "last_token_s": -1}
    events = pd.concat(r[["number"]].assign(time_s=r[name], change=change) for name, change in changes.items())
    events = events.sort_values(["number", "time_s", "change"])  # at one instant an end comes before a start
    groups = events.groupby("number")
    events["running"] = groups["change"].cumsum()
    events["weighted"] = events["running"] * (groups["time_s"].shift(-1) - events["time_s"]).fillna(0.0)
    span_s = groups["time_s"].max() - groups["time_s"].min()
    return pd.DataFrame(
        {"running_peak": groups["running"].max(), "running_mean": groups["weighted"].sum() / span_s.where(span_s > 0)}
    )


def steady_rate(requests: pd.DataFrame, steps: pd.DataFrame, allowed: pd.Series) -> pd.DataFrame:
    """Output tokens/s while the engine is full, with the window's length and end; no row if the engine is never full.

    The window is that of ML.ENERGY: from the first token of the S-th request to the completion after which fewer
    than S requests remain. S is the number of sequences allowed at once (`allowed`, by repeat), or the highest number
    that ran if KV blocks allow fewer. If the steps have all tokens of the repeat, those of the steps in the window
    count. Otherwise a request counts with the decode tokens that fall inside the window, assumed to be evenly spaced.
    """
    ran = steps.groupby("number")["in_step"].max()
    limits = {"ran": requests["number"].map(ran), "allowed": requests["number"].map(allowed)}
    r = requests.assign(allowed=pd.DataFrame(limits).astype(float).min(axis="columns"))
    r = r[r["first_token_s"].notna() & r["last_token_s"].notna()]
    count = r.groupby("number")["number"].transform("size")
    r = r[count >= 2 * r["allowed"]]  # with fewer requests the window is empty or consists only of ramps
    groups = r.groupby("number")
    first_rank = groups["first_token_s"].rank(method="first")
    last_rank = groups["last_token_s"].rank(method="first", ascending=False)
    start_s = r[first_rank == r["allowed"]].set_index("number")["first_token_s"].rename("start_s")
    end_s = r[last_rank == r["allowed"]].set_index("number")["last_token_s"].rename("end_s")
    window = start_s.to_frame().join(end_s).astype(float)
    r = r.join(window, on="number")
    r["inside"] = tokens_inside(r, r["start_s"], r["end_s"])
    estimated = r.groupby("number")[["inside", "output_tokens"]].sum().astype(float)
    s = steps.merge(window.reset_index(), on="number")
    s["inside"] = s["generation_tokens"].where((s["time_s"] > s["start_s"]) & (s["time_s"] <= s["end_s"]))
    counted = s.groupby("number")[["inside", "generation_tokens"]].sum().reindex(window.index).astype(float)
    complete = counted["generation_tokens"].eq(estimated["output_tokens"])
    tokens = counted["inside"].where(complete, estimated["inside"])
    steady_s = window["end_s"] - window["start_s"]
    return pd.DataFrame(
        {
            "steady_output_tokens_per_s": tokens / steady_s.where(steady_s > 0),
            "steady_s": steady_s,
            "steady_end_s": window["end_s"],
        }
    )


def tokens_inside(requests: pd.DataFrame, start_s: Any, end_s: Any) -> pd.Series:
    """Output tokens of each request between two times; tokens after the first are assumed to be evenly spaced."""
    decode_s = (requests["last_token_s"] - requests["first_token_s"]).astype(float)
    inside_s = np.minimum(end_s, requests["last_token_s"]) - np.maximum(start_s, requests["first_token_s"])
    share = (inside_s.clip(lower=0) / decode_s.where(decode_s > 0)).fillna(0.0)
    first_inside = requests["first_token_s"].between(start_s, end_s)
    tokens: pd.Series = (requests["output_tokens"] - 1) * share + first_inside
    return tokens


def with_sequences(steps: pd.DataFrame, drafts: Collection[str] = ()) -> pd.DataFrame:
    """The steps with `in_step`, the sequences in each; `drafts` are cells with speculative decoding.

    `running` is what is left after a step. Without drafts, each sequence that decodes in a step gets one token.
    """
    tokens = steps["generation_tokens"].mask(steps["cell_id"].isin(drafts))
    return steps.assign(in_step=steps[["running"]].assign(tokens=tokens).astype(float).max(axis="columns"))


def step_facts(steps: pd.DataFrame, began_s: pd.Series) -> pd.DataFrame:
    """Peaks of the scheduler's queues, and KV use as peak and mean over time.

    A step lasts from the end of the previous step to its own end. The first step, which reads prompts, begins at
    `began_s`, when the first request of the repeat was scheduled; if that is not known, it has no duration.
    """
    s = steps.sort_values(["number", "time_s"], kind="stable")
    groups = s.groupby("number")
    before_s = groups["time_s"].shift().fillna(s["number"].map(began_s))
    lasts_s = (s["time_s"] - before_s).clip(lower=0).fillna(0.0).astype(float)

    def mean_over_time(column: str, weights_s: pd.Series = lasts_s) -> pd.Series:
        weighted = (s[column].astype(float) * weights_s).where(s[column].notna())
        span_s = weights_s.groupby(s["number"]).sum()
        return weighted.groupby(s["number"]).sum(min_count=1) / span_s.where(span_s > 0)

    return pd.DataFrame(
        {
            "running_while_others_wait": mean_over_time("in_step", lasts_s.where(s["waiting"].gt(0), 0.0)),
            "waiting_peak": groups["waiting"].max(),
            "recomputed_tokens": groups["recomputed_tokens"].sum(min_count=1),
            "kv_cache_usage_peak": groups["kv_cache_usage"].max(),
            "kv_cache_usage_mean": mean_over_time("kv_cache_usage"),
            "kv_tokens_live_mean": mean_over_time("kv_tokens_live"),
            "kv_slots_reserved_mean": mean_over_time("kv_slots_reserved"),
            "kv_bytes_reserved_mean": mean_over_time("kv_bytes_reserved"),
            "kv_bytes_reserved_peak": groups["kv_bytes_reserved"].max(),
        }
    )


def running_reported(steps: pd.DataFrame) -> pd.DataFrame:
    """Peak and mean of the sequences that run at once, from the readings that servers report from time to time."""
    groups = steps[steps["running"].notna()].groupby("number")["running"]
    return pd.DataFrame({"running_peak": groups.max().astype(float), "running_mean": groups.mean()})


def trace_facts(trace: pd.DataFrame, cores: pd.Series) -> pd.DataFrame:
    """Memory, utilisation, power, energy and clocks over each repeat's samples.

    `cores` is the number of cores of a CPU device by repeat; other devices report their use themselves.

    Energy is power integrated over the samples with the trapezoid rule, in `sampled_s`, the time that these cover.
    """
    t = trace.sort_values(["number", "time_s"], kind="stable")
    t = t.assign(
        memory=t["memory_used_bytes"].fillna(t["process_memory_bytes"]),
        use=t["utilization_pct"].fillna(t["process_cpu_pct"] / t["number"].map(cores)),
        gap_s=t.groupby("number")["time_s"].diff(),
        capped=t["throttle_reasons"].str.contains(POWER_CAP, regex=False).astype("Float64"),
    )
    t["trapezoid_j"] = t["gap_s"] * (t["power_w"] + t.groupby("number")["power_w"].shift()) / 2
    t["trapezoid_s"] = t["gap_s"].where(t["trapezoid_j"].notna())
    groups = t.groupby("number")
    return pd.DataFrame(
        {
            "memory_used_bytes_max": groups["memory"].max(),
            "utilization_pct_mean": groups["use"].mean(),
            "power_w_mean": groups["power_w"].mean(),
            "energy_j": groups["trapezoid_j"].sum(min_count=1),
            "sampled_s": groups["trapezoid_s"].sum(),
            "sm_clock_mhz_median": groups["sm_clock_mhz"].median(),
            "sm_clock_mhz_min": groups["sm_clock_mhz"].min(),
            "throttle_reasons": _reasons(t),
            "power_cap_share": groups["capped"].mean(),
        }
    )


def _reasons(trace: pd.DataFrame) -> pd.Series:
    seen = trace.dropna(subset=["throttle_reasons"]).drop_duplicates(["number", "throttle_reasons"])
    joined = (seen["throttle_reasons"].astype(object) + ",").groupby(seen["number"]).sum()
    return joined.map({text: ",".join(sorted({*text.split(",")} - {""})) for text in joined.unique()})
