"""Queries of the metrics of a server, for alerts and the dashboard."""

from dataclasses import dataclass

from workflow_scripts.deploy.deployment import PORT

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


@dataclass(frozen=True)
class Watch:
    """How a server is watched: times in s, and where its metrics are; with queries in PromQL over the window, each of
    which returns one value per server."""

    window_s: int = 60
    scrape_s: int = 5
    target: str = f"localhost:{PORT}"

    @property
    def patience_s(self) -> int:
        """How long a condition must hold: a quarter of the window, at least one scrape."""
        return max(self.window_s // 4, self.scrape_s)

    def rate(self, counter: str) -> str:
        return f"sum by (instance) (rate({counter}[{self.window_s}s]))"

    def mean(self, gauge: str) -> str:
        return f"sum by (instance) (avg_over_time({gauge}[{self.window_s}s]))"

    def growth(self, gauge: str) -> str:
        """The growth of a gauge, per second, from a line through the window."""
        return f"sum by (instance) (deriv({gauge}[{self.window_s}s]))"

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

    def latency(self, histogram: str) -> dict[str, str]:
        """Queries of the median and the 99th percentile, by the names of their lines."""
        buckets = f"sum by (instance, le) (rate({histogram}_bucket[{self.window_s}s]))"
        shares = {"0.5": "median", "0.99": "99th percentile"}
        return {
            f"now, {name} {{{{instance}}}}": f"histogram_quantile({share}, {buckets})" for share, name in shares.items()
        }
