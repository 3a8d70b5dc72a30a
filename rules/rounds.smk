"""Rounds: what this call measures, in which order, and the lists of the cells that have ended.

Cells' own records decide what is pending, before the workflow is planned. Cells that are measured together form a
batch, which is one job. Its output is a marker and not its cells, because Snakemake deletes the outputs of a job that
fails, and no measurement may be lost because another cell of the batch failed. workflow_scripts/study/rounds.py defines
rounds.

Reading these rules changes no file, because another call may be measuring. The job `begin` runs before all that
measure; Snakemake then holds its lock, and the batches are written.
"""

import time
from functools import partial

from workflow_scripts.cluster.batches import (
    batches_of_cluster,
    batches_of_machine,
    ended_cells,
    is_list_of,
    pending,
    read_batch,
    write_batch,
)
from workflow_scripts.study.definition import session_keys
from workflow_scripts.study.paths import HERE
from workflow_scripts.study.reruns import in_words, set_aside, to_rerun
from workflow_scripts.study.rounds import Round, RoundPlan, ended_starts, forget_plans

# Newer than all results, so that `begin` runs in each call, and all that depends on it.
THIS_CALL = workflow.snakemake_tmp_dir / "call"
THIS_CALL.touch()


def marker(gpu, key):
    return PATHS.batch(gpu, key).with_suffix(".done")


@cache
def definitions():
    """The hash of each cell's definition."""
    return {id: definition_sha256(definition(id)) for id in CELLS}


@cache
def ended():
    """The starts of each cell that had ended when this call began."""
    return ended_starts(definitions(), PATHS)


def is_measured(cell):
    """Whether a cell has as many starts as every cell gets."""
    return len(ended()[cell]) >= STUDY.starts.at_least


def planned_rounds(cells, batches_of):
    """The rounds of a call that measures these cells, as fields of Measuring."""
    if not workflow.is_main_process:
        return {}
    of_round = partial(batches_of, definitions=definitions(), sessions=session_keys(STUDY))
    try:
        again = to_rerun(ended(), [CELLS[id] for id in cells], PATHS, str(config["rerun"]), int(config["tries"]))
    except (InputError, ValueError) as e:
        raise WorkflowError(str(e)) from None
    final = {cell: {n: end for n, end in of.items() if (cell, n) not in again} for cell, of in ended().items()}
    found = pending(STUDY, PATHS, final, cells, time.time())
    return {
        "batches": {(batch.gpu, batch.key): batch for one in found.rounds for batch in of_round(one)},
        "decided": found.decided,
        "of_round": of_round,
        "again": again,
        "gpus": tuple(dict.fromkeys(CELLS[id].gpu for id in cells)),
    }


def begun():
    """The file that all measuring jobs need. A function, because Snakemake's settings are known only later."""
    if workflow.execution_settings and workflow.execution_settings.no_hooks:
        raise WorkflowError("--no-hooks: nothing can be measured, because a hook writes the lists of what is measured")
    return PATHS.begun


@cache
def tell_what_is_measured():
    """Log models without a tokenizer, and which cells are left out or repeated; stop if a cluster has no device."""
    for note in without_tokenizer(STUDY):
        logger.warning(note)
    if CELLS_PER_JOB and MEASURING.left:
        raise WorkflowError(MEASURING.why_left)
    if MEASURING.why_left:
        logger.warning(MEASURING.why_left)
    if MEASURING.again:
        logger.warning(f"{in_words(MEASURING.again)}.")
    cells = {one.cell for batch in MEASURING.batches.values() for one in batch.starts}
    if repeated := sorted(cell for cell in cells if PATHS.outcome(cell).exists() and 1 not in ended()[cell]):
        logger.warning(
            f"{len(repeated)} cells were measured by another definition or protocol, or did not run, and are measured"
            f" again. The first is {PATHS.outcome(repeated[0])}."
        )


@cache
def batches_of_decided(number):
    """The batches of a round that was decided in this call, written for their jobs; none if measuring has ended."""
    starts = RoundPlan.read(PATHS.round_plan(number)).starts
    batches = list(MEASURING.of_round(Round(number, starts))) if starts else []
    for batch in batches:
        write_batch(PATHS.batch(batch.gpu, batch.key), batch)
        # A batch of pending cells is not done, however it ended before.
        marker(batch.gpu, batch.key).unlink(missing_ok=True)
    return batches


def all_batches():
    """The batches of this call, as far as they are known. Snakemake evaluates this again after each decision."""
    yield from MEASURING.batches.values()
    number = MEASURING.decided
    while number:
        checkpoints.next_round.get(round=number)
        yield from batches_of_decided(number)
        number = None if RoundPlan.read(PATHS.round_plan(number)).ended else number + 1


