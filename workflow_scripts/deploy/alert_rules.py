"""Prometheus rules that fire when a server no longer keeps what the study promised."""

from dataclasses import dataclass
from typing import Any

from workflow_scripts.deploy.deployment import PORT, Deployment
from workflow_scripts.deploy.noted import Noted, noted_yaml
from workflow_scripts.deploy.server_metrics import ANSWERED, PREEMPTIONS, TOKENS, WAITING, Queries

ALERTS_FILE, PROMETHEUS_FILE = "alerts.yml", "prometheus.yml"
SATURATED, PREEMPTS, SLOWER, FEWER_HITS = (
    "QueueGrows",
    "KvCacheLeadsToPreemption",
    "ThroughputBelowStudy",
    "HitRateBelowStudy",
)


@dataclass(frozen=True)
class Watch:
    """How a server is watched: times in s, and where its metrics are."""

    window_s: int = 60
    scrape_s: int = 5
    target: str = f"localhost:{PORT}"

    @property
    def patience_s(self) -> int:
        """How long a condition must hold: a quarter of the window, at least one scrape."""
        return max(self.window_s // 4, self.scrape_s)


def kv_bound(deployment: Deployment) -> float | None:
    """The share of KV blocks in use above which a step may need more blocks than are free: one per sequence."""
    blocks = deployment.promise.effective.get("num_gpu_blocks")
    return None if not blocks else max(1 - deployment.promise.max_num_seqs / blocks, 0.0)


def alerts(deployment: Deployment, watch: Watch) -> list[dict[str, Any]]:
    """The alerting rules; there is none for what the study did not measure."""
    p, q = deployment.promise, Queries(watch.window_s)
    patience, where = f"{watch.patience_s}s", deployment.where
    share = p.growth_share
    grows, served = q.in_server_growth(), q.rate(ANSWERED)
    found = [
        _alert(
            SATURATED,
            # The rule of the study: the queue grows by more than a share of the arrivals and by at least some
            # requests, and later requests wait longer. Arrivals are the answered requests plus the growth.
            f"{grows} > {share:g} * ({served} + {grows})"
            f" and {grows} * {watch.window_s} >= {p.growth_requests:g}"
            f" and {q.growth(WAITING)} > {share:g} * {served}",
            patience,
            "More requests arrive than the server sustains",
            f"The queue grows by more than {share:.0%} of the arrivals. {_rates(deployment)}",
        )
    ]
    if (bound := kv_bound(deployment)) is not None:
        found.append(
            _alert(
                PREEMPTS,
                f"{q.kv_usage()} > {bound:.6g} and {q.rate(PREEMPTIONS)} > {p.preemptions_per_s:.6g}",
                "0s",
                "The KV cache is full and requests lose their blocks",
                f"With more than {bound:.2%} of {p.effective['num_gpu_blocks']} blocks in use, {p.max_num_seqs} "
                f"sequences may need more blocks than are free. The study saw {p.preemptions_per_s:.3g} "
                f"preemptions/s ({where}).",
            )
        )
    rate = p.measured.get("output_tokens_per_s")
    if rate is not None and rate.low is not None:
        found.append(
            _alert(
                SLOWER,
                f"{q.rate(TOKENS)} < {rate.low:.6g} and {q.in_server()} >= {p.busy:g}",
                f"{watch.window_s}s",
                "Fewer output tokens/s than the study measured at this load",
                f"With {p.busy:g} requests in the server, the study measured {rate.value:.4g} output tokens/s, and "
                f"expects {rate.low:.4g} to {rate.high:.4g} after a restart ({p.scope}; {where}).",
            )
        )
    if p.hit_rate:
        found.append(
            _alert(
                FEWER_HITS,
                f"{q.hit_rate()} < {p.hit_rate:.6g}",
                f"{watch.window_s}s",
                "The prefix cache hits less often than in the study",
                f"The lowest hit rate of a repeat was {p.hit_rate:.3g} ({where}).",
            )
        )
    return found


def _rates(deployment: Deployment) -> str:
    p = deployment.promise
    kept = f"kept up with {p.sustained_per_s:g} requests/s" if p.sustained_per_s is not None else ""
    over = f"did not keep up with {p.too_much_per_s:g}" if p.too_much_per_s is not None else ""
    said = " and ".join(filter(None, (kept, over)))
    return f"In the study the server {said}." if said else "The study measured no server at a rate of requests."


def _alert(name: str, expression: str, patience: str, summary: str, description: str) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expression,
        "for": patience,
        "labels": {"severity": "warning"},
        "annotations": {"summary": summary, "description": description},
    }


def alerts_yaml(deployment: Deployment, watch: Watch) -> str:
    rules = alerts(deployment, watch)
    lines = deployment.head("Prometheus alerts; thresholds are the study's, each description says which")
    missing = [name for name in (PREEMPTS, SLOWER, FEWER_HITS) if name not in {rule["alert"] for rule in rules}]
    lines += [f"No {', '.join(missing)}: the study measured no bound for it."] if missing else []
    return noted_yaml({"groups": [{"name": "kvsweep", "interval": f"{watch.scrape_s}s", "rules": rules}]}, head=lines)


def prometheus_yaml(deployment: Deployment, watch: Watch) -> str:
    """Prometheus' own file: which server to query, how often, and which rules to apply."""
    times = {"scrape_interval": Noted(f"{watch.scrape_s}s", f"at least ten times in the window of {watch.window_s} s")}
    return noted_yaml(
        {
            "global": times,
            "rule_files": [ALERTS_FILE],
            "scrape_configs": [{"job_name": "server", "static_configs": [{"targets": [watch.target]}]}],
        },
        head=deployment.head("prometheus --config.file=prometheus.yml"),
    )
