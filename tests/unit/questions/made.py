"""Tables as `kvsweep tables` makes them, from tables in a folder."""

from pathlib import Path

from workflow_scripts.questions.all_tables import makers
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.table_maker import TableInputs


def made(study: Path, folder: Path, name: str, results: Path | None = None, **options: Path):
    """A table, made and written to `folder` from what is there; the plan is below `results`."""
    loaded = load_study(study)
    inputs = TableInputs(loaded, StudyPaths(results or folder, loaded.name), folder=folder, **options)
    for maker in makers((name,)):
        maker(inputs)
    return inputs.table(name)
