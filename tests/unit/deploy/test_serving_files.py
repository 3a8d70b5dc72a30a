"""How to serve a promised setting: each file is checked with what its reader accepts."""

import re
import shutil
import subprocess

import pytest
import yaml
from compose_spec import PyCompose
from kubernetes_validate import validate

from tests.unit.deploy.promises import HUB, deployment, on_cpu, promise
from workflow_scripts.deploy.deployment import Deployment
from workflow_scripts.deploy.serving_files import compose_yaml, kubernetes_yaml, slurm_script
from workflow_scripts.study.promise import PromiseError

KUBERNETES = "1.33"


@pytest.fixture(params=["hub", "cpu"])
def each(request, tmp_path):
    return deployment(tmp_path, promise() if request.param == "hub" else on_cpu())


@pytest.fixture
def hub(tmp_path):
    return deployment(tmp_path, promise())


@pytest.fixture
def cpu(tmp_path):
    return deployment(tmp_path, on_cpu())


def manifests(of: Deployment) -> dict[str, dict]:
    return {one["kind"]: one for one in yaml.safe_load_all(kubernetes_yaml(of))}


def container(of: Deployment) -> dict:
    return manifests(of)["Deployment"]["spec"]["template"]["spec"]["containers"][0]


def test_kubernetes_and_compose_know_every_field(each):
    found = manifests(each)
    assert list(found) == ["ConfigMap", "PersistentVolumeClaim", "Deployment", "Service", "HorizontalPodAutoscaler"]
    for one in found.values():
        assert validate(one, KUBERNETES, strict=True) == KUBERNETES
    text = compose_yaml(each)
    compose = PyCompose.from_yaml(text)
    compose.validate()
    assert set(compose.service_names()) == {"server", "prometheus", "grafana"}
    prepared = "../prepared/models/tiny-llama-57m-12345678:/models/tiny-llama-57m:ro"
    assert (prepared in text) == each.on_cpu
    text = compose_yaml(each) + kubernetes_yaml(each)
    images = re.findall(r"image: (\S+)", text)
    assert len(images) >= 4
    assert all(re.search(r":v?\d+(\.\d+)+$", image) for image in images)
    assert sum("0.32.0" in image for image in images) == len(images) - 2


def test_secrets_are_references(each):
    compose = yaml.safe_load(compose_yaml(each))["services"]["server"]["environment"]
    secret = {name: value for name, value in compose.items() if name in ("VLLM_API_KEY", "HF_TOKEN")}
    assert secret["VLLM_API_KEY"].startswith("${VLLM_API_KEY:?")
    assert all(value.startswith("${") for value in secret.values())
    variables = {one["name"]: one for one in container(each)["env"]}
    assert variables["VLLM_API_KEY"]["valueFrom"]["secretKeyRef"]["key"] == "api-key"
    assert all("value" not in variables[name] for name in ("VLLM_API_KEY", "HF_TOKEN") if name in variables)
    assert ("HF_TOKEN" in variables) == each.of_hub


def test_gpus_memory_and_probes_are_those_of_the_cell(hub, cpu):
    assert container(hub)["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert "predicted per GPU: 100.6 GiB (weights 7.5, kv cache 93.1)" in kubernetes_yaml(hub)
    assert "nvidia.com/gpu" not in container(cpu)["resources"]["limits"]
    (device,) = yaml.safe_load(compose_yaml(hub))["services"]["server"]["deploy"]["resources"]["reservations"][
        "devices"
    ]
    assert device["count"] == 2
    assert "deploy" not in yaml.safe_load(compose_yaml(cpu))["services"]["server"]
    assert hub.start_limit.value == 3 * (15 + 85)
    probe = container(hub)["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 300
    assert "(15.0 s, study promised, cell h200/" in kubernetes_yaml(hub)


def test_weights_are_loaded_before_the_server_starts(hub, cpu):
    pod = manifests(hub)["Deployment"]["spec"]["template"]["spec"]
    (download,) = pod["initContainers"]
    assert download["command"] == ["hf", "download", "meta-llama/Llama-3.1-8B-Instruct", "--revision", "0" * 40]
    assert {"name": "HF_HOME", "value": "/models"} in download["env"]
    volume = manifests(hub)["PersistentVolumeClaim"]["spec"]["resources"]["requests"]["storage"]
    assert int(volume.removesuffix("Gi")) == 31  # twice 15 GiB of weights
    assert "initContainers" not in manifests(cpu)["Deployment"]["spec"]["template"]["spec"]
    assert container(cpu)["command"][:3] == ["vllm", "serve", "/models/tiny-llama-57m"]


@pytest.mark.parametrize("gpu", ["h200", "l40s"])
def test_the_slurm_job_asks_as_the_site_says(tmp_path, gpu):
    script = slurm_script(deployment(tmp_path, promise(cell_id=HUB.format(gpu))))
    options = re.findall(r"^#SBATCH (.*)", script, re.MULTILINE)
    assert f"--gres=gpu:{gpu}:2" in options
    assert any(gpu in option for option in options if option.startswith(("-p", "--partition"))) or gpu == "l40s"
    assert options[0] == "--job-name=vllm-llama-3-1-8b-instruct"


def test_the_slurm_job_serves_with_the_file_and_needs_a_key(cpu, tmp_path):
    vllm = tmp_path / "vllm"
    vllm.write_text('#!/bin/sh\necho "$VLLM_CPU_KVCACHE_SPACE" "$@"\n')
    vllm.chmod(0o755)
    script = tmp_path / "serve.sbatch"
    script.write_text(slurm_script(cpu))
    bash = shutil.which("bash")
    assert bash
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "VLLM_API_KEY": "key"}
    done = subprocess.run([bash, script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "1 serve --config results/promised/deploy/vllm.yaml --port 8000"
    keyless = subprocess.run([bash, script], env={"PATH": environment["PATH"]}, capture_output=True, text=True)
    assert keyless.returncode != 0
    assert "VLLM_API_KEY: set a key" in keyless.stderr


def test_a_promise_of_another_grid_is_refused(tmp_path):
    with pytest.raises(PromiseError, match="study promised has no cell h200/vllm/other; `snakemake export`"):
        deployment(tmp_path, promise(cell_id="h200/vllm/other"))
