"""Compare predicted KV capacity with the engine's: blocks, tokens, concurrency, memory.

One row per cell with a prediction. docs/capacity.md says how predictions are made, docs/tables.md documents every
column.
"""

from pathlib import Path

import pandas as pd
from pydantic import StrictFloat, StrictInt, StrictStr

from workflow_scripts.common.files import read_jsonl
from workflow_scripts.common.records import mapping_of, validated
from workflow_scripts.engines.vllm.memory import GIB
from workflow_scripts.tables.summary import as_applied
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import NUMBER, TEXT, TableError, table_schema

# Terms that are compared with what was observed. An engine prints the activation peak together with the graphs that it
# subtracts from the budget, so both are predicted together.
COMPARED = (
    "weights_bytes",
    "activation_bytes",
    "cuda_graphs_bytes",
    "kv_cache_bytes",
    "num_blocks",
    "kv_cache_tokens",
    "max_concurrency",
)
# Column <- column of the cells table.
_PRINTED_GIB = {
    "observed_weights_bytes": "model_weights_gib",
    "observed_activation_bytes": "peak_activation_gib",
    "observed_cuda_graphs_bytes": "cuda_graph_gib",
    "observed_kv_cache_bytes": "available_kv_cache_gib",
}
_OBSERVED = {"observed_num_blocks": "num_gpu_blocks"}
_OBSERVED |= {f"observed_{name}": name for name in ("kv_cache_tokens", "max_concurrency")}
# Column <- field of a prediction.
_PREDICTED_TEXT = {"predicted_for_version": "vllm_version"}
_PREDICTED_TEXT |= {f"predicted_{name}": name for name in ("infeasible", "unknown", "dtype")}
_PREDICTED = {name: name for name in ("gpu_memory_utilization", "bytes_per_token", "bytes_per_block")}
_PREDICTED |= {f"predicted_{name}": name for name in COMPARED}
# A record of a prediction, as far as it is read.
_NUMBER = StrictInt | StrictFloat
_Prediction = mapping_of(
    {"cell_id": StrictStr}
    | dict.fromkeys(_PREDICTED_TEXT.values(), StrictStr)
    | dict.fromkeys(_PREDICTED.values(), _NUMBER),
    extra="allow",
)
_CELL = (
    *("study", "source", "cell_id", "gpu", "engine", "model", "workload", "knobs"),
    *("outcome", "engine_version", "dtype"),
)

SCHEMA = table_schema(
    "memory",
    "KV capacity as predicted before the measurement and as reported by the engine ([how](capacity.md)). "
    "One row per cell of vLLM and of HuggingFace's continuous batching. `source` is that of the `observed_*` columns.",
    TEXT("study source cell_id gpu engine model workload knobs outcome", "as in `cells`"),
    TEXT("engine_version predicted_for_version", "measured and predicted version"),
    TEXT("dtype predicted_dtype", "measured and predicted type"),
    TEXT("predicted_infeasible", "why the engine would refuse the cell"),
    TEXT("predicted_unknown", "why there is no prediction"),
    NUMBER("gpu_memory_utilization", "share of the memory; null if the cell sets the size of the cache"),
    NUMBER("bytes_per_token bytes_per_block", "KV cache of one device, by formula"),
    NUMBER(
        [f"predicted_{term}" for term in COMPARED],
        "terms of the prediction; activation includes graphs, as engines print it",
    ),
    NUMBER(
        [*_PRINTED_GIB, *_OBSERVED],
        "the same terms, printed by the engine; blocks and tokens are null if it refused the cell",
    ),
    NUMBER([f"{term}_error_pct" for term in COMPARED], "predicted minus observed, over observed"),
)


def capacity_table(cells: pd.DataFrame, predictions: pd.DataFrame) -> pd.DataFrame:
    """The capacity table; `predictions` are records of `predictions.predict_study`, one per row."""
    table = _of_cells(cells).merge(_predicted(predictions), on="cell_id")
    return _with_errors(table)[list(SCHEMA.columns)]


def _of_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """One row per cell: the memory terms that its engine printed, in bytes."""
    rows = cells.groupby(["study", "source", "cell_id"], dropna=False, sort=False).first().reset_index()
    observed = {name: GIB * rows[column].astype(float) for name, column in _PRINTED_GIB.items()}
    # An engine may print what its cache would have before it refuses the cell.
    had = rows["outcome"] != "infeasible"
    observed |= {name: rows[column].astype(float).where(had) for name, column in _OBSERVED.items()}
    # If the number of blocks is set, the engine still prints the memory that would have been available.
    fits = as_applied(rows, "num_gpu_blocks_override") == ""
    observed["observed_kv_cache_bytes"] = observed["observed_kv_cache_bytes"].where(fits)
    return rows[list(_CELL)].assign(**observed)


def _predicted(predictions: pd.DataFrame) -> pd.DataFrame:
    table = pd.DataFrame(
        {"cell_id": predictions["cell_id"]}
        | {name: predictions[field].astype("string") for name, field in _PREDICTED_TEXT.items()}
        | {name: predictions[field].astype(float) for name, field in _PREDICTED.items()}
    )
    return table.assign(
        predicted_activation_bytes=table["predicted_activation_bytes"] + table["predicted_cuda_graphs_bytes"]
    )


def _with_errors(table: pd.DataFrame) -> pd.DataFrame:
    errors = {
        f"{term}_error_pct": 100
        * (table[f"predicted_{term}"] / table[f"observed_{term}"].where(lambda size: size > 0) - 1)
        for term in COMPARED
    }
    # Before vLLM 0.21 graphs are not subtracted from the budget. Then 0 is predicted, which says nothing of their size.
    graphs = errors["cuda_graphs_bytes_error_pct"].where(table["predicted_cuda_graphs_bytes"] > 0)
    return table.assign(**errors | {"cuda_graphs_bytes_error_pct": graphs})


def read_predictions(path: Path) -> pd.DataFrame:
    """The records of `predictions.predict_study`, one per row; raises InputError for any other file."""
    predictions = [validated(_Prediction, record, str(path)) for record in read_jsonl(path)]
    fields = ["cell_id", *_PREDICTED_TEXT.values(), *_PREDICTED.values()]
    if missing := [field for record in predictions[:1] for field in fields if field not in record]:
        raise TableError(f"{path}: no predictions of capacity: without {', '.join(missing)}")
    return pd.DataFrame(predictions, columns=fields)


@makes(SCHEMA, beside=True)
def make_tables(inputs: TableInputs) -> pd.DataFrame:
    return capacity_table(inputs.cells, read_predictions(inputs.paths.capacity))
