"""What happens when KV blocks run short: requests at once, speed, preemptions and hits by the size of the pool."""

from collections.abc import Iterator

import pandas as pd

from workflow_scripts.page.answers import NO, YES, Answer, Bar
from workflow_scripts.page.kit import Plot, bar
from workflow_scripts.page.report import CELL, Report, Subject, TablePart
from workflow_scripts.page.series import PLACES, coloured
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.tables.results import Tables, records, require

_POOL = "num_gpu_blocks_override"
USERS = "running_while_others_wait"
_QUANTITIES = (
    *("running_peak", "output_tokens_per_s", "ttft_s_p50", "preemptions", "recomputed_tokens"),
    "prefix_cache_hit_rate",
)
# Rows are compared if these are equal: they have the same requests and the same memory for them.
_MEMORY = [*PLACES, "pool_tokens"]


def pools(tables: Tables) -> pd.DataFrame:
    """One row per measured cell for which the study sets the size of the KV cache, in blocks of vLLM or in pages of
    transformers' continuous batching: values over its repeats.

    `pool_tokens` is the number of tokens in all blocks that requests can get; `layout` is the block size in words.
    """
    cells = tables.measured_cells
    known = cells.reindex(columns=[f"knob_{_POOL}", "knob_num_blocks", "knob_page_size"]).astype(float)
    is_vllm, longest = known[f"knob_{_POOL}"].notna(), cells["max_model_len_effective"]
    size = cells["block_size_effective"].where(is_vllm, known["knob_page_size"])
    tokens = size * (cells["num_gpu_blocks"] - 1).where(is_vllm, known["knob_num_blocks"])
    contiguous, words = is_vllm & (size >= longest), size.map("{:g}".format)
    layout = ("HuggingFace's pages of " + words + " tokens").mask(is_vllm, "blocks of " + words + " tokens")
    layout = layout.mask(contiguous, "contiguous: " + longest.map("{:g}".format) + " tokens per request")
    rows = cells[["cell_id", *CELL]].assign(pool_tokens=tokens, contiguous=contiguous, layout=layout, size=size)
    rows = require(rows.dropna(subset="pool_tokens"), "the study sets the number of KV blocks of no measured cell")
    rows = rows.join(tables.values.reindex(columns=["num_requests", USERS, *_QUANTITIES]), on="cell_id")
    return rows.sort_values([*COORDINATES, "size", "pool_tokens"], kind="stable")


def same_memory(tables: Tables) -> pd.DataFrame:
    """One row per way to keep the KV cache of the same requests in the same memory.

    `users` is the number of requests that run at once while others wait, or the peak if none waits; `times` is its
    ratio to that of contiguous reservations. Memory that is enough for all contiguous reservations is left out.
    """
    rows = pools(tables).assign(users=lambda rows: rows[USERS].fillna(rows["running_peak"]))
    short = rows[rows["contiguous"] & rows[USERS].notna()]
    both = rows.merge(short.groupby(_MEMORY, as_index=False)["users"].max(), on=_MEMORY, suffixes=("", "_contiguous"))
    both = both.assign(times=both["users"] / both["users_contiguous"])
    return both.sort_values([*_MEMORY, "users"], ascending=[True] * 4 + [False], kind="stable")


def requests_at_once(tables: Tables) -> Plot:
    """Requests that run at once while others wait, in the same memory for keys and values, by the way it is kept: each
    request reserves room for the longest possible one, or takes blocks as it grows."""
    rows = _ways(tables)
    size = rows["pool_tokens"].iloc[0]
    rows = rows.assign(name=rows["layout"], value=rows["users"], text=rows["users"].map("{:.3g} requests".format))
    rows = rows.drop_duplicates("name").join(tables.intervals_of(USERS)[["low", "high"]], on="cell_id")
    label = f"requests at once in {size:,.0f} tokens of KV cache"
    return bar(coloured(tables, rows), "Requests in the same memory", label, measure=USERS)


def _ways(tables: Tables) -> pd.DataFrame:
    """The ways to keep the KV cache in the memory in which the most were measured, the most requests last."""
    rows = require(same_memory(tables), "in no pool of KV blocks did contiguous reservations let requests wait")
    sizes = rows.groupby(_MEMORY, sort=False)["layout"].nunique()
    most = rows.set_index(_MEMORY).loc[[sizes.idxmax()]].reset_index()
    return most.sort_values("users", kind="stable")


def answers(report: Report) -> Iterator[Answer]:
    rows = _ways(report.tables)
    whole = records(rows[rows["contiguous"]])[0]
    most = records(rows)[-1]
    said = f"{most['users']:.0f} instead of {whole['users']:.0f} in the same memory"
    bar_ = Bar(most["times"], float("nan"), float("nan"), "counted", most["gpu"])
    gain = f"paging {most['times']:.1f}×"
    yield Answer(YES if most["times"] > 1 else NO, "Paging fits more requests?", said, (bar_,), gain)


def sentence(report: Report) -> str:
    rows = _ways(report.tables)
    whole, most = records(rows[rows["contiguous"]])[0], records(rows)[-1]
    return f"The same memory holds {most['users']:.0f} requests instead of {whole['users']:.0f}."


EVERY_POOL = TablePart(
    "repeats",
    {**CELL, "pool_tokens": "Tokens that fit", "layout": "Layout", **dict.fromkeys(_QUANTITIES, "")},
    "Every size of the pool",
    rows=pools,
    note="Tokens that fit are without the block that vLLM keeps to itself. Of tokens computed again, the engine also "
    "counts those of tries that find no blocks.",
)


SUBJECT = Subject(
    id="memory",
    title="Memory pressure",
    asked="KV blocks|requests fit|fit more",
    sentence=sentence,
    figures=[requests_at_once],
    answers=answers,
    tables=[EVERY_POOL],
    is_in=lambda study: any(_POOL in sweep.knobs for sweep in study.sweeps),
)
