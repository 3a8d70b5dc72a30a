"""Prepare: everything that a cell needs before a device is held.

What is prepared carries a key of its definition in its name, so that it never changes under a measured cell.
"""


rule prepare_model:
    """A model folder that an engine can be started on: configuration and tokenizer."""
    output:
        config=PATHS.model("{model}", "{key}") / "config.json",
        manifest=PATHS.model("{model}", "{key}") / "model_manifest.json",
    log:
        PATHS.root / "logs/prepare_model/{model}-{key}.log",
    params:
        folder=lambda wildcards, output: Path(output.config).parent,
        weights=lambda wildcards: "--weights" if MODELS[wildcards.model]["load_format"] == "hub" else "",
    conda:
        "../envs/cpu.conda.yaml"
    shell:
        "python -m workflow_scripts.prepare.model"
        " --study $STUDY"
        " --model {wildcards.model}"
        " --out {params.folder}"
        " {params.weights}"
        " > {log} 2>&1"


rule prepare_workload:
    """The requests of a workload, tokenised for a model, and others to warm up with."""
    input:
        model=lambda wildcards: ancient(prepared_model(wildcards.model)),
    output:
        workload=PATHS.workload("{model}", "{workload}", "{prompts}-{key}"),
        warmup=PATHS.workload("{model}", "{workload}", "{prompts}-{key}").with_name("warmup.jsonl"),
        manifest=PATHS.workload("{model}", "{workload}", "{prompts}-{key}").with_name("workload.json"),
    log:
        PATHS.root / "logs/prepare_workload/{model}/{workload}/{prompts}-{key}.log",
    params:
        model_dir=lambda wildcards, input: Path(input.model).parent,
    conda:
        "../envs/cpu.conda.yaml"
    shell:
        "python -m workflow_scripts.prepare.workload"
        " --study $STUDY"
        " --workload {wildcards.workload}"
        " --model {wildcards.model}"
        " --model-dir {params.model_dir}"
        " --num-prompts {wildcards.prompts}"
        " --out {output.workload}"
        " > {log} 2>&1"


rule prepare:
    """Everything that cells need before a device is held."""
    input:
        sorted({prepared_workload(cell) for cell in CELLS}),
