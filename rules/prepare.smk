"""Prepare: everything that a cell needs before a device is held.

Prepared files have a key of their definition in their name, so that they never change under a measured cell.
"""


onstart:
    # Every call that runs a job runs this hook; the processes inside jobs have none.
    store_configs(STUDY, PATHS)


rule prepare_model:
    """A model folder that an engine can start from: configuration and tokenizer."""
    output:
        PATHS.model("{model}", "{key}") / "config.json",
    log:
        PATHS.root / "logs/prepare_model/{model}-{key}.log",
    resources:
        **PREPARE_RESOURCES,
    params:
        folder=lambda wildcards, output: Path(output[0]).parent,
        weights=lambda wildcards: "--weights" if MODELS[wildcards.model].load_format == "hub" else "",
    shell:
        "python -m workflow_scripts prepare-model"
        ' --study "$STUDY"'
        " --model {wildcards.model:q}"
        " --out {params.folder:q}"
        " {params.weights}"
        " > {log:q} 2>&1"


rule prepare_workload:
    """The requests of a workload, tokenised for a model, and other requests for the warm-up."""
    input:
        model=lambda wildcards: ancient(prepared_model(wildcards.model)),
    output:
        workload=PATHS.workload("{model}", "{workload}", "{prompts}-{key}"),
        warmup=PATHS.workload("{model}", "{workload}", "{prompts}-{key}").with_name("warmup.jsonl"),
        manifest=PATHS.workload("{model}", "{workload}", "{prompts}-{key}").with_name("workload.json"),
    log:
        PATHS.root / "logs/prepare_workload/{model}/{workload}/{prompts}-{key}.log",
    resources:
        **PREPARE_RESOURCES,
    params:
        model_dir=lambda wildcards, input: Path(input.model).parent,
    shell:
        "python -m workflow_scripts prepare-workload"
        ' --study "$STUDY"'
        " --workload {wildcards.workload:q}"
        " --model {wildcards.model:q}"
        " --model-dir {params.model_dir:q}"
        " --num-prompts {wildcards.prompts:q}"
        " --out {output.workload:q}"
        " > {log:q} 2>&1"


rule install_environment:
    """Another version of an engine, from its lock; if that fails, the record says why, and only its cells end."""
    output:
        PATHS.environment("{environment}", "{kind}", "{attempt}"),
    log:
        PATHS.root / "logs/install_environment/{environment}-{kind}{attempt}.log",
    wildcard_constraints:
        kind="cpu|cuda",
        attempt="(-[0-9]+)?",
    resources:
        **PREPARE_RESOURCES,
    shell:
        "python -m workflow_scripts install-environment"
        " --environment {wildcards.environment:q}"
        " --kind {wildcards.kind:q}"
        " --out {output:q}"
        " > {log:q} 2>&1"


rule prepare:
    """Everything that cells need before a device is held."""
    input:
        sorted({prepared_workload(cell) for cell in CELLS}.union(*map(prepared_models, CELLS))),


rule prepare_device:
    """Measure the rates at which a device copies, reads and multiplies, for the ceilings of its cells."""
    output:
        PATHS.device("{gpu}"),
    log:
        PATHS.root / "logs/prepare_device/{gpu}.log",
    threads: THREADS
    resources:
        **resources_for(first_cell),
        host_device=1,
    params:
        setup=lambda wildcards, output: SETUP,
        launcher=lambda wildcards, output: LAUNCHER,
    shell:
        "{params.setup}\n"
        "{params.launcher} python -m workflow_scripts measure-device"
        ' --study "$STUDY"'
        " --gpu {wildcards.gpu:q}"
        " --out {output:q}"
        " --log {log:q}"


rule calibrate_devices:
    """Time short series of steps of every engine and model on some devices; the costs of steps are fitted to them."""
    input:
        lambda wildcards: sorted(
            {
                ancient(file)
                for calibration in CALIBRATIONS.values()
                if calibration.cell.gpu in wildcards.gpus.split("+")
                for file in (prepared_model(calibration.cell.model), *environments_of(calibration.cell.id))
            }
        ),
    output:
        PATHS.calibrated("{gpus}"),
    log:
        PATHS.root / "logs/calibrate_devices/{gpus}.log",
    threads: THREADS
    resources:
        **resources_for(calibrated_cells),
        host_device=1,
    params:
        setup=lambda wildcards, output: SETUP,
        launcher=lambda wildcards, output: LAUNCHER,
        # Devices are calibrated again if the study needs other calibrations, or if the protocol changed.
        calibrations=lambda wildcards: calibrations_sha256(wildcards.gpus.split("+")),
        gpus=lambda wildcards: wildcards.gpus.split("+"),
    shell:
        "{params.setup}\n"
        "{params.launcher} python -m workflow_scripts calibrate"
        ' --study "$STUDY"'
        ' --results "$RESULTS"'
        " --gpu {params.gpus:q}"
        " --out {output:q}"
        " --log {log:q}"


rule calibrate:
    """Calibrate every device of this machine; plans and the report then predict with it."""
    input:
        [PATHS.calibrated("+".join(gpus)) for gpus in calibrated_together()],
