"""How to serve a promised setting: vLLM's own file, containers, a Slurm job and Kubernetes."""

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workflow_scripts.deploy.deployment import (
    GIB,
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


def kubernetes_yaml(deployment: Deployment) -> str:
    """Manifests of the server: its settings, model volume, Deployment, Service and scaling rule."""
    name = deployment.name
    meta: dict[str, Any] = {"name": name, "labels": {"app": name}}
    weights = deployment.weights_bytes or 0.0
    volume = math.ceil(2 * weights / GIB) + 1
    memory, limit = deployment.host_memory, deployment.start_limit
    resources: dict[str, Any] = {"memory": Noted(f"{memory.value}Gi", memory.why)}
    if not deployment.on_cpu:
        why = f"{deployment.gpu_title}; {deployment.device_memory}"
        resources["nvidia.com/gpu"] = Noted(deployment.needs.gpus, why)
    probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": PROBE_S}
    mounts = [{"name": "settings", "mountPath": "/deploy"}, {"name": "models", "mountPath": MODELS}]
    plain_variables = [{"name": key, "value": value} for key, value in deployment.environment.items()]
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": name, "key": "hf-token", "optional": True}}}
    key = {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": name, "key": "api-key"}}}
    container: dict[str, Any] = {
        "name": "server",
        "image": Noted(deployment.image, "the release that was measured"),
        "command": deployment.server_command,
        "env": [*plain_variables, *([token] if deployment.of_hub else []), key],
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {
            "requests": {"cpu": Noted(str(deployment.needs.cores), "estimate of config/site.yaml's rules")},
            "limits": resources,
        },
        "startupProbe": {
            **probe,
            "failureThreshold": Noted(math.ceil(limit.value / PROBE_S), f"{limit.why}, in probes"),
        },
        "readinessProbe": probe,
        "livenessProbe": {**probe, "periodSeconds": 4 * PROBE_S, "failureThreshold": 3},
        "volumeMounts": [*mounts, {"name": "shared-memory", "mountPath": "/dev/shm"}],
    }
    pod: dict[str, Any] = {
        "containers": [container],
        "volumes": [
            {"name": "settings", "configMap": {"name": name}},
            {"name": "models", "persistentVolumeClaim": {"claimName": name}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    if deployment.of_hub:
        # It loads the weights into the volume first, so that the server starts as fast as measured.
        serve = deployment.promise.serve
        revision = ["--revision", serve.arguments["revision"]] if serve.arguments.get("revision") else []
        download = {
            "name": "download",
            "image": deployment.image,
            "command": ["hf", "download", serve.model, *revision],
            "env": [*plain_variables, token],
            "volumeMounts": mounts,
        }
        pod["initContainers"] = [download]
    scrape = {"prometheus.io/scrape": "true", "prometheus.io/port": str(PORT), "prometheus.io/path": "/metrics"}
    documents: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {VLLM_FILE: vllm_yaml(deployment)}},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": meta,
            "spec": {
                "accessModes": [Noted("ReadWriteMany", "for several servers; with one, ReadWriteOnce is enough")],
                "resources": {
                    "requests": {
                        "storage": Noted(f"{volume}Gi", f"twice the weights of {weights / GIB:.1f} GiB, and 1")
                    }
                },
            },
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta,
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": name}},
                "strategy": {"type": "Recreate"},
                "template": {"metadata": {"labels": {"app": name}, "annotations": scrape}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]},
        },
        _scaling(deployment, meta),
    ]
    return noted_yaml(*documents, head=deployment.head("kubectl apply -f kubernetes.yaml; create the Secret first"))


def _scaling(deployment: Deployment, meta: Mapping[str, Any]) -> dict[str, Any]:
    """More servers when requests wait; the metric comes from the Prometheus adapter."""
    waits = Noted(
        str(math.ceil(deployment.promise.max_num_seqs * deployment.promise.growth_share)),
        f"waiting requests per server: {deployment.promise.growth_share:.0%} of max-num-seqs, the share by which the "
        "study's rule calls a queue growing",
    )
    metric = {"name": "vllm_num_requests_waiting"}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": meta,
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment.name},
            "minReplicas": 1,
            "maxReplicas": 2,
            "metrics": [
                {"type": "Pods", "pods": {"metric": metric, "target": {"type": "AverageValue", "averageValue": waits}}}
            ],
        },
    }
