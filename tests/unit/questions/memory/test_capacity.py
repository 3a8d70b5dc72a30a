"""Predicted and measured capacity: made-up logs with hand-computed numbers."""

import pandas as pd
import pytest

from tests.unit.questions.synthetic_cells import cell, table
from workflow_scripts.common.faults import InputError
from workflow_scripts.questions.memory.capacity import COMPARED, SCHEMA, capacity_table, read_predictions

GIB = 2**30
KNOBS = {"block_size": 16, "gpu_memory_utilization": 0.9}
CELL = "h200/vllm/llama-3.1-8b-instruct/chat/bs16-util0.9"

# 100 GiB at 0.9 with 15 of weights, 2 of activation, 1 of graphs and 1 of the rest: 71 GiB, 36,352 blocks of 2 MiB.
GIBS = {
    "device_memory": 100,
    "budget": 90,
    "weights": 15,
    "activation": 2,
    "cuda_graphs": 1,
    "other": 1,
    "kv_cache": 71,
}
PREDICTED = {f"{term}_bytes": gib * GIB for term, gib in GIBS.items()}
PREDICTED |= {"cell_id": CELL, "source": "predicted", "vllm_version": "0.32.0", "gpu_memory_utilization": 0.9}
PREDICTED |= {"block_size": 16, "bytes_per_token": 131072, "bytes_per_block": 2**21, "num_blocks": 36352}
PREDICTED |= {"kv_cache_tokens": 581632, "max_concurrency": 142.0, "infeasible": None, "unknown": None}
PREDICTED |= {"dtype": "bfloat16", "how": {}}
# What the engine of the same cell printed, as predicted.
PRINTED = {"engine_version": "vllm 0.32.0", "block_size_effective": 16, "num_gpu_blocks": 36352}
PRINTED |= {"kv_cache_tokens": 581632, "max_concurrency": 142.0, "available_kv_cache_gib": 71.0}
PRINTED |= {"model_weights_gib": 15.0, "peak_activation_gib": 3.0, "cuda_graph_gib": 1.0}


def predictions(*changes):
    rows = [PREDICTED | change for change in changes or ({},)]
    return pd.DataFrame(rows)[[*PREDICTED]]


def row_of(*predicted, knobs=KNOBS, **printed):
    """The row of one cell that printed what was predicted, but for these changes; None for null."""
    (row,) = capacity_table(table(cell(knobs, **(PRINTED | printed))), predictions(*predicted)).to_dict("records")
    return {name: None if pd.isna(value) else value for name, value in row.items()}


def test_what_came_as_predicted_has_no_error():
    row = row_of()
    assert {term: row[f"{term}_error_pct"] for term in COMPARED} == dict.fromkeys(COMPARED, 0.0)
    assert {term: row[f"observed_{term}"] for term in COMPARED} == {term: row[f"predicted_{term}"] for term in COMPARED}
    assert row["predicted_num_blocks"] == 36352
    assert row["predicted_activation_bytes"] == 3 * GIB  # the graphs are in what the engine prints
    assert (row["source"], row["study"], row["cell_id"]) == ("measured", "try", CELL)


@pytest.mark.parametrize(
    ("printed", "term", "error_pct"),
    [
        ({"model_weights_gib": 12.0}, "weights_bytes", 25.0),
        ({"peak_activation_gib": 2.0}, "activation_bytes", 50.0),
        ({"cuda_graph_gib": 0.5}, "cuda_graphs_bytes", 100.0),
        ({"available_kv_cache_gib": 35.5}, "kv_cache_bytes", 100.0),
        ({"num_gpu_blocks": 18176}, "num_blocks", 100.0),
        ({"kv_cache_tokens": 290816}, "kv_cache_tokens", 100.0),
        ({"max_concurrency": 284.0}, "max_concurrency", -50.0),
    ],
)
def test_an_error_is_the_prediction_over_what_was_seen(printed, term, error_pct):
    row = row_of(**printed)
    assert row[f"{term}_error_pct"] == pytest.approx(error_pct)
    assert sum(row[f"{other}_error_pct"] != 0 for other in COMPARED) == 1


def test_what_was_not_printed_or_is_zero_has_no_error():
    row = row_of(model_weights_gib=None, available_kv_cache_gib=0.0, num_gpu_blocks=0)
    assert [row[f"{term}_error_pct"] for term in ("weights_bytes", "kv_cache_bytes", "num_blocks")] == [None] * 3
    # Graphs that come off no budget are not held against the log.
    row = row_of({"cuda_graphs_bytes": 0})
    assert row["cuda_graphs_bytes_error_pct"] is None
    assert row["activation_bytes_error_pct"] == pytest.approx(100 * (2 / 3 - 1))
    not_run = row_of(outcome="missing", **dict.fromkeys(PRINTED))
    assert not_run["predicted_kv_cache_tokens"] == 581632
    assert not_run["observed_kv_cache_tokens"] is None


def test_without_a_prediction_the_table_is_empty():
    assert capacity_table(table(cell(KNOBS)), predictions().head(0)).empty


def test_a_set_number_of_blocks_is_not_held_against_the_memory_that_was_available():
    row = row_of(
        {"cell_id": f"{CELL}-pool2049", "num_blocks": 2049, "kv_cache_tokens": 32784, "kv_cache_bytes": 2049 * 2**21},
        knobs=KNOBS | {"num_gpu_blocks_override": 2049},
        **{"num_gpu_blocks": 2049, "kv_cache_tokens": 32784, "max_concurrency": 8.0},
    )
    assert (row["observed_kv_cache_bytes"], row["kv_cache_bytes_error_pct"]) == (None, None)
    assert row["num_blocks_error_pct"] == 0


def test_a_cell_without_a_prediction_has_no_row_repeats_are_one_and_sources_are_several():
    blocks = {"num_gpu_blocks": [None, 36352, None], "kv_cache_tokens": 581632}  # only one repeat tells
    rows = capacity_table(
        table(
            cell(KNOBS, (1.0, 2.0, 3.0), **(PRINTED | blocks)),
            cell(KNOBS, source="measured elsewhere", study="other", **PRINTED),
            cell({"batch_size": 4}, engine="hf-static"),
        ),
        predictions(),
    )
    assert rows["cell_id"].tolist() == [CELL, CELL]
    assert sorted(rows["source"]) == ["measured", "measured elsewhere"]
    assert rows["observed_num_blocks"].tolist() == [36352, 36352]
    assert list(rows.columns) == list(SCHEMA.columns)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "capacity.jsonl: line 1: not JSON"),
        ('{"cell_id": "a", "vllm_version": "1"}\n', "no predictions of capacity: without infeasible, unknown, dtype"),
        ('{"cell_id": 5}\n', "capacity.jsonl: cell_id: Input should be a valid string, not 5"),
    ],
)
def test_bad_predictions_are_bad_input(tmp_path, text, message):
    (tmp_path / "capacity.jsonl").write_text(text)
    with pytest.raises(InputError, match=message):
        read_predictions(tmp_path / "capacity.jsonl")
