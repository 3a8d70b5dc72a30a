"""Analyse: facts become tidy tables and verdicts. What parses and draws is `nice`, as another call may be measuring."""


rule tables:
    """Every table of the report; a cell above a ceiling of its device is `invalid`."""
    input:
        parsed=expand(PATHS.parsed("{gpu}") / "{table}", gpu=GPUS, table=PARSED),
        imported=[PATHS.imported] if RUNS or PATHS.imported.exists() else [],
        plan=rules.predict_cells.output,
        published=PUBLISHED,
    output:
        tables=list(map(table, TABLES)),
        csv=[table(name).with_suffix(".csv") for name in TABLES],
    log:
        PATHS.root / "logs/tables.log",
    threads: 2
    params:
        code=sources_sha256("questions.make_tables", *TABLE_MODULES),
        settings=SETTINGS,
    shell:
        'nice -n 19 python -m workflow_scripts tables --study "$STUDY" --results "$RESULTS" > {log:q} 2>&1'
