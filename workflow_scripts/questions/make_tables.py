"""Write the tables of a study, from its parsed evidence and its plan.

    kvsweep tables --study config/studies/demo.yaml

docs/tables.md documents every column. A table that the study does not need has no rows. With all tables it also writes
`digest.json`, with which another study is compared.
"""

import sys
import time
from argparse import Namespace
from pathlib import Path

from workflow_scripts.common.command import RESULTS, STUDY, command, option
from workflow_scripts.questions.all_tables import TABLES, makers
from workflow_scripts.questions.compare.digest import digest_of
from workflow_scripts.study.paths import DIGEST, StudyPaths
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.summary import Summaries
from workflow_scripts.tables.table_maker import TableInputs


@command(
    "tables",
    STUDY,
    RESULTS,
    option("--parsed", type=Path, help="folder with one folder of parsed tables per GPU (the study's own)"),
    option("--out", type=Path, help="folder to write (the study's own)"),
    option("--only", nargs="+", default=TABLES, choices=TABLES, metavar="TABLE", help="tables to write (all)"),
)
def main(args: Namespace) -> None:
    study = load_study(args.study)
    inputs = TableInputs(study, StudyPaths(args.results, study.name), args.parsed, args.out)
    for maker in makers(args.only):
        began = time.process_time()
        maker(inputs)
        names = ", ".join(str(schema.name) for schema in maker.schemas)
        print(f"{names}: {time.process_time() - began:.2f} s of CPU time", file=sys.stderr)
    if args.only == TABLES:
        summed = inputs.summed if inputs.cells is inputs.rows else Summaries(inputs.rows)
        digest_of(study, inputs.grid, summed).write(inputs.folder / DIGEST, indent=None)
