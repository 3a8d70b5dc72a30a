"""A Grafana dashboard: what a server does, next to what was measured, what the hardware allows and the SLO."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from workflow_scripts.deploy.deployment import Deployment
from workflow_scripts.deploy.queries import ANSWERED, ITL, PREEMPTIONS, RUNNING, TOKENS, TTFT, WAITING, Watch

DASHBOARD_FILE = "grafana/dashboards/kvsweep.json"
WIDTH, HEIGHT, COLUMNS = 12, 8, 2
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
# The lines of a panel by their names: a query, or a value of the study, if it is known.
Lines = Mapping[str, str | float | None]


class View(NamedTuple):
    """One panel; `says`: what a reader must know besides what the study measured."""

    title: str
    unit: str
    lines: Lines
    says: str = ""


def views(deployment: Deployment, watch: Watch) -> list[View]:
    p = deployment.promise

    def measured(measure: str) -> Lines:
        if (interval := p.measured.get(measure)) is None:
            return {}
        ends = {"study, after a restart at least": interval.low, "study, after a restart at most": interval.high}
        return {"study": interval.value, **ends}

    def now(histogram: str) -> Lines:
        quantiles = {0.5: "median", 0.99: "99th percentile"}
        return {f"now, {name} {{{{instance}}}}": watch.quantile(share, histogram) for share, name in quantiles.items()}

    tokens = {"now {{instance}}": watch.rate(TOKENS), **measured("output_tokens_per_s")}
    requests: Lines = {
        "answered {{instance}}": watch.rate(ANSWERED),
        "arrive {{instance}}": f"{watch.rate(ANSWERED)} + {watch.in_server_growth()}",
        "study: kept up with": p.sustained_per_s,
        "study: too much": p.too_much_per_s,
    }
    ttft = {**now(TTFT), **measured("ttft_s_p50"), "SLO of the study": p.slo.get("ttft_s")}
    itl = {**now(ITL), **measured("itl_s_p50"), "SLO of the study, on the mean of a request": p.slo.get("tpot_s")}
    in_server: Lines = {
        "running {{instance}}": watch.mean(RUNNING),
        "waiting {{instance}}": watch.mean(WAITING),
        "max-num-seqs": p.max_num_seqs,
        "study: in the server": p.busy,
    }
    usage: Lines = {
        "now {{instance}}": watch.kv_usage(),
        "study: peak": p.kv_cache_usage_peak,
        "a step may preempt": deployment.kv_bound,
    }
    lost: Lines = {"now {{instance}}": watch.rate(PREEMPTIONS), "study": p.preemptions_per_s}
    hits: Lines = {"now {{instance}}": watch.hit_rate(), "study: lowest of a repeat": p.hit_rate}
    of_arrivals = "Arrivals are the answered requests plus the growth of requests in the server. "
    of_ttft = "The server measures from the arrival of a request, the study from its scheduled time. "
    return [
        View("Output tokens per second", "short", {**tokens, "ceiling of the hardware": p.ceiling_output_tokens_per_s}),
        View("Requests per second", "reqps", requests, of_arrivals),
        View("Time to first token", "s", ttft, of_ttft),
        View("Inter-token latency", "s", itl),
        View("Requests in the server", "short", in_server),
        View("KV cache in use", "percentunit", usage),
        View("Preemptions per second", "short", lost),
        View("Prefix-cache hit rate", "percentunit", hits, "Share of the prompt tokens that were looked up. "),
    ]


def dashboard(deployment: Deployment, watch: Watch) -> dict[str, Any]:
    p = deployment.promise
    seen = f"The study measured {p.load} ({deployment.where})."
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
        "panels": [_panel(number, view, seen) for number, view in enumerate(views(deployment, watch))],
    }


def _panel(number: int, view: View, seen: str) -> dict[str, Any]:
    dash = [{"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}}]
    lines = {name: line for name, line in view.lines.items() if line is not None}
    queries = {name: line if isinstance(line, str) else f"vector({line:.6g})" for name, line in lines.items()}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": view.title,
        "description": view.says + seen,
        "datasource": DATASOURCE,
        "gridPos": {"x": number % COLUMNS * WIDTH, "y": number // COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {
            "defaults": {"unit": view.unit, "min": 0},
            "overrides": [
                {"matcher": {"id": "byName", "options": name}, "properties": dash}
                for name, line in lines.items()
                if not isinstance(line, str)
            ],
        },
        "targets": [
            {"refId": chr(ord("A") + index), "expr": query, "legendFormat": name, "datasource": DATASOURCE}
            for index, (name, query) in enumerate(queries.items())
        ],
    }
