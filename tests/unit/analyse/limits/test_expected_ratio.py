"""Expected ratios by hand-worked predictions, and clocks from the cells."""

import math

import pandas as pd
import pytest

from tests.unit.analyse.synthetic_cells import around, cell, starts_table, table
from workflow_scripts.analyse.limits.predictions import SCHEMA
from workflow_scripts.analyse.limits.ratios import device_ratios
from workflow_scripts.analyse.tables import write_table

CELLS = table(
    cell({"max_num_seqs": 64}, [200, 200], power_cap_share=[0.5, 0.7], sm_clock_mhz_min=[1500, 1140]),
    cell({"max_num_seqs": 64}, [100, 100], gpu="l40s"),
)


def predicted(tmp_path, *rows):
    """The file of a predictions table of (rate by its own calibration, rate by the other's) of the two cells."""
    frame = pd.DataFrame(rows, columns=["predicted", "scaled_output_tokens_per_s"])
    frame = frame.assign(cell_id=CELLS["cell_id"].unique(), quantity="output_tokens_per_s", weights_share=[0.4, 0.6])
    path = tmp_path / "predictions.parquet"
    write_table(frame.reindex(columns=list(SCHEMA.columns)), path, SCHEMA.name)
    return path


def expected(predictions):
    return device_ratios(CELLS, predictions=predictions).iloc[0]


def test_the_expected_ratio_is_from_the_calibration_of_one_device_at_a_time(tmp_path):
    row = expected(predicted(tmp_path, (180, 200), (120, 100)))
    assert row["expected_ratio"] == pytest.approx(math.sqrt(180 / 100 * 200 / 120))
    assert row["own_expected_ratio"] == pytest.approx(180 / 120)
    assert row[["expected_ratio_low", "expected_ratio_high"]].tolist() == pytest.approx([180 / 120, 180 / 100])
    assert row[["weights_share_a", "weights_share_b"]].tolist() == [0.4, 0.6]
    without_a_second = expected(predicted(tmp_path, (180, None), (120, None)))
    assert without_a_second["own_expected_ratio"] == pytest.approx(1.5)
    assert without_a_second[["expected_ratio", "expected_ratio_low"]].isna().all()


@pytest.mark.parametrize(("scale", "explanation", "support"), [(2.0, "expected", "shown"), (2.5, "none", "none")])
def test_the_expected_ratio_explains_like_any_other(tmp_path, scale, explanation, support):
    """Measured are 2 (1.9 to 2.1) of h200 over l40s, with bandwidths of 5.56 and FLOP rates of 2.73."""
    of_each = ((200, "h200"), (100, "l40s"))
    rows = starts_table(*(cell({"max_num_seqs": 64}, around(rate, 0.01), gpu=gpu) for rate, gpu in of_each))
    row = device_ratios(rows, predictions=predicted(tmp_path, (100 * scale, 100 * scale), (100, 100))).iloc[0]
    assert row["expected_ratio"] == pytest.approx(scale)
    assert (row["explanation"], row["support"]) == (explanation, support)


def test_clocks_and_sequences_are_those_of_the_cells():
    row = expected(None)
    assert row["sequences"] == 64
    assert row["power_cap_share_a"] == pytest.approx(0.6)
    assert row["sm_clock_mhz_min_a"] == 1140
    assert pd.isna(row["power_cap_share_b"])
    assert pd.isna(row["expected_ratio"])
