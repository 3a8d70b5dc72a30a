"""If a study ran code from a model's repository, its report says so."""

from pathlib import Path

from tests.unit.present.conftest import Results
from workflow_scripts.present.blocks import Findings
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import Tables
from workflow_scripts.present.subjects import how_sure
from workflow_scripts.present.subjects.what_ran import remote_code
from workflow_scripts.study.study import ModelOverride
from workflow_scripts.study.study_file import load_study


def report_of(results: Results, **override: bool) -> Report:
    study = load_study(results.study)
    changed = study.model_copy(update={"models": {"llama-3.1-8b-instruct": ModelOverride(**override)}})
    root = results.root
    return Report(changed, Tables(root / "tables"), root / "figures", root / "cells", Path(), root / "report.html")


def test_it_is_the_first_finding_with_repository_and_commit(results):
    (findings,) = remote_code(report_of(results, trust_remote_code=True))
    assert isinstance(findings, Findings)
    (finding,) = findings.findings
    assert (finding.verdict, finding.tone) == ("remote code", "bad")
    assert "llama-3.1-8b-instruct (meta-llama/Llama-3.1-8B-Instruct at 0e9e39f2" in finding.sentence
    assert remote_code in how_sure.SUBJECT.findings


def test_a_study_without_it_has_nothing_to_say(results):
    assert list(remote_code(report_of(results))) == []
    assert "remote code" not in results.html
