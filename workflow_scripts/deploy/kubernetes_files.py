"""How to serve a promised setting on Kubernetes."""

import math
from collections.abc import Mapping
from typing import Any

from workflow_scripts.deploy.deployment import GIB, MODELS, PORT, PROBE_S, VLLM_FILE, Deployment
from workflow_scripts.deploy.noted import Noted, noted_yaml
from workflow_scripts.deploy.serving_files import vllm_yaml


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
        pod["initContainers"] = [_download(deployment, [*plain_variables, token], mounts)]
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


def _download(deployment: Deployment, variables: list[Any], mounts: list[Any]) -> dict[str, Any]:
    """A container that loads the weights into the volume first, so that the server starts as fast as measured."""
    serve = deployment.promise.serve
    revision = serve.arguments.get("revision")
    words = ["hf", "download", serve.model, *(["--revision", revision] if revision else [])]
    return {"name": "download", "image": deployment.image, "command": words, "env": variables, "volumeMounts": mounts}


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
