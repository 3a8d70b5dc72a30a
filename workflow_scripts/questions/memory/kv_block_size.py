"""Throughput and KV memory by the size of a KV block: capacity as predicted and as the engines had it, and waste."""

from collections.abc import Iterator
from contextlib import suppress

import pandas as pd

from workflow_scripts.common.wording import number, plural
from workflow_scripts.engines.registry import every_knob
from workflow_scripts.page.answers import Answer, is_hollow, setting_answer, upwards
from workflow_scripts.page.blocks import Block, Text
from workflow_scripts.page.comparisons import comparisons
from workflow_scripts.page.digits import rounded
from workflow_scripts.page.kit import Plot, bar, beside, ratio
from workflow_scripts.page.main_line import rate_words
from workflow_scripts.page.parts import claims_on, compared, four_metrics
from workflow_scripts.page.report import CELL, Report, Subject, TablePart, of_cells
from workflow_scripts.page.series import PLACES, coloured
from workflow_scripts.study.setting_words import setting_phrase
from workflow_scripts.tables.results import MissingError, Tables, records, require
from workflow_scripts.tables.summary import RAN

_KNOB, SIZE = "block_size", "knob_block_size"
# A smaller error of a KV cache prediction may come from other data in the device's memory.
WITHIN_PCT = 1.0


def block_size(tables: Tables) -> Plot:
    """Left, the share of the slots in held blocks without a token; right, the rate over that of the smallest blocks,
    with its 95 % interval. Hollow: not decided."""
    panels = []
    sizes = coloured(tables, _sizes(tables))
    if (waste := sizes.dropna(subset="value")).size:
        panels.append(bar(waste, "Empty slots", "empty slots in held KV memory", unit=" %"))
    with suppress(MissingError):
        rows = comparisons(tables, "knob", _KNOB)
        named = sizes.set_index("cell_id")[["name", "colour"]]
        rows = rows.drop(columns="name").join(named, on="b", how="inner")
        require(rows, "no rates of these sizes are compared")
        rows = rows.assign(value=rows["ratio"], cell_id=rows["b"], hollow=[is_hollow(row) for row in records(rows)])
        rows = rows.sort_values("b", key=lambda names: names.map(list(named.index).index), kind="stable")
        base = setting_phrase(_KNOB, rows["value_a"].iloc[0]).removeprefix("block size ")
        label = f"{rate_words(rows['metric'].iloc[0])}, over {base}"
        panels.append(ratio(rows, "Rate", label, measure="ratio"))
    return beside("Block size", *require(panels, "no two measured cells differ only in block size"))


def _sizes(tables: Tables) -> pd.DataFrame:
    """The measured cells with several block sizes of the first device, model and workload that has the most: `name`,
    and the share of empty slots as `value`."""
    if SIZE not in tables.knobs:
        raise MissingError("no cell sets the block size")
    rows = tables.measured_cells.dropna(subset=SIZE)
    others = [name for name in tables.knobs if name != SIZE]
    alike = (group for _, group in rows.groupby([*PLACES, "engine", *others], dropna=False, sort=False))
    most = max(alike, key=lambda group: group[SIZE].nunique(), default=rows)
    if most[SIZE].nunique() < 2:
        raise MissingError("no two measured cells differ only in block size")
    named = most.sort_values(SIZE).assign(name=most[SIZE].map("{:g} tokens".format))
    return named.join(tables.intervals_of("waste_pct"), on="cell_id")


def answers(report: Report) -> Iterator[Answer]:
    rows = comparisons(report.tables, "knob", _KNOB)
    yield from setting_answer(report.tables, rows, "Block size matters?", "block size", helps=False)


def sentence(report: Report) -> str:
    sizes = _sizes(report.tables)
    first, last = (records(sizes)[end] for end in (0, -1))
    if pd.isna(first["value"]) or pd.isna(last["value"]):
        top = upwards(comparisons(report.tables, "knob", _KNOB))
        return f"Rates differ by a factor of at most {number(top['ratio'].max(), 2)}."
    large, small = (rounded(end["value"], end["low"], end["high"]) for end in (last, first))
    return f"Large blocks leave {large} % of held slots empty, small ones {small} %."


def prediction_errors(report: Report) -> Iterator[Block]:
    rows = report.tables.need("memory")
    ran = report.grid.loc[report.grid["outcome"].isin(RAN), "cell_id"]
    rows = rows[rows["cell_id"].isin(ran) & (rows["source"] == "measured")].dropna(subset="kv_cache_tokens_error_pct")
    require(rows, "no cell has KV-cache tokens that were both predicted and measured")
    cells = report.tables.rows
    amounts = [f"knob_{name}" for name, knob in every_knob().items() if knob.reserves == "amount"]
    is_given = rows["cell_id"].isin(cells.loc[cells.filter(amounts).notna().any(axis=1), "cell_id"])
    if given := int(is_given.sum()):
        yield Text(f"In {plural(given, 'cell')} the study sets the KV cache, so nothing was to be predicted.")
    if len(error_pct := rows.loc[~is_given, "kv_cache_tokens_error_pct"].abs()):
        yield Text(
            f"The predicted KV cache is within {WITHIN_PCT:g} % of the measured tokens in "
            f"{int((error_pct <= WITHIN_PCT).sum())} of {len(error_pct)} cells; the largest error is "
            f"{number(error_pct.max())} %."
        )


CAPACITY = TablePart(
    "memory",
    {
        **CELL,
        "source": "Source",
        "observed_kv_cache_tokens": "Tokens",
        "predicted_kv_cache_tokens": "Tokens, predicted",
        "kv_cache_tokens_error_pct": "Error of predicted tokens",
        "observed_num_blocks": "Blocks",
        "predicted_num_blocks": "Blocks, predicted",
        "observed_max_concurrency": "Requests of full length",
        "predicted_max_concurrency": "Requests of full length, predicted",
        "predicted_infeasible": "Predicted to be refused",
    },
    "Capacity of the KV cache, as the engine had it and as predicted",
    note="Of the first start of each cell. Tokens and requests are those of all blocks, of which vLLM keeps one to "
    "itself; engines round the requests of full length.",
)


_MEMORY = [f"kv_bytes_{kind}" for kind in ("reserved_peak", "reserved_mean", "used_mean")]
_MEMORY += ["torch_memory_bytes_max", "process_memory_growth_bytes_max"]


SUBJECT = Subject(
    id="block-size",
    title="Block size and KV memory",
    asked="block size|KV",
    sentence=sentence,
    figures=[block_size],
    answers=answers,
    why=[prediction_errors],
    tables=[
        four_metrics(_KNOB),
        compared("knob", _KNOB),
        CAPACITY,
        of_cells(_MEMORY, "KV memory reserved and used", "kv_bytes_reserved_peak"),
        claims_on("block-size"),
    ],
)
