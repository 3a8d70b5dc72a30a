"""Summary tables: every device by max-num-seqs and by block size, with HuggingFace beside them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from textwrap import shorten

import pandas as pd

from workflow_scripts.engines.hf_engines import HF_STATIC
from workflow_scripts.engines.registry import load_engines
from workflow_scripts.present.blocks import Block, Fold, Text, outcome_words, table_of
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import MissingError, Tables, of_all_layers
from workflow_scripts.present.subject import Subject
from workflow_scripts.present.subjects.every_cell import MOST_LETTERS
from workflow_scripts.study.setting_words import said, settings_in_words

# Knob of the rows -> its name in the table.
KNOBS: Mapping[str, str] = {"knob_max_num_seqs": "max-num-seqs", "knob_block_size": "block size"}
HUGGINGFACE = [engine.name for engine in load_engines().values() if engine.library == HF_STATIC.library]
RATE = "output_tokens_per_s"
MOST_TABLES = 50  # of each knob
COLUMNS: Mapping[str, str] = {
    "gpu": "Device",
    "row": "Setting",
    RATE: "Output tokens per s (95 % interval)",
    "num_gpu_blocks": "KV blocks",
    "waste_pct": "Empty slots in held KV memory (%)",
    "memory_used_bytes": "Peak memory (GiB)",
    "remark": "Why there is no rate",
}


def with_results(tables: Tables) -> pd.DataFrame:
    """One row per cell: its settings, medians over repeats, and the interval of its rate or why it has none."""
    cells, grid = tables.cells, tables.grid.set_index("cell_id")
    memory = cells.groupby("cell_id")[["num_gpu_blocks", "memory_used_bytes_max"]].median()
    memory.columns = ["num_gpu_blocks", "memory_used_bytes"]
    rows = grid.drop(columns=["num_gpu_blocks", RATE], errors="ignore").join(memory)
    intervals = tables.get("intervals")
    if intervals is not None:
        rates = intervals[intervals["measure"] == RATE].set_index("cell_id")[["value", "low", "high"]]
        rows = rows.join(rates.set_axis([RATE, f"{RATE}_low", f"{RATE}_high"], axis=1))
    waste = tables.get("waste")
    if waste is not None:
        measured = of_all_layers(waste[waste["source"] == "measured"])
        rows = rows.join(measured.groupby("cell_id")["waste_pct"].median())
    why = (grid["outcome"].map(outcome_words) + (": " + grid["reason"].astype(object)).fillna("")).map(
        partial(shorten, width=MOST_LETTERS, placeholder=" ...")
    )
    return rows.assign(remark=why.where(grid["outcome"] != "ok", None)).reset_index()


def groups(rows: pd.DataFrame, knob: str, knobs: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """The cells of each engine, model and workload in which only the knob and the device change, with their title.

    Cells of HuggingFace with the same model and workload follow.
    """
    others = [name for name in knobs if name != knob]
    of_others = rows[others].astype(object).where(rows[others].notna(), None)
    rows = rows.assign(settings=[repr(values) for values in of_others.itertuples(index=False, name=None)])
    baseline = rows[rows["engine"].isin(HUGGINGFACE)]
    for (engine, model, workload, _), part in rows[rows[knob].notna()].groupby(
        ["engine", "model", "workload", "settings"], sort=False
    ):
        if part[knob].nunique() < 2:
            continue
        held = ", ".join(said(name, part[name].iloc[0]) for name in others if pd.notna(part[name].iloc[0]))
        beside = baseline[(baseline["model"] == model) & (baseline["workload"] == workload)]
        beside = beside[beside["gpu"].isin(part["gpu"])]
        names = [f"{of}, {words}" for of, words in zip(beside["engine"], settings_in_words(beside, knobs), strict=True)]
        named = pd.concat([part.sort_values(knob).assign(row=part[knob].map("{:g}".format)), beside.assign(row=names)])
        devices = list(dict.fromkeys(rows["gpu"]))
        yield (
            f"{engine}, {model}, {workload}{', ' if held else ''}{held}",
            named.sort_values("gpu", key=lambda gpus: gpus.map(devices.index), kind="stable"),
        )


def central_tables(report: Report) -> Iterator[Block]:
    """A table for each knob and each engine, model, workload and setting of the other knobs."""
    tables = report.tables
    rows = with_results(tables)
    found = False
    for knob, name in KNOBS.items():
        parts = groups(rows, knob, tables.knobs) if knob in rows else iter(())
        for title, part in islice(parts, MOST_TABLES):
            found = True
            columns = {**COLUMNS, "row": f"{name[0].upper() if ' ' in name else name[0]}{name[1:]}"}
            table = table_of(part, columns, f"Devices by {name}: {title}")
            yield Fold(table.caption, [table])
        if next(parts, None):
            yield Text(f"Only the first {MOST_TABLES} tables by {name} are shown. The list of cells has all cells.")
    if not found:
        raise MissingError("no two cells of an engine differ only in max-num-seqs or the block size")


SUBJECT = Subject(
    id="central-tables",
    title="Summary tables",
    parts=[central_tables],
)
