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
    known_sha256,
    read_batch,
    write_batch,
    write_ended,
)
from workflow_scripts.study.rounds import (
    Round,
    ended_starts,
    interrupted,
    last_plan,
    last_round,
    missing_rounds,
    only_looks,
    read_plan,
)

# The devices whose cells this call can measure.
MEASURED_HERE = {}
DECIDED = None


def marker(gpu, key):
    return PATHS.batch(gpu, key).with_suffix(".done")


@cache
def definitions():
    """The hash of each cell's definition."""
    return {id: definition_sha256(definition(id)) for id in CELLS}


@cache
def ended():
    """The starts of each cell that have ended, when this call began."""
    return ended_starts(definitions(), PATHS)


def is_measured(cell):
    """Whether a cell has as many starts as every cell gets."""
    return len(ended()[cell]) >= STUDY.starts.at_least


def plan_rounds(cells, batches_of):
    """Plan the rounds of this call, which measures these cells; says which are repeated, and why.

    What is known before is in BATCHES. If there may be further rounds, DECIDED is the number of the first that is
    decided on while measuring, and OF_ROUND makes the batches of a round.
    """
    global DECIDED, MEASURED_HERE, OF_ROUND
    if MEASURES_NOTHING & set(sys.argv):
        return
    MEASURED_HERE = dict.fromkeys(CELLS[id].gpu for id in cells)
    repeated = [cell for cell in cells if PATHS.outcome(cell).exists() and 1 not in ended()[cell]]
    if repeated:
        logger.warning(
            f"{len(repeated)} cells were measured by another definition or protocol, or did not run, and are measured"
            f" again. The first is {PATHS.outcome(repeated[0])}."
        )
    OF_ROUND = lambda one: begun(batches_of(one, definitions=definitions()))
    plan, now_s = last_plan(PATHS), time.time()
    rest = interrupted(ended(), plan, now_s, cells)
    rounds = ([rest] if rest else []) + missing_rounds(ended(), cells, STUDY.starts.at_least, now_s)
    for one in rounds:
        BATCHES.extend(OF_ROUND(one))
    has_ended = not rounds and plan and plan.ended and not plan.failed and plan.known == known_sha256(STUDY, PATHS)
    if STUDY.starts.is_adaptive and cells and not has_ended:
        DECIDED = 1 + max([last_round(ended()), *(one.number for one in rounds)])
        looks = only_looks(sys.argv[1:])
        for old in PATHS.round_plan("*").parent.glob("round-*.json"):
            # A round that has not begun may be that of another call, which runs now. A call that only looks leaves it.
            if (found := read_plan(old)).round >= DECIDED and (found.ended or not looks):
                old.unlink()


def begun(batches):
    """The batches, written for their jobs."""
    batches = list(batches)
    for batch in batches:
        write_batch(PATHS.batch(batch.gpu, batch.key), batch)
        # A batch of pending cells is not done, however it ended before.
        marker(batch.gpu, batch.key).unlink(missing_ok=True)
    return batches


@cache
def batches_of_decided(number):
    """The batches of a round that was decided on in this call; none if measuring ended there."""
    starts = read_plan(PATHS.round_plan(number)).starts
    return OF_ROUND(Round(number, starts)) if starts else []


def all_batches():
    """The batches of this call, as far as they are known. Snakemake asks again after each decision."""
    yield from BATCHES
    number = DECIDED
    while number:
        checkpoints.next_round.get(round=number)
        yield from batches_of_decided(number)
        number = None if read_plan(PATHS.round_plan(number)).ended else number + 1


def needed_by_decision(wildcards):
    """The batches of the rounds before."""
    number = int(wildcards.round)
    batches = BATCHES if number == DECIDED else batches_of_decided(number - 1)
    return [marker(batch.gpu, batch.key) for batch in batches]


def needed_by_batch(gpu, key):
    """Prepared files, and the batches of the round before: a round begins when that has ended."""
    batch = read_batch(PATHS.batch(gpu, key))
    cells = {one.cell for one in batch.starts}
    files = {prepared_workload(cell) for cell in cells}.union(*map(prepared_models, cells))
    earlier = [other for other in BATCHES if other.gpu == gpu and other.round < batch.round]
    return [ancient(file) for file in sorted(files)] + [marker(other.gpu, other.key) for other in earlier]


def markers_with(gpu):
    """The markers of all batches of this call that have cells of a GPU."""
    with_gpu = (batch for batch in all_batches() if any(one.cell.startswith(f"{gpu}/") for one in batch.starts))
    return [marker(batch.gpu, batch.key) for batch in with_gpu]


if STUDY.starts.is_adaptive and not PARTIAL:

    checkpoint next_round:
        """Decide after a round which cells the next one measures again, or that measuring has ended."""
        input:
            needed_by_decision,
        output:
            PATHS.round_plan("{round}"),
        log:
            PATHS.root / "logs/next_round/{round}.log",
        wildcard_constraints:
            round="[0-9]+",
        conda:
            "../envs/cpu.conda.yaml"
        threads: workflow.resource_settings.cores or 1
        params:
            gpus=lambda wildcards: list(MEASURED_HERE),
            cells=PATHS.root / "cells",
            batches=lambda wildcards, input: [Path(marker).with_suffix(".json") for marker in input],
            first=lambda wildcards: "--first" if int(wildcards.round) == DECIDED else "",
            # Not that of the report's tables, which other jobs write.
            folder=PATHS.round_plan("").parent,
        shell:
            "(for gpu in {params.gpus}; do"
            " python -m workflow_scripts parse-cells --cells {params.cells} --gpu $gpu --processes {threads}"
            " --out {params.folder}/parsed/$gpu;"
            " done;"
            " python -m workflow_scripts table-cells --study $STUDY --parsed {params.folder}/parsed"
            " --out {params.folder}/cells.parquet;"
            " python -m workflow_scripts next-round --study $STUDY --results $RESULTS --number {wildcards.round}"
            " --gpus {params.gpus} --cells {params.folder}/cells.parquet --batches {params.batches} {params.first}"
            " --out {output})"
            " > {log} 2>&1"
