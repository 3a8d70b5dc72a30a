"""Prometheus rules that fire when a server no longer keeps what the study promised, and queries of its metrics."""

from dataclasses import dataclass
from typing import Any

from workflow_scripts.deploy.deployment import PORT, Deployment
from workflow_scripts.deploy.noted import Noted, noted_yaml

# What vLLM's server exports, as the pinned release names it.
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_USAGE = "vllm:kv_cache_usage_perc"
PREEMPTIONS = "vllm:num_preemptions_total"
TOKENS = "vllm:generation_tokens_total"
ANSWERED = "vllm:request_success_total"
HITS = "vllm:prefix_cache_hits_total"
QUERIES = "vllm:prefix_cache_queries_total"
TTFT = "vllm:time_to_first_token_seconds"
ITL = "vllm:inter_token_latency_seconds"

ALERTS_FILE, PROMETHEUS_FILE = "alerts.yml", "prometheus.yml"
SATURATED, PREEMPTS, SLOWER, FEWER_HITS = (
    "QueueGrows",
    "KvCacheLeadsToPreemption",
    "ThroughputBelowStudy",
    "HitRateBelowStudy",
)


class Queries:
    """Queries in PromQL over a window of some seconds; each returns one value per server."""

    def __init__(self, window_s: int) -> None:
        self.window_s = window_s

    def rate(self, counter: str) -> str:
        return self._sum(f"rate({counter}[{self.window_s}s])")

    def mean(self, gauge: str) -> str:
        return self._sum(f"avg_over_time({gauge}[{self.window_s}s])")

    def growth(self, gauge: str) -> str:
        """The growth of a gauge, per second, from a line through the window."""
        return self._sum(f"deriv({gauge}[{self.window_s}s])")

    def in_server(self) -> str:
        """Requests in the server, running and waiting."""
        return f"({self.mean(RUNNING)} + {self.mean(WAITING)})"

    def in_server_growth(self) -> str:
        """By how many requests per second the server falls behind."""
        return f"({self.growth(RUNNING)} + {self.growth(WAITING)})"

    def hit_rate(self) -> str:
        """Share of the looked-up tokens that were in the prefix cache."""
        return f"({self.rate(HITS)} / {self.rate(QUERIES)})"

    def kv_usage(self) -> str:
        """Share of the KV blocks in use, of the fullest engine of a server."""
        return f"max by (instance) (max_over_time({KV_USAGE}[{self.window_s}s]))"

    def quantile(self, share: float, histogram: str) -> str:
        buckets = f"sum by (instance, le) (rate({histogram}_bucket[{self.window_s}s]))"
        return f"histogram_quantile({share:g}, {buckets})"

    @staticmethod
    def _sum(expression: str) -> str:
        return f"sum by (instance) ({expression})"


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
    p, q, where = deployment.promise, Queries(watch.window_s), deployment.where
    window, share = f"{watch.window_s}s", p.growth_share
    grows, served = q.in_server_growth(), q.rate(ANSWERED)
    found = [
        (
            SATURATED,
            # The rule of the study: the queue grows by more than a share of the arrivals and by at least some
            # requests, and later requests wait longer. Arrivals are the answered requests plus the growth.
            f"{grows} > {share:g} * ({served} + {grows})"
            f" and {grows} * {watch.window_s} >= {p.growth_requests:g}"
            f" and {q.growth(WAITING)} > {share:g} * {served}",
            f"{watch.patience_s}s",
            "More requests arrive than the server sustains",
            f"The queue grows by more than {share:.0%} of the arrivals. {_rates(deployment)}",
        )
    ]
    if (bound := kv_bound(deployment)) is not None:
        found += [
            (
                PREEMPTS,
                f"{q.kv_usage()} > {bound:.6g} and {q.rate(PREEMPTIONS)} > {p.preemptions_per_s:.6g}",
                "0s",
                "The KV cache is full and requests lose their blocks",
                f"With more than {bound:.2%} of {p.effective['num_gpu_blocks']} blocks in use, {p.max_num_seqs} "
                f"sequences may need more blocks than are free. The study saw {p.preemptions_per_s:.3g} "
                f"preemptions/s ({where}).",
            )
        ]
    rate = p.measured.get("output_tokens_per_s")
    if rate is not None and rate.low is not None:
        found += [
            (
                SLOWER,
                f"{q.rate(TOKENS)} < {rate.low:.6g} and {q.in_server()} >= {p.busy:g}",
                window,
                "Fewer output tokens/s than the study measured at this load",
                f"With {p.busy:g} requests in the server, the study measured {rate.value:.4g} output tokens/s, and "
                f"expects {rate.low:.4g} to {rate.high:.4g} after a restart ({p.scope}; {where}).",
            )
        ]
    if p.hit_rate:
        hits, summary = f"{q.hit_rate()} < {p.hit_rate:.6g}", "The prefix cache hits less often than in the study"
        found += [
            (FEWER_HITS, hits, window, summary, f"The lowest hit rate of a repeat was {p.hit_rate:.3g} ({where}).")
        ]
    return [
        {
            "alert": name,
            "expr": expression,
            "for": patience,
            "labels": {"severity": "warning"},
            "annotations": {"summary": summary, "description": description},
        }
        for name, expression, patience, summary, description in found
    ]


def _rates(deployment: Deployment) -> str:
    p = deployment.promise
    kept = f"kept up with {p.sustained_per_s:g} requests/s" if p.sustained_per_s is not None else ""
    over = f"did not keep up with {p.too_much_per_s:g}" if p.too_much_per_s is not None else ""
    said = " and ".join(filter(None, (kept, over)))
    return f"In the study the server {said}." if said else "The study measured no server at a rate of requests."


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
