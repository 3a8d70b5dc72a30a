"""What the adapter reads from vLLM's objects, in the form that they have in the supported versions; and how vLLM's
server is started: its command line, its environment, and where its sockets are."""

import itertools
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workflow_scripts.engines.engine import CacheHeldError, EngineSetup
from workflow_scripts.engines.vllm import adapter as vllm_adapter
from workflow_scripts.engines.vllm import versions as vllm_versions
from workflow_scripts.engines.vllm.adapter import VllmOffline, VllmServe, request_record, step_record, vllm_environment
from workflow_scripts.engines.vllm.knobs import VllmKnobs
from workflow_scripts.workloads.request import Request
from workflow_scripts.workloads.sampling import Sampling

# Fields of vLLM's SchedulerStats and of its PrefixCacheStats, the latter since 0.12.
OF_SCHEDULER: dict[str, Any] = {"num_running_reqs": 4, "num_waiting_reqs": 7, "kv_cache_usage": 0.25}
PREFIXES = {"reset": False, "requests": 1, "queries": 64, "hits": 48}
PREEMPTED = {"preempted_requests": 1, "preempted_queries": 37, "preempted_hits": 32}


def setup_of(device_kind: str = "cpu", knobs: dict[str, Any] | None = None, **changes: Any) -> EngineSetup:
    return EngineSetup(Path("model"), "dummy", "float32", 0, knobs or {}, device_kind, **changes)


@pytest.mark.parametrize("preemptions", [None, 2])  # until 0.25.1, and since
def test_a_request_has_its_times_and_tokens(preemptions):
    answers = [SimpleNamespace(token_ids=[5, 6, 7])]
    output = SimpleNamespace(prompt_token_ids=[1, 2, 3, 4], outputs=answers, num_cached_tokens=2)
    stats = SimpleNamespace(queued_ts=10.0, scheduled_ts=10.5, first_token_ts=11.0, last_token_ts=12.0)
    if preemptions is not None:
        stats.num_preemptions = preemptions
    record = request_record(Request([1, 2, 3, 4], 3, request_id="r"), output, stats)
    assert (record.queued_s, record.scheduled_s, record.first_token_s, record.last_token_s) == (10.0, 10.5, 11.0, 12.0)
    assert (record.prompt_tokens, record.output_tokens, record.cached_prompt_tokens) == (4, 3, 2)
    assert record.preemptions == preemptions


@pytest.mark.parametrize("counts_resumed", [False, True])
def test_a_step_has_what_the_scheduler_did(counts_resumed, monkeypatch):
    monkeypatch.setattr(vllm_versions, "counts_resumed_requests", lambda: counts_resumed)
    iteration = SimpleNamespace(num_prompt_tokens=64, num_generation_tokens=4, num_preempted_reqs=1)
    prefixes = SimpleNamespace(**PREFIXES, **PREEMPTED)
    # What a version does not count is absent, not zero.
    assert step_record(SimpleNamespace(**OF_SCHEDULER, prefix_cache_stats=prefixes), iteration) == {
        **({"recomputed_tokens": 5} if counts_resumed else {}),
        "running": 4,
        "waiting": 7,
        "kv_cache_usage": 0.25,
        "prompt_tokens": 64,
        "generation_tokens": 4,
        "preempted": 1,
        "prefix_hits": 48,
    }


def outputs(time_s: float, tokens: int, running: int = 1) -> SimpleNamespace:
    """What a core tells of a step."""
    stats = SimpleNamespace(**OF_SCHEDULER | {"num_running_reqs": running}, prefix_cache_stats=None)
    return SimpleNamespace(timestamp=time_s, scheduler_stats=stats, outputs=[object()] * tokens)


@pytest.mark.parametrize("tells_of_steps_without_tokens", [False, True])  # as 0.25.1 and as 0.32.0
def test_every_step_is_noted_at_the_time_of_the_core(monkeypatch, tells_of_steps_without_tokens):
    pytest.importorskip("vllm.sampling_params", reason="vLLM is not installed")
    queued = [outputs(90.0, 0, running=0), outputs(101.0, 0), outputs(102.0, 2), SimpleNamespace(scheduler_stats=None)]
    core, manager = SimpleNamespace(get_output=lambda: queued.pop(0)), SimpleNamespace(record=lambda **_: None)
    engine = VllmOffline(setup_of("cuda"))

    def generate(*_: object, **__: object) -> list[Any]:
        while queued:  # as vllm.v1.engine.llm_engine.LLMEngine.step does
            step = core.get_output()
            if step.scheduler_stats and (step.outputs or tells_of_steps_without_tokens):
                tokens = SimpleNamespace(num_prompt_tokens=8, num_generation_tokens=2, num_preempted_reqs=0)
                manager.record(scheduler_stats=step.scheduler_stats, iteration_stats=tokens if step.outputs else None)
        return []

    llm_engine = SimpleNamespace(engine_core=core, logger_manager=manager)
    engine._llm = SimpleNamespace(llm_engine=llm_engine, generate=generate)
    engine._listen()
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    engine.run([])
    steps = engine.take_steps()
    # The first one is what the core did after the last answer of the pass before.
    assert [(s["time_s"], s["prompt_tokens"], s["generation_tokens"]) for s in steps] == [(101.0, 0, 0), (102.0, 8, 2)]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (None, [(0.0, 1.0, 1.0, None), (0.0, 1.0, 1.0, None)]),
        (
            Sampling(temperature=0.8, top_p=0.9, repetition_penalty=1.1, seed=7),
            [(0.8, 0.9, 1.1, 7), (0.8, 0.9, 1.1, 8)],
        ),
    ],
)
def test_requests_are_sampled_as_the_workload_says_and_keep_their_length(sampling, expected):
    pytest.importorskip("vllm.sampling_params", reason="vLLM is not installed")
    asked: list[Any] = []
    engine = VllmOffline(setup_of("cuda", sampling=sampling))
    engine._llm = SimpleNamespace(generate=lambda _, params, **__: asked.extend(params) or [], llm_engine=None)
    with pytest.raises(ValueError, match="zip"):  # of the answers, of which this engine gives none
        engine.run([Request([1], 3, request_id="a"), Request([2], 5, request_id="b")])
    assert [(p.temperature, p.top_p, p.repetition_penalty, p.seed) for p in asked] == expected
    assert [(p.max_tokens, p.ignore_eos) for p in asked] == [(3, True), (5, True)]


