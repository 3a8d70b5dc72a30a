"""What the page says about GPUs: simulated ones, those that were slowed down, and the energy that they used."""

from pathlib import Path

import pandas as pd
import pytest

from tests.unit.present.conftest import Results, report_of, table_in
from workflow_scripts.present.blocks import Findings, Link, shown
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import MissingError
from workflow_scripts.present.subjects import device_ratios, energy, how_sure
from workflow_scripts.present.subjects.what_ran import simulated
from workflow_scripts.present.subjects.where_measured import slowed_cells, slowed_gpus


def changed(results: Results, folder: Path, **columns: object) -> Report:
    cells = pd.read_parquet(results.root / "tables" / "cells.parquet").assign(**columns)
    cells.to_parquet(folder / "cells.parquet")
    return report_of(folder, results.study)


def test_pretended_gpus_are_the_first_thing_that_the_page_says(results, tmp_path):
    (findings,) = simulated(changed(results, tmp_path, source="simulated"))
    assert isinstance(findings, Findings)
    (finding,) = findings.findings
    assert (finding.verdict, finding.tone) == ("simulated", "bad")
    assert finding.sentence.startswith("No number of h200 (simulated), ")
    assert how_sure.SUBJECT.findings[0] is simulated
    assert list(simulated(changed(results, tmp_path))) == []
    assert "is a measurement of a GPU" not in results.html


def test_cells_with_a_gpu_slowed_down_are_counted_and_named(results, tmp_path):
    report = changed(results, tmp_path)
    timed = report.tables.cells.dropna(subset="throttle_reasons")
    slowed = timed[(timed["gpu"] == "l40s") & (timed["repeat"] == 1)]
    (findings,) = slowed_gpus(report)
    assert isinstance(findings, Findings)
    counted = f"In {slowed['cell_id'].nunique()} of {timed['cell_id'].nunique()} cells"
    assert findings.findings[0].sentence.startswith(counted)
    named = table_in(slowed_cells, report)
    links = [row[0] for row in named.rows if isinstance(row[0], Link)]
    assert [link.href.partition("&cell=")[2] for link in links] == slowed["cell_id"].tolist()
    assert len({link.text for link in links}) == slowed["cell_id"].nunique()
    assert "HwThermalSlowdown,SwPowerCap" in str(named)


def test_a_power_cap_is_no_fault(results, tmp_path):
    report = changed(results, tmp_path, throttle_reasons="GpuIdle,SwPowerCap")
    assert list(slowed_gpus(report)) == list(slowed_cells(report)) == []


def test_ratios_without_an_expectation_are_named_as_missing(results, tmp_path):
    ratios = pd.read_parquet(results.root / "tables" / "ratios.parquet")
    ratios.drop(columns="own_expected_ratio").to_parquet(tmp_path / "ratios.parquet")
    with pytest.raises(MissingError, match="own_expected_ratio"):
        list(device_ratios.expectations(changed(results, tmp_path)))


def test_energy_is_the_median_over_the_repeats_of_a_cell(results, tmp_path):
    report = changed(results, tmp_path)
    [part] = energy.SUBJECT.tables
    table = table_in(part, report)
    known = report.tables.cells.dropna(subset="energy_j")
    medians = known.groupby("cell_id", sort=False)["energy_j_per_output_token"].median()
    assert [row[table.headings.index("Energy per output token (J)")] for row in table.rows] == list(map(shown, medians))
    with pytest.raises(MissingError, match="no device reported its power"):
        list(part(changed(results, tmp_path, energy_j=None)))
