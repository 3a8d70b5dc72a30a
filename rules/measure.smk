"""Measure: one job per batch of cells, on this machine or on a node of a cluster.

The rules do not depend on the measuring code, so editing a comment there never repeats GPU hours. They depend on the
cells' definitions, which contain the version of the measuring protocol. Inputs are `ancient`, so that
results copied from another machine are not measured again because of their times.
"""


rule measure:
    """Measure the cells of a batch; a cell that fails stops no other, and every outcome is kept."""
    input:
        lambda wildcards: needed_by_batch(wildcards.gpu, wildcards.key),
    output:
        touch(marker("{gpu}", "{key}")),
    log:
        PATHS.root / "logs/measure/{gpu}/{key}.log",
    wildcard_constraints:
        gpu=one_of([HERE, *GPUS]),
    # The processes inside a job read this too; they would try again on the same node with the same limit.
    retries: MEASURING.attempts - 1 if workflow.is_main_process else 0
    threads: MEASURING.threads
    resources:
        **MEASURING.resources,
        host_device=1,
        attempt=lambda wildcards, attempt: attempt,
    params:
        batch=str(PATHS.batch("{gpu}", "{key}")),
        setup=MEASURING.setup,
        launcher=MEASURING.launcher,
        attempts=MEASURING.attempts,
    shell:
        "{params.setup}\n"
        "{params.launcher} python -m workflow_scripts measure-batch"
        ' --study "$STUDY"'
        ' --results "$RESULTS"'
        " --batch {params.batch:q}"
        " --attempt {resources.attempt}"
        " --attempts {params.attempts}"
        " 2>&1 | tee {log:q}"


if not CELLS_PER_JOB:

    rule measure_cell:
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
            " --log {log:q}"
