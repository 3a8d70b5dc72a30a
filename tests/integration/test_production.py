"""From a measured study to a watched server: the exported files, a real vLLM, a real Prometheus and real load."""

import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from tests.integration.conftest import CHECKOUT
from workflow_scripts.study.promise import Promise

PICK = "cpu-all/vllm-serve/tiny-llama-57m/short/bs32-seqs4-len512-eager1-cpukv1-rate4"
WINDOW_S = 8
KEY = {"VLLM_API_KEY": "the key of this test"}
WITH_KEY = {"Authorization": f"Bearer {KEY['VLLM_API_KEY']}"}

pytestmark = pytest.mark.needs_tool("prometheus")


@pytest.fixture(scope="module")
def deploy(served, environment, ports):
    """The exported files, with a short window, beside the results of the study."""
    study, folder = served.parents[1] / "served.yaml", served / "deploy"
    tables = ["--results", str(served.parent), "--tables", str(served / "tables")]
    kvsweep("promise", "--study", str(study), *tables, "--pick", PICK, "--out", str(folder / "promise.json"))
    words = ["--window-s", str(WINDOW_S), "--scrape-s", "1", "--target", f"127.0.0.1:{ports[0]}"]
    kvsweep("export", "--study", str(study), "--promise", str(folder / "promise.json"), "--out", str(folder), *words)
    return folder


def kvsweep(*words: str, environment: dict[str, str] | None = None, codes: tuple[int, ...] = (0,)) -> str:
    command = [sys.executable, "-m", "workflow_scripts", *words]
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def ports():
    """Free ports of this machine, for vLLM and for Prometheus."""
    with closing(socket.socket()) as one, closing(socket.socket()) as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


@pytest.fixture(scope="module")
def promise(deploy):
    return Promise.read(deploy / "promise.json")


@pytest.fixture(scope="module")
def server(deploy, promise, environment, ports):
    """The address of vLLM's server, started from the exported file."""
    url = f"http://127.0.0.1:{ports[0]}"
    words = ["serve", str(deploy / "vllm.yaml"), str(ports[0])]
    with forked(*words, environment=environment | promise.serve.environment | KEY) as process:
        wait_for(lambda: answers(f"{url}/health"), process, limit_s=200)
        yield url


@pytest.fixture(scope="module")
def prometheus(deploy, server, ports, tmp_path_factory):
    """The address of a Prometheus with the exported files."""
    url = f"http://127.0.0.1:{ports[1]}"
    command = ["prometheus", f"--config.file={deploy / 'prometheus.yml'}", f"--web.listen-address=127.0.0.1:{ports[1]}"]
    command += [f"--storage.tsdb.path={tmp_path_factory.mktemp('tsdb')}", "--log.level=warn"]
    with Ended(subprocess.Popen(command)) as process:
        wait_for(lambda: answers(f"{url}/-/ready"), process, limit_s=60)
        wait_for(lambda: bool(query(url, "up == 1")), process, limit_s=60)
        yield url


class Ended:
    """A process that ends with its block."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process

    def __enter__(self) -> "subprocess.Popen[bytes]":
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def forked(*words: str, environment: dict[str, str]) -> Ended:
    command = [sys.executable, "-m", "tests.integration.forked", *words]
    return Ended(subprocess.Popen(command, cwd=CHECKOUT, env=environment))


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[bytes]", limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert process.poll() is None, f"{process.args} ended with {process.returncode}"
        assert time.monotonic() < deadline, process.args
        time.sleep(0.2)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def query(prometheus: str, expression: str) -> list[dict[str, Any]]:
    words = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query?{words}", timeout=10) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found


def fired(prometheus: str) -> set[str]:
    """Alerts that have fired so far."""
    return {one["metric"]["alertname"] for one in query(prometheus, 'max_over_time(ALERTS{alertstate="firing"}[1h])')}


def answered(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = re.findall(r"^vllm:request_success_total\{.*\} (\S+)$", answer.read().decode(), re.MULTILINE)
        return sum(map(float, lines))


def test_the_study_promises_what_it_measured(promise, served):
    summary = pd.read_parquet(served / "tables/serving_summary.parquet").set_index("cell_id").loc[PICK]
    intervals = pd.read_parquet(served / "tables/intervals.parquet").set_index(["cell_id", "measure"])["value"]
    assert promise.measured["ttft_s_p50"].value == pytest.approx(intervals[PICK, "ttft_s_p50"])
    assert promise.effective["block_size"] == 32
    assert promise.effective["max_model_len"] == 512
    assert promise.busy == summary["in_flight_peak"]


def test_the_server_runs_as_the_file_says(server, deploy):
    (model,) = asked(f"{server}/v1/models")["data"]
    assert (model["id"], model["max_model_len"]) == ("tiny-llama-57m", 512)
    assert yaml.safe_load((deploy / "vllm.yaml").read_text())["max-num-seqs"] == 4


def asked(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(urllib.request.Request(url, headers=WITH_KEY), timeout=10) as answer:
        content: dict[str, Any] = json.load(answer)
        return content


def test_without_the_key_only_health_and_metrics_answer(server):
    """The paths are those of the running server, so that one of a later vLLM is asked too."""
    paths = asked(f"{server}/openapi.json")["paths"]
    assert {"/v1/completions", "/invocations"} <= paths.keys()
    methods = {(method, path) for path, of_path in paths.items() for method in of_path}
    methods |= {("get", path) for path in ("/docs", "/openapi.json", "/metrics/", "/health/", "//invocations")}
    answered = {path for method, path in methods if status(method, server + path) != 401}
    assert answered == {"/health", "/metrics"}


def status(method: str, url: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method.upper()), timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as e:
        return e.code


def load(
    server: str, promise: Promise, served: Path, environment: dict[str, str], users: int, per_answer: int, seconds: int
) -> Ended:
    """A process that sends some requests at once, and for each answer some more."""
    (workload,) = (served / "prepared/workloads").glob("*/short/16-*/workload.jsonl")
    words = [str(workload), server, promise.served_model, str(users), str(per_answer), str(seconds)]
    return forked("load", *words, environment=environment | KEY)


def test_at_a_load_that_the_server_sustains_no_alert_fires(server, prometheus, promise, served, environment):
    with load(server, promise, served, environment, 1, 1, 2 * WINDOW_S) as process:
        assert process.wait(timeout=200) == 0
    assert query(prometheus, "increase(vllm:request_success_total[1h]) > 0")
    # Whether this machine is as fast as minutes before is not for a test to say.
    assert fired(prometheus) <= {"ThroughputBelowStudy"}


def test_at_twice_the_sustained_load_the_alert_fires_and_every_panel_has_data(
    server, prometheus, promise, served, deploy, environment
):
    with load(server, promise, served, environment, promise.max_num_seqs, 2, 90) as process:
        wait_for(lambda: bool(query(prometheus, "vllm:num_requests_waiting > 1")), process, limit_s=120)
        wait_for(lambda: "QueueGrows" in fired(prometheus), process, limit_s=60)
        panels = json.loads((deploy / "grafana/dashboards/kvsweep.json").read_text())["panels"]
        empty = [target["expr"] for p in panels for target in p["targets"] if not numbers(prometheus, target["expr"])]
    assert len(panels) == 8
    assert empty == []


def numbers(prometheus: str, expression: str) -> list[float]:
    """What a query returns now, without what is not a number."""
    values = [float(one["value"][1]) for one in query(prometheus, expression)]
    return [value for value in values if value == value]
