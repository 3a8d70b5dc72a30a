"""What records and logs say besides numbers."""

import pandas as pd
import pytest

from tests.unit.questions.trust.test_drift import CELLS, STUDY, record
from workflow_scripts.common.faults import InputError
from workflow_scripts.questions.trust.provenance import LOG_LINES, provenance_table
from workflow_scripts.study.paths import StudyPaths

MEASURED, MISSING = CELLS[0], CELLS[1]


ROWS = pd.DataFrame({"cell_id": [MEASURED.id, MISSING.id], "outcome": ["ok", "missing"], "start": [1, None]})
ROWS = ROWS.assign(gpu=MEASURED.gpu, engine=MEASURED.engine)


def test_a_device_has_its_record_once_and_each_start_the_ends_of_its_logs(tmp_path):
    paths = StudyPaths(tmp_path, STUDY.name)
    record(paths.start(MEASURED, 1), 12.0, 600.0, {}, provenance={"host": "here", "packages": {"torch": "2.9"}})
    for folder, name in ((paths.start(MEASURED, 1), "raw/engine.log"), (paths.cell(MISSING), "measure.log")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(f"line {n}\n" for n in range(100)) + "\n")
    found = provenance_table(ROWS, paths)
    told = {(row.cell_id, row.kind, row.what): row.value for row in found.itertuples()}
    end = "\n".join(f"line {n}" for n in range(100 - LOG_LINES, 100))
    assert told == {
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
