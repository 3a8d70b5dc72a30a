"""The ends of logs."""

from pathlib import Path

import pandas as pd
import pytest

from workflow_scripts.common.faults import InputError
from workflow_scripts.questions.trust.provenance import LOG_LINES, provenance_table
from workflow_scripts.study.grid import expand
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study_file import load_study

STUDY = load_study(Path(__file__).parents[4] / "config/studies/demo.yaml")
MEASURED, MISSING, *_ = expand(STUDY)

ROWS = pd.DataFrame({"cell_id": [MEASURED.id, MISSING.id], "outcome": ["ok", "missing"], "start": [1, None]})


def test_each_start_has_the_ends_of_its_logs(tmp_path):
    paths = StudyPaths(tmp_path, STUDY.name)
    for folder, name in ((paths.start(MEASURED, 1), "raw/engine.log"), (paths.cell(MISSING), "measure.log")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(f"line {n}\n" for n in range(100)) + "\n")
    found = provenance_table(ROWS, paths)
    told = {(row.cell_id, row.what): row.value for row in found.itertuples()}
    end = "\n".join(f"line {n}" for n in range(100 - LOG_LINES, 100))
    assert told == {
        (MEASURED.id, "raw/engine.log"): end,
        (MISSING.id, "measure.log"): end,
    }


def test_a_log_elsewhere_is_not_read(tmp_path):
    paths = StudyPaths(tmp_path / "results", STUDY.name)
    (tmp_path / "secret").write_text("of somebody else")
    paths.cell(MISSING).mkdir(parents=True)
    (paths.cell(MISSING) / "measure.log").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="leads out"):
        provenance_table(ROWS, paths)
