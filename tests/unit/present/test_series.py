import pandas as pd
import pytest

from workflow_scripts.page.series import cell_titles, groups_varying
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.tables.results import MissingError

KNOBS = ["knob_block_size", "knob_max_num_seqs"]


def cells(*rows: tuple[str, float, float]) -> pd.DataFrame:
    names = {"engine": "vllm", "model": "m", "workload": "w", "environment_number": 1}
    return pd.DataFrame(
        [
            {"cell_id": f"{gpu}/{bs}/{seqs}", "gpu": gpu, "knob_block_size": bs, "knob_max_num_seqs": seqs, **names}
            for gpu, bs, seqs in rows
        ]
    )


def test_only_cells_with_a_partner_that_differs_in_the_knob_alone_are_compared():
    rows = cells(("h200", 16, 1), ("h200", 16, 4), ("h200", 32, 8), ("l40s", 16, 1))
    (group,) = groups_varying(rows, "knob_max_num_seqs", KNOBS, COORDINATES[1:])
    assert list(group.rows["cell_id"]) == ["h200/16/1", "h200/16/4"]
    assert list(group.rows["x"]) == [1, 4]
    assert group.labels == [""]
    # Other settings that differ are told apart.
    rows = cells(("h200", 16, 1), ("h200", 16, 4), ("h200", 32, 1), ("h200", 32, 4))
    (group,) = groups_varying(rows, "knob_max_num_seqs", KNOBS, COORDINATES[1:])
    assert group.labels == ["block size 16", "block size 32"]
    # Cells of several environments are on several lines, and one that is alone in its own is on none.
    rows = cells(("h200", 16, 1), ("h200", 16, 4), ("h200", 16, 8)).assign(environment_number=[1, 2, 2])
    (group,) = groups_varying(rows, "knob_max_num_seqs", KNOBS, COORDINATES[1:])
    assert list(group.rows["x"]) == [4, 8]
    assert group.labels == [""]
    both = pd.concat([rows, cells(("h200", 16, 2))])
    (group,) = groups_varying(both, "knob_max_num_seqs", KNOBS, COORDINATES[1:])
    assert dict(zip(group.rows["x"], group.rows["series"], strict=True)) == {
        **dict.fromkeys([1, 2], ", environment 1"),
        **dict.fromkeys([4, 8], ", environment 2"),
    }
    # Each device has a panel, the one with the most cells first.
    rows = cells(("l40s", 16, 1), ("l40s", 16, 4), ("h200", 16, 1), ("h200", 16, 4), ("h200", 16, 8))
    assert [group.title for group in groups_varying(rows, "knob_max_num_seqs", KNOBS, COORDINATES)] == ["h200", "l40s"]


def test_a_knob_that_nothing_varies_is_missing():
    with pytest.raises(MissingError, match="no two measured cells differ only in block size"):
        groups_varying(cells(("h200", 16, 1), ("h200", 16, 4)), "knob_block_size", KNOBS, COORDINATES)
    with pytest.raises(MissingError, match="sets page_size"):
        groups_varying(cells(("h200", 16, 1)), "knob_page_size", KNOBS, COORDINATES)


def test_cells_of_which_each_sets_what_the_other_leaves_alone_have_titles_of_their_own():
    cells = pd.DataFrame({"knob_a": [1.0, None], "knob_b": [None, 2.0]}).assign(**dict.fromkeys(COORDINATES, "x"))
    assert list(cell_titles(cells, [0, 1], ["knob_a", "knob_b"])) == ["x\na 1", "x\nb 2"]
