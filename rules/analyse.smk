"""Analyse: facts become tidy tables and verdicts."""


rule cells_table:
    """One row a cell and repeat, with everything measured of it."""
    input:
        parsed=expand(PATHS.parsed("{gpu}") / "{table}", gpu=GPUS, table=PARSED),
        code=sources("analyse"),
    output:
        multiext(str(PATHS.tables / "cells"), ".parquet", ".csv"),
    log:
        PATHS.root / "logs/cells_table.log",
    params:
        parsed=PATHS.root / "parsed",
    shell:
        "{PYTHON} -m workflow_scripts.analyse.cells"
        " --study {STUDY_FILE}"
        " --parsed {params.parsed}"
        " --out {output[0]}"
        " > {log} 2>&1"
