"""The life of each request, and the tokens and blocks that it holds meanwhile; docs/fragmentation.md has details.

Whole blocks of a prefix that requests share are held once.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from workflow_scripts.physics import formulas
from workflow_scripts.statistics.errors import FloatArray
from workflow_scripts.study.study import Study
from workflow_scripts.tables.summary import numbers
from workflow_scripts.workloads.workload_kinds import SharedText, SharedTextWorkload, Workload

TIMES = ("scheduled_s", "first_token_s", "last_token_s")

Texts = Mapping[str, Workload]


def shared_texts(study: Study) -> Texts:
    """The study's workloads that say which prompts share text, by name."""
    return {name: w for name, w in study.workloads.items() if isinstance(w, SharedTextWorkload) or w.shared_text(0)}


def request_lives(requests: pd.DataFrame, texts: Texts, steps: pd.DataFrame | None = None) -> pd.DataFrame:
    """One row per request, in the order of the workload; repeats in which a time is missing are left out.

    `requests` have the `workload` of each; they and `steps` have the `number` of their repeat.

    Returns:
        The columns of `requests`, and
        `prefill_s`, `decode_s`, `live_s`: from scheduled to first to last token, and from scheduled to last;
        `token_s`: tokens that it holds, integrated over its life: token-seconds;
        `shared_tokens`: tokens at the beginning of its prompt that are in blocks of other requests too;
        `text`: the number of the text that these tokens are from, -1 for none.
    """
    timeless = requests[list(TIMES)].isna().any(axis=1)
    t = requests[~requests["number"].isin(requests.loc[timeless, "number"])]
    t = _with_shared(t, texts).assign(
        prefill_s=t["first_token_s"] - t["scheduled_s"],
        decode_s=t["last_token_s"] - t["first_token_s"],
        live_s=t["last_token_s"] - t["scheduled_s"],
    )
    evenly = formulas.token_seconds(*lengths(t))
    return t.assign(token_s=evenly if steps is None else _at_steps(t, steps).fillna(pd.Series(evenly, index=t.index)))


def _at_steps(t: pd.DataFrame, steps: pd.DataFrame) -> pd.Series:
    """Token-seconds of each request whose tokens came one by one at recorded steps; null for the others."""
    ended = steps.loc[steps["generation_tokens"] > 0, ["number", "time_s"]]
    ended = ended.drop_duplicates().sort_values(["number", "time_s"])
    of_repeat = ended.groupby("number")["time_s"]
    ended = ended.assign(place=of_repeat.cumcount(), before_s=of_repeat.cumsum() - ended["time_s"])
    first, last = (
        t[["number"]].assign(time_s=t[name]).merge(ended, on=["number", "time_s"], how="left").set_axis(t.index)
        for name in ("first_token_s", "last_token_s")
    )
    later = t["output_tokens"] - 1
    held = t["prompt_tokens"] * t["live_s"] + later * t["last_token_s"] - (last["before_s"] - first["before_s"])
    return held.where(last["place"] - first["place"] == later).astype(float)


def _with_shared(t: pd.DataFrame, texts: Texts) -> pd.DataFrame:
    """The requests with the `text` that each begins with, and how many of its tokens are in blocks of others.

    If the workload does not give this number, or if the whole prompt is from the text, they are the tokens found in the
    prefix cache. The owner of these entries is not recorded: it is assumed to be the first request of the text that is
    long enough and found no entry itself.
    """
    cached = numbers(t["cached_prompt_tokens"].fillna(0))
    text, of_text = np.zeros(len(t), dtype=int), np.zeros(len(t))
    places_of: Any = t.groupby(["workload", "request_id"]).indices
    for (workload, request_id), places in places_of.items():
        if workload in texts:
            text[places], of_text[places] = texts[workload].shared_text(int(request_id)) or SharedText(-1, 0)
    t = t.assign(text=text)
    says = (of_text > 0) & (of_text < numbers(t["prompt_tokens"]))
    shared = pd.Series(np.where(says, of_text, cached), index=t.index).where(cached > 0, 0.0)
    longest = shared.groupby([t["number"], t["text"]]).transform("max")
    may_own = t[(longest > 0) & (shared == 0) & (text >= 0) & (t["prompt_tokens"] >= longest)]
    owners = may_own.sort_values("scheduled_s", kind="stable").drop_duplicates(["number", "text"]).index
    return t.assign(shared_tokens=shared.mask(shared.index.isin(owners), longest))


def tokens_held(lives: pd.DataFrame, block_size: FloatArray) -> pd.Series:
    """Tokens that live requests hold in the KV cache, mean over the time in which any is live; by repeat."""
    rows = lives.groupby("number")
    span_s = rows["last_token_s"].max() - rows["scheduled_s"].min()
    return (paged(lives, block_size)["token_s"] / span_s.where(span_s > 0)).rename("kv_tokens_held_mean")


def paged(t: pd.DataFrame, block_size: FloatArray) -> pd.DataFrame:
    """Token-seconds and slot-seconds of each repeat in blocks of `block_size` tokens.

    Whole blocks of a shared prefix are held once. Empty slots are computed as if a request's steps were equally long.
    """
    shared = numbers(t["shared_tokens"]) // block_size * block_size
    held_once = shared * numbers(t["live_s"])
    token_s = numbers(t["token_s"])
    empty_s = formulas.block_seconds(*lengths(t), block_size) * block_size - formulas.token_seconds(*lengths(t))
    sharing = t.assign(shared=shared)[t["shared_tokens"] > 0]
    of_text = sharing.groupby(["number", "text"])["shared"].max()
    prefix_s = (of_text * _sharing_s(sharing)).groupby("number").sum()
    own = by_repeat(t, token_s - held_once, token_s + empty_s - held_once)
    return own.add(prefix_s.reindex(own.index, fill_value=0.0), axis="index")


def _sharing_s(sharing: pd.DataFrame) -> pd.Series:
    """Time in which at least one of these requests, which share texts, is live; by repeat and text."""
    sharing = sharing.sort_values(["number", "text", "scheduled_s"], kind="stable")
    place = [sharing["number"], sharing["text"]]
    latest_s = sharing["last_token_s"].groupby(place).cummax()
    earlier_s = latest_s.groupby(place).shift().fillna(-np.inf)
    alone_s = (sharing["last_token_s"] - np.maximum(sharing["scheduled_s"], earlier_s)).clip(lower=0)
    shared_s: pd.Series = alone_s.groupby(place).sum()
    return shared_s


def lengths(t: pd.DataFrame) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Prompt and output tokens, and prefill and decode times in seconds, of each request."""
    return numbers(t["prompt_tokens"]), numbers(t["output_tokens"]), numbers(t["prefill_s"]), numbers(t["decode_s"])


def by_repeat(t: pd.DataFrame, token_s: FloatArray, slot_s: FloatArray) -> pd.DataFrame:
    return pd.DataFrame({"token_s": token_s, "slot_s": slot_s}).groupby(t["number"].to_numpy()).sum(min_count=1)
