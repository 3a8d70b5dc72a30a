"""How to serve a promised setting: each file is checked with what its reader accepts."""

import shutil
import subprocess
from dataclasses import replace

import pytest
import yaml
from kubernetes_validate import validate

from tests.unit.deploy.promises import IMAGE, REVISION, compose, deployment, on_cpu, promise
from workflow_scripts.deploy.export import Deployment, written
from workflow_scripts.study.promise import PromiseError, ServeSettings
from workflow_scripts.study.study import StudyError

KUBERNETES = "1.33"
SECRETS = {"VLLM_API_KEY", "HF_TOKEN"}


@pytest.fixture
def hub(tmp_path):
    return deployment(tmp_path, promise())


@pytest.fixture
def cpu(tmp_path):
    return deployment(tmp_path, on_cpu())


@pytest.fixture(params=["hub", "cpu"])
def each(request):
    return replace(request.getfixturevalue(request.param), named_image=IMAGE)


def manifests(of: Deployment) -> dict[str, dict]:
    return {one["kind"]: one for one in yaml.safe_load_all(written("kubernetes.yaml", of))}


def pod(of: Deployment) -> dict:
    return manifests(of)["Deployment"]["spec"]["template"]["spec"]


def composed(of: Deployment) -> dict:
    return yaml.safe_load(written("compose.yaml", of))["services"]["server"]


def test_kubernetes_and_compose_know_every_field(each):
    found = manifests(each)
    assert list(found) == [
        *("ConfigMap", "PersistentVolumeClaim", "Deployment", "Service", "NetworkPolicy", "HorizontalPodAutoscaler")
    ]
    assert found["ConfigMap"]["data"] == {name: written(name, each) for name in ("vllm.yaml", "require_key.py")}
    for one in found.values():
        assert validate(one, KUBERNETES, strict=True) == KUBERNETES
    text = written("compose.yaml", each)
    known = compose(each)
    known.validate()
    assert set(known.service_names()) == {"server", "prometheus", "grafana"}
    prepared = "../prepared/models/tiny-llama-57m-12345678:/models/tiny-llama-57m:ro"
    assert (prepared in text) == each.on_cpu


def test_secrets_are_references(each):
    secret = {name: value for name, value in composed(each)["environment"].items() if name in SECRETS}
    assert secret["VLLM_API_KEY"].startswith("${VLLM_API_KEY:?")
    grafana = yaml.safe_load(written("compose.yaml", each))["services"]["grafana"]["environment"]
    assert grafana["GF_SECURITY_ADMIN_PASSWORD"].startswith("${GRAFANA_PASSWORD:?")
    assert all(value.startswith("${") for value in secret.values())
    variables = {one["name"]: one for one in pod(each)["containers"][0]["env"]}
    assert variables["VLLM_API_KEY"]["valueFrom"]["secretKeyRef"]["key"] == "api-key"
    assert all("value" not in variables[name] for name in SECRETS & variables.keys())
    assert ("HF_TOKEN" in variables) == ("HF_TOKEN" in secret) == each.of_hub


def test_gpus_memory_and_probes_are_those_of_the_cell(hub, cpu):
    (server,), text = pod(hub)["containers"], written("kubernetes.yaml", hub)
    assert server["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert "nvidia.com/gpu" not in pod(cpu)["containers"][0]["resources"]["limits"]
    assert composed(hub)["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 2
    assert "deploy" not in composed(cpu)
    probe = server["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == hub.start_limit_s == 3 * (15 + 85)
    assert "(15.0 s, study promised, cell h200/" in text


def test_weights_are_loaded_before_the_server_starts(hub, cpu):
    (download,) = pod(hub)["initContainers"]
    assert download["command"] == ["hf", "download", "meta-llama/Llama-3.1-8B-Instruct", "--revision", REVISION]
    assert {"name": "HF_HOME", "value": "/models"} in download["env"]
    assert "VLLM_API_KEY" not in {one["name"] for one in download["env"]}
    volume = manifests(hub)["PersistentVolumeClaim"]["spec"]["resources"]["requests"]["storage"]
    assert volume == "31Gi"  # twice 15 GiB of weights
    assert "initContainers" not in pod(cpu)
    assert pod(cpu)["containers"][0]["command"][:3] == ["vllm", "serve", "/models/tiny-llama-57m"]


def test_the_slurm_job_serves_with_the_file_and_needs_a_key(cpu, tmp_path):
    vllm = tmp_path / "vllm"
    vllm.write_text('#!/bin/sh\necho "$VLLM_CPU_KVCACHE_SPACE" "$@"\n')
    vllm.chmod(0o755)
    script = tmp_path / "serve.sbatch"
    script.write_text(written("serve.sbatch", cpu))
    bash = shutil.which("bash")
    assert bash
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "VLLM_API_KEY": "key"}
    done = subprocess.run([bash, script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "1 serve --config results/promised/deploy/vllm.yaml --port 8000"
    keyless = subprocess.run([bash, script], env={"PATH": environment["PATH"]}, capture_output=True, text=True)
    assert keyless.returncode != 0
    assert "VLLM_API_KEY: set a key" in keyless.stderr


def test_a_promise_of_another_grid_or_model_is_refused(tmp_path):
    with pytest.raises(StudyError, match="study 'promised' has no cell 'h200/vllm/other'"):
        deployment(tmp_path, promise(cell_id="h200/vllm/other"))
    for arguments in ({"revision": "0" * 40}, {"revision": REVISION, "trust-remote-code": True}):
        serve = ServeSettings("meta-llama/Llama-3.1-8B-Instruct", arguments, {})
        with pytest.raises(PromiseError, match="study promised loads another model"):
            deployment(tmp_path, promise(serve=serve))
