"""Which cells are compared by their answers, how many are the same, and where the first difference lies."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.unit.made_studies import fixed, made_study
from tests.unit.questions.parsed_tables import requests, write_parsed
from tests.unit.questions.synthetic_cells import cell, table
from workflow_scripts.questions.answers.table import answers_table
from workflow_scripts.study.study import Study
from workflow_scripts.tables.typed_tables import TABLE_SCHEMAS

MODEL = "tiny-llama-57m"
PLACE: dict[str, Any] = {"gpu": "cpu-all", "model": MODEL, "rates": [100.0, 100.0]}
ANSWERS = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
OTHERS = [[1, 2, 3], [4, 0, 0], [7, 8, 0]]  # two answers differ, from the second and from the third token on


def study(load_format: str = "seeded", **workload: Any) -> Study:
    return made_study(
        {"gpu": "cpu-all", "model": MODEL},
        workloads={"chat": fixed(3, 4, 3, keep_answers=True) | workload},
        models={MODEL: {"load_format": load_format}},
    )


def served(cells: list[dict[str, Any]], *passes: list[list[int]], tokens: bool = True) -> pd.DataFrame:
    """The requests of a cell in each of its passes."""
    parts = []
    for repeat, answers in enumerate(passes):
        columns = {"text": ["".join(chr(64 + token) for token in ids) for ids in answers]}
        columns |= {"token_ids": answers if tokens else None}
        parts.append(requests(cells[0]["cell_id"], *[()] * len(answers), repeat=repeat, **columns))
    return pd.concat(parts)


def answers(folder: Path, content: Study, *cells: tuple[list[dict[str, Any]], pd.DataFrame]) -> pd.DataFrame:
    write_parsed(folder / "cpu-all", "requests", *(requests for _, requests in cells))
    found = answers_table(content, table(*(rows for rows, _ in cells)), folder)
    return TABLE_SCHEMAS["answers"].validate(found)


def vllm(*passes: list[list[int]], engine: str = "vllm", **knobs: Any) -> tuple[list[dict[str, Any]], pd.DataFrame]:
    rows = cell(knobs, **PLACE, engine=engine)
    return rows, served(rows, *passes)


def test_a_knob_that_changes_some_answers_is_told_with_the_first_difference(tmp_path):
    plain, fp8 = vllm(ANSWERS, max_num_seqs=4), vllm(OTHERS, max_num_seqs=4, kv_cache_dtype="fp8")
    (row,) = answers(tmp_path, study(), fp8, plain).to_dict("records")
    assert (row["differs_in"], row["value"], row["baseline"]) == ("kv_cache_dtype", "fp8", "auto")
    assert (row["cell_id"], row["baseline_cell_id"]) == (fp8[0][0]["cell_id"], plain[0][0]["cell_id"])
    assert (row["requests"], row["same"], row["same_share"]) == (3, 1, pytest.approx(1 / 3))
    assert (row["first_difference_min"], row["first_difference_median"]) == (2, 2.5)
    # The same cell again shows what changes by itself.
    (row,) = answers(tmp_path, study(), vllm(ANSWERS, OTHERS, max_num_seqs=4)).to_dict("records")
    assert (row["differs_in"], row["requests"], row["same"]) == ("again", 3, 1)
    # A server that tells no tokens is compared by text.
    rows = cell({"max_num_seqs": 4}, **PLACE, engine="vllm-serve")
    (row,) = answers(tmp_path, study(), plain, (rows, served(rows, OTHERS, tokens=False))).to_dict("records")
    assert (row["compared_by"], row["same"], row["first_difference_min"]) == ("text", 1, 2)


def test_each_value_is_compared_with_the_smallest_and_only_one_setting_differs(tmp_path):
    cells = [vllm(ANSWERS, max_num_seqs=seqs, block_size=size) for size in (16, 32) for seqs in (1, 4, 8)]
    found = answers(tmp_path, study(), *cells)
    assert set(found["differs_in"]) == {"max_num_seqs", "block_size"}
    pairs = found[found["differs_in"] == "max_num_seqs"][["value", "baseline"]].value_counts()
    assert dict(pairs) == {("4", "1"): 2, ("8", "1"): 2}
    assert (found["same"] == 3).all()


def test_engines_are_compared_in_their_cells_of_the_fewest_sequences(tmp_path):
    cells = [vllm(ANSWERS, max_num_seqs=seqs) for seqs in (8, 1)]
    cells.append(vllm(OTHERS, engine="hf-static", batch_size=2))
    found = answers(tmp_path, study(), *cells)
    (row,) = found[found["differs_in"] == "engine"].to_dict("records")
    assert (row["value"], row["baseline"], row["same"]) == ("hf-static", "vllm", 1)
    assert row["baseline_cell_id"].endswith("seqs1")


@pytest.mark.parametrize(
    ("engine", "knobs", "is_compared"),
    [
        ("hf-static", {"batch_size": 1}, False),
        ("vllm-serve", {"max_num_seqs": 1}, True),
        ("vllm", {"max_num_seqs": 1, "tensor_parallel_size": 2}, False),
        ("vllm", {"max_num_seqs": 1, "kv_cache_dtype": "fp8"}, True),
    ],
)
def test_weights_that_each_engine_makes_up_are_not_compared(tmp_path, engine, knobs, is_compared):
    cells = [vllm(ANSWERS, max_num_seqs=1), vllm(ANSWERS, engine=engine, **knobs)]
    assert len(answers(tmp_path, study("dummy"), *cells)) == is_compared
    assert len(answers(tmp_path, study("seeded"), *cells)) == 1


@pytest.mark.parametrize("workload", [{"keep_answers": False}, {"sampling": {"temperature": 1.0}}])
def test_only_greedy_answers_that_are_kept_are_compared(tmp_path, workload):
    cells = [vllm(ANSWERS, max_num_seqs=1), vllm(ANSWERS, max_num_seqs=4)]
    assert answers(tmp_path, study(**workload), *cells).empty
    assert len(answers(tmp_path, study(), *cells)) == 1
