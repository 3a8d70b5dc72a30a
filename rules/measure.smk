"""Measure: one job a cell, which holds the device.

The rule does not depend on the measuring code: editing a comment there never repeats a GPU hour. It depends on the
cell's definition, which carries the version of the measuring protocol. Inputs are `ancient`, so that results copied
from another machine are not measured again because of their times.
"""

measured_outcomes = outcomes_of


rule measure:
    """Run one engine on one cell; an engine that refuses or breaks is an outcome, not a failed job."""
    input:
        needed_to_measure,
    output:
        PATHS.outcome(CELL_PATTERN),
    log:
        PATHS.cell(CELL_PATTERN) / "measure.log",
    conda:
        ENGINE_ENVIRONMENT
    # All cores of a local run: nothing else may load the machine while a cell is timed.
    threads: workflow.resource_settings.cores or 1
    resources:
        host_device=1,
    params:
        definition=lambda wildcards: definition_sha256(definition(cell_id(wildcards))),
        cell=lambda wildcards: cell_id(wildcards),
    shell:
        "python -m workflow_scripts.measure.cell"
        " --study $STUDY"
        " --results $RESULTS"
        " --cell {params.cell}"
        " > {log} 2>&1"
