"""Deploy: what the study promises of one setting, and files to serve and watch it. No other target needs this."""

PROMISED_FROM = "cells starts repeats serving recommendations".split()
DEPLOYED = "vllm.yaml require_key.py serve.sbatch prometheus.yml alerts.yml".split()
DEPLOYED += [
    f"grafana/{name}" for name in ("datasources/prometheus.yml", "dashboards/kvsweep.yml", "dashboards/kvsweep.json")
]


rule promise:
    """What the study promises of the recommended setting, or of the cell `--config pick=`."""
    input:
        tables=list(map(table, PROMISED_FROM)),
    output:
        PATHS.deploy / "promise.json",
    log:
        PATHS.root / "logs/promise.log",
    params:
        code=sources_sha256("questions.serving.make_promise"),
        tables=PATHS.tables,
        pick=config.get("pick", ""),
    shell:
        "python -m workflow_scripts promise"
        ' --study "$STUDY"'
        ' --results "$RESULTS"'
        " --tables {params.tables:q}"
        " --pick={params.pick:q}"
        " --out {output:q}"
        " > {log:q} 2>&1"


rule export:
    """Files to serve the setting (vLLM, Slurm) and to watch it (Prometheus, Grafana)."""
    input:
        promise=PATHS.deploy / "promise.json",
    output:
        [PATHS.deploy / name for name in DEPLOYED],
    log:
        PATHS.root / "logs/export.log",
    params:
        code=sources_sha256("deploy.export", beside=(HOME / "workflow_scripts/deploy/templates").rglob("*.j*")),
        folder=PATHS.deploy,
        flags=[f"--host={config['host']}"] if "host" in config else [],
    shell:
        "python -m workflow_scripts export"
        ' --study "$STUDY"'
        " --promise {input.promise:q}"
        " {params.flags:q}"
        " --out {params.folder:q}"
        " > {log:q} 2>&1"
