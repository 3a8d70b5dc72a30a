from pathlib import Path

import pytest

from tests.unit.questions.synthetic_cells import cell, table
from workflow_scripts.catalog.gpus_and_models import CatalogError
from workflow_scripts.tables.measurements import split, write_measurements
from workflow_scripts.tables.table_command import table_command
from workflow_scripts.tables.typed_tables import read_table

DEMO = Path(__file__).parents[3] / "config" / "studies" / "demo.yaml"


def made_by(make, tmp_path, **options):
    files = ["--tables", str(tmp_path), "--out", str(tmp_path / "out" / "made.parquet")]
    files += ["--other-out", str(tmp_path / "other.parquet")] if "other" in options else []
    return table_command("starts", **options)(make)(["--study", str(DEMO), *files])


def test_a_command_makes_its_tables_from_the_study_and_its_cells(tmp_path):
    cells = table(cell({"max_num_seqs": 1}), cell({"max_num_seqs": 2}))
    write_measurements(cells, tmp_path)
    out, other = tmp_path / "out" / "made.parquet", tmp_path / "other.parquet"

    def make(args, study, read):
        assert (args.study, args.tables, args.out) == (DEMO, tmp_path, out)
        assert study.name == "demo"
        starts = split(read)["starts"]
        return starts[:1], starts

    assert made_by(make, tmp_path, other="starts") == 0
    written = [read_table(path, "starts")["cell_id"].tolist() for path in (out, other)]
    assert written == [cells["cell_id"].tolist()[:1], cells["cell_id"].tolist()]


def test_a_fault_of_any_input_is_one_message(tmp_path, capsys):
    write_measurements(table(cell({"max_num_seqs": 1})), tmp_path)

    def fail(*_):
        raise CatalogError("unknown GPU 'x'")

    assert made_by(fail, tmp_path) == 2
    assert capsys.readouterr().err == "kvsweep table-starts: unknown GPU 'x'\n"


@pytest.mark.parametrize(("options", "gpus"), [({}, ["h200"]), ({"simulated": True}, ["h200", "l40s"])])
def test_nothing_is_concluded_from_a_pretended_gpu(tmp_path, options, gpus):
    write_measurements(table(cell({}), cell({}, gpu="l40s", source="simulated")), tmp_path)
    read = []
    found = made_by(lambda args, study, cells: read.extend(cells["gpu"]) or split(cells)["starts"], tmp_path, **options)
    assert (found, read) == (0, gpus)
