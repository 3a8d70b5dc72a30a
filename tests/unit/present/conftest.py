"""Made-up results, drawn once for all tests of this room."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.present.synthetic import write_results
from workflow_scripts.present import figures, page
from workflow_scripts.present.blocks import Findings
from workflow_scripts.present.report import Part, Report


@dataclass(frozen=True)
class Results:
    """A study's results: its file, and the folders below `root`."""

    study: Path
    root: Path

    @property
    def html(self) -> str:
        return (self.root / "report.html").read_text(encoding="utf-8")

    def draw(self, out: Path) -> int:
        folders = {"--tables": self.root / "tables", "--parsed": self.root / "parsed"}
        return figures.main(arguments({"--study": self.study, **folders, "--out": out}))

    def write_page(self, out: Path, tables: Path | None = None, figures: Path | None = None) -> int:
        folders = {"--tables": tables or self.root / "tables", "--figures": figures or self.root / "figures"}
        return page.main(arguments({"--study": self.study, **folders, "--cells": self.root / "cells", "--out": out}))


def arguments(options: dict[str, Path]) -> list[str]:
    return [word for option, path in options.items() for word in (option, str(path))]


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("synthetic")
    made = Results(write_results(root), root)
    assert made.draw(root / "figures") == 0
    assert made.write_page(root / "report.html") == 0
    return made


def told(part: Part, report: Report) -> list[tuple[str, str]]:
    """The findings of a part, each with its verdict and its sentence."""
    (block,) = part(report)
    assert isinstance(block, Findings)
    return [(finding.verdict, finding.sentence) for finding in block.findings]
