"""Plan: what every cell should do and cost, before anything is queued; no GPU, no engine and no prepared file."""


rule plan:
    """Feasible cells, expected speed, knobs that can matter and GPU hours: printed, and written as tables."""
    log:
        PATHS.root / "logs/plan.log",
    conda:
        "../envs/cpu.conda.yaml"
    threads: workflow.resource_settings.cores or 1
    shell:
        "python -m workflow_scripts.predict.plan"
        " --study $STUDY"
        " --results $RESULTS"
        " --processes {threads}"
        " 2> {log}"


rule predict_cells:
    """What every cell should do, for the report to hold against what it did."""
    input:
        devices=lambda wildcards: device_records(),
        calibrations=sorted(map(str, Path("config/calibration").glob("*.yaml"))),
    output:
        PATHS.plan / "plan.parquet",
        PATHS.plan / "plan.csv",
        PATHS.plan / "knobs.csv",
    log:
        PATHS.root / "logs/predict_cells.log",
    conda:
        "../envs/cpu.conda.yaml"
    threads: workflow.resource_settings.cores or 1
    params:
        definitions=rules.predict_capacity.params.definitions,
    shell:
        "python -m workflow_scripts.predict.plan"
        " --study $STUDY"
        " --results $RESULTS"
        " --processes {threads}"
        " --quiet"
        " > {log} 2>&1"
