"""Alerts and the dashboard: Prometheus' own checks, and what fires under which load."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.unit.deploy.promises import deployment, on_cpu, promise
from workflow_scripts.common.files import write_json
from workflow_scripts.deploy.alert_rules import (
    ANSWERED,
    FEWER_HITS,
    HITS,
    KV_USAGE,
    PREEMPTIONS,
    PREEMPTS,
    QUERIES,
    RUNNING,
    SATURATED,
    SLOWER,
    TOKENS,
    WAITING,
    Watch,
    alerts,
    alerts_yaml,
)
from workflow_scripts.deploy.dashboard import dashboard
from workflow_scripts.deploy.export import main


@pytest.fixture
def hub(tmp_path):
    return deployment(tmp_path, promise())


# What a server does in each 5 s, and which alerts fire after three minutes of it. Per second the study measured 500
# tokens (450 after a restart), 4 requests, with at most 12 requests in the server and a hit rate of 0.6.
CALM = {"running": "6+0x60", "waiting": "0+0x60", "tokens": "0+2500x60", "answered": "0+20x60", "kv": "0.4+0x60"}
CALM |= {"preempted": "0+0x60", "hits": "0+700x60", "asked": "0+1000x60"}
SITUATIONS = {
    "the study's load": ({}, []),
    # Twice as many arrive as are answered: of 8 requests/s 4 stay.
    "too much load": ({"running": "64+0x60", "waiting": "0+20x60"}, [SATURATED]),
    "a queue that does not grow": ({"running": "64+0x60", "waiting": "40+0x60"}, []),
    # More and more requests run at once, but none waits: they may only be long.
    "a batch that fills": ({"running": "1+4x60"}, []),
    # Of 20 arrivals in 5 s one stays: less than a tenth.
    "a queue that grows slowly": ({"running": "64+0x60", "waiting": "0+1x60"}, []),
    "a server that answers nothing": (
        {"waiting": "0+20x60", "answered": "0+0x60", "tokens": "0+0x60"},
        [SATURATED, SLOWER],
    ),
    "a full cache": ({"kv": "0.95+0x60", "preempted": "0+1x60"}, [PREEMPTS]),
    "a full cache without preemption": ({"kv": "0.99+0x60"}, []),
    "as busy, but slower": ({"running": "13+0x60", "tokens": "0+2000x60"}, [SLOWER]),
    "within the interval": ({"running": "13+0x60", "tokens": "0+2300x60"}, []),
    "slower with less to do": ({"tokens": "0+500x60"}, []),
    "fewer hits": ({"hits": "0+500x60"}, [FEWER_HITS]),
    "no traffic": (dict.fromkeys(CALM, "0+0x60"), []),
}
NAMES = {"running": RUNNING, "waiting": WAITING, "tokens": TOKENS, "answered": ANSWERED, "kv": KV_USAGE}
NAMES |= {"preempted": PREEMPTIONS, "hits": HITS, "asked": QUERIES}


def rule_test(name: str, watch: Watch, rules: list[dict]) -> dict:
    changes, firing = SITUATIONS[name]
    series = [
        {"series": f'{NAMES[key]}{{instance="a:8000",job="vllm",engine="0"}}', "values": values}
        for key, values in (CALM | changes).items()
    ]
    labels = {"severity": "warning", "instance": "a:8000"}
    notes = {rule["alert"]: rule["annotations"] for rule in rules}
    return {
        "name": name,
        "interval": f"{watch.scrape_s}s",
        "input_series": series,
        "alert_rule_test": [
            {
                "eval_time": "4m",
                "alertname": alert,
                "exp_alerts": [{"exp_labels": labels, "exp_annotations": notes[alert]}] if alert in firing else [],
            }
            for alert in (SATURATED, PREEMPTS, SLOWER, FEWER_HITS)
        ],
    }


@pytest.mark.needs_tool("promtool")
@pytest.mark.parametrize("window_s", [60, 30])
def test_each_alert_fires_when_it_should_and_only_then(hub, tmp_path, window_s):
    watch = Watch(window_s=window_s)
    rules = alerts(hub, watch)
    (tmp_path / "alerts.yml").write_text(alerts_yaml(hub, watch))
    tests = [rule_test(name, watch, rules) for name in SITUATIONS]
    content = {"rule_files": ["alerts.yml"], "evaluation_interval": f"{watch.scrape_s}s", "tests": tests}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(content))
    promtool("test", "rules", "test.yml", folder=tmp_path)


@pytest.mark.needs_tool("promtool")
def test_the_saturation_alert_fires_within_a_minute(hub, tmp_path):
    watch = Watch()
    (tmp_path / "alerts.yml").write_text(alerts_yaml(hub, watch))
    # A minute of the study's load, then twice as much as the server sustains.
    doubled = {"running": "6+0x12 64+0x12", "waiting": "0+0x12 20+20x12"}
    test = rule_test("too much load", watch, alerts(hub, watch))
    for series in test["input_series"]:
        for key, values in doubled.items():
            if series["series"].startswith(NAMES[key]):
                series["values"] = values
    (saturated,) = (one for one in test["alert_rule_test"] if one["alertname"] == SATURATED)
    before = {**saturated, "eval_time": "1m", "exp_alerts": []}
    tests = [{**test, "alert_rule_test": [before, {**saturated, "eval_time": "2m"}]}]
    content = {"rule_files": ["alerts.yml"], "evaluation_interval": "5s", "tests": tests}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(content))
    promtool("test", "rules", "test.yml", folder=tmp_path)


def promtool(*words: str, folder: Path) -> None:
    done = subprocess.run(["promtool", *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_study_did_not_measure_has_no_alert(tmp_path):
    text = alerts_yaml(deployment(tmp_path, on_cpu()), Watch())
    assert [rule["alert"] for rule in yaml.safe_load(text)["groups"][0]["rules"]] == [SATURATED]
    assert f"# No {PREEMPTS}, {SLOWER}, {FEWER_HITS}: the study measured no bound for it.\n" in text


def test_grafana_knows_every_field_of_the_dashboard_with_its_lines(hub):
    made = dashboard(hub, Watch())
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(made)))
    assert missing(made, read) == []
    assert missing({"panels": [{"id": 1, "tytle": "a"}]}, {"panels": [{"id": 1, "title": "a"}]}) == [".panels.0.tytle"]
    panels = {panel["title"]: panel for panel in dashboard(hub, Watch())["panels"]}
    assert len(panels) == 8
    lines = {title: {t["legendFormat"]: t["expr"] for t in panel["targets"]} for title, panel in panels.items()}
    assert lines["Output tokens per second"] == {
        "now {{instance}}": f"sum by (instance) (rate({TOKENS}[60s]))",
        "study": "vector(500)",
        "study, after a restart at least": "vector(450)",
        "study, after a restart at most": "vector(555)",
        "ceiling of the hardware": "vector(900)",
    }
    assert lines["Time to first token"]["SLO of the study"] == "vector(0.5)"
    places = [tuple(panel["gridPos"].values()) for panel in panels.values()]
    assert len(set(places)) == len(places)


def missing(made: object, read: object, place: str = "") -> list[str]:
    """Places of what was written that Grafana's own types do not have after reading."""
    if isinstance(made, dict):
        known = read if isinstance(read, dict) else {}
        return [gap for name, value in made.items() for gap in missing(value, known.get(name), f"{place}.{name}")]
    if isinstance(made, list):
        others = [*read, *[None] * len(made)] if isinstance(read, list) else [None] * len(made)
        return [gap for number, value in enumerate(made) for gap in missing(value, others[number], f"{place}.{number}")]
    return [] if made == read else [place]


def test_the_command_writes_every_file(tmp_path):
    study = deployment(tmp_path, promise()) and tmp_path / "promised.yaml"
    write_json(tmp_path / "promise.json", promise().model_dump(mode="json"))
    words = ["--study", str(study), "--promise", str(tmp_path / "promise.json"), "--out", str(tmp_path / "deploy")]
    assert main([*words, "--window-s", "20", "--target", "127.0.0.1:9"]) == 0
    files = {str(p.relative_to(tmp_path / "deploy")) for p in (tmp_path / "deploy").rglob("*") if p.is_file()}
    assert files == {
        *("vllm.yaml", "compose.yaml", "kubernetes.yaml", "serve.sbatch", "prometheus.yml", "alerts.yml"),
        *("grafana/datasources/prometheus.yml", "grafana/dashboards/kvsweep.yml", "grafana/dashboards/kvsweep.json"),
    }
    assert "[20s]" in (tmp_path / "deploy/alerts.yml").read_text()
