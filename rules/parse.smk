"""Parse: raw evidence of all cells of a GPU becomes rows of typed facts, in one job per GPU."""

if RUNS:

    rule read_imported:
        """Read runs that were measured elsewhere, as the mapping file of `--config runs=FILE` names them."""
        input:
            runs=RUNS,
            files=RUN_FILES,
        output:
            PATHS.imported,
        log:
            PATHS.root / "logs/read_imported.log",
        params:
            code=sources_sha256("parse.imported_runs"),
        shell:
            "python -m workflow_scripts read-imported --runs {input.runs:q} --out {output:q} > {log:q} 2>&1"


rule parse:
    """Read the evidence of one GPU's cells; fails if a start was lost, and the next call measures it."""
    input:
        measured=lambda wildcards: ([] if PARTIAL else [PATHS.round_list(wildcards.gpu, number) for number in rounds()]),
    output:
        [PATHS.parsed("{gpu}") / name for name in PARSED],
    log:
        PATHS.root / "logs/parse/{gpu}.log",
    threads: workflow.resource_settings.cores or 1
    params:
        code=sources_sha256("parse.cell_tables"),
        not_listed=lambda wildcards: not_listed(wildcards.gpu),
        cells=PATHS.root / "cells",
        out=str(PATHS.parsed("{gpu}")),
    shell:
        # There may be no cell yet: a report can be drawn of predictions alone.
        "mkdir -p {params.cells:q} && nice -n 19 python -m workflow_scripts parse-cells"
        " --cells {params.cells:q}"
        " --gpu {wildcards.gpu:q}"
        " --measured {input.measured:q}"
        " --processes {threads}"
        " --out {params.out:q}"
        " > {log:q} 2>&1"
