"""Measure: one job per cell, which holds the device.

The rule does not depend on the measuring code, so editing a comment there never repeats GPU hours. It depends on the
cell's definition, which carries the version of the measuring protocol. Inputs are `ancient`, so that results copied
from another machine are not measured again because of their times.
"""

from workflow_scripts.common.files import read_json
from workflow_scripts.study.gpus_here import cells_without_gpu, gpus_here, what_is_left
from workflow_scripts.study.outcome import never_ran

measured_outcomes = outcomes_of_starts

# With `--jobs`, which is for other machines, jobs find their devices where they run.
is_local = workflow.is_main_process and workflow.resource_settings.nodes is None
if is_local and any(load_gpus()[gpu].kind != "cpu" for gpu in GPUS):
    found = gpus_here()
    left = [cell for cell in cells_without_gpu(STUDY, list(CELLS.values()), found) if not is_current(cell.id)]
    LEFT |= {cell.id: cell for cell in left}
    ABSENT |= {cell.gpu for cell in cells_without_gpu(STUDY, [one.cell for one in LADDERS.values()], found)}
    if left:
        WHY_LEFT = f"{what_is_left(left, found)}. The same call on a machine that has them measures these cells."
        if not MEASURES_NOTHING & set(sys.argv):
            logger.warning(WHY_LEFT)
    outcomes = (PATHS.outcome(id) for id in CELLS if id not in LEFT)
    if never := [str(outcome) for outcome in outcomes if outcome.exists() and never_ran(read_json(outcome))]:
        logger.warning(
            f"{len(never)} cells did not run, and a former version recorded them as invalid. To measure them, delete"
            f" their records first: rm {' '.join(never)}"
        )


rule measure:
    """Run one engine on one cell; an engine that refuses or breaks is an outcome, not a failed job."""
    input:
        needed_to_measure,
    output:
        PATHS.outcome(CELL_PATTERN),
    log:
        PATHS.cell(CELL_PATTERN) / "measure.log",
    conda:
        ENGINE_ENVIRONMENT
    # All cores of a local run, because nothing else may load the machine while a cell is timed.
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
