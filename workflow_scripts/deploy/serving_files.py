"""How to serve a promised setting: vLLM's own file, containers and a Slurm job."""

import shlex
from pathlib import Path
from typing import Any

from workflow_scripts.deploy.deployment import (
    GRAFANA_IMAGE,
    MODELS,
    PORT,
    PROBE_S,
    PROMETHEUS_IMAGE,
    SLURM_FILE,
    VLLM_FILE,
    Deployment,
)
from workflow_scripts.deploy.noted import Noted, noted_yaml
from workflow_scripts.engines.vllm_engines import SERVE_COMMAND

HEALTHY = f"import urllib.request as u; u.urlopen('http://127.0.0.1:{PORT}/health')"


def vllm_yaml(deployment: Deployment) -> str:
    """The file for `vllm serve --config`; it names environment variables in comments."""
    p = deployment.promise
    lines = deployment.head(f"vLLM {p.engine_release}: vllm serve --config {VLLM_FILE}")
    lines += [f"environment: {name}={value}" for name, value in p.serve.environment.items()]
    took_effect = {name.replace("_", "-") for name in p.effective}
    settings: dict[str, Any] = {}
    for name, value in p.serve.in_file().items():
        numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
        how = "took effect" if name in took_effect else "was set"
        settings[name] = Noted(value, f"{how} in {deployment.where}") if numeric else value
    return noted_yaml(settings | {"served-model-name": p.served_model}, head=lines)


def compose_yaml(deployment: Deployment) -> str:
    """vLLM, Prometheus and Grafana in containers; secrets come from the environment of `docker compose`."""
    p, memory, limit = deployment.promise, deployment.host_memory, deployment.start_limit
    secrets = {"VLLM_API_KEY": "${VLLM_API_KEY:?set a key for clients}"}
    secrets |= {"HF_TOKEN": "${HF_TOKEN:-}"} if deployment.of_hub else {}
    volumes = [f"./{VLLM_FILE}:/deploy/{VLLM_FILE}:ro"]
    if deployment.of_hub:
        volumes.append(f"models:{MODELS}")
    else:
        prepared = f"../prepared/models/{Path(p.serve.model).name}"  # from the folder of this file
        volumes.append(f"{prepared}:{MODELS}/{p.served_model}:ro")
    server: dict[str, Any] = {
        "image": Noted(deployment.image, "the release that was measured"),
        "entrypoint": deployment.server_command,
        "environment": {**deployment.environment, **secrets},
        "volumes": volumes,
        "ports": [f"127.0.0.1:{PORT}:{PORT}", "127.0.0.1:9090:9090", "127.0.0.1:3000:3000"],
        "mem_limit": Noted(f"{memory.value}g", memory.why),
        "healthcheck": {
            "test": ["CMD", "python3", "-c", HEALTHY],
            "interval": f"{PROBE_S}s",
            "start_period": Noted(f"{limit.value}s", limit.why),
        },
        "restart": "unless-stopped",
    }
    if not deployment.on_cpu:
        count = Noted(deployment.needs.gpus, f"{deployment.gpu_title}; {deployment.device_memory}")
        device = {"driver": "nvidia", "count": count, "capabilities": ["gpu"]}
        server |= {"deploy": {"resources": {"reservations": {"devices": [device]}}}, "ipc": "host"}
    return noted_yaml(
        {
            "services": {
                "server": server,
                # Both share the server's network, so the exported addresses are valid with and without containers.
                "prometheus": {
                    "image": Noted(PROMETHEUS_IMAGE, "the release that the tests run"),
                    "network_mode": "service:server",
                    "volumes": [
                        "./prometheus.yml:/etc/prometheus/prometheus.yml:ro",
                        "./alerts.yml:/etc/prometheus/alerts.yml:ro",
                    ],
                },
                "grafana": {
                    "image": Noted(GRAFANA_IMAGE, "the release whose types the tests check the dashboard with"),
                    "network_mode": "service:server",
                    "volumes": ["./grafana:/etc/grafana/provisioning:ro"],
                },
            },
            **({"volumes": {"models": {}}} if deployment.of_hub else {}),
        },
        head=deployment.head("vLLM with Prometheus and Grafana: docker compose up"),
    )


def slurm_script(deployment: Deployment) -> str:
    """A Slurm job that serves until its time limit and writes its address into its log."""
    p, limit = deployment.promise, deployment.start_limit
    options = [f"--job-name={deployment.name}", *deployment.scheduler_options]
    words = " ".join(SERVE_COMMAND)
    variables = [f"export {name}={shlex.quote(value)}" for name, value in p.serve.environment.items()]
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"# {line}" for line in deployment.head(f"sbatch {SLURM_FILE}, from the checkout's root")),
            f"# {deployment.device_memory}.",
            *(f"#SBATCH {each}" for each in options),
            "set -euo pipefail",
            ': "${VLLM_API_KEY:?set a key for clients; sbatch passes it on}"',
            *variables,
            f'echo "serving at http://$(hostname):{PORT}; healthy within {limit.value} s"',
            f"# {limit.why}",
            f'exec {words} --config "${{DEPLOY:-results/{p.study}/deploy}}/{VLLM_FILE}" --port {PORT}',
            "",
        ]
    )
