"""Links among a study's results: whoever wrote them may lead reports and archives to files that are not the study's."""

import os
import zipfile

import pandas as pd
import pytest

from tests.unit.made_studies import MadeStudy
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_text
from workflow_scripts.parse import cell_tables
from workflow_scripts.questions.trust.provenance import provenance_table
from workflow_scripts.study import archive, status


@pytest.fixture
def made(tmp_path):
    """A study with a cell that has ended and one that has not, in results that are a link themselves."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "results").symlink_to("scratch")
    study = MadeStudy(tmp_path, {"knobs": {"block_size": [16, 32]}})
    ended, missing = study.cells.values()
    study.end(ended)
    write_text(study.paths.cell(ended) / "raw/engine.log", "loaded\n")
    write_text(study.paths.log(missing), "began\n")
    write_text(study.paths.tables / "cells.csv", "cell_id\n")
    write_text(study.paths.report, "<!doctype html>\n")
    for name in ("id_rsa", "engine.log"):
        write_text(tmp_path / "home" / name, "SECRET\n")
    return study


def read(made: MadeStudy, reader: str, cell: str) -> None:
    """Let one of the readers of evidence read a cell; raise the fault that its command would end with."""
    if reader == "report":
        where = {"cell_id": cell, "gpu": "h200", "engine": "vllm", "start": 1}
        outcome = "ok" if made.paths.outcome(cell).exists() else "missing"
        provenance_table(pd.DataFrame([where | {"outcome": outcome}]), made.paths)
        return
    words = {
        "archive": [archive.main, *made.options, "--out", made.file.with_suffix(".zip")],
        "status": [status.main, *made.options],
        "parse": [cell_tables.main, "--cells", made.paths.root / "cells", "--gpu", "h200", "--out", made.file.parent],
    }
    main, *options = words[reader]
    if main([*map(str, options), *(["--processes", "1"] if reader == "parse" else [])]):
        raise InputError(cell)


@pytest.mark.parametrize("reader", ["archive", "status", "parse", "report"])
@pytest.mark.parametrize("place", ["raw/engine.log", "raw", ""])
def test_a_link_that_leads_out_of_a_cell_is_refused(made, tmp_path, reader, place):
    cell = next(iter(made.cells))
    at = made.paths.cell(cell) / place
    moved = tmp_path / "home" / "moved"
    at.rename(moved)  # so that the cell's own record is still there
    at.symlink_to(moved)
    with pytest.raises(InputError):
        read(made, reader, cell)
    assert not made.file.with_suffix(".zip").exists()


def test_a_folder_elsewhere_and_a_table_elsewhere_are_not_archived(made, tmp_path):
    cell = made.paths.cell(next(iter(made.cells)))
    for link, target in ((cell / "raw/more", "home"), (made.paths.tables / "id.csv", "home/id_rsa")):
        link.symlink_to(tmp_path / target)
        with pytest.raises(InputError):
            read(made, "archive", "")
        link.unlink()
    os.mkfifo(cell / "raw/steps.jsonl")
    with pytest.raises(InputError):
        read(made, "archive", "")


def test_the_log_of_a_cell_without_an_outcome_is_not_read_through_a_link(made, tmp_path):
    missing = list(made.cells)[1]
    made.paths.log(missing).unlink()
    made.paths.log(missing).symlink_to(tmp_path / "home/id_rsa")
    for reader in ("status", "report"):
        with pytest.raises(InputError):
            read(made, reader, missing)


def test_links_inside_a_cell_and_those_to_weights_are_followed_or_left_out(made, tmp_path):
    cell = made.paths.cell(next(iter(made.cells)))
    (cell / "raw/latest.log").symlink_to("engine.log")
    weights = made.paths.prepared / "models/m-0/pytorch_model.bin"
    weights.parent.mkdir(parents=True)
    weights.symlink_to(tmp_path / "home/id_rsa")
    for reader in ("archive", "status", "parse", "report"):
        read(made, reader, next(iter(made.cells)))
    with zipfile.ZipFile(made.file.with_suffix(".zip")) as written:
        contents = {name: written.read(name) for name in written.namelist()}
    assert [content for name, content in contents.items() if name.endswith("latest.log")] == [b"loaded\n"]
    assert b"SECRET\n" not in contents.values()
