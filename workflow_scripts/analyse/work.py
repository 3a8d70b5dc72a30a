"""Sums over the requests of each repeat, from which a model's sizes give bytes and operations."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from workflow_scripts.analyse.facts import REPEAT, read_parsed
from workflow_scripts.analyse.repeats import numbers
from workflow_scripts.analyse.start_spread import FloatArray
from workflow_scripts.catalog.gpus_and_models import CatalogError, load_models
from workflow_scripts.physics import formulas
from workflow_scripts.physics.model_facts import ModelFactsError, Reach, read_model_facts

REQUEST_COLUMNS = (*REPEAT, "prompt_tokens", "output_tokens", "cached_prompt_tokens")


def read_work(cells: pd.DataFrame, parsed: Path) -> pd.DataFrame:
    """The repeats among `cells` that ended ok and whose requests are known, with the sums of `request_sums`.

    `steps` is the number of the scheduler's steps, null if the engine does not report them. `parsed` holds a folder
    for each GPU.
    """
    ok = cells[(cells["outcome"] == "ok") & cells["repeat"].notna()]
    parts = []
    for gpu, rows in ok.groupby("gpu"):
        if not (parsed / str(gpu) / "requests.parquet").exists():
            continue
        requests = read_parsed(parsed, str(gpu), "requests", REQUEST_COLUMNS)
        requests = requests[requests["cell_id"].isin(rows["cell_id"])]
        blocks = rows.drop_duplicates("cell_id").set_index("cell_id")["block_size_effective"]
        work = request_sums(requests, blocks, reaches_of(rows["model"].unique())).join(
            step_counts(parsed / str(gpu) / "steps.parquet")
        )
        merged = rows.merge(work, left_on=REPEAT, right_index=True, suffixes=("_of_cell", ""))
        # If every layer forgets tokens, a request may hold fewer blocks than its tokens would take.
        parts.append(merged.assign(block_steps=merged["block_steps"].where(~merged["model"].map(forgets), 0.0)))
    return pd.concat(parts, ignore_index=True) if parts else ok.head(0)


def reaches_of(models: Iterable[str]) -> set[Reach]:
    """The reaches of layers of these models that do not attend to all tokens; unknown models are left out."""
    limited = (reach for model in models for reach in _reaches(model) if reach.limit is not None)
    return {Reach(reach.limit, reach.chunked, 0, 0, 0) for reach in limited}


@cache
def forgets(model: str) -> bool:
    """Whether no layer of a model keeps all tokens; false for a model that is not known."""
    return bool(limits := {reach.limit for reach in _reaches(model)}) and None not in limits


@cache
def _reaches(model: str) -> tuple[Reach, ...]:
    try:
        return read_model_facts(load_models()[model].config).reaches
    except (CatalogError, KeyError, ModelFactsError):
        return ()


def request_sums(requests: pd.DataFrame, block_size: pd.Series, reaches: Iterable[Reach] = ()) -> pd.DataFrame:
    """Sums over the requests of each repeat, one row per cell and repeat.

    requests                 number of requests
    prompt_tokens, output_tokens, output_tokens_longest
    decode_tokens            output tokens after each request's first: each is one decode step of one sequence
    computed_prompt_tokens   prompt tokens not found in the prefix cache
    prefill_attended_tokens, decode_attended_tokens   pairs of a token and a token that it attends to
    kv_tokens_read           cached tokens that decode steps read
    kv_tokens_shared         those of them that may be in a prefix that other sequences read in the same step
    block_steps              blocks held, summed over the steps that give output tokens; 0 without blocks

    For each of `reaches`, the columns of attended and of read tokens again, with its suffix: only tokens within reach.

    Args:
        requests: the columns `REQUEST_COLUMNS`.
        block_size: tokens per KV block by cell_id, null if the engine has no blocks.
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
        },
        index=requests.index,
    )
    for reach in reaches:

        def pairs(tokens: FloatArray, reach: Reach = reach) -> FloatArray:
            return formulas.attended_tokens(tokens, reach.limit, reach.chunked)

        attended = pairs(p + decode) - pairs(p)
        terms[f"prefill_attended_tokens{reach.suffix}"] = pairs(p) - pairs(c)
        terms[f"decode_attended_tokens{reach.suffix}"] = attended
        terms[f"kv_tokens_read{reach.suffix}"] = attended - decode  # all but the new token itself
    sums = terms.groupby(keys).sum()
    return sums.assign(output_tokens_longest=terms["output_tokens"].groupby(keys).max())


def step_counts(steps: Path) -> pd.Series:
    """Steps of each cell and repeat in a parsed table; ids are read as codes, because it may have millions of rows.

    A row without a count of tokens is not a step but a reading of a server's queues.
    """
    counted = "generation_tokens"
    table = pq.read_table(steps, columns=[*REPEAT, counted], read_dictionary=["cell_id"]).unify_dictionaries()
    counts = table.group_by(REPEAT).aggregate([(counted, "count")]).to_pandas()
    counts["cell_id"] = counts["cell_id"].astype("string")
    steps_of: pd.Series = counts.set_index(REPEAT)[f"{counted}_count"].astype(float).rename("steps")
    return steps_of[steps_of > 0]
