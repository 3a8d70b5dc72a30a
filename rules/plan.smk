"""Plan: predict speed and cost of every cell before anything is queued, without GPU, engine or prepared files."""


rule predict_cells:
    """Predictions for every cell, which the report compares with the measurements."""
    input:
        devices=lambda wildcards: device_records(),
        calibrations=lambda wildcards: calibration_records(),
        project_files=sorted(map(str, [HOME / "config/endpoints.yaml", *HOME.glob("config/calibration/**/*.[jy]*")])),
        published=PUBLISHED,
    output:
        PATHS.plan / "plan.parquet",
        PATHS.plan / "plan.csv",
        PATHS.capacity,
    log:
        PATHS.root / "logs/predict_cells.log",
    params:
        code=sources_sha256("predict.plan", *modules_that_predict()),
        settings=SETTINGS,
        definitions=json_sha256({cell: measured.as_json() for cell, measured in GRID.measured.items()}),
    shell:
        "nice -n 19 python -m workflow_scripts plan"
        ' --study "$STUDY"'
        ' --results "$RESULTS"'
        " --quiet"
        " > {log:q} 2>&1"


rule plan:
    """Print feasible cells, predicted speed, expected ratios and GPU hours; `predict_cells` writes them."""
    input:
        rules.predict_cells.output,
    log:
        PATHS.root / "logs/plan.log",
    shell:
        'python -m workflow_scripts plan --study "$STUDY" --results "$RESULTS" --written 2> {log:q}'
