"""Measure: one job per batch of cells, on this machine or on a node of a cluster.

A job's output is its manifest. The evidence in cells/ is no output, because Snakemake deletes the outputs of a job that
fails, and no measurement may be lost because another cell of the batch failed. The rules do not depend on the measuring
code, so editing a comment there never repeats GPU hours. A batch's name has the hash of its cells' definitions, which
contain the version of the measuring protocol.
"""


rule measure:
    """Measure the cells of a batch; a cell that fails stops no other, and every outcome is kept."""
    input:
        needed_by_batch,
    output:
        PATHS.manifest("{gpus}", "{round}", "{batch}"),
    log:
        PATHS.root / "logs/measure/{gpus}/round-{round}/{batch}.log",
    priority: lambda wildcards: 1000 - int(wildcards.round)
    # The processes inside a job read this too; they would try again on the same node with the same limit.
    retries: ATTEMPTS - 1 if workflow.is_main_process else 0
    threads: THREADS
    resources:
        **resources_for(pending_cells),
        host_device=1,
        attempt=lambda wildcards, attempt: attempt,
    params:
        # Functions of `output`, which Snakemake does not compare: none of these changes what is measured.
        setup=lambda wildcards, output: SETUP,
        launcher=lambda wildcards, output: LAUNCHER,
        attempts=lambda wildcards, output: ATTEMPTS,
        rerun=lambda wildcards, output: config["rerun"],
        tries=lambda wildcards, output: config["tries"],
        plan=lambda wildcards, output: (
            f"--plan={decision(int(wildcards.round))}" if decision(int(wildcards.round)) else []
        ),
    shell:
        "{params.setup}\n"
        "{params.launcher} python -m workflow_scripts measure-batch"
        ' --study "$STUDY"'
        ' --results "$RESULTS"'
        " --gpus {wildcards.gpus:q}"
        " --round {wildcards.round:q}"
        " --batch {wildcards.batch:q}"
        " {params.plan:q}"
        " --attempt {resources.attempt}"
        " --attempts {params.attempts}"
        " --rerun {params.rerun:q}"
        " --tries {params.tries:q}"
        " --out {output:q}"
        " 2>&1 | tee {log:q}"


rule end_round:
    """List what a round has measured on a device; the next round begins when its list is there."""
    input:
        lambda wildcards: manifests(int(wildcards.round), wildcards.gpu),
    output:
        PATHS.round_list("{gpu}", "{round}"),
    log:
        PATHS.root / "logs/end_round/{gpu}/{round}.log",
    params:
        measured=PATHS.measured,
        names=lambda wildcards, input: names_of(input),
    shell:
        "python -m workflow_scripts list-ended"
        " --measured {params.measured:q}"
        " --names {params.names:q}"
        " --out {output:q}"
        " > {log:q} 2>&1"


checkpoint decide:
    """Decide which cells the next round measures, or that measuring has ended."""
    input:
        measured=lambda wildcards: [
            PATHS.round_list(gpu, number)
            for number in islice(rounds(), int(wildcards.round) - 1)
            for gpu in wildcards.gpus.split("+")
        ],
    output:
        PATHS.round_plan("{gpus}", "{round}"),
    log:
        PATHS.root / "logs/decide/{gpus}/{round}.log",
    threads: workflow.resource_settings.cores or 1
    params:
        starts=STUDY.starts.model_dump_json(),
        margin_pct=STUDY.equivalence_margin_pct,
        not_listed=lambda wildcards: [not_listed(gpu) for gpu in wildcards.gpus.split("+")],
        gpus=lambda wildcards: wildcards.gpus.split("+"),
        cells=PATHS.root / "cells",
        # A separate folder, because other jobs write the tables of the report.
        folder=lambda wildcards, output: Path(output[0]).parent,
    shell:
        "(mkdir -p {params.cells:q};"
        " for gpu in {params.gpus:q}; do"
        " python -m workflow_scripts parse-cells --cells {params.cells:q} --gpu $gpu --processes {threads}"
        " --out {params.folder:q}/parsed/$gpu;"
        " done;"
        ' python -m workflow_scripts tables --study "$STUDY" --results "$RESULTS" --only cells'
        " --parsed {params.folder:q}/parsed --out {params.folder:q}/tables;"
        ' python -m workflow_scripts next-round --study "$STUDY" --results "$RESULTS" --number {wildcards.round:q}'
        " --gpus {params.gpus:q} --tables {params.folder:q}/tables"
        " --measured {input.measured:q} --out {output:q})"
        " > {log:q} 2>&1"


if not SITE:

    rule measure_cell:
        """Measure one cell by its name; only the command line requests it.

        A cell that has been measured before is measured in a further start, and the first start stays.
        """
        input:
            lambda wildcards: ancient_files([cell_id(wildcards)]),
        output:
            update(PATHS.outcome(CELL_PATTERN)),
        log:
            PATHS.cell(CELL_PATTERN) / "measure.log",
        threads: THREADS
        resources:
            host_device=1,
        params:
            definition=lambda wildcards: GRID.definitions[cell_id(wildcards)],
            cell=lambda wildcards: cell_id(wildcards),
        shell:
            "python -m workflow_scripts measure-cell"
            ' --study "$STUDY"'
            ' --results "$RESULTS"'
            " --cell {params.cell:q}"
            " > {log:q} 2>&1"
