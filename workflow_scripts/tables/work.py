"""Sums over the requests of each repeat, from which a model's sizes give bytes and operations."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq

from workflow_scripts.common.parquet import readable, text_columns
from workflow_scripts.physics import formulas
from workflow_scripts.physics.model_facts import Reach
from workflow_scripts.tables.parsed_facts import REPEAT, known_facts, read_parsed
from workflow_scripts.tables.summary import numbers

_REQUEST_COLUMNS = (*REPEAT, "prompt_tokens", "output_tokens", "cached_prompt_tokens")


def read_work(cells: pd.DataFrame, parsed: Path) -> pd.DataFrame:
    """The repeats among `cells` that ended ok and whose requests are known, with the sums of `request_sums`.

    `steps` is the number of the scheduler's steps, null if the engine does not report them. A record without tokens is
    a step only if it computed a part of a prompt: vLLM also records that it found nothing to do. `parsed` holds a
    folder for each GPU.
    """
    ok = cells[(cells["outcome"] == "ok") & cells["repeat"].notna()]
    parts = []
    for gpu, rows in ok.groupby("gpu"):
        if not (parsed / str(gpu) / "requests.parquet").exists():
            continue
        requests = read_parsed(parsed, str(gpu), "requests", _REQUEST_COLUMNS)
        requests = requests[requests["cell_id"].isin(rows["cell_id"])]
        cell = rows.drop_duplicates("cell_id").set_index("cell_id")
        reaches = reaches_of(rows["model"].unique())
        work = request_sums(
            requests, cell["block_size_effective"], reaches, cell["max_num_batched_tokens_effective"]
        ).join(step_counts(parsed / str(gpu) / "steps.parquet"))
        idle = work.pop("records_without_tokens")
        work["steps"] += np.minimum(idle, work.pop("further_chunks"))
        merged = rows.merge(work, left_on=REPEAT, right_index=True, suffixes=("_of_cell", ""))
        forgetting = [model for model in rows["model"].unique() if forgets(model)]
        # If every layer forgets tokens, a request may hold fewer blocks than its tokens would take.
        parts.append(merged.assign(block_steps=merged["block_steps"].mask(merged["model"].isin(forgetting), 0.0)))
    return pd.concat(parts, ignore_index=True) if parts else ok.head(0)


def reaches_of(models: Iterable[str]) -> set[Reach]:
    """The reaches of layers of these models that do not attend to all tokens; unknown models are left out."""
    all_facts = [facts for model in models if (facts := known_facts(model))]
    limited = (reach for facts in all_facts for reach in facts.reaches if reach.limit is not None)
    return {Reach(reach.limit, 0, 0, 0) for reach in limited}


def forgets(model: str) -> bool:
    """Whether no layer of a model keeps all tokens; false for a model that is not known."""
    limits = {reach.limit for reach in facts.reaches} if (facts := known_facts(model)) else set()
    return bool(limits) and None not in limits


def request_sums(
    requests: pd.DataFrame,
    block_size: pd.Series,
    reaches: Iterable[Reach] = (),
    batched_tokens: pd.Series | None = None,
) -> pd.DataFrame:
    """Sums over the requests of each repeat, one row per cell and repeat.

    requests                 number of requests
    prompt_tokens, output_tokens, output_tokens_longest
    decode_tokens            output tokens after each request's first: each is one decode step of one sequence
    computed_prompt_tokens   prompt tokens not found in the prefix cache
    prefill_attended_tokens, decode_attended_tokens   pairs of a token and a token that it attends to
    kv_tokens_read           cached tokens that decode steps read
    kv_tokens_shared         those of them that may be in a prefix that other sequences read in the same step
    block_steps              blocks held, summed over the steps that give output tokens; 0 without blocks
    further_chunks           steps that prompts need beyond one each, because a step computes only so many tokens

    For each of `reaches`, the columns of attended and of read tokens again, with its suffix: only tokens within reach.

    `block_size` (tokens per KV block) and `batched_tokens` (most per step) are by cell_id, null if there is none.
    """
    keys = [requests[name] for name in REPEAT]
    cached = requests["cached_prompt_tokens"].fillna(0)
    # The request whose prompt created the entries that others found holds the same blocks, without a hit of its own.
    longest_hit = cached.groupby(keys).transform("max")
    p, o, c, hit = (
        numbers(column) for column in (requests["prompt_tokens"], requests["output_tokens"], cached, longest_hit)
    )
    block = numbers(requests["cell_id"].map(block_size))
    shared, decode = np.minimum(p, hit), o - 1
    budget = np.nan if batched_tokens is None else numbers(requests["cell_id"].map(batched_tokens))
    held = formulas.blocks_summed(p + o - 1, block) - formulas.blocks_summed(p - 1, block) - o * (shared // block)
    terms = pd.DataFrame(
        {
            "requests": np.ones_like(p),
            "prompt_tokens": p,
            "output_tokens": o,
            "decode_tokens": decode,
            "computed_prompt_tokens": p - c,
            "prefill_attended_tokens": (p * (p + 1) - c * (c + 1)) / 2,
            "decode_attended_tokens": decode * (p + (decode + 1) / 2),
            "kv_tokens_read": formulas.decode_kv_tokens_read(p, o),
            "kv_tokens_shared": decode * shared,
            "block_steps": held,
            "further_chunks": np.nan_to_num(np.maximum(np.ceil((p - c) / budget) - 1, 0)),
        },
        index=requests.index,
    )
    for reach in reaches:
        whole, of_prompt, of_cached = (formulas.attended_tokens(tokens, reach.limit) for tokens in (p + decode, p, c))
        attended = whole - of_prompt
        terms[f"prefill_attended_tokens{reach.suffix}"] = of_prompt - of_cached
        terms[f"decode_attended_tokens{reach.suffix}"] = attended
        terms[f"kv_tokens_read{reach.suffix}"] = attended - decode  # all but the new token itself
    sums = terms.groupby(keys).sum()
    return sums.assign(output_tokens_longest=terms["output_tokens"].groupby(keys).max())


def step_counts(steps: Path) -> pd.DataFrame:
    """By cell and repeat of a parsed table: `steps` that gave tokens, and `records_without_tokens`.

    A row without a count of tokens is not a step but a reading of a server's queues. Ids are read as codes, because the
    table may have millions of rows.
    """
    counted = ["generation_tokens", "prompt_tokens"]
    text_columns(steps)  # refuses a damaged file
    with readable(steps):
        table = pq.read_table(steps, columns=[*REPEAT, *counted], read_dictionary=["cell_id"]).unify_dictionaries()
        tokens = pc.add(table[counted[0]], pc.fill_null(table[counted[1]], 0))
        table = table.select(REPEAT).append_column("gives", pc.greater(tokens, 0))
        counts = table.group_by(REPEAT).aggregate([("gives", "sum"), ("gives", "count")]).to_pandas()
    counts["cell_id"] = counts["cell_id"].astype("string")
    of_repeat = counts[counts["gives_count"] > 0].set_index(REPEAT).astype(float)
    without = of_repeat["gives_count"] - of_repeat["gives_sum"]
    return pd.DataFrame({"steps": of_repeat["gives_sum"], "records_without_tokens": without})
