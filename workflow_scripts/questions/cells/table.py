"""Write the tables cells, starts, repeats and limits: what was asked for and measured, and what the hardware allows.

    kvsweep table-cells --study config/studies/demo.yaml --parsed results/demo/parsed \\
        --devices results/demo/prepared/devices --out results/demo/tables

Every cell of the study has a row in `cells`, also if it was not run. A cell that was faster than its device allows is
`invalid`.
"""

import sys
from argparse import Namespace
from pathlib import Path

from workflow_scripts.common.command import PARSED, STUDY, command, option, out
from workflow_scripts.questions.limits.table import SCHEMA as LIMITS
from workflow_scripts.questions.limits.table import checked
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.cells import measured_rows
from workflow_scripts.tables.measurements import CELLS, REPEATS, STARTS, write_measurements
from workflow_scripts.tables.typed_tables import write_table

TABLES = (CELLS, STARTS, REPEATS, LIMITS)


@command(
    "table-cells",
    STUDY,
    PARSED,
    option("--imported", type=Path, help="imported.jsonl of `kvsweep read-imported`"),
    option("--devices", type=Path, required=True, help="folder with NAME.json of each measured device"),
    out(f"folder for the tables {', '.join(str(of.name) for of in TABLES)}"),
)
def main(args: Namespace) -> None:
    study = load_study(args.study)
    rows = measured_rows(study, expand(study), args.parsed, args.imported)
    rows, limits, reasons = checked(rows, study, args.parsed, args.devices)
    for reason in reasons:
        print(reason, file=sys.stderr)
    write_measurements(rows, args.out)
    write_table(limits, args.out / f"{LIMITS.name}.parquet")
