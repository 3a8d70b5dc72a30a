"""Waiting for a server and reading its metrics, with small test servers."""

import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.http_server import Handler, serving
from tests.processes import wait_for
from workflow_scripts.catalog.endpoints import Endpoint
from workflow_scripts.engines.engine import EngineSetup, Step
from workflow_scripts.engines.openai.adapter import OpenAiEndpoint, free_port, text_of_as_many_tokens
from workflow_scripts.engines.serving import client
from workflow_scripts.engines.serving.client import (
    Address,
    ServerError,
    ServerTimeoutError,
    StatusError,
    Target,
    send,
    wait_until_healthy,
)
from workflow_scripts.engines.serving.scrape import parse_metrics, queues, queues_noted, read_metrics
from workflow_scripts.measure.failures import start_failure
from workflow_scripts.workloads.request import Request
from workflow_scripts.workloads.sampling import Sampling

METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 7.0
# TYPE vllm:prefix_cache_hits_created gauge
vllm:prefix_cache_hits_created{engine="0",model_name="m"} 1.7e9
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 2.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 4.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 4.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 0.9
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 12.0
"""


class Server(Handler):
    statuses: list[int]

    def get(self) -> None:
        status = self.statuses.pop(0) if self.statuses and self.path == "/health" else 200
        bodies = {"/metrics": METRICS, "/key": str(self.headers.get("Authorization"))}
        self.answer(status, bodies.get(self.path, "").encode())


@pytest.fixture
def serve():
    with serving(Server) as start:
        yield lambda *statuses, key=None: Address(start(statuses=list(statuses)), key)


def test_a_server_is_waited_for_until_it_is_healthy_or_time_is_out(serve):
    wait_until_healthy(serve(503, 503, 503), "/health", lambda: None, limit_s=10)
    with pytest.raises(ServerTimeoutError, match=r"not healthy after 0.3 s; .* HTTP 503") as raised:
        wait_until_healthy(serve(*[503] * 100), "/health", lambda: None, limit_s=0.3)
    nothing = Address(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ServerTimeoutError, match="Cannot connect"):
        wait_until_healthy(nothing, "/health", lambda: None, limit_s=0.1)
    assert start_failure(raised.value, Path("no log"))[0] == "timeout"


def test_the_key_is_sent_and_in_no_text(serve):
    address = serve(key="secret-key")
    assert address.call("/key") == "Bearer secret-key"
    assert "secret-key" not in repr(address)


class Elsewhere(Handler):
    """Sends every request to another server, or answers without an end."""

    to: str | None
    asked_for: list[str]

    def get(self) -> None:
        self.asked_for.append(str(self.headers.get("Authorization")))
        if self.to:
            return self.answer(302, headers={"Location": f"{self.to}/key"})
        self.answer(200)
        with suppress(OSError):
            while True:
                self.wfile.write(b"data: {}" * 2**13)

    post = get


def test_a_key_follows_no_redirect_and_an_answer_has_a_limit(monkeypatch):
    monkeypatch.setattr(client, "_MOST_BYTES", 10**6)
    monkeypatch.setattr(client, "MOST_ANSWER_BYTES", 10**6)
    with serving(Elsewhere) as start:
        others: list[str] = []
        other = start(to=None, asked_for=others)
        address = Address(start(to=other, asked_for=[]), "secret-key")
        with pytest.raises(StatusError, match="HTTP 302"):
            address.call("/health")
        (record,) = send(Target(address, "m"), [Request([1], 1)], [[1]], [0.0], None)
        assert (record.error, others) == ("HTTP 302 Found", [])
        with pytest.raises(OSError, match="larger than 1,000,000 bytes"):
            Address(other).call("/health")


def test_metrics_have_the_names_that_the_offline_engine_gives_them(serve):
    assert read_metrics(serve()) == {
        "vllm:num_requests_running": 3.0,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:prefix_cache_hits": 7.0,
    }
    assert read_metrics(Address(f"http://127.0.0.1:{free_port()}")) == {}


class NotHttp(Handler):
    def handle(self) -> None:
        self.rfile.readline()
        self.wfile.write(b"SSH-2.0-server\r\n")


def test_an_answer_that_is_not_http_counts_as_no_answer():
    with serving(NotHttp) as start:
        address = Address(start())
        assert read_metrics(address) == {}
        with pytest.raises(ServerTimeoutError, match="Expected HTTP"):
            wait_until_healthy(address, "/health", lambda: None, limit_s=0.1)


def test_queues_are_found_whatever_labels_say():
    text = """# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 4.0
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="1"} 3.0
# TYPE sglang:token_usage gauge
sglang:token_usage{engine_type="unified",model_name="m",tp_rank="0"} 0.5
# TYPE sglang:num_running_reqs_grammar gauge
sglang:num_running_reqs_grammar{engine_type="unified"} 9.0
"""
    assert queues(parse_metrics(text)) == {"running": 4, "kv_cache_usage": 0.5}
    assert queues({}) == {}


def test_queues_are_asked_for_again_and_again(serve):
    steps: list[Step] = []
    with queues_noted(serve(), steps, interval_s=0.05):
        wait_for(lambda: len(steps) >= 3, what="the queues")
    times = [step.pop("time_s") for step in steps]
    assert times == sorted(times)
    assert all(step == {"running": 3, "kv_cache_usage": 0.25} for step in steps)


class Characters:
    """Writes a token as its number in brackets and reads each character as a token, after one for the beginning."""

    def decode(self, token_ids: list[object]) -> str:
        return "".join(token if isinstance(token, str) else f"<{token}>" for token in token_ids)

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[str]]:
        return {"input_ids": ["^"] * add_special_tokens + list(text)}


@pytest.mark.parametrize("tokens", [1, 2, 5, 40])
def test_a_text_is_cut_to_as_many_tokens_as_were_meant(tokens):
    meant = [1234] * tokens
    tokenizer = Characters()
    text = text_of_as_many_tokens(tokenizer, meant)
    assert tokenizer.decode(meant).startswith(text)
    # The token of the beginning counts. Nothing is left to cut where it is all that was meant.
    assert len(tokenizer(text)["input_ids"]) == (tokens if tokens > 1 else 7)


def endpoint(sampling: Sampling | None = None, limit_s: float = 60.0, **entry: object) -> OpenAiEndpoint:
    """A server that never answers."""
    entry = {"command": ["sleep", "600"], "served_model": "m", **entry}
    server = Endpoint.model_validate(entry)
    setup = EngineSetup(Path(), "auto", "float32", 0, {"endpoint": "e"}, "cpu", endpoint=server, start_limit_s=limit_s)
    return OpenAiEndpoint(replace(setup, sampling=sampling))


@pytest.mark.parametrize(
    ("sampling", "sent"),
    [
        (None, {"draw": False}),
        (Sampling(repetition_penalty=1.1), {"draw": False}),
        (Sampling(temperature=0.5), {"draw": True}),
    ],
)
def test_a_server_gets_other_fields_if_tokens_are_drawn(sampling, sent):
    here = {"command": None, "base_url": "http://127.0.0.1/", "extra_body": {"draw": False}}
    server, target, _ = endpoint(sampling, **here, sampled_body={"draw": True})._launch()
    assert (server, target.address.base_url, target.extra_body) == (None, "http://127.0.0.1", sent)
    assert endpoint(sampling, **here)._launch()[1].extra_body == {"draw": False}


def test_a_server_that_is_not_healthy_in_time_is_ended_by_its_own_command_or_by_force(tmp_path):
    done = tmp_path / "done"
    # A stop command that is not there leaves no server either.
    for stop_command in (["sh", "-c", 'echo "{name}" > "$0"', str(done)], ["no-such-command"]):
        engine = endpoint(stop_command=stop_command, limit_s=0.3)
        with pytest.raises(RuntimeError, match=r"not healthy after 0.3 s"):
            engine.start()
        assert engine._server is not None
        assert not psutil.pid_exists(engine._server.pid)
    assert done.read_text().startswith("kvsweep-")


def test_a_server_that_cannot_be_started_is_told():
    with pytest.raises(ServerError, match="no command 'no-such-server'"):
        endpoint(command=["no-such-server"], stop_command=["false"]).start()
    with pytest.raises(ServerError, match="the server ended with status 1 before"):
        endpoint(command=["false"]).start()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=rf"port {port} of 127.0.0.1 .*: Address already in use"):
            endpoint(port=port).start()
