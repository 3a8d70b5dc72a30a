"""Measure on this machine: one job per round, which measures its cells one after another in a random order.

The rules do not depend on the measuring code, so editing a comment there never repeats GPU hours. They depend on the
cells' definitions, which contain the version of the measuring protocol. Inputs are `ancient`, so that
results copied from another machine are not measured again because of their times.
"""

from workflow_scripts.study.gpus_here import cells_without_gpu, gpus_here, unmeasurable, what_is_left

# With `--jobs`, which is for other machines, each job finds its device where it runs.
is_local = workflow.is_main_process and workflow.resource_settings.nodes is None
elsewhere, absent = {}, set()
if is_local and any(load_gpus()[gpu].kind != "cpu" for gpu in GPUS):
    gpus = gpus_here()
    elsewhere = {cell.id: cell for cell in cells_without_gpu(STUDY, list(CELLS.values()), gpus)}
    absent = {cell.gpu for cell in cells_without_gpu(STUDY, [wanted.cell for wanted in CALIBRATIONS.values()], gpus)}
left = {id: cell for id, cell in elsewhere.items() if not is_measured(id)}
why_left = ""
if left:
    elsewhere_too = unmeasurable(STUDY, [*left.values()])
    remedy = elsewhere_too or "The same call on a machine that has them measures these cells"
    why_left = f"{what_is_left([*left.values()], gpus)}. {remedy}."

calibrated = [gpu for gpu in dict.fromkeys(wanted.cell.gpu for wanted in CALIBRATIONS.values()) if gpu not in absent]
cpus = [gpu for gpu in calibrated if load_gpus()[gpu].kind == "cpu"]
MEASURING = Measuring(
    **planned_rounds([id for id in CELLS if id not in elsewhere], batches_of_machine),
    left=left,
    why_left=why_left,
    # Several names of this machine's CPU share a job, which calibrates them in turns and so over a longer time.
    calibrated=[*([cpus] if cpus else []), *([gpu] for gpu in calibrated if gpu not in cpus)],
    on_nodes=("measure", "measure_round"),
)


rule measure_round:
    """Measure the cells of a round; a cell that fails stops no other, and every outcome is kept."""
    input:
        lambda wildcards: needed_by_batch(HERE, wildcards.key),
    output:
        touch(marker(HERE, "{key}")),
    log:
        PATHS.root / "logs/measure_round/{key}.log",
    # All cores of a local run, because nothing else may load the machine while a cell is timed.
    threads: workflow.resource_settings.cores or 1
    resources:
        host_device=1,
    params:
        batch=str(PATHS.batch(HERE, "{key}")),
    shell:
        "python -m workflow_scripts measure-batch"
        ' --study "$STUDY"'
        ' --results "$RESULTS"'
        " --batch {params.batch:q}"
        " 2>&1 | tee {log:q}"


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
    threads: workflow.resource_settings.cores or 1
    resources:
        host_device=1,
    params:
        definition=lambda wildcards: definition_sha256(definition(cell_id(wildcards))),
        cell=lambda wildcards: cell_id(wildcards),
    shell:
        "python -m workflow_scripts measure-cell"
        ' --study "$STUDY"'
        ' --results "$RESULTS"'
        " --cell {params.cell:q}"
        " > {log:q} 2>&1"
