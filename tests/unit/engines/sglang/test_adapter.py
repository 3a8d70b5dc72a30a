"""SGLang's server: what it is started with, by its own parser's record, and what its recorded answers say."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.http_server import Handler, serving
from tests.processes import wait_for
from tests.unit.engines.test_knobs import OF_SGLANG
from workflow_scripts.engines.engine import EngineSetup
from workflow_scripts.engines.registry import metrics_of_columns
from workflow_scripts.engines.serving.client import Address, Target, send, wait_until_healthy
from workflow_scripts.engines.serving.processes import ServerProcess
from workflow_scripts.engines.serving.scrape import parse_metrics, queues
from workflow_scripts.engines.sglang import on_socket
from workflow_scripts.engines.sglang.adapter import SglangServe, effective_settings
from workflow_scripts.engines.sglang.knobs import SGLANG_SERVE, SglangServeKnobs
from workflow_scripts.workloads.request import Request

RECORDED = Path("tests/fixtures/sglang")
ALL = OF_SGLANG | {"users": 4}


def engine(**changes: Any) -> SglangServe:
    given = {"load_format": "dummy", "dtype": "bfloat16", "device_kind": "cuda", "knobs": ALL} | changes
    return SglangServe(EngineSetup(model_dir=Path("model"), seed=0, trust_remote_code=True, **given))


@pytest.mark.parametrize(
    "changes", [{}, {"load_format": "hub"}, {"device_kind": "cpu", "knobs": {}, "dtype": "float32"}]
)
def test_its_own_parser_takes_every_word(changes):
    options: dict[str, Any] = json.loads((RECORDED / "options.json").read_text())
    words = iter(engine(**changes)._words())
    for word in words:
        taken = options[word]
        if taken != "switch":
            value = next(words)
            assert taken == "value" or value in taken, (word, value)


def test_knobs_have_sglangs_names_and_a_cpu_gets_what_it_needs():
    text = " ".join(engine()._words())
    for word in ("--page-size 16", "--max-running-requests 8", "--context-length 256", "--tp-size 2"):
        assert word in text
    assert "--disable-radix-cache" in text
    assert "--device" not in text
    on_cpu = engine(device_kind="cpu", knobs={"tensor_parallel_size": 2}, cores=[0, 1, 2, 3])
    assert "--attention-backend torch_native" in " ".join(on_cpu._words())
    assert on_cpu._environment() == engine()._environment() | {
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": "0,1|2,3",
    }
    assert SglangServeKnobs.model_validate(ALL).max_concurrency == 4


def test_a_running_server_says_what_took_effect_and_counts_as_described():
    settings = effective_settings(json.loads((RECORDED / "server_info.json").read_text()))
    assert (settings["block_size"], settings["num_gpu_blocks"], settings["max_num_seqs"]) == (32, 256, 4)
    assert (settings["enable_prefix_caching"], settings["enforce_eager"]) == (True, True)
    assert settings["attention_backend"] == "torch_native"
    metrics = parse_metrics((RECORDED / "metrics.txt").read_text())
    assert metrics[SGLANG_SERVE.counters["prefix_cache_queries"]] == 80
    assert metrics[SGLANG_SERVE.counters["prefix_cache_hits"]] == 32
    assert SGLANG_SERVE.counters["prefix_cache_hits"] in metrics_of_columns()["prefix_cache_hits"]
    assert json.dumps(metrics, allow_nan=False)
    assert queues(metrics).keys() == {"running", "waiting", "kv_cache_usage"}


class Recorded(Handler):
    status = 200

    def post(self) -> None:
        self.asked()
        stream = "completions" in self.path
        self.answer(self.status, (RECORDED / "stream.txt").read_bytes() if stream else b"Cache flushed.")


@pytest.fixture
def served():
    with serving(Recorded) as start:

        def engine_of(status: int = 200) -> SglangServe:
            adapter = engine()
            adapter._target = Target(Address(start(status=status)), "model", keep_answers=True)
            return adapter

        yield engine_of


def test_the_client_reads_its_stream(served):
    (record,) = send(served()._target, [Request([5, 6, 7], 3, request_id="r")], [[5, 6, 7]], [0.0], None)
    assert (record.error, record.prompt_tokens, record.output_tokens) == (None, 3, 3)
    assert (record.token_ids, len(record.itl_s or ())) == ([169, 7, 169], 2)


def test_a_repeat_does_not_begin_while_the_cache_is_held(served, monkeypatch):
    served().reset()
    monkeypatch.setattr(
        "workflow_scripts.engines.sglang.adapter.forget_prefixes", lambda attempt: held.append(attempt())
    )
    held: list[bool] = []
    served(400).reset()
    assert held == [False]
    with pytest.raises(OSError, match="500"):
        served(500).reset()


# Warms itself up as SGLang does, in a thread.
SERVER = """
import sys, threading, time, requests, uvicorn

seen = []

def warm_up():
    while not seen:
        time.sleep(0.05)
        try:
            seen.append(requests.get(sys.argv[2]).text)
        except requests.ConnectionError:
            pass

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": "".join(["itself ", *seen]).encode()})

threading.Thread(target=warm_up, daemon=True).start()
uvicorn.Server(uvicorn.Config(app, port=int(sys.argv[1]), lifespan="off")).run()
"""


@pytest.fixture
def server(tmp_path):
    (tmp_path / "small_server.py").write_text(SERVER)
    words = [sys.executable, "-P", str(Path(on_socket.__file__)), str(tmp_path / "s"), "small_server"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    server = ServerProcess.forked(lambda: os.execve(words[0], [*words, "9", "http://127.0.0.1:9/"], environment))
    yield server
    server.stop()


def test_a_server_listens_on_a_socket_alone_and_reaches_itself(server, tmp_path):
    address = Address("http://localhost", socket_path=str(tmp_path / "s"))
    wait_until_healthy(address, "/", server.ended, limit_s=60)
    wait_for(lambda: address.call("/") == "itself itself ", what="a request of the server to itself")
    assert psutil.Process(server.pid).net_connections("inet") == []
