"""What records and logs say besides numbers."""

from pathlib import Path

import pandas as pd
import pytest

from tests.unit.made_studies import end_cell
from workflow_scripts.common.faults import InputError
from workflow_scripts.questions.trust.provenance import LOG_LINES, provenance_table
from workflow_scripts.study.grid import expand
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study_file import load_study

STUDY = load_study(Path(__file__).parents[4] / "config/studies/demo.yaml")
MEASURED, MISSING, *_ = expand(STUDY)

ROWS = pd.DataFrame({"cell_id": [MEASURED.id, MISSING.id], "outcome": ["ok", "missing"], "start": [1, None]})
ROWS = ROWS.assign(gpu=MEASURED.gpu, engine=MEASURED.engine)


def test_a_device_has_its_record_once_and_each_start_the_ends_of_its_logs(tmp_path):
    paths = StudyPaths(tmp_path, STUDY.name)
    end_cell(STUDY, paths, MEASURED, provenance={"host": "here", "packages": {"torch": "2.9"}})
    for folder, name in ((paths.start(MEASURED, 1), "raw/engine.log"), (paths.cell(MISSING), "measure.log")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(f"line {n}\n" for n in range(100)) + "\n")
    found = provenance_table(ROWS, paths)
    told = {(row.cell_id, row.kind, row.what): row.value for row in found.itertuples()}
    end = "\n".join(f"line {n}" for n in range(100 - LOG_LINES, 100))
    assert told == {
        (MEASURED.id, "record", "ended at"): "1970-01-01T00:00:00+00:00",
        (MEASURED.id, "record", "host"): "here",
        (MEASURED.id, "record", "packages: torch"): "2.9",
        (MEASURED.id, "log", "raw/engine.log"): end,
        (MISSING.id, "log", "measure.log"): end,
    }


def test_a_log_elsewhere_is_not_read(tmp_path):
    paths = StudyPaths(tmp_path / "results", STUDY.name)
    (tmp_path / "secret").write_text("of somebody else")
    paths.cell(MISSING).mkdir(parents=True)
    (paths.cell(MISSING) / "measure.log").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="leads out"):
        provenance_table(ROWS, paths)
