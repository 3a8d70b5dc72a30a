"""Deploy: what the study promises of one setting, and files to serve and watch it. No other target needs this."""


rule promise:
    """What the study promises of the recommended setting for `--config workload=`, or of the cell `--config pick=`."""
    input:
        tables=[
            table(name)
            for name in (
                "cells",
                "starts",
                "repeats",
                "serving",
                "serving_summary",
                "recommendations",
                "limits",
                "memory",
            )
        ],
    output:
        PATHS.deploy / "promise.json",
    log:
        PATHS.root / "logs/promise.log",
    params:
        code=sources_sha256("questions.serving.make_promise"),
        tables=PATHS.tables,
        pick=config.get("pick", ""),
        workload=config.get("workload", ""),
    shell:
        "python -m workflow_scripts promise"
        ' --study "$STUDY"'
        ' --results "$RESULTS"'
        " --tables {params.tables:q}"
        " --pick={params.pick:q}"
        " --workload={params.workload:q}"
        " --out {output:q}"
        " > {log:q} 2>&1"


rule export:
    """Files to serve the setting (vLLM, containers, Kubernetes, Slurm) and to watch it (Prometheus, Grafana)."""
    input:
        promise=PATHS.deploy / "promise.json",
    output:
        expand(
            PATHS.deploy / "{name}",
            name=[
                "vllm.yaml",
                "require_key.py",
                "compose.yaml",
                "kubernetes.yaml",
                "serve.sbatch",
                "prometheus.yml",
                "alerts.yml",
            ]
            + [f"grafana/{name}" for name in ("datasources/prometheus.yml", "dashboards/kvsweep.yml")]
            + ["grafana/dashboards/kvsweep.json"],
        ),
    log:
        PATHS.root / "logs/export.log",
    params:
        code=sources_sha256("deploy.export", beside=(HOME / "workflow_scripts/deploy/templates").rglob("*.j2")),
        folder=PATHS.deploy,
        flags=[f"--{name}={config[name]}" for name in ("host", "image") if name in config],
    shell:
        "python -m workflow_scripts export"
        ' --study "$STUDY"'
        " --promise {input.promise:q}"
        " {params.flags:q}"
        " --out {params.folder:q}"
        " > {log:q} 2>&1"
