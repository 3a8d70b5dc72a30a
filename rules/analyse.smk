"""Analyse: facts become tidy tables and verdicts."""


rule measured_cells:
    """One row per cell and repeat, with everything measured; nothing is compared with its ceilings yet."""
    input:
        parsed=expand(PATHS.parsed("{gpu}") / "{table}", gpu=GPUS, table=PARSED),
        imported=[PATHS.imported] if "runs" in config or PATHS.imported.exists() else [],
        code=sources("analyse.cells"),
    output:
        table=PATHS.tables / "measured/cells.parquet",
        csv=PATHS.tables / "measured/cells.csv",
    log:
        PATHS.root / "logs/measured_cells.log",
    conda:
        "../envs/cpu.conda.yaml"
    params:
        parsed=PATHS.root / "parsed",
        imported=lambda wildcards, input: f"--imported {quote(str(input.imported[0]))}" if input.imported else "",
    shell:
        "python -m workflow_scripts table-cells"
        " --study $STUDY"
        " --parsed {params.parsed} {params.imported}"
        " --out {output.table}"
        " > {log} 2>&1"


rule limits:
    """Ceilings, MBU and MFU of every repeat; a cell above a ceiling becomes `invalid` in the cells table."""
    input:
        cells=PATHS.tables / "measured/cells.parquet",
        parsed=expand(PATHS.parsed("{gpu}") / "{table}", gpu=GPUS, table=PARSED),
        devices=lambda wildcards: device_records(),
        code=sources("analyse.limits"),
    output:
        **written("limits"),
        **written("cells", of="cells_"),
    log:
        PATHS.root / "logs/limits.log",
    conda:
        "../envs/cpu.conda.yaml"
    params:
        parsed=PATHS.root / "parsed",
        devices=PATHS.device("any").parent,
    shell:
        "python -m workflow_scripts table-limits"
        " --study $STUDY"
        " --cells {input.cells}"
        " --parsed {params.parsed}"
        " --devices {params.devices}"
        " --out {output.table}"
        " --checked-out {output.cells_table}"
        " > {log} 2>&1"


rule waste:
    """KV memory without tokens: paged, contiguous, padded, and as HuggingFace reserves it."""
    input:
        cells=table("cells"),
        parsed=expand(PATHS.parsed("{gpu}") / "{table}", gpu=GPUS, table=PARSED),
        code=sources("analyse.fragmentation"),
    output:
        **written("waste"),
    log:
        PATHS.root / "logs/waste.log",
    conda:
        "../envs/cpu.conda.yaml"
    params:
        parsed=PATHS.root / "parsed",
    shell:
        "python -m workflow_scripts table-waste"
        " --study $STUDY"
        " --cells {input.cells}"
        " --parsed {params.parsed}"
        " --out {output.table}"
        " > {log} 2>&1"


rule ratios:
    """The speed-up of each device over each other, beside the rates of the devices."""
    input:
        cells=table("cells"),
        devices=lambda wildcards: device_records(),
        code=sources("analyse.ratios"),
    output:
        **written("ratios"),
    log:
        PATHS.root / "logs/ratios.log",
    conda:
        "../envs/cpu.conda.yaml"
    params:
        devices=PATHS.device("any").parent,
    shell:
        "python -m workflow_scripts table-ratios"
        " --study $STUDY"
        " --cells {input.cells}"
        " --devices {params.devices}"
        " --out {output.table}"
        " > {log} 2>&1"


rule effects:
    """What each knob does to throughput, and whether it took effect."""
    input:
        cells=table("cells"),
        code=sources("analyse.effects"),
    output:
        **written("effects"),
    log:
        PATHS.root / "logs/effects.log",
    conda:
        "../envs/cpu.conda.yaml"
    shell:
        "python -m workflow_scripts table-effects"
        " --study $STUDY"
        " --cells {input.cells}"
        " --out {output.table}"
        " > {log} 2>&1"


rule engines:
    """vLLM against HuggingFace at equal work, and how much of the gain is batching."""
    input:
        cells=table("cells"),
        code=sources("analyse.engine_gain"),
    output:
        **written("engines"),
        **written("engine_decomposition", of="decomposition_"),
    log:
        PATHS.root / "logs/engines.log",
    conda:
        "../envs/cpu.conda.yaml"
    shell:
        "python -m workflow_scripts table-engines"
        " --study $STUDY"
        " --cells {input.cells}"
        " --out {output.table}"
        " --decomposition-out {output.decomposition_table}"
        " > {log} 2>&1"


rule intervals:
    """The mean of each measure of each cell, with its interval."""
    input:
        cells=table("cells"),
        code=sources("analyse.cell_intervals"),
    output:
        **written("intervals"),
    log:
        PATHS.root / "logs/intervals.log",
    conda:
        "../envs/cpu.conda.yaml"
    shell:
        "python -m workflow_scripts table-intervals"
        " --study $STUDY"
        " --cells {input.cells}"
        " --out {output.table}"
        " > {log} 2>&1"


