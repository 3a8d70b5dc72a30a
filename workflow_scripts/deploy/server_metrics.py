"""The metrics that vLLM's server exports to Prometheus, as the pinned release names them, and queries of them."""

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
