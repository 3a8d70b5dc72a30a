from pathlib import Path

import pandas as pd
import pytest

from workflow_scripts.present import findings
from workflow_scripts.present.report import Report
from workflow_scripts.present.tables import MissingError, Tables
from workflow_scripts.study import load_study


@pytest.fixture
def report(tmp_path: Path) -> Report:
    study = load_study(Path("config/studies/demo.yaml"))
    return Report(study, Tables(tmp_path), tmp_path, tmp_path, tmp_path, tmp_path / "report.html")


def write_limits(report: Report, *rows: tuple[str, float, float, bool]) -> None:
    table = pd.DataFrame(rows, columns=["cell_id", "factor", "tolerance", "exceeds"])
    table.assign(ceiling_broken="made up").to_parquet(report.tables.folder / "limits.parquet")


def verdicts(report: Report) -> list[tuple[str, str]]:
    (block,) = findings.limits(report)
    assert isinstance(block, findings.Findings)
    return [(finding.verdict, finding.sentence) for finding in block.findings]


def test_a_cell_above_its_ceiling_is_impossible_and_told_once(report: Report) -> None:
    write_limits(report, ("a", 1.5, 0.0, True), ("a", 2.0, 0.0, True), ("b", 0.5, 0.0, False))
    ((verdict, sentence),) = verdicts(report)
    assert verdict == "impossible"
    assert sentence.startswith("a: 2 times its ceiling on made up.")


def test_a_cell_above_a_ceiling_from_rates_of_a_loaded_host_is_not_decided(report: Report) -> None:
    write_limits(report, ("a", 1.5, float("inf"), False), ("b", 0.5, float("inf"), False))
    ((verdict, sentence),) = verdicts(report)
    assert verdict == "not decided"
    assert sentence.startswith("1 of 2 cells lie above a ceiling made from measured device rates")


def test_cells_below_their_ceilings_are_possible(report: Report) -> None:
    write_limits(report, ("a", 0.9, 0.0, False), ("b", 0.5, 0.0, False))
    assert verdicts(report) == [("possible", "None of 2 cells lies above what its device allows at most.")]


def test_without_any_ceiling_nothing_is_said(report: Report) -> None:
    write_limits(report, ("a", float("nan"), 0.0, False))
    with pytest.raises(MissingError, match="no ceiling is known of any cell"):
        verdicts(report)
