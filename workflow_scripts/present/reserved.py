"""Bytes of keys and values that engines set aside, beside those that they used."""

from collections.abc import Iterator

from workflow_scripts.present.blocks import Block, Text, table_of
from workflow_scripts.present.report import MOST_ROWS, Report
from workflow_scripts.present.tables import MissingError

_VALUES = {
    "reserved_bytes": "kv_bytes_reserved_peak",
    "reserved_mean_bytes": "kv_bytes_reserved_mean",
    "used_bytes": "kv_bytes_used_mean",
    "torch_bytes": "torch_memory_bytes_max",
    "process_bytes": "process_memory_growth_bytes_max",
}
HOW_ENGINES_RESERVE = (
    "An engine sets memory for keys and values aside in one of three ways. vLLM and HuggingFace's continuous batching "
    "allocate a pool of blocks when they start. All of it is reserved, however little is used; its size is a setting, "
    "and a request holds whole blocks of it while it runs. HuggingFace's generate() has a cache for each batch, a row "
    "for each request. DynamicCache grows by a slot a row and step, and copies itself to do so; StaticCache is "
    "allocated at once for the batch's longest prompt and longest output. Both hold slots for the padding in front of "
    "shorter prompts, and for rows that are done, until the last row is. Used is what tokens of requests under way "
    "take: no padding, and nothing of a row that is done."
)


def reserved_and_used(report: Report) -> Iterator[Block]:
    """How each engine reserves memory, and medians over the repeats of each cell."""
    cells = report.tables.need("cells", "cell_id", "repeat", *_VALUES.values())
    known = cells[cells["repeat"].notna() & cells["kv_bytes_reserved_peak"].notna()]
    if known.empty:
        raise MissingError("no cell tells the bytes that its KV cache reserved")
    yield Text(HOW_ENGINES_RESERVE)
    places = ["gpu", "engine", "model", "workload", "knobs"]
    medians = known.groupby(places, sort=False)[list(_VALUES.values())].median().reset_index()
    rows = medians.rename(columns={column: name for name, column in _VALUES.items()})
    rows = rows.assign(used_pct=100 * rows["used_bytes"] / rows["reserved_mean_bytes"])
    columns = {
        "gpu": "Device",
        "engine": "Engine",
        "model": "Model",
        "workload": "Workload",
        "knobs": "Settings",
        "reserved_bytes": "KV reserved, peak (GiB)",
        "reserved_mean_bytes": "mean (GiB)",
        "used_bytes": "KV used, mean (GiB)",
        "used_pct": "Used of reserved, means (%)",
        "torch_bytes": "torch's peak with weights (GiB)",
        "process_bytes": "Growth of the process (GiB)",
    }
    note = f"{MOST_ROWS} of {len(rows)} cells; the table cells holds all." if len(rows) > MOST_ROWS else ""
    yield table_of(rows.head(MOST_ROWS), columns, "KV memory reserved and used, medians over repeats", note)
