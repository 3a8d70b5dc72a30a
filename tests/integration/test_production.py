"""From a measured study to a watched server: the exported files, a real vLLM, a real Prometheus and real load."""

import itertools
import json
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration import served_study
from tests.integration.installing import run
from tests.processes import wait_for
from workflow_scripts.common.files import read_jsonl
from workflow_scripts.engines.vllm.knobs import VLLM_SERVE
from workflow_scripts.measure.forkserver import begin

PICK = "cpu-all/vllm-serve/tiny-llama-57m/short/bs32-seqs4-len512-eager1-cpukv1-rate4"
KEY = "the key of this test"
# Requests that wait at the server at most; the others wait here.
MOST_CONNECTIONS = 300

pytestmark = pytest.mark.needs_tool("prometheus")


@pytest.fixture(scope="module")
def served(tmp_path_factory, environment):
    """The folder of a study of the one cell that is served, with its tables."""
    content = served_study.study()
    content["sweeps"] = [{**content["sweeps"][0], "knobs": {"request_rate_per_s": 4}}]
    return served_study.made(tmp_path_factory.mktemp("production"), content, environment, "tables").folder


@pytest.fixture(scope="module")
def ports():
    """Free ports of this machine, for vLLM and for Prometheus."""
    with closing(socket.socket()) as one, closing(socket.socket()) as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


@pytest.fixture(scope="module")
def deploy(served, ports):
    """The exported files, with a short window, beside the results of the study."""
    folder, study = served / "deploy", ("--study", served.parents[1] / "served.yaml")
    tables = ("--results", served.parent, "--tables", served / "tables", "--pick", PICK)
    watch = ("--window-s", "8", "--scrape-s", "1", "--target", f"127.0.0.1:{ports[0]}")
    run(sys.executable, "-m", "workflow_scripts", "export", *study, *tables, "--out", folder, *watch)
    return folder


@pytest.fixture(scope="module")
def server(deploy, environment, ports, own_tmpdir):
    """The address of vLLM's server, started from the exported file."""
    url, own = f"http://127.0.0.1:{ports[0]}", {"VLLM_CPU_KVCACHE_SPACE": "1"}
    words = ("tests.integration.forked", [str(deploy / "vllm.yaml"), str(ports[0])])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(own_tmpdir))
        variables = environment | own | {"VLLM_API_KEY": KEY}
        with closing(begin(*words, deploy / "server.log", variables, VLLM_SERVE.preload)):
            wait_for(lambda: is_up(f"{url}/health"), 400, "a healthy server")
            yield url


@pytest.fixture(scope="module")
def prometheus(deploy, server, ports, tmp_path_factory):
    """The address of a Prometheus with the exported files."""
    url = f"http://127.0.0.1:{ports[1]}"
    command = ["prometheus", f"--config.file={deploy / 'prometheus.yml'}", f"--web.listen-address=127.0.0.1:{ports[1]}"]
    command += [f"--storage.tsdb.path={tmp_path_factory.mktemp('tsdb')}", "--log.level=warn"]
    process = subprocess.Popen(command)
    try:
        wait_for(lambda: is_up(f"{url}/-/ready"), 60, "Prometheus")
        wait_for(lambda: values(url, "up == 1"), 60, "its first scrape")
        yield url
    finally:
        process.kill()
        process.wait()


def is_up(url: str) -> bool:
    try:
        return asked(url) is not None
    except OSError:
        return False


def asked(url: str, body: object = None, limit_s: float = 30) -> bytes:
    """What an address answers with the key."""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    content = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, content, headers), timeout=limit_s) as answer:
        return bytes(answer.read())


def values(prometheus: str, expression: str) -> list[float]:
    """What a query returns now, without what is not a number."""
    told = asked(f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
    found = (float(one["value"][1]) for one in json.loads(told)["data"]["result"])
    return [value for value in found if value == value]


def test_the_server_runs_as_the_file_says_and_without_the_key_only_health_and_metrics_answer(server, deploy):
    """The paths are those of the running server, so that one of a later vLLM is asked too."""
    (model,) = json.loads(asked(f"{server}/v1/models"))["data"]
    assert (model["id"], model["max_model_len"]) == ("tiny-llama-57m", 512)
    assert yaml.safe_load((deploy / "vllm.yaml").read_text())["max-num-seqs"] == 4
    paths = json.loads(asked(f"{server}/openapi.json"))["paths"]
    assert {"/v1/completions", "/invocations"} <= paths.keys()
    methods = {(method, path) for path, of_path in paths.items() for method in of_path}
    methods |= {("get", path) for path in ("/docs", "/openapi.json", "/metrics/", "/health/", "//invocations")}
    assert {path for method, path in methods if status(method, server + path) != 401} == {"/health", "/metrics"}


def status(method: str, url: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method.upper()), timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as e:
        return e.code


@contextmanager
def overloaded(server: str, served: Path) -> Iterator[None]:
    """Send two requests for each answer: twice what the server sustains, however fast this machine is."""
    (workload,) = (served / "prepared/workloads").glob("*/short/16-*/workload.jsonl")
    rows, is_over = itertools.cycle([*read_jsonl(workload)]), threading.Event()

    def ask(row: dict[str, Any]) -> None:
        body = {"model": "tiny-llama-57m", "prompt": row["prompt_token_ids"], "max_tokens": row["output_tokens"]}
        asked(f"{server}/v1/completions", body | {"ignore_eos": True}, limit_s=300)
        for _ in () if is_over.is_set() else (1, 2):
            pool.submit(ask, next(rows))

    with ThreadPoolExecutor(MOST_CONNECTIONS) as pool:
        for _ in range(4):
            pool.submit(ask, next(rows))
        try:
            yield
        finally:
            is_over.set()
            pool.shutdown(wait=False, cancel_futures=True)


def test_under_too_much_load_the_alert_fires_and_every_panel_has_data(server, prometheus, served, deploy):
    fires = 'ALERTS{alertname="QueueGrows", alertstate="firing"}'
    assert values(prometheus, fires) == []
    with overloaded(server, served):
        wait_for(lambda: values(prometheus, fires), 150, "the alert")
        panels = json.loads((deploy / "grafana/dashboards/kvsweep.json").read_text())["panels"]
        queries = [target["expr"] for panel in panels for target in panel["targets"]]
        assert len(panels) == 8
        assert [query for query in queries if not values(prometheus, query)] == []
