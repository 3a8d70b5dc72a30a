"""Explanations of technical terms on the page, which are in `report/glossary.yaml`."""

from collections.abc import Iterator

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.records import read_yaml
from workflow_scripts.page.blocks import Block, Definitions
from workflow_scripts.page.report import REPORT, Report, Subject


def glossary(report: Report) -> Iterator[Block]:
    yield Definitions(list(read_yaml(REPORT / "glossary.yaml", InputError).items()))


SUBJECT = Subject(id="glossary", title="Glossary", tables=[glossary])
