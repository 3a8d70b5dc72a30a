"""Ended: parsing takes the cells that there are. In batches and for a partial report, no job makes a cell's outcome."""

from workflow_scripts.cluster.batches import ended_cells, write_ended


def measured_outcomes(gpu):
    """A list of the cells that have ended. Its path is always the same: another set of inputs would parse them again."""
    return [PATHS.ended(gpu)]


if workflow.is_main_process:
    for gpu in set(GPUS) - set(BATCHES):
        write_ended(PATHS.ended(gpu), ended_cells([cell for cell in CELLS.values() if cell.gpu == gpu], PATHS))