def batch_of(gpu, key):
    """A batch; those that are known in advance are not yet files while a call is planned."""
    return MEASURING.batches.get((gpu, key)) or read_batch(PATHS.batch(gpu, key))


def needed_by_decision(wildcards):
    """The batches of the rounds before."""
    number = int(wildcards.round)
    if number == MEASURING.decided:
        return [begun(), *(marker(*place) for place in MEASURING.batches)]
    return [marker(batch.gpu, batch.key) for batch in batches_of_decided(number - 1)]


def needed_by_batch(gpu, key):
    """Prepared files, and the batches of the round before: a round begins when that has ended."""
    batch = batch_of(gpu, key)
    cells = {one.cell for one in batch.starts}
    files = {prepared_workload(cell) for cell in cells}.union(
        *map(prepared_models, cells), *map(environments_of, cells)
    )
    before = []
    if (gpu, key) in MEASURING.batches:
        earlier = (one for one in MEASURING.batches.values() if one.gpu == gpu and one.round < batch.round)
        before = [marker(one.gpu, one.key) for one in earlier]
        before.append(begun())
        if workflow.dryrun:
            tell(batch)
    elif workflow.is_main_process:
        before.append(PATHS.round_plan(batch.round))
    return [ancient(file) for file in sorted(files)] + before


@cache
def tell(batch):
    """Print what a job would measure."""
    again = {one: f" ({outcome}, tried again)" for one, outcome in MEASURING.again.items()}
    lines = (f"    {one.cell}, start {one.start}{again.get(one, '')}" for one in batch.starts)
    logger.info("\n".join([f"Round {batch.round}, batch {batch.key} of {batch.gpu}:", *lines]))


def markers_with(gpu):
    """The markers of all batches of this call that have cells of a GPU."""
    with_gpu = (batch for batch in all_batches() if any(one.cell.startswith(f"{gpu}/") for one in batch.starts))
    return [marker(batch.gpu, batch.key) for batch in with_gpu]


def needed_by_list(wildcards):
    """The rates of a GPU and the batches with its cells. They are new in each call, so an existing list is made again."""
    if measures():
        tell_what_is_measured()
    if not (measures() and wildcards.gpu in PENDING):
        return [PATHS.begun] if wildcards.gpu in CHANGED else [ancient(PATHS.begun)]
    markers = markers_with(wildcards.gpu)
    decided = [PATHS.round_plan(MEASURING.decided)] if MEASURING.decided else []
    return [*markers, *decided, *device_records([wildcards.gpu])]


onstart:
    # Every call that runs a job runs this hook; the processes inside jobs have none.
    store_configs(STUDY, PATHS)
    jobs = list(workflow.dag.needrun_jobs())
    if measures() and any(job.rule.name == "begin" for job in jobs):
        if MEASURING.decided:
            forget_plans(PATHS, MEASURING.decided)
        for batch in MEASURING.batches.values():
            write_batch(PATHS.batch(batch.gpu, batch.key), batch)
        keys = {job.wildcards.key for job in jobs if job.rule.name == "measure"}
        measured = {one for batch in MEASURING.batches.values() if batch.key in keys for one in batch.starts}
        for start in measured & MEASURING.again.keys():
            set_aside(PATHS.start(*start))


if STUDY.is_adaptive:

    checkpoint next_round:
        """Decide which cells the next round measures, or that measuring has ended."""
        input:
            needed_by_decision,
            devices=lambda wildcards: device_records(),
        output:
            PATHS.round_plan("{round}"),
        log:
            PATHS.root / "logs/next_round/{round}.log",
        wildcard_constraints:
            round="[0-9]+",
        threads: workflow.resource_settings.cores or 1
        params:
            gpus=lambda wildcards: MEASURING.gpus,
            cells=PATHS.root / "cells",
            batches=lambda wildcards, input: [Path(one).with_suffix(".json") for one in input if one.endswith(".done")],
            first=lambda wildcards: "--first" if int(wildcards.round) == MEASURING.decided else "",
            # A separate folder, because other jobs write the tables of the report.
            folder=PATHS.round_plan("").parent,
        shell:
            "(mkdir -p {params.cells:q};"
            " for gpu in {params.gpus:q}; do"
            " python -m workflow_scripts parse-cells --cells {params.cells:q} --gpu $gpu --processes {threads}"
            " --out {params.folder:q}/parsed/$gpu;"
            " done;"
            ' python -m workflow_scripts tables --study "$STUDY" --results "$RESULTS" --only cells'
            " --parsed {params.folder:q}/parsed --out {params.folder:q}/tables;"
            ' python -m workflow_scripts next-round --study "$STUDY" --results "$RESULTS" --number {wildcards.round:q}'
            " --gpus {params.gpus:q} --tables {params.folder:q}/tables"
            " --batches {params.batches:q} {params.first} --out {output:q})"
            " > {log:q} 2>&1"
