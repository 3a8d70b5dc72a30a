"""Deploy: files to serve one setting, and to watch whether it keeps what the study promises. No other target needs this."""

PROMISED_FROM = "cells starts repeats serving recommendations".split()
DEPLOYED = "vllm.yaml require_key.py serve.sbatch prometheus.yml alerts.yml".split()
DEPLOYED += [
    f"grafana/{name}" for name in ("datasources/prometheus.yml", "dashboards/kvsweep.yml", "dashboards/kvsweep.json")
]


rule export:
    """Files to serve the recommended setting, or that of the cell `--config pick=`, and to watch it."""
    input:
        tables=list(map(table, PROMISED_FROM)),
    output:
        [PATHS.deploy / name for name in DEPLOYED],
    log:
        PATHS.root / "logs/export.log",
    params:
        code=sources_sha256("deploy.export", beside=(HOME / "workflow_scripts/deploy/templates").rglob("*.j*")),
        folder=PATHS.deploy,
        tables=PATHS.tables,
        pick=config.get("pick", ""),
        flags=[f"--host={config['host']}"] if "host" in config else [],
    shell:
        "python -m workflow_scripts export"
        ' --study "$STUDY"'
        ' --results "$RESULTS"'
        " --tables {params.tables:q}"
        " --pick={params.pick:q}"
        " {params.flags:q}"
        " --out {params.folder:q}"
        " > {log:q} 2>&1"
