"""Servers measured under load: vLLM's and `transformers serve`, and what remains after a failure.

One call of snakemake measures all cells that the checks share, up to the report.
"""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest

from tests.integration.served_study import CHECKOUT, SECRETS, made, study, write
from tests.processes import is_session_gone, measuring, wait_for
from workflow_scripts.common.files import read_jsonl
from workflow_scripts.engines.serving.client import Address
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.tables.measurements import read_measurements

SERVE = "cpu-all/vllm-serve/tiny-llama-57m/short/bs32-seqs4-len512-eager1-cpukv1"
TWO_ENGINES = f"{SERVE.replace('len512', 'len512-dp2')}-users4"
TALK = SERVE.replace("/short/", "/talk/") + "-users2"
REASONED = SERVE.replace("/short/", "/reasoned/") + "-reasondeepseek_r1-users2"
CHAT = SERVE.replace("/short/", "/chat/") + "-users2"
OPENAI = "cpu-all/openai/tiny-llama-57m/short/at-{}-users4"
SHORT = "*/short/16-*/workload.jsonl"
# Answers as a server does, token by token in the seconds that it is told, as many different prompts as it is told;
# every request with another one gets a 500.
SMALL_SERVER = """
import json, os, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

answers, token_s = int(sys.argv[2]), float(sys.argv[3])
answered_prompts = set()
one_at_a_time = threading.Lock()

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with one_at_a_time:
            prompt = tuple(asked["prompt"])
            answered = prompt in answered_prompts or len(answered_prompts) < answers
            if answered:
                answered_prompts.add(prompt)
        self.send_response(200 if answered else 500)
        self.end_headers()
        if answered:
            counts = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": asked["max_tokens"]}
            events = [{"choices": [{"text": "a"}]}] * asked["max_tokens"] + [{"choices": [], "usage": counts}]
            for event in events:
                time.sleep(token_s)
                self.wfile.write(b"data: " + json.dumps(event).encode() + b"\\n\\n")

server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("port", server.server_port, flush=True)
if "worker" in sys.argv and os.fork() == 0:
    time.sleep(600)  # a worker, as servers have them, that inherits the listening socket
server.serve_forever()
"""


@pytest.fixture(scope="module")
def results(served):
    """The study's folder, with every cell measured and the report written."""
    return served


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, planted):
    """The study's folder, with nothing measured."""
    content = faulty({"any": command_of("pass")})
    return made(tmp_path_factory.mktemp("inputs"), content, planted, "prepare").folder / "prepared"


def outcome(results: Path, cell: str) -> Outcome:
    return Outcome.read(results / "cells" / cell / "outcome.json")


def raw(results: Path, cell: str, name: str) -> list[dict[str, object]]:
    return list(read_jsonl(results / "cells" / cell / "raw" / f"{name}.jsonl"))


VLLMS = [*(f"{SERVE}-{load}" for load in ("rate4", "rate1000", "users4")), CHAT]


@pytest.mark.parametrize("cell", [*VLLMS, OPENAI.format("transformers-serve")])
def test_every_request_is_answered_with_the_tokens_it_asked_for_by_the_servers_own_count(results, cell):
    found = outcome(results, cell)
    assert found.outcome == "ok", found.reason
    (path,) = (results / "prepared" / "workloads").glob(SHORT.replace("short/16", "chat/3") if cell == CHAT else SHORT)
    lines = {r["request_id"]: r for r in read_jsonl(path)}
    requests = raw(results, cell, "requests")
    assert len(requests) == 2 * len(lines)
    for r in requests:
        line = lines[str(r["request_id"])]
        assert r["error"] is None
        assert (r["prompt_tokens"], r["output_tokens"]) == (len(line["prompt_token_ids"]), line["output_tokens"])
        span = found.repeats[int(str(r["repeat"]))]
        times = [r["queued_s"], r["sent_s"], r["first_token_s"], r["last_token_s"]]
        assert times == sorted(times)  # type: ignore[type-var]
        assert span.start_monotonic_s <= float(str(times[0]))
        assert float(str(times[-1])) <= span.end_monotonic_s
        assert cell not in VLLMS or len(r["itl_s"]) < r["output_tokens"]  # type: ignore[arg-type, operator]
        assert bool(line.get("messages")) == (cell == CHAT)
        assert cell not in VLLMS or len(r["token_ids"]) == r["output_tokens"]  # type: ignore[arg-type]
    assert not (results / "cells" / cell / "raw" / "scratch").exists()


