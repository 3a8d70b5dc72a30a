"""Measure on this machine: one job per round, which measures its cells one after another in a random order.

The rules do not depend on the measuring code, so editing a comment there never repeats GPU hours. They depend on the
cells' definitions, which contain the version of the measuring protocol. Inputs are `ancient`, so that
results copied from another machine are not measured again because of their times.
"""

from workflow_scripts.study.gpus_here import cells_without_gpu, gpus_here, what_is_left

# With `--jobs`, which is for other machines, each job finds its device where it runs.
is_local = workflow.is_main_process and workflow.resource_settings.nodes is None
elsewhere = {}
if is_local and any(load_gpus()[gpu].kind != "cpu" for gpu in GPUS):
    found = gpus_here()
    elsewhere = {cell.id: cell for cell in cells_without_gpu(STUDY, list(CELLS.values()), found)}
    left = [cell for cell in elsewhere.values() if not is_measured(cell.id)]
    LEFT |= {cell.id: cell for cell in left}
    ABSENT |= {cell.gpu for cell in cells_without_gpu(STUDY, [one.cell for one in LADDERS.values()], found)}
    if left:
        WHY_LEFT = f"{what_is_left(left, found)}. The same call on a machine that has them measures these cells."
        if MEASURES:
            logger.warning(WHY_LEFT)

if workflow.is_main_process:
    plan_rounds([id for id in CELLS if id not in elsewhere], batches_of_machine)


rule measure_round:
    """Measure the cells of a round; a cell that fails stops no other, and every outcome is kept."""
    input:
        lambda wildcards: needed_by_batch(HERE, wildcards.key),
    output:
        touch(marker(HERE, "{key}")),
    log:
        PATHS.root / "logs/measure_round/{key}.log",
    conda:
        ENGINE_ENVIRONMENT
    # All cores of a local run, because nothing else may load the machine while a cell is timed.
    threads: workflow.resource_settings.cores or 1
    resources:
        host_device=1,
    params:
        batch=str(PATHS.batch(HERE, "{key}")),
    shell:
        "python -m workflow_scripts measure-batch"
        " --study $STUDY"
        " --results $RESULTS"
        " --batch {params.batch}"
        " 2>&1 | tee {log}"


rule measure:
    """Measure one cell by its name; only the command line requests it.

    A cell that has been measured before is measured in a further start, and the first start stays.
    """
    input:
        needed_to_measure,
    output:
        update(PATHS.outcome(CELL_PATTERN)),
    log:
        PATHS.cell(CELL_PATTERN) / "measure.log",
    conda:
        ENGINE_ENVIRONMENT
    threads: workflow.resource_settings.cores or 1
    resources:
        host_device=1,
    params:
        definition=lambda wildcards: definition_sha256(definition(cell_id(wildcards))),
        cell=lambda wildcards: cell_id(wildcards),
    shell:
        "python -m workflow_scripts measure-cell"
        " --study $STUDY"
        " --results $RESULTS"
        " --cell {params.cell}"
        " > {log} 2>&1"