rule serving:
    """Servers under load: latency, goodput, what limited the load, the steady state."""
    input:
        cells=table("cells"),
        parsed=expand(PATHS.parsed("{gpu}") / "{table}", gpu=GPUS, table=PARSED),
        code=sources("analyse.serving"),
    output:
        **written("serving"),
        **written("serving_summary", of="summary_"),
    log:
        PATHS.root / "logs/serving.log",
    conda:
        "../envs/cpu.conda.yaml"
    params:
        parsed=PATHS.root / "parsed",
    shell:
        "python -m workflow_scripts table-serving"
        " --study $STUDY"
        " --cells {input.cells}"
        " --parsed {params.parsed}"
        " --out {output.table}"
        " --summary-out {output.summary_table}"
        " > {log} 2>&1"


if any(load_engines()[cell.engine].serves for cell in CELLS.values()):

    rule latencies:
        """What each knob does to the latencies of servers."""
        input:
            cells=table("cells"),
            serving=table("serving_summary"),
            code=sources("analyse.latencies"),
        output:
            **written("latencies"),
        log:
            PATHS.root / "logs/latencies.log",
        conda:
            "../envs/cpu.conda.yaml"
        shell:
            "python -m workflow_scripts table-latencies"
            " --study $STUDY"
            " --cells {input.cells}"
            " --serving {input.serving}"
            " --out {output.table}"
            " > {log} 2>&1"


rule recommendations:
    """Which vLLM configuration to serve with."""
    input:
        cells=table("cells"),
        code=sources("analyse.recommend"),
    output:
        **written("recommendations"),
    log:
        PATHS.root / "logs/recommendations.log",
    conda:
        "../envs/cpu.conda.yaml"
    shell:
        "python -m workflow_scripts table-recommendations"
        " --study $STUDY"
        " --cells {input.cells}"
        " --results $RESULTS"
        " --out {output.table}"
        " > {log} 2>&1"


rule capacity:
    """KV capacity, predicted beside measured."""
    input:
        cells=table("cells"),
        predictions=PATHS.capacity,
        code=sources("analyse.capacity"),
    output:
        **written("capacity"),
    log:
        PATHS.root / "logs/capacity.log",
    conda:
        "../envs/cpu.conda.yaml"
    shell:
        "python -m workflow_scripts table-capacity"
        " --study $STUDY"
        " --cells {input.cells}"
        " --predictions {input.predictions}"
        " --out {output.table}"
        " > {log} 2>&1"


rule predictions:
    """The prediction of every cell beside its measurement."""
    input:
        cells=table("cells"),
        plan=PATHS.plan / "plan.parquet",
        blocks=PATHS.plan / "blocks.parquet",
        published=PUBLISHED,
        code=sources("analyse.predictions"),
    output:
        **written("predictions"),
        **written("blocks", of="blocks_"),
    log:
        PATHS.root / "logs/predictions.log",
    conda:
        "../envs/cpu.conda.yaml"
    shell:
        "python -m workflow_scripts table-predictions"
        " --study $STUDY"
        " --cells {input.cells}"
        " --plan {input.plan}"
        " --blocks {input.blocks}"
        " --out {output.table}"
        " --blocks-out {output.blocks_table}"
        " > {log} 2>&1"


rule digest:
    """All that a comparison with another study needs; the report embeds it."""
    input:
        tables=[table(name) for name in ("cells", "limits", "effects", "ratios", "engines")],
        code=sources("analyse.study_digest"),
    output:
        PATHS.digest,
    log:
        PATHS.root / "logs/digest.log",
    conda:
        "../envs/cpu.conda.yaml"
    params:
        tables=PATHS.tables,
    shell:
        "python -m workflow_scripts digest --study $STUDY --tables {params.tables} --out {output} > {log} 2>&1"


if any(workload.keep_answers for workload in STUDY.workloads.values()):

    rule answers:
        """How many requests get the same greedy tokens under two engines or settings."""
        input:
            cells=table("cells"),
            parsed=expand(PATHS.parsed("{gpu}") / "requests.parquet", gpu=GPUS),
            code=sources("analyse.answers"),
        output:
            **written("answers"),
        log:
            PATHS.root / "logs/answers.log",
        conda:
            "../envs/cpu.conda.yaml"
        params:
            parsed=PATHS.root / "parsed",
        shell:
            "python -m workflow_scripts table-answers"
            " --study $STUDY"
            " --cells {input.cells}"
            " --parsed {params.parsed}"
            " --out {output.table}"
            " > {log} 2>&1"


if STUDY.claims:

    rule claims:
        """Published claims, compared with limits, arithmetic and this study."""
        input:
            tables=list(map(table, TABLES)),
            published=PUBLISHED,
            code=sources("analyse.claims"),
        output:
            **written("claims"),
        log:
            PATHS.root / "logs/claims.log",
        conda:
            "../envs/cpu.conda.yaml"
        params:
            tables=PATHS.tables,
        shell:
            "python -m workflow_scripts table-claims"
            " --study $STUDY"
            " --tables {params.tables}"
            " --out {output.table}"
            " > {log} 2>&1"


if STUDY.starts.at_most > 1:

    rule drift:
        """How much the first cell of each round changed until its end."""
        input:
            ended=expand(PATHS.ended("{gpu}"), gpu=GPUS),
            code=sources("analyse.drift"),
        output:
            **written("drift"),
        log:
            PATHS.root / "logs/drift.log",
        conda:
            "../envs/cpu.conda.yaml"
        shell:
            "python -m workflow_scripts table-drift"
            " --study $STUDY"
            " --results $RESULTS"
            " --out {output.table}"
            " > {log} 2>&1"
