"""Prepare: everything that a cell needs before a device is held."""


MODELS = resolved_models(STUDY)


rule prepare_model:
    """A model folder that an engine can be started on: configuration and tokenizer."""
    output:
        config=PATHS.model("{model}") / "config.json",
        manifest=PATHS.model("{model}") / "model_manifest.json",
    log:
        PATHS.root / "logs/prepare_model/{model}.log",
    params:
        definition=lambda wildcards: MODELS[wildcards.model],
        folder=PATHS.model("{model}"),
    shell:
        "{PYTHON} -m workflow_scripts.prepare.model"
        " --study {STUDY_FILE}"
        " --model {wildcards.model}"
        " --out {params.folder}"
        " > {log} 2>&1"


rule prepare_workload:
    """The requests of a workload, tokenised for a model, and others to warm up with."""
    input:
        PATHS.model("{model}") / "config.json",
    output:
        workload=PATHS.workload("{model}", "{workload}"),
        warmup=PATHS.workload("{model}", "{workload}").with_name("warmup.jsonl"),
        manifest=PATHS.workload("{model}", "{workload}").with_name("workload.json"),
    log:
        PATHS.root / "logs/prepare_workload/{model}/{workload}.log",
    params:
        definition=lambda wildcards: STUDY.workloads[wildcards.workload].model_dump(mode="json"),
        num_prompts=lambda wildcards: most_prompts(wildcards.model, wildcards.workload),
        model_dir=PATHS.model("{model}"),
    shell:
        "{PYTHON} -m workflow_scripts.prepare.workload"
        " --study {STUDY_FILE}"
        " --workload {wildcards.workload}"
        " --model {wildcards.model}"
        " --model-dir {params.model_dir}"
        " --num-prompts {params.num_prompts}"
        " --out {output.workload}"
        " > {log} 2>&1"
