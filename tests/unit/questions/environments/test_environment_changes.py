import json

import pytest

from tests.unit.questions.synthetic_cells import around, cell, starts_table
from workflow_scripts.questions.environments.table import SCHEMA, environment_changes
from workflow_scripts.questions.knobs.pairs import AT
from workflow_scripts.questions.knobs.table import knob_effects
from workflow_scripts.statistics.comparisons import CHANGES

SETTINGS = {"block_size": 16, "chunked_prefill": False, "num_gpu_blocks": 1000}


def measured(environment, seqs, rate, start_s, **settings):
    """The rows of a cell in an environment: three starts."""
    of = cell(
        {"max_num_seqs": seqs},
        around(rate),
        effective=json.dumps(SETTINGS | settings),
        start_s=start_s,
        engine_version=environment or "vllm 0.32.0",
        lock_sha256=environment or "own",
    )
    at = f"vllm@{environment}" if environment else "vllm"
    return [row | {"engine": at, "cell_id": row["cell_id"].replace("/vllm/", f"/{at}/")} for row in of]


CELLS = starts_table(
    *(measured("vllm-0.20", seqs, 60 * seqs, 20.0, chunked_prefill=True, num_gpu_blocks=900 - seqs) for seqs in (1, 4)),
    *(measured("", seqs, 100 * seqs, 10.0) for seqs in (1, 4)),
    measured("vllm-0.20", 8, 480, 20.0),
)


def test_an_environment_is_compared_with_the_default_one_cell_by_cell():
    found = knob_effects(CELLS, 2.0)
    pairs = found[found["knob"].eq(AT) & found["comparison"].eq("pair")]
    assert pairs[["engine", "value", "baseline", "verdict"]].drop_duplicates().values.tolist() == [
        ["vllm", "vllm-0.20", "default", CHANGES]
    ]
    assert pairs["held"].tolist() == ["max_num_seqs=1", "max_num_seqs=4"]
    assert pairs["ratio"].tolist() == pytest.approx([0.6, 0.6])
    assert pairs["cell_id"].str.split("/").str[1].tolist() == ["vllm@vllm-0.20"] * 2
    # What other knobs do is compared inside an environment only.
    others = found[found["knob"].ne(AT)]
    assert set(others["cell_id"].str.split("/").str[1] + others["baseline_cell_id"].str.split("/").str[1]) == {
        *("vllm@vllm-0.20vllm@vllm-0.20", "vllmvllm")
    }


def test_what_changed_by_itself_is_one_row_for_each_setting():
    rows = SCHEMA.validate(environment_changes(CELLS)).set_index("setting")
    assert rows[["environment", "baseline", "compared"]].drop_duplicates().values.tolist() == [
        ["vllm-0.20", "default", 2]
    ]
    shown = rows[["baseline_value", "value", "cells", "other_pairs"]].astype(object)
    assert {name: tuple(row) for name, row in shown.iterrows()} == {
        "chunked_prefill": ("false", "true", 2, 0),
        "num_gpu_blocks": ("1000", "899", 2, 1),
        "engine_version": ("vllm 0.32.0", "vllm-0.20", 2, 0),
        "start_s": ("10", "20", 2, 0),
    }


def test_a_cell_that_ends_otherwise_is_a_change_too():
    cells = CELLS.copy()
    failed = cells["cell_id"].str.contains("@") & cells["knob_max_num_seqs"].eq(4)
    cells.loc[failed, ["outcome", "effective", "start_s"]] = ["infeasible", None, None]
    rows = environment_changes(cells).set_index("setting")
    assert rows.loc["outcome", ["value", "baseline_value", "cells", "compared"]].tolist() == ["infeasible", "ok", 1, 2]
    assert rows["cells"].to_dict() == {
        **{"outcome": 1, "chunked_prefill": 1, "num_gpu_blocks": 1},
        **{"engine_version": 2, "start_s": 1},
    }


def test_without_the_default_the_first_environment_is_the_baseline():
    cells = starts_table(measured("vllm-0.9", 1, 100, 9.0), measured("vllm-0.20", 1, 90, 9.0))
    rows = environment_changes(cells)
    assert set(rows["environment"] + " over " + rows["baseline"]) == {"vllm-0.20 over vllm-0.9"}
    assert environment_changes(cells[cells["engine"] == "vllm@vllm-0.9"]).empty
