"""The archive of a study: its content, and that its hashes match the content."""

import hashlib
import os
import zipfile
from pathlib import Path

import pandas as pd
import pytest

from tests.unit.made_studies import MadeStudy, fixed
from workflow_scripts import __version__
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_text
from workflow_scripts.parse import cell_tables
from workflow_scripts.questions.trust.provenance import provenance_table
from workflow_scripts.study import archive, status
from workflow_scripts.study.archive import main


@pytest.fixture
def study(tmp_path):
    """Three of four cells have ended, with tables and report, in results that are a link themselves."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "results").symlink_to("scratch")
    for name in ("id_rsa", "engine.log"):
        write_text(tmp_path / "home" / name, "SECRET\n")
    sweep = {"gpu": ["h200", "l40s"], "knobs": {"block_size": [16, 32]}}
    made = MadeStudy(tmp_path, sweep, name="kept", question="what is kept?", workloads={"short": fixed()})
    paths = made.paths
    for number, cell in enumerate([*made.cells.values()][:3], start=1):
        write_text(paths.cell(cell) / "raw/engine.log", f"log {number}\n")
        lock = {"h200": "cuda.txt", "l40s": "vllm-0.25.1-cpu.txt"}[cell.gpu]
        ended = {"engine_version": "vllm 0.32.0", "lock": lock, "ended_at": f"2026-01-0{number}T00:00:00+00:00"}
        made.end(cell, provenance={"host": f"node-{cell.gpu}", **ended})
    write_text(paths.tables / "cells.csv", "cell_id\n")
    write_text(paths.report, "<!doctype html>\n")
    write_text(paths.prepared / "models/opt-125m-0/config.json", "{}")
    write_text(paths.prepared / "models/opt-125m-0/model.safetensors", "weights")
    write_text(paths.prepared / "calibrations/h200/vllm/opt-125m/default.partial/engine.log", "killed\n")
    write_text(paths.tables / ".cells.csv.0a1b2c3d", "cell_")
    write_text(paths.log(list(made.cells)[-1]), "began\n")
    return made


def archived(study: MadeStudy, name: str = "kept.zip") -> zipfile.ZipFile:
    out = study.file.with_name(name)
    assert main([*study.options, "--out", str(out)]) == 0
    return zipfile.ZipFile(out)


def test_it_holds_what_was_asked_measured_and_found_with_hashes_and_is_the_same_each_time(study, monkeypatch):
    monkeypatch.setattr("workflow_scripts.study.archive.commit_of", lambda _: ("a1", True))
    archive = archived(study)
    names = set(archive.namelist())
    cells = {name for name in names if name.endswith("outcome.json")}
    assert len(cells) == 3
    assert {str(Path(cell).parent / "raw/engine.log") for cell in cells} <= names
    assert {"study.yaml", "Snakefile", "rules/measure.smk", "workflow_scripts/measure/run.py", "envs/cuda.txt"} <= names
    found = ("tables/cells.csv", "report.html", "prepared/models/opt-125m-0/config.json")
    assert {"config/gpus.yaml", *(f"results/kept/{name}" for name in found)} <= names
    assert not [name for name in names if name.endswith((".pyc", ".safetensors", "3d")) or ".partial" in name]
    lines = archive.read("manifest-sha256.txt").decode().splitlines()
    listed = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    assert set(listed) == {name for name in names if not name.endswith("/")} - {"manifest-sha256.txt"}
    assert listed == {name: hashlib.sha256(archive.read(name)).hexdigest() for name in listed}
    assert archive.read("version.txt").decode() == f"kvsweep {__version__}, commit a1, with changes\n"
    again = Path(str(archived(study, "again.zip").filename))
    assert again.read_bytes() == again.with_name("kept.zip").read_bytes()


def test_without_a_report_there_is_one_message_and_no_archive(study, capsys):
    study.paths.report.unlink()
    out = study.file.with_name("kept.zip")
    assert main([*study.options, "--out", str(out)]) == 2
    assert "`snakemake --config partial=1`" in capsys.readouterr().err
    assert not out.exists()


def read(study: MadeStudy, reader: str, cell: str) -> None:
    """Let one of the readers of evidence read a cell; raise the fault that its command would end with."""
    if reader == "report":
        provenance_table(pd.DataFrame([{"cell_id": cell, "start": 1}]), study.paths)
        return
    words = {
        "archive": [archive.main, *study.options, "--out", study.file.with_suffix(".zip")],
        "status": [status.main, *study.options],
        "parse": [cell_tables.main, "--cells", study.paths.root / "cells", "--gpu", "h200", "--out", study.file.parent],
    }
    main, *options = words[reader]
    if main([*map(str, options), *(["--processes", "1"] if reader == "parse" else [])]):
        raise InputError(cell)


@pytest.mark.parametrize("reader", ["archive", "status", "parse", "report"])
@pytest.mark.parametrize("place", ["raw/engine.log", "raw", ""])
def test_a_link_that_leads_out_of_a_cell_is_refused(study, tmp_path, reader, place):
    cell = next(iter(study.cells))
    at = study.paths.cell(cell) / place
    moved = tmp_path / "home" / "moved"
    at.rename(moved)  # so that the cell's own record is still there
    at.symlink_to(moved)
    with pytest.raises(InputError):
        read(study, reader, cell)
    assert not study.file.with_suffix(".zip").exists()


def test_a_folder_elsewhere_and_a_table_elsewhere_are_not_archived(study, tmp_path):
    cell = study.paths.cell(next(iter(study.cells)))
    for link, target in ((cell / "raw/more", "home"), (study.paths.tables / "id.csv", "home/id_rsa")):
        link.symlink_to(tmp_path / target)
        with pytest.raises(InputError):
            read(study, "archive", "")
        link.unlink()
    os.mkfifo(cell / "raw/steps.jsonl")
    with pytest.raises(InputError):
        read(study, "archive", "")


def test_the_log_of_a_cell_without_an_outcome_is_not_read_through_a_link(study, tmp_path):
    missing = list(study.cells)[-1]
    study.paths.log(missing).unlink()
    study.paths.log(missing).symlink_to(tmp_path / "home/id_rsa")
    for reader in ("status", "report"):
        with pytest.raises(InputError):
            read(study, reader, missing)


def test_links_inside_a_cell_and_those_to_weights_are_followed_or_left_out(study, tmp_path):
    cell = study.paths.cell(next(iter(study.cells)))
    (cell / "raw/latest.log").symlink_to("engine.log")
    weights = study.paths.prepared / "models/m-0/pytorch_model.bin"
    weights.parent.mkdir(parents=True)
    weights.symlink_to(tmp_path / "home/id_rsa")
    for reader in ("archive", "status", "parse", "report"):
        read(study, reader, next(iter(study.cells)))
    with zipfile.ZipFile(study.file.with_suffix(".zip")) as written:
        contents = {name: written.read(name) for name in written.namelist()}
    assert [content for name, content in contents.items() if name.endswith("latest.log")] == [b"log 1\n"]
    assert b"SECRET\n" not in contents.values()
