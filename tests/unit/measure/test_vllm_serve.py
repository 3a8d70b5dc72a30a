"""How vLLM's server is started: its command line, its environment, and where the key is and is not."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workflow_scripts.measure import vllm_serve
from workflow_scripts.measure.engine import CacheHeldError, EngineSetup
from workflow_scripts.measure.vllm_serve import VllmServe
from workflow_scripts.workloads.request import Request


def launched(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[list[str], dict[str, str], Any]:
    """Words and environment of the server, and what the client is told."""
    seen: dict[str, Any] = {}
    setup = EngineSetup(
        model_dir=Path("model"),
        load_format="dummy",
        dtype="float32",
        seed=0,
        **{"device_kind": "cpu", "knobs": {"block_size": 32, "users": 4, "cpu_kv_cache_gib": 1}, **changes},
    )
    monkeypatch.setattr(vllm_serve.ServerProcess, "forked", lambda body: body)
    monkeypatch.setattr(vllm_serve, "_serve", lambda words, *_: seen.update(words=words))
    monkeypatch.setattr(vllm_serve.os, "environ", environment := {})
    body, target, health_path = VllmServe(setup)._launch()
    body()  # type: ignore[misc, operator]
    assert health_path == "/health"
    return seen["words"], environment, target


def test_what_the_server_is_started_with(monkeypatch):
    words, environment, target = launched(monkeypatch)
    text = " ".join(words)
    assert "--host 127.0.0.1" in text
    assert "--block-size 32" in text
    assert "--generation-config vllm" in text
    assert "users" not in text
    assert "trust-remote-code" not in text
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert f":{words[words.index('--port') + 1]}" in target.address.base_url
    assert target.extra_body == {"ignore_eos": True}
    # A GPU keeps vLLM's own layout, and remote code is run only if the study says so.
    words, environment, _ = launched(monkeypatch, device_kind="cuda", knobs={}, trust_remote_code=True)
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in environment
    assert "--trust-remote-code" in words


def test_the_key_is_in_the_servers_environment_alone_and_another_each_time(monkeypatch):
    words, environment, target = launched(monkeypatch)
    key = environment["VLLM_API_KEY"]
    assert len(key) >= 32
    assert key == target.address.api_key
    assert key not in " ".join(words)
    assert key not in repr(target)
    assert launched(monkeypatch)[1]["VLLM_API_KEY"] != key


@pytest.mark.parametrize("answers", [[""], ['{"success": true}'], ['{"success": false}', '{"success": true}']])
def test_the_cache_is_emptied_until_the_server_says_so_or_it_keeps_it(monkeypatch, answers):
    engine = VllmServe(EngineSetup(Path("model"), "dummy", "float32", 0, {}, "cpu"))

    def call(*_: object, **__: object) -> str:
        return answers.pop(0) if answers else '{"success": false}'

    engine._target = SimpleNamespace(address=SimpleNamespace(call=call))  # type: ignore[assignment]
    engine.reset()
    assert answers == []
    clock = itertools.count()
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    with pytest.raises(CacheHeldError, match="its prefix cache within 5 s"):
        engine.reset()


def test_the_arrivals_of_a_start_follow_from_its_own_seed(monkeypatch):
    seen = []
    monkeypatch.setattr(VllmServe, "_send", lambda _, __, arrivals_s: seen.append(arrivals_s) or [])
    requests = [Request([1], 1)] * 9
    for seed in (0, 0, 1):
        knobs = {"request_rate_per_s": 2.0}
        VllmServe(EngineSetup(Path(), "dummy", "float32", 0, knobs, "cpu", arrival_seed=seed)).run(requests)
    assert seen[0] == seen[1] != seen[2]
