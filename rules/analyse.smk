"""Analyse: facts become tidy tables and verdicts. What parses and draws is `nice`, as another call may be measuring."""

MEASUREMENTS = ("cells", "starts", "repeats", "limits")


rule cells:
    """What was asked for and measured; a cell above a ceiling of its device is `invalid`."""
    input:
        parsed=expand(PATHS.parsed("{gpu}") / "{table}", gpu=GPUS, table=PARSED),
        imported=[PATHS.imported] if RUNS or PATHS.imported.exists() else [],
        code=sources("questions.cells.table"),
    output:
        **{key: path for name in MEASUREMENTS for key, path in written(name, of=f"{name}_").items()},
    log:
        PATHS.root / "logs/cells.log",
    conda:
        "../envs/cpu.conda.yaml"
    params:
        parsed=PATHS.root / "parsed",
        imported=lambda wildcards, input: f"--imported {quote(str(input.imported[0]))}" if input.imported else "",
        devices=PATHS.device("any").parent,
        tables=PATHS.tables,
    shell:
        "nice -n 19 python -m workflow_scripts table-cells"
        ' --study "$STUDY"'
        " --parsed {params.parsed:q} {params.imported} --devices {params.devices:q}"
        " --out {params.tables:q}"
        " > {log:q} 2>&1"


# The other tables of the report, with one rule for each: a description, the inputs of the
# command `table-NAME` by option, and its other options.
READS_CELLS = {"tables": list(map(table, ("cells", "starts", "repeats")))}
READS_PARSED = {"parsed": expand(PATHS.parsed("{gpu}") / "{table}", gpu=GPUS, table=PARSED)}
READS_DEVICES = {"devices": []}  # what was parsed is newer
# Inputs of which the command gets the folder, and inputs that it finds by itself.
FOLDERS = {"parsed": PATHS.root / "parsed", "devices": PATHS.device("any").parent, "tables": PATHS.tables}
FOUND = ("published",)


class TableRule(NamedTuple):
    """`also`: further tables that the command writes, by the name of their option without `-out`."""

    about: str
    reads: dict = READS_CELLS
    also: dict = {}
    options: str = ""
    at: object = 0


TABLE_RULES = {
    "waiting": TableRule(
        "How the time of each repeat on a GPU divides into the GPU's work and waiting for its host.",
        READS_CELLS | READS_PARSED | READS_DEVICES,
    ),
    "fragmentation": TableRule(
        "Reserved KV memory that holds no token: paged, contiguous, padded, and in HuggingFace's caches.",
        READS_CELLS | READS_PARSED,
    ),
    "devices": TableRule(
        "The speed-up of each device over each other, beside the rates of the devices.",
        READS_CELLS | READS_DEVICES | {name: table(name) for name in ("waiting", "predictions")},
    ),
    "knobs": TableRule(
        "What each knob does to throughput, and whether it took effect.", READS_CELLS | {"waiting": table("waiting")}
    ),
    "engines": TableRule(
        "vLLM against HuggingFace at equal work, and how much of the gain is batching.",
        also={"decomposition": "engine_decomposition"},
    ),
    "intervals": TableRule("The mean of each measure of each cell, with its interval."),
    "serving": TableRule(
        "Servers under load: latency, goodput, what limited the load, the steady state.",
        READS_CELLS | READS_PARSED,
        also={"summary": "serving_summary"},
    ),
    "recommendations": TableRule("Which vLLM configuration to serve with.", options='--results "$RESULTS"'),
    "provenance": TableRule(
        "What records and logs of cells say besides numbers.",
        options='--results "$RESULTS"',
        at=now_if_unfinished,
    ),
    "memory": TableRule("KV capacity, predicted beside measured.", READS_CELLS | {"predictions": PATHS.capacity}),
    "predictions": TableRule(
        "The prediction of every cell beside its measurement.",
        READS_CELLS
        | {"intervals": table("intervals"), "published": PUBLISHED}
        | {name: PATHS.plan / f"{name}.parquet" for name in ("plan", "blocks")},
        also={"blocks": "blocks"},
    ),
}
if any(load_engines()[cell.engine].serves for cell in CELLS.values()):
    TABLE_RULES["latencies"] = TableRule(
        "What each knob does to the latencies of servers.", READS_CELLS | {"serving": table("serving_summary")}
    )
if any(getattr(cell.knobs, "find", None) for cell in CELLS.values()):
    TABLE_RULES["searches"] = TableRule(
        "The highest load within the study's limits, searched and predicted.",
        READS_CELLS | READS_PARSED | {"plan": PATHS.plan / "plan.parquet"},
    )
if any(getattr(workload, "answers", None) == "real" for workload in STUDY.workloads.values()):
    TABLE_RULES["conversations"] = TableRule("What users of conversations see, by turn.", READS_CELLS | READS_PARSED)
if any(cell.environment for cell in CELLS.values()):
    TABLE_RULES["environments"] = TableRule("What differs between environments though the study asks for the same.")
if STUDY.claims:
    TABLE_RULES["claims"] = TableRule(
        "Verdicts on published claims, from limits, formulas and this study.",
        {
            "tables": [
                *READS_CELLS["tables"],
                *map(table, ("intervals", "memory", "knobs", "engines", "predictions", "devices", "fragmentation")),
            ],
            "published": PUBLISHED,
        },
    )
for made, of in TABLE_RULES.items():

    rule:
        name:
            made
        input:
            **of.reads,
            code=sources(COMMANDS[f"table-{made}"]),
        output:
            **written(made),
            **{key: path for option, name in of.also.items() for key, path in written(name, of=f"{option}_").items()},
        log:
            PATHS.root / f"logs/{made}.log",
        conda:
            "../envs/cpu.conda.yaml"
        params:
            settings=SETTINGS,
            command=f"table-{made}",
            options=of.options,
            at=of.at,
            reads=[f"--{key} {quote(str(FOLDERS.get(key, at)))}" for key, at in of.reads.items() if key not in FOUND],
            also=[f"--{option}-out {quote(str(table(name)))}" for option, name in of.also.items()],
        shell:
            "nice -n 19 python -m workflow_scripts {params.command}"
            ' --study "$STUDY" {params.reads} {params.options}'
            " --out {output.table:q} {params.also}"
            " > {log:q} 2>&1"

    workflow.get_rule(made).docstring = of.about


rule digest:
    """All that a comparison with another study needs; the report embeds it."""
    input:
        tables=[table(name) for name in (*MEASUREMENTS, "waiting", "knobs", "devices", "engines")],
        code=sources("questions.compare.study_digest"),
    output:
        PATHS.digest,
    log:
        PATHS.root / "logs/digest.log",
    conda:
        "../envs/cpu.conda.yaml"
    params:
        settings=SETTINGS,
        tables=PATHS.tables,
    shell:
        'nice -n 19 python -m workflow_scripts digest --study "$STUDY" --tables {params.tables:q} --out {output:q} > {log:q} 2>&1'