def test_what_took_effect_is_told(results):
    found = outcome(results, f"{SERVE}-rate4")
    assert (found.effective["block_size"], found.effective["max_num_seqs"]) == (32, 4)
    assert found.effective["num_gpu_blocks"] > 0
    assert found.effective["client_shares_cores"] == (len(os.sched_getaffinity(0)) <= len(found.device["cores"]))
    assert outcome(results, OPENAI.format("transformers-serve")).effective["prompts"] == "text"


def test_requests_arrive_when_they_should(results):
    requests = [r for r in raw(results, f"{SERVE}-rate4", "requests") if r["repeat"] == 1]
    queued = sorted(float(str(r["queued_s"])) for r in requests)
    assert (len(queued) - 1) / (queued[-1] - queued[0]) == pytest.approx(4, rel=1e-3)
    lags = [float(str(r["sent_s"])) - float(str(r["queued_s"])) for r in requests]
    assert min(lags) >= 0
    assert sorted(lags)[len(lags) // 2] < 1 / 4  # before the next is due, also where the client waits for a core


def test_no_more_users_send_than_there_are(results):
    for cell in (f"{SERVE}-users4", OPENAI.format("transformers-serve")):
        serving = pd.read_parquet(results / "tables" / "serving.parquet").set_index("cell_id").loc[cell]
        assert (serving["in_flight_peak"] <= 4).all()
        assert (serving["load"] == "closed loop").all()


def test_the_cache_is_emptied_between_repeats(results):
    for record in raw(results, f"{SERVE}-users4", "metrics"):
        before, after = record["before"], record["after"]
        hits = [m["vllm:prefix_cache_hits"] for m in (before, after)]  # type: ignore[index]
        assert hits[1] - hits[0] == 0
        assert after["client_cpu_s"] > before["client_cpu_s"]  # type: ignore[index]


def test_a_server_that_refuses_its_settings_is_infeasible_in_its_own_words(results):
    found = outcome(results, SERVE.replace("bs32", "bs16") + "-users4")
    assert found.outcome == "infeasible"
    assert "No common block size for 16" in str(found.reason)
    assert found.repeats == []


def test_vllms_parser_tells_reasoning_from_the_answer_that_comes_after_it(results):
    found = outcome(results, REASONED)
    assert found.outcome == "ok", found.reason
    requests = raw(results, REASONED, "requests")
    assert len(requests) == 2 * 3
    for r in requests:
        assert r["reasoning"]
        assert "think>" not in str(r["reasoning"])
        assert r["text"]
        times = [float(str(r[name])) for name in ("sent_s", "first_token_s", "first_answer_s", "last_token_s")]
        assert times == sorted(times)
        # The budget holds the twelve tokens of the template after the mark; then comes the other mark.
        assert r["first_token_s"] != r["first_answer_s"]
    summary = pd.read_parquet(results / "tables" / "serving_summary.parquet").set_index("cell_id").loc[REASONED]
    assert summary["ttfa_s_p50"] > summary["ttft_s_p50"]


def test_a_turn_holds_the_servers_answers_finds_them_in_the_cache_and_begins_after_them(results):
    found = outcome(results, TALK)
    assert found.outcome == "ok", found.reason
    (path,) = (results / "prepared" / "workloads").glob("*/talk/8-*/workload.jsonl")
    asked = list(read_jsonl(path))
    for repeat in (0, 1):
        requests = [r for r in raw(results, TALK, "requests") if r["repeat"] == repeat]
        for line, r in zip(asked, requests, strict=True):
            assert r["prompt_tokens"] == len(line["prompt_token_ids"])
            for earlier, _ in line["answers"]:
                assert float(str(r["sent_s"])) >= float(str(requests[earlier]["last_token_s"])) + line["think_s"]
            # Of the 47 tokens of the first turn that were computed, one block of 32 is found in the second.
            assert r["cached_prompt_tokens"] == (32 if line["answers"] else 0)
    turns = pd.read_parquet(results / "tables" / "conversations.parquet")
    assert turns[["turn", "count"]].fillna(0).to_numpy().tolist() == [[0, 8], [1, 8], [2, 8]]


def test_the_tables_put_servers_side_by_side(results):
    summary = pd.read_parquet(results / "tables" / "serving_summary.parquet").set_index("cell_id")
    assert set(summary.index) == {
        *(f"{SERVE}-{load}" for load in ("rate4", "rate1000", "users4")),
        TWO_ENGINES,
        CHAT,
        TALK,
        REASONED,
        OPENAI.format("transformers-serve"),
    }
    for name in ("requests_per_s", "output_tokens_per_s", "ttft_s_p50", "itl_s_p50", "e2e_s_p50"):
        assert (summary[name] > 0).all(), name
    assert (summary["ttft_s_p50"] <= summary["e2e_s_p50"]).all()
    assert summary[["ttft_s_p99", "e2e_s_p99"]].isna().all(axis=None)  # a bound of it needs 368 requests
    assert (summary["memory_utilization"].between(0, 1)).all()
    assert bool(summary.loc[f"{SERVE}-rate1000", "saturated"])
    # A thousand requests a second arrive, and no more than four run at once.
    assert summary.loc[f"{SERVE}-rate1000", "requests_per_s"] < 500


def test_two_engines_of_one_server_have_a_pool_each_and_their_queues_are_added(results):
    cells = read_measurements(results / "tables").drop_duplicates("cell_id").set_index("cell_id")
    one, two = cells.loc[f"{SERVE}-users4"], cells.loc[TWO_ENGINES]
    assert two["outcome"] == "ok", two["reason"]
    assert json.loads(two["effective"])["data_parallel_size"] == 2
    for name in ("num_gpu_blocks", "kv_cache_tokens", "max_concurrency"):
        assert two[name] == 2 * one[name], name
    # Each engine may run as many as four, and gets a part of the four users' requests.
    assert two["running_peak"] <= 4


def test_no_secret_is_in_anything_that_was_written_or_printed(results, own_tmpdir, served_run):
    files = [path for folder in (results, own_tmpdir) for path in folder.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"outcome.json", "engine.log", "measure.log", "starts.parquet", "cells.csv", "report.html"} <= names
    assert not [name for name, secret in SECRETS.items() if secret in served_run.printed]
    for path in files:
        content = path.read_bytes()
        assert not [name for name, secret in SECRETS.items() if secret.encode() in content], path
        assert b"Authorization" not in content or path.suffix in (".so", ".pyc"), path


def test_snakemakes_own_report_shows_each_figure_with_its_caption(results, snakemake, tmp_path):
    page = tmp_path / "snakemake.html"
    done = snakemake(results.parents[1] / "served.yaml", results.parent, f"--report={page}")
    assert done.returncode == 0, done.stderr
    records = re.search(r'^ *var results = ({".*});$', page.read_text(encoding="utf-8"), re.MULTILINE)
    assert records
    found = [(record["labels"], record["caption"]) for record in json.loads(records[1]).values()]
    shown = {labels["figure"]: caption for labels, caption in found if "figure" in labels}
    assert len(found) == len(shown) + 1  # and the page
    assert set(shown) == {path.stem for path in (results / "figures").glob("*.png")}
    assert len(shown) > 5
    for name, caption in shown.items():
        own = (results / "figures" / f"{name}.rst").read_text(encoding="utf-8")
        assert f"<p>{' '.join(own.split()[:6])}" in caption


def test_servers_listen_on_loopback_alone(served_run):
    assert {ip for ip, _ in served_run.listened} == {"127.0.0.1"}, served_run.listened


def test_accepted_drafts_are_in_the_cells_table_and_call_nothing_impossible(results):
    cells = read_measurements(results / "tables")
    cells = cells[cells["workload"] == "drafts"].drop_duplicates("cell_id").set_index("engine")
    assert cells["outcome"].to_dict() == {"vllm": "ok", "hf-static": "ok"}
    drafted = cells.loc["vllm"]
    # Random weights repeat themselves, so n-grams are found, and greedy decoding accepts what it would have made.
    assert 0 < drafted["accepted_draft_tokens"] <= drafted["draft_tokens"]
    assert 1 < drafted["tokens_per_draft_mean"] <= 5
    assert pd.isna(cells.loc["hf-static", "draft_tokens"])
    assert (cells["kv_bytes_reserved_peak"] >= cells["kv_bytes_used_mean"]).all()
    steps = pd.read_parquet(results / "parsed/cpu-all/steps.parquet")
    made = steps[steps["cell_id"].str.contains("/vllm/") & (steps["repeat"] == 0)]["generation_tokens"]
    assert made.sum() == 4 * 24
    assert made.max() > 2  # two sequences at once, and more than a token for one of them


def test_an_edited_question_makes_tables_and_pages_again_and_measures_nothing(results, tmp_path, snakemake):
    planned = snakemake(write(tmp_path, study(question="Another question?")), results.parent, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    rules = set(re.findall(r"^(?:local)?(?:rule|checkpoint) (\w+):$", planned.stdout, re.MULTILINE))
    assert {"predict_cells", "tables", "figures", "report"} <= rules
    assert not rules & {"prepare_model", "prepare_workload", "measure", "parse"}


# --- faults ------------------------------------------------------------------------------------------------------

LONG = "cpu-all/vllm-serve/tiny-llama-57m/long/bs32-seqs4-len512-eager1-cpukv1-rate4"


def at(endpoint: str) -> str:
    return f"cpu-all/openai/tiny-llama-57m/short/at-{endpoint}"


def faulty(endpoints: dict[str, object], **changes: object) -> dict[str, object]:
    """A study of servers that fail, by the names of their entries, and of one that is under load for long."""
    of_server = {"gpu": "cpu-all", "model": "tiny-llama-57m"}
    sweeps: list[dict[str, object]] = [
        {"name": "killed", **of_server, "engine": "vllm-serve", "workload": "long", "knobs": {"request_rate_per_s": 4}}
    ]
    if endpoints:
        knobs = {"endpoint": sorted(endpoints)}
        sweeps.append({"name": "broken", **of_server, "engine": "openai", "workload": "short", "knobs": knobs})
        knobs = {**knobs, "request_rate_per_s": [4]}
        sweeps.append({"name": "paced", **of_server, "engine": "openai", "workload": "short", "knobs": knobs})
    return study(sweeps=sweeps, endpoints=endpoints, cell_time_limit_s=150, **changes)


@pytest.fixture
def measure(tmp_path, inputs, planted):
    """Start the command that measures a cell, with what the shared study has prepared."""
    started = []

    def start(study_file: Path, cell: str) -> "subprocess.Popen[str]":
        link = tmp_path / "results" / "served" / "prepared"
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(inputs)
        command = [*(sys.executable, "-m", "workflow_scripts", "measure-cell"), "--study", str(study_file)]
        command += ["--cell", cell, "--results", str(tmp_path / "results")]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(command, cwd=CHECKOUT, env=planted, **pipes))  # type: ignore[call-overload]
        return started[-1]  # type: ignore[no-any-return]

    yield start
    for process in started:
        process.kill()
        process.wait()


def ended(command: "subprocess.Popen[str]", folder: Path, cell: str) -> Outcome:
    output, _ = command.communicate(timeout=300)
    assert command.returncode == 0, output
    assert "Traceback" not in output
    return outcome(folder / "results" / "served", cell)


def no_server_is_left() -> bool:
    """Wait until no server of the fault tests runs any more; one that was killed goes when it next gets a core."""

    def all_gone() -> bool:
        running = psutil.process_iter(["cmdline", "status"])
        ours = [p for p in running if "a-server-of-the-fault-tests" in (p.info["cmdline"] or [])]
        return all(p.info["status"] == psutil.STATUS_ZOMBIE for p in ours)

    return wait_for(all_gone, what="the end of the servers")


def command_of(code: str, *words: object) -> dict[str, object]:
    command = [sys.executable, "-c", code, "{port}", *map(str, words), "a-server-of-the-fault-tests"]
    return {"command": command, "served_model": "m"}


def test_requests_that_get_500s_are_an_error_and_count_for_nothing(tmp_path, measure):
    """All 16 requests are to warm up with; one server breaks at once, and one in mid-load."""
    file = write(
        tmp_path, faulty({"broken": command_of(SMALL_SERVER, 0, 0), "breaks": command_of(SMALL_SERVER, 16 + 5, 0)})
    )
    broken = ended(measure(file, at("broken")), tmp_path, at("broken"))  # type: ignore[arg-type]
    assert broken.outcome == "engine_error"
    assert "16 of 16 requests to warm up with failed: HTTP 500 Internal Server Error" in str(broken.reason)
    assert broken.repeats == []
    breaks = ended(measure(file, at("breaks")), tmp_path, at("breaks"))  # type: ignore[arg-type]
    assert breaks.outcome == "engine_error"
    assert breaks.reason == "11 of 16 requests failed; the first: HTTP 500 Internal Server Error"
    requests = raw(tmp_path / "results" / "served", at("breaks"), "requests")
    assert [r["error"] is None for r in requests].count(True) == 5
    assert {r["repeat"] for r in requests} == {0}
    assert no_server_is_left()


@pytest.mark.parametrize("cell", [at("slow") + "-rate4", LONG], ids=["another", "vllm"])
def test_a_server_killed_in_mid_load_is_an_error_with_its_end_as_the_reason(tmp_path, measure, cell, monkeypatch):
    file = write(tmp_path, faulty({"slow": command_of(SMALL_SERVER, 1000, 0.2, "worker")}))
    command = measure(file, cell)
    evidence = tmp_path / "results" / "served" / "cells" / cell / "raw.partial"
    leader = server_under_load(evidence)
    session = os.getsid(leader)
    if cell == LONG:
        refuses_another_user(psutil.Process(leader), (evidence / "engine.log").read_text(), monkeypatch)
    os.kill(leader, signal.SIGKILL)
    found = ended(command, tmp_path, cell)  # type: ignore[arg-type]
    assert found.outcome == "engine_error"
    assert "requests failed; the first: the server was killed by signal 9 (SIGKILL)" in str(found.reason)
    requests = raw(tmp_path / "results" / "served", cell, "requests")
    assert any("killed by signal 9" in str(r["error"]) for r in requests)
    wait_for(lambda: is_session_gone(session), what="the end of the session")
    json.dumps(requests, allow_nan=False)


def refuses_another_user(server: psutil.Process, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a server of vLLM listens on a socket alone, and that its folder refuses whoever is not its user."""
    assert not [c for c in server.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    (socket,) = {c.laddr for c in server.net_connections("unix") if c.laddr.endswith("/http")}
    folder = Path(socket).parent.resolve()
    assert (folder.stat().st_mode & 0o777, folder.stat().st_uid) == (0o700, os.geteuid())
    routes = dict(re.findall(r"Route: (\S+), Methods: (\w+)", log))
    assert {"/v1/completions", "/invocations", "/collective_rpc", "/pause"} <= routes.keys()
    if os.geteuid() != 0:
        return  # only root can be another user
    importlib.import_module("aiohttp")  # which the other user may not read
    monkeypatch.chdir(folder)  # so that nothing but this folder is in the way
    os.seteuid(65534)
    try:
        for path, method in routes.items():
            with pytest.raises(OSError, match="Permission denied"):
                Address("http://localhost", socket_path="http").call(path, method=method)
    finally:
        os.seteuid(0)


def server_under_load(evidence: Path, limit_s: float = 200) -> int:
    """The leader of the server's process group, once the load that counts is on it."""
    log = evidence / "engine.log"

    def is_under_load() -> bool:
        return log.exists() and "warmed up by " in log.read_text(encoding="utf-8", errors="replace")

    wait_for(is_under_load, limit_s, "a server under load")
    time.sleep(1)
    process = measuring(evidence)
    assert process is not None
    (leader,) = (c.pid for c in process.children() if os.getpgid(c.pid) == c.pid)
    return leader
