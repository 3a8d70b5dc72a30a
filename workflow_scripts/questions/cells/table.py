"""Write the tables cells, starts, repeats and limits: what was asked for and measured, and what the hardware allows.

Every cell of the study has a row in `cells`, also if it was not run. A cell that was faster than its device allows is
`invalid`.
"""

import sys
from collections.abc import Sequence

import pandas as pd

from workflow_scripts.questions.limits.table import SCHEMA as LIMITS
from workflow_scripts.questions.limits.table import checked
from workflow_scripts.tables.cells import measured_rows
from workflow_scripts.tables.measurements import CELLS, REPEATS, STARTS, split
from workflow_scripts.tables.table_maker import TableInputs, makes


@makes(CELLS, STARTS, REPEATS, LIMITS)
def make_tables(inputs: TableInputs) -> Sequence[pd.DataFrame]:
    imported = inputs.paths.imported if inputs.paths.imported.exists() else None
    rows = measured_rows(inputs.study, inputs.grid, inputs.parsed, imported)
    rows, limits, reasons = checked(rows, inputs.study, inputs.parsed, inputs.devices)
    for reason in reasons:
        print(reason, file=sys.stderr)
    return *split(rows).values(), limits
