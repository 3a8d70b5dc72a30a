"""Where cells were measured, with which versions; how to cite a study, its files, and a glossary."""

from collections.abc import Iterator

from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.records import read_yaml
from workflow_scripts.page.blocks import UNKNOWN, Block, Definitions, Fold, Link, Table, Text, table_of
from workflow_scripts.page.report import REPORT, Report, Subject
from workflow_scripts.study.definition import study_sha256
from workflow_scripts.tables.results import RAN_IN

# Digits of a commit, lock or UUID.
SHORT_HASH = 12


def provenance(report: Report) -> Iterator[Block]:
    """Cells by device, host, engine, environment and lock, which shows what was merged or measured again."""
    cells = report.tables.rows
    several = {RAN_IN: "Environment"} if cells.groupby(["gpu", "engine"])[RAN_IN].nunique().max() > 1 else {}
    places = {
        "gpu": "Device",
        "device_uuid": "UUID",
        "host": "Host",
        "processor": "Processor",
        "engine_version": "Engine",
        **several,
        "protocol": "Protocol version",
        "git_commit": "Commit of the pipeline",
        "lock_sha256": "Lock (SHA-256)",
        "source": "Source of the numbers",
    }
    measured = cells[cells["outcome"].eq("ok")]
    shortened = {name: measured[name].str[:SHORT_HASH] for name in ("device_uuid", "git_commit", "lock_sha256")}
    groups = measured.assign(**shortened).groupby(list(places), dropna=False, sort=False)
    note = "Cells with different locks, processors of CPU devices or protocol versions are not compared."
    if len(started := cells["started_at"].dropna()):
        note += f" The first and the last repeat started at {started.min()} and {started.max()}."
    rows = groups["cell_id"].nunique().reset_index(name="cells")
    yield table_of(rows, {**places, "cells": "Cells"}, "Cells by where they were measured", note)


def citation(report: Report) -> Iterator[Block]:
    software, cells = read_yaml(CHECKOUT / "CITATION.cff", InputError), report.tables.rows
    commits = ", ".join(commit[:SHORT_HASH] for commit in cells["git_commit"].dropna().unique())
    last = cells["started_at"].dropna().astype(str).max()
    measured = (
        f"measured until {last[:10]} by commit {commits or UNKNOWN}" if isinstance(last, str) else "not measured yet"
    )
    yield Text(
        f"Cite as: {software['title']} {software['version']}, study {report.study.name}, definition "
        f"sha256:{study_sha256(report.study)}, {measured}."
    )


def files(report: Report) -> Iterator[Block]:
    rows: list[list[str | Link]] = [
        [path.stem, *(report.link(path.with_suffix(f".{kind}"), kind) or UNKNOWN for kind in ("csv", "parquet"))]
        for path in sorted(report.tables.folder.glob("*.parquet"))
    ]
    note = "These links work only if the page lies beside its tables."
    table = Table("Tables", ["Table", "CSV", "Parquet"], rows, [False] * 3, note)
    yield Fold(f"All tables with all digits, beside this page: {len(rows)}", [table])


def glossary(report: Report) -> Iterator[Block]:
    yield Definitions(list(read_yaml(REPORT / "glossary.yaml", InputError).items()))


SUBJECTS = (
    Subject(id="provenance", title="Provenance", tables=[provenance]),
    Subject(id="take-away", title="Citation and data", tables=[citation, files]),
    Subject(id="glossary", title="Glossary", tables=[glossary]),
)
