"""A Grafana dashboard: what a server does, next to what was measured, what the hardware allows and the SLO."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from workflow_scripts.deploy.alert_rules import (
    ANSWERED,
    ITL,
    PREEMPTIONS,
    RUNNING,
    TOKENS,
    TTFT,
    WAITING,
    Queries,
    Watch,
    kv_bound,
)
from workflow_scripts.deploy.deployment import Deployment

DASHBOARD_FILE = "grafana/dashboards/kvsweep.json"
SOURCES_FILE, PROVIDER_FILE = "grafana/datasources/prometheus.yml", "grafana/dashboards/kvsweep.yml"
WIDTH, HEIGHT, COLUMNS = 12, 8, 2
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Line(NamedTuple):
    """A query and its name; a constant is a value of the study."""

    query: str
    name: str


class View(NamedTuple):
    """One panel."""

    title: str
    unit: str
    lines: Sequence[Line]
    says: str


def views(deployment: Deployment, watch: Watch) -> Iterator[View]:
    p, q = deployment.promise, Queries(watch.window_s)
    seen = f"The study measured {p.load} ({deployment.where})."
    ceiling = _constant(p.ceiling_output_tokens_per_s, "ceiling of the hardware")
    tokens = [Line(q.rate(TOKENS), "now {{instance}}"), *_measured(deployment, "output_tokens_per_s"), *ceiling]
    yield View("Output tokens per second", "short", tokens, seen)
    arrivals = [
        Line(q.rate(ANSWERED), "answered {{instance}}"),
        Line(f"{q.rate(ANSWERED)} + {q.in_server_growth()}", "arrive {{instance}}"),
        *_constant(p.sustained_per_s, "study: kept up with"),
        *_constant(p.too_much_per_s, "study: too much"),
    ]
    yield View(
        "Requests per second",
        "reqps",
        arrivals,
        "Arrivals are the answered requests plus the growth of requests in the server. " + seen,
    )
    counts_from = "The server measures from the arrival of a request, the study from its scheduled time. "
    ttft = [*_now(q, TTFT), *_measured(deployment, "ttft_s_p50"), *_constant(p.slo.get("ttft_s"), "SLO of the study")]
    yield View("Time to first token", "s", ttft, counts_from + seen)
    slo = _constant(p.slo.get("tpot_s"), "SLO of the study, on the mean of a request")
    yield View("Inter-token latency", "s", [*_now(q, ITL), *_measured(deployment, "itl_s_p50"), *slo], seen)
    requests = [
        Line(q.mean(RUNNING), "running {{instance}}"),
        Line(q.mean(WAITING), "waiting {{instance}}"),
        *_constant(float(p.max_num_seqs), "max-num-seqs"),
        *_constant(p.busy, "study: in the server"),
    ]
    yield View("Requests in the server", "short", requests, seen)
    usage = [
        Line(q.kv_usage(), "now {{instance}}"),
        *_constant(p.kv_cache_usage_peak, "study: peak"),
        *_constant(kv_bound(deployment), "a step may preempt"),
    ]
    yield View("KV cache in use", "percentunit", usage, seen)
    lost = [Line(q.rate(PREEMPTIONS), "now {{instance}}"), *_constant(p.preemptions_per_s, "study")]
    yield View("Preemptions per second", "short", lost, seen)
    hits = [Line(q.hit_rate(), "now {{instance}}"), *_constant(p.hit_rate, "study: lowest of a repeat")]
    yield View("Prefix-cache hit rate", "percentunit", hits, "Share of the prompt tokens that were looked up. " + seen)


def _now(q: Queries, histogram: str) -> list[Line]:
    quantiles = {0.5: "median", 0.99: "99th percentile"}
    return [Line(q.quantile(share, histogram), f"now, {name} {{{{instance}}}}") for share, name in quantiles.items()]


def _constant(value: float | None, name: str) -> list[Line]:
    return [] if value is None else [Line(f"vector({value:.6g})", name)]


def _measured(deployment: Deployment, measure: str) -> list[Line]:
    found = deployment.promise.measured.get(measure)
    if found is None:
        return []
    ends = (("", found.value), (", after a restart at least", found.low), (", after a restart at most", found.high))
    return [line for name, value in ends for line in _constant(value, f"study{name}")]


def dashboard(deployment: Deployment, watch: Watch) -> dict[str, Any]:
    p = deployment.promise
    choice = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "uid": f"kvsweep-{p.study}"[:40],
        "title": f"{p.served_model}: now and in study {p.study}",
        "description": f"{deployment.where}, {p.engine_version}. {p.why}",
        "tags": ["kvsweep"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": f"{watch.scrape_s}s",
        "time": {"from": "now-15m", "to": "now"},
        "templating": {"list": [choice]},
        "panels": [_panel(number, view) for number, view in enumerate(views(deployment, watch))],
    }


def _panel(number: int, view: View) -> dict[str, Any]:
    dashed = [
        {
            "matcher": {"id": "byName", "options": line.name},
            "properties": [{"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}}],
        }
        for line in view.lines
        if line.query.startswith("vector(")
    ]
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": view.title,
        "description": view.says,
        "datasource": DATASOURCE,
        "gridPos": {"x": number % COLUMNS * WIDTH, "y": number // COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": view.unit, "min": 0}, "overrides": dashed},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": line.query, "legendFormat": line.name, "datasource": DATASOURCE}
            for place, line in enumerate(view.lines)
        ],
    }


def provisioning() -> dict[str, dict[str, Any]]:
    """Files that give a new Grafana its Prometheus and this dashboard."""
    source = {"name": "Prometheus", "type": "prometheus", "url": "http://localhost:9090", "isDefault": True}
    folder = "/etc/grafana/provisioning/dashboards"
    return {
        SOURCES_FILE: {"apiVersion": 1, "datasources": [source]},
        PROVIDER_FILE: {
            "apiVersion": 1,
            "providers": [{"name": "kvsweep", "type": "file", "options": {"path": folder}}],
        },
    }
