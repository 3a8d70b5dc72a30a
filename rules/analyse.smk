"""Analyse: facts become tidy tables and verdicts."""

# Tables of the report; each is written as Parquet and as CSV.
TABLES = ["cells"]


rule cells_table:
    """One row a cell and repeat, with everything measured of it."""
    input:
        parsed=expand(PATHS.parsed("{gpu}") / "{table}", gpu=GPUS, table=PARSED),
        code=sources("analyse"),
    output:
        table=PATHS.tables / "cells.parquet",
        csv=PATHS.tables / "cells.csv",
    log:
        PATHS.root / "logs/cells_table.log",
    params:
        parsed=PATHS.root / "parsed",
    conda:
        "../envs/cpu.conda.yaml"
    shell:
        "python -m workflow_scripts.analyse.cells"
        " --study $STUDY"
        " --parsed {params.parsed}"
        " --out {output.table}"
        " > {log} 2>&1"
