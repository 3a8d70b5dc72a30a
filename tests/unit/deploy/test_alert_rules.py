"""Alerts and the dashboard: Prometheus' own checks, and what fires under which load."""

import json
import re
import subprocess
from dataclasses import replace

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.unit.deploy.promises import deployment, on_cpu, promise
from workflow_scripts.deploy.export import written

SATURATED, PREEMPTS, SLOWER, FEWER_HITS = ALERTS = (
    *("QueueGrows", "KvCacheLeadsToPreemption", "ThroughputBelowStudy", "HitRateBelowStudy"),
)


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
NAMES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "tokens": "vllm:generation_tokens_total",
    "answered": "vllm:request_success_total",
    "kv": "vllm:kv_cache_usage_perc",
    "preempted": "vllm:num_preemptions_total",
    "hits": "vllm:prefix_cache_hits_total",
    "asked": "vllm:prefix_cache_queries_total",
}


def rules_of(text: str) -> list[dict]:
    return yaml.safe_load(text)["groups"][0]["rules"]


@pytest.mark.needs_tool("promtool")
@pytest.mark.parametrize("window_s", [60, 30])
def test_each_alert_fires_when_it_should_and_only_then(hub, tmp_path, window_s):
    watched = replace(hub, window_s=window_s)
    (tmp_path / "alerts.yml").write_text(text := written("alerts.yml", watched))
    labels = {"severity": "warning", "instance": "a:8000"}
    alerts = {
        rule["alert"]: [{"exp_labels": labels, "exp_annotations": rule["annotations"]}] for rule in rules_of(text)
    }
    assert {*alerts} == {*ALERTS}
    tests = [
        {
            "interval": f"{watched.scrape_s}s",
            "input_series": [
                {"series": f'{NAMES[key]}{{instance="a:8000",job="vllm",engine="0"}}', "values": values}
                for key, values in (CALM | changes).items()
            ],
            "alert_rule_test": [
                {"eval_time": "4m", "alertname": alert, "exp_alerts": alerts[alert] * (alert in firing)}
                for alert in ALERTS
            ],
        }
        for changes, firing in SITUATIONS.values()
    ]
    content = {"rule_files": ["alerts.yml"], "evaluation_interval": f"{watched.scrape_s}s", "tests": tests}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(content))
    done = subprocess.run(["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_study_did_not_measure_has_no_alert(tmp_path):
    text = written("alerts.yml", deployment(tmp_path, on_cpu()))
    assert [rule["alert"] for rule in rules_of(text)] == [SATURATED]
    assert re.findall("# No (.*):", text) == [PREEMPTS, SLOWER, FEWER_HITS]


def test_grafana_knows_every_field_of_the_dashboard_with_its_lines(hub):
    made = json.loads(written("grafana/dashboards/kvsweep.json", hub))
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(made)))
    assert missing(made, read) == []
    assert missing({"panels": [{"id": 1, "tytle": "a"}]}, {"panels": [{"id": 1, "title": "a"}]}) == [".panels.0.tytle"]
    panels = {panel["title"]: panel for panel in made["panels"]}
    assert len(panels) == len({tuple(panel["gridPos"].values()) for panel in panels.values()}) == 8
    lines = {title: {t["legendFormat"]: t["expr"] for t in panel["targets"]} for title, panel in panels.items()}
    assert lines["Output tokens per second"] == {
        "now {{instance}}": f"sum by (instance) (rate({NAMES['tokens']}[60s]))",
        "study": "vector(500)",
        "study, after a restart at least": "vector(450)",
        "study, after a restart at most": "vector(555)",
    }
    assert lines["Time to first token"]["SLO of the study"] == "vector(0.5)"


def missing(made: object, read: object, place: str = "") -> list[str]:
    """Places of what was written that Grafana's own types do not have after reading."""
    if isinstance(made, dict):
        known = read if isinstance(read, dict) else {}
        return [gap for name, value in made.items() for gap in missing(value, known.get(name), f"{place}.{name}")]
    if isinstance(made, list):
        others = [*read, *[None] * len(made)] if isinstance(read, list) else [None] * len(made)
        return [gap for number, value in enumerate(made) for gap in missing(value, others[number], f"{place}.{number}")]
    return [] if made == read else [place]