@pytest.mark.parametrize(
    ("device_kind", "knobs", "bound"),
    [
        ("cpu", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, "2|3|4|5"),
        ("cpu", {"tensor_parallel_size": 2}, "2,3|4,5"),
        ("cpu", {"tensor_parallel_size": 1}, None),
        ("cuda", {"tensor_parallel_size": 2}, None),
    ],
)
def test_ranks_on_a_cpu_share_its_cores_and_all_talk_within_the_host(device_kind, knobs, bound):
    setup = setup_of(device_kind, knobs, cores=[2, 3, 4, 5])
    environment = vllm_environment(setup, VllmKnobs.model_validate(knobs))
    assert environment.get("VLLM_CPU_OMP_THREADS_BIND") == bound
    assert ("VLLM_ENABLE_V1_MULTIPROCESSING" in environment) == (device_kind == "cpu")
    assert (environment["GLOO_SOCKET_IFNAME"], environment["NCCL_SOCKET_IFNAME"]) == ("lo", "lo")


# --- the server ---


def launched(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[list[str], dict[str, str], Any]:
    """Words and environment of the server, and what the client is told. The user has the key of another server."""
    seen: dict[str, Any] = {}
    setup = setup_of(**{"knobs": {"block_size": 32, "users": 4, "cpu_kv_cache_gib": 1}, **changes})
    monkeypatch.setattr(vllm_adapter.ServerProcess, "forked", lambda body: body)
    monkeypatch.setattr(vllm_adapter, "_serve", lambda words, *_: seen.update(words=words))
    monkeypatch.setattr(vllm_adapter.os, "environ", environment := {"VLLM_API_KEY": "planted"})
    body, target, health_path = VllmServe(setup)._launch()
    body()  # type: ignore[misc, operator]
    assert health_path == "/health"
    return seen["words"], environment, target


def test_what_the_server_is_started_with(monkeypatch):
    words, environment, target = launched(monkeypatch)
    text = " ".join(words)
    assert "--block-size 32" in text
    assert "--generation-config vllm" in text
    assert "users" not in text
    assert "trust-remote-code" not in text
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert f"--uds {target.address.socket_path}" in text
    assert environment["VLLM_API_KEY"] == ""
    assert target.extra_body == {"ignore_eos": True}
    # A GPU keeps vLLM's own layout, and remote code is run only if the study says so.
    words, environment, _ = launched(monkeypatch, device_kind="cuda", knobs={}, trust_remote_code=True)
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in environment
    assert "--trust-remote-code" in words


def test_a_servers_sockets_are_in_a_folder_of_this_user_until_it_is_stopped(monkeypatch, tmp_path):
    long = tmp_path / ("long" * 30)  # an address of a socket has at most 107 bytes
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    engine = VllmServe(setup_of())
    folder = engine._own_folder()
    (place,) = long.iterdir()
    assert place.samefile(folder)
    assert (place.stat().st_mode & 0o777, place.stat().st_uid) == (0o700, os.geteuid())
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "http"))
    engine.stop()
    assert not place.exists()


@pytest.mark.parametrize("answers", [[""], ['{"success": true}'], ['{"success": false}', '{"success": true}']])
def test_the_cache_is_emptied_until_the_server_says_so_or_it_keeps_it(monkeypatch, answers):
    engine = VllmServe(setup_of())

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
    monkeypatch.setattr(VllmServe, "_send", lambda _, __, arrivals_s, *more: seen.append(arrivals_s) or [])
    requests = [Request([1], 1)] * 9
    for seed in (0, 0, 1):
        VllmServe(setup_of(knobs={"request_rate_per_s": 2.0}, arrival_seed=seed)).run(requests)
    assert seen[0] == seen[1] != seen[2]
