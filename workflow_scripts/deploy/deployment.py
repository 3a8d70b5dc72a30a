"""A deployment: what a study promises for a setting, what a machine needs to keep that promise, and queries of the
metrics of its server, for alerts and the dashboard.
"""

import math
import re
from dataclasses import dataclass

from workflow_scripts.cluster.site import Needs
from workflow_scripts.common.printable import printable
from workflow_scripts.common.wording import plural
from workflow_scripts.engines.vllm.knobs import SERVE_COMMAND
from workflow_scripts.study.promise import Promise

PORT = 8000
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104  # in a container, whose ports are published on purpose
GPU_IMAGE, CPU_IMAGE = "vllm/vllm-openai", "public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo"
# vLLM's imports take up to this on two cores; in a study they are done before the measured time begins.
IMPORT_S = 85
# A start may take this many times as long as measured: a slower disk, or other work on the machine.
START_FACTOR = 3
GIB = 2**30
# Since then the ranks of an engine meet in a file.
RANKS_IN_A_FILE = (0, 32)
OPEN_PORT = (
    "This version also listens on every address of the host, at a random port without a key, where its ranks meet:"
    " outside of containers, keep others off all ports but the server's by a firewall."
)
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


@dataclass(frozen=True)
class Deployment:
    """A promise, with what a machine needs to keep it; `weights_bytes` is 0 if it is not known."""

    promise: Promise
    needs: Needs
    on_cpu: bool
    gpu_title: str
    weights_bytes: float
    scheduler_options: str
    host: str = "127.0.0.1"
    named_image: str | None = None

    @property
    def name(self) -> str:
        """A name that Kubernetes and Slurm allow. It begins with a letter, has letters, digits and hyphens only, and
        has at most 63 of them."""
        return ("vllm-" + re.sub("[^a-z0-9]", "-", self.promise.served_model.lower()))[:63].strip("-")

    @property
    def of_hub(self) -> bool:
        """Whether the model is a repository, not a prepared folder."""
        return self.promise.serve.arguments.get("load-format") != "dummy"

    @property
    def image(self) -> str:
        """vLLM's image by its digest. Only a registry has the digest; until it is given, no container can start."""
        return self.named_image or f"{CPU_IMAGE if self.on_cpu else GPU_IMAGE}@sha256:DIGEST"

    @property
    def image_source(self) -> str:
        release = f"vLLM {self.promise.engine_release} was measured"
        if self.named_image:
            return release
        tagged = f"{CPU_IMAGE if self.on_cpu else GPU_IMAGE}:v{self.promise.engine_release}"
        return f"{release}; the digest of {tagged} is missing: snakemake export --config image=NAME@sha256:..."

    @property
    def where(self) -> str:
        p = self.promise
        return f"study {p.study}, cell {p.cell_id}, {plural(p.starts, 'start')}"

    @property
    def start_limit_s(self) -> int:
        """How long a server may take to become healthy."""
        return math.ceil(START_FACTOR * (self.promise.start_s + IMPORT_S))

    def measured(self, measure: str, limit: str = "", of_slo: str = "") -> dict[str, float | None]:
        """The lines of a measure in the dashboard, by name: what the study measured, between which values one further
        start is expected, and the study's `slo` under the name `limit`."""
        lines: dict[str, float | None] = {}
        if interval := self.promise.measured.get(measure):
            lines = {
                "study": interval.value,
                "study, after a restart at least": interval.low,
                "study, after a restart at most": interval.high,
            }
        return lines | ({limit: self.promise.slo.get(of_slo)} if limit else {})

    @property
    def start_limit_source(self) -> str:
        return (
            f"{START_FACTOR} times the longest measured start ({self.promise.start_s:.1f} s, {self.where}) and"
            f" {IMPORT_S} s for imports, which the study did before that time began"
        )

    @property
    def host_kv_bytes(self) -> float:
        return self.promise.predicted_bytes.get("kv_cache", 0.0) if self.on_cpu else 0.0

    @property
    def host_memory_gib(self) -> int:
        return math.ceil((self.needs.memory_mb * 1e6 + self.host_kv_bytes) / GIB)

    @property
    def host_memory_source(self) -> str:
        why = "estimate of config/site.yaml's rules: libraries, engine processes and weights"
        return why + f"; and the predicted KV cache of {self.host_kv_bytes / GIB:.1f} GiB" * (self.host_kv_bytes > 0)

    @property
    def device_memory(self) -> str:
        parts = self.promise.predicted_bytes
        if self.on_cpu or not parts:
            return "no prediction of device memory"
        amounts = ", ".join(f"{name.replace('_', ' ')} {value / GIB:.1f}" for name, value in parts.items())
        return f"predicted per GPU: {sum(parts.values()) / GIB:.1f} GiB ({amounts})"

    @property
    def kv_bound(self) -> float | None:
        """The share of KV blocks in use above which a step may need more blocks than are free: one per sequence."""
        blocks = int(self.promise.effective.get("num_gpu_blocks") or 0)
        return None if not blocks else max(1 - self.promise.max_num_seqs / blocks, 0.0)

    @property
    def environment(self) -> dict[str, str]:
        """Variables in a container, where the user has no name and only /tmp and mounted folders can be written."""
        return {**self.promise.serve.environment, "PYTHONPATH": "/deploy", "HOME": "/tmp", "USER": "vllm"}

    @property
    def server_command(self) -> list[str]:
        # The command line goes before the file: a container has addresses of its own, and a model folder elsewhere.
        model = [] if self.of_hub else [f"/models/{self.promise.served_model}"]
        return [*SERVE_COMMAND, *model, "--config", "/deploy/vllm.yaml", "--host", EVERY_ADDRESS, "--port", str(PORT)]

    def head(self, what: str) -> str:
        """The first lines of each file: what it is, and from which measurement."""
        p, random = self.promise, "Random weights were measured; name a model and drop load-format to serve it."
        release = tuple(map(int, re.findall(r"\d+", p.engine_release)[:2]))
        lines = [
            what,
            f"Study {p.study}, cell {p.cell_id}, measured with {p.engine_version}. {p.why}",
            *([] if self.of_hub else [random]),
            *([OPEN_PORT] if release < RANKS_IN_A_FILE else []),
            "`snakemake export` writes this file; docs/production.md explains how to use all of them.",
        ]
        return "\n".join(f"# {printable(line)}" for line in lines)
