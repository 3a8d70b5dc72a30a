"""Ended: parsing takes the cells that exist. No job makes a cell's outcome, because a batch makes several.

The path of a list of ended cells never changes: other inputs would parse and draw everything again.
"""

PENDING = {one.cell.split("/")[0] for batch in BATCHES for one in batch.starts} | set(MEASURED_HERE if DECIDED else ())
# A call that neither measures nor draws needs no list.
if workflow.is_main_process and not (MEASURES_NOTHING - {"partial_report", "compare", "import"}) & set(sys.argv):
    for gpu in PENDING:
        # Without its output the job is needed, whatever that was made from.
        PATHS.ended(gpu).unlink(missing_ok=True)
    for gpu in set(GPUS) - PENDING:
        write_ended(PATHS.ended(gpu), ended_cells([cell for cell in CELLS.values() if cell.gpu == gpu], PATHS))

if PENDING:

    rule ended_cells:
        """Which cells of a GPU have ended, once its batches have; for GPUs without a batch the list already exists."""
        input:
            lambda wildcards: markers_with(wildcards.gpu),
        output:
            PATHS.ended("{gpu}"),
        log:
            PATHS.root / "logs/ended_cells/{gpu}.log",
        wildcard_constraints:
            gpu=one_of(PENDING),
        conda:
            "../envs/cpu.conda.yaml"
        params:
            batches=lambda wildcards, input: [Path(marker).with_suffix(".json") for marker in input],
        shell:
            "python -m workflow_scripts list-ended"
            " --study $STUDY"
            " --results $RESULTS"
            " --gpu {wildcards.gpu}"
            " --batches {params.batches}"
            " --out {output}"
            " > {log} 2>&1"
