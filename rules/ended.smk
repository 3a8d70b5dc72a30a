"""Ended: parsing reads the cells that have ended. No job has a cell's outcome as output, because a batch makes several.

The path of a list of ended cells never changes, because with other inputs everything would be parsed and drawn again.
"""

PENDING = {one.cell.split("/")[0] for batch in MEASURING.batches.values() for one in batch.starts}
PENDING |= set(MEASURING.gpus if MEASURING.decided else ())
# GPUs with a list that is missing, older than their rates, or does not hold what has ended.
CHANGED = set()
if workflow.is_main_process:
    for gpu in GPUS:
        of_gpu, rates = ended_cells([cell for cell in CELLS.values() if cell.gpu == gpu], PATHS), PATHS.device(gpu)
        listed = PATHS.ended(gpu)
        if not is_list_of(listed, of_gpu) or (rates.exists() and rates.stat().st_mtime > listed.stat().st_mtime):
            CHANGED.add(gpu)


rule begin:
    """Begin to measure, or to list what has ended. Snakemake's lock refuses the second of two calls that begin."""
    input:
        THIS_CALL,
    output:
        PATHS.begun,
    log:
        PATHS.root / "logs/begin.log",
    shell:
        "touch {output:q} 2> {log:q}"


if PENDING | CHANGED:

    rule ended_cells:
        """List the cells of a GPU that have ended, after its batches; the lists of other GPUs are up to date."""
        input:
            needed_by_list,
        output:
            PATHS.ended("{gpu}"),
        log:
            PATHS.root / "logs/ended_cells/{gpu}.log",
        wildcard_constraints:
            gpu=one_of(PENDING | CHANGED),
        params:
            batches=lambda wildcards, input: [Path(one).with_suffix(".json") for one in input if one.endswith(".done")],
        shell:
            "python -m workflow_scripts list-ended"
            ' --study "$STUDY"'
            ' --results "$RESULTS"'
            " --gpu {wildcards.gpu:q}"
            " --batches {params.batches:q}"
            " --out {output:q}"
            " > {log:q} 2>&1"
