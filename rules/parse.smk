"""Parse: raw evidence of all cells of a GPU becomes rows of typed facts, in one job per GPU."""


rule parse:
    """Read the evidence of one GPU's cells; unchanged cells are taken over from the previous call."""
    input:
        ended=PATHS.ended("{gpu}"),
        code=sources("parse.cell_tables"),
    output:
        [update(PATHS.parsed("{gpu}") / name) for name in PARSED],
    log:
        PATHS.root / "logs/parse/{gpu}.log",
    conda:
        "../envs/cpu.conda.yaml"
    threads: workflow.resource_settings.cores or 1
    params:
        cells=PATHS.root / "cells",
        out=str(PATHS.parsed("{gpu}")),
    shell:
        # There may be no cell yet: a report can be drawn of predictions alone.
        "mkdir -p {params.cells} && python -m workflow_scripts parse-cells"
        " --cells {params.cells}"
        " --gpu {wildcards.gpu}"
        " --processes {threads}"
        " --out {params.out}"
        " > {log} 2>&1"
