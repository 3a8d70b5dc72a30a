"""Rounds: what this call measures, in which order, and the lists of the cells that have ended.

Cells' own records decide what is pending, before the workflow is planned. What is measured together is a batch, one job
with a marker as its output and not its cells: Snakemake deletes the outputs of a job that fails, and no measurement may
be lost because another cell of the batch failed. workflow_scripts/study/rounds.py says what a round is.
"""

import time
from functools import partial

from workflow_scripts.cluster.batches import (
    HERE,
    batches_of_cluster,
    batches_of_machine,
    ended_cells,
    read_batch,
    write_batch,
    write_ended,
)
from workflow_scripts.study.rounds import ended_starts, missing_rounds


def marker(gpu, key):
    return PATHS.batch(gpu, key).with_suffix(".done")


@cache
def ended():
    """The starts of each cell that have ended, when this call began."""
    return ended_starts({id: definition_sha256(definition(id)) for id in CELLS}, PATHS)


def is_measured(cell):
    """Whether a cell has as many starts as the study asks for."""
    return len(ended()[cell]) >= STUDY.starts


def plan_batches(cells, batches_of):
    """Make the batches that measure these cells; says which are repeated, and why."""
    definitions = {id: definition_sha256(definition(id)) for id in cells}
    repeated = sum(PATHS.outcome(cell).exists() and 1 not in ended()[cell] for cell in cells)
    if repeated:
        logger.warning(
            f"{repeated} cells were measured by another definition or protocol, or did not run, and are measured again."
        )
    for one in missing_rounds(ended(), cells, STUDY.starts, time.time()):
        for batch in batches_of(one, definitions=definitions):
            BATCHES.append(batch)
            write_batch(PATHS.batch(batch.gpu, batch.key), batch)
            # A batch of pending cells is not done, however it ended before.
            marker(batch.gpu, batch.key).unlink(missing_ok=True)


def needed_by_batch(gpu, key):
    """Prepared files, and the batches of the round before: a round begins when that has ended."""
    batch = read_batch(PATHS.batch(gpu, key))
    cells = {one.cell for one in batch.starts}
    files = {prepared_workload(cell) for cell in cells}.union(*map(prepared_models, cells))
    earlier = [other for other in BATCHES if other.gpu == gpu and other.round < batch.round]
    return [ancient(file) for file in sorted(files)] + [marker(other.gpu, other.key) for other in earlier]


def batches_with(gpu):
    """The batches of this call that have cells of a GPU."""
    return [batch for batch in BATCHES if any(one.cell.startswith(f"{gpu}/") for one in batch.starts)]


# A failed cell stops no later round; once all have ended, `ended_cells` fails for it.
GO_ON = "--go-on" if STUDY.starts > 1 else ""
