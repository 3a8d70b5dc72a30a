"""Ended: parsing takes the cells that exist. In batches and for a partial report, no job makes a cell's outcome."""

from workflow_scripts.cluster.batches import ended_cells, write_ended


def measured_outcomes(gpu):
    """A list of the cells that have ended. Its path never changes, because other inputs would parse the cells again."""
    return [PATHS.ended(gpu)]


if workflow.is_main_process:
    for gpu in set(GPUS) - set(BATCHES):
        write_ended(PATHS.ended(gpu), ended_cells([cell for cell in CELLS.values() if cell.gpu == gpu], PATHS))
