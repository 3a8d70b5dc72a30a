"""A server's Prometheus metrics, under the names of the offline engine, and its queues about once a second."""

import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

from workflow_scripts.engines.engine import Metrics, Step
from workflow_scripts.engines.serving.client import Address
from workflow_scripts.engines.serving.processes import in_thread

_INTERVAL_S = 1.0
# Labels that say which server, not which number.
_SERVER_LABELS = ("model_name", "engine", "engine_type")
# SGLang labels the only rank that reports, too.
_FIRST_RANK = (("moe_ep_rank", "0"), ("pp_rank", "0"), ("tp_rank", "0"))
# Metrics of the server's Python process that Prometheus' own client adds.
_OF_THE_PROCESS = ("python_", "process_")
# Gauges of vLLM, TGI and SGLang -> the column of a step. They show the queues at the moment of the request.
_QUEUES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_cache_usage",
    "tgi_batch_current_size": "running",
    "tgi_queue_size": "waiting",
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
    "sglang:token_usage": "kv_cache_usage",
}
_COUNTS = ("running", "waiting")


def read_metrics(address: Address) -> Metrics:
    """All counters and gauges by name and labels; empty if the server has none."""
    try:
        return parse_metrics(address.call("/metrics"))
    except OSError:
        return {}


def parse_metrics(text: str) -> Metrics:
    """Read the counters and gauges in a page of Prometheus' text format.

    A counter has the name that vLLM's own interface gives it, without `_total`. Counts of data-parallel engines are
    added up; of their other gauges, which are shares, it is the mean.

    >>> parse_metrics('# TYPE vllm:prompt_tokens_total counter\\nvllm:prompt_tokens_total{engine="0"} 5.0\\n')
    {'vllm:prompt_tokens': 5.0}
    >>> shares = "".join(f'vllm:kv_cache_usage_perc{{engine="{n}"}} 0.{n}\\n' for n in (2, 6))
    >>> parse_metrics(f"# TYPE vllm:kv_cache_usage_perc gauge\\n{shares}")
    {'vllm:kv_cache_usage_perc': 0.4}
    """
    from prometheus_client.parser import text_string_to_metric_families

    try:
        families = list(text_string_to_metric_families(text))
    except ValueError:
        return {}  # not in this format: there is another page at this address
    return {
        labelled(family.name, labels): value
        for family in families
        if family.type in ("counter", "gauge", "unknown") and not family.name.startswith(_OF_THE_PROCESS)
        for name, labels, value in _of_all_engines(family)
        if not name.endswith("_created")
    }


def _of_all_engines(family: Any) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each sample of a metric; data-parallel engines have one sample each."""
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = {}
    for sample in family.samples:
        if math.isfinite(sample.value):  # SGLang has gauges without a value yet
            labels = tuple((label, value) for label, value in sample.labels.items() if label != "engine")
            samples.setdefault((sample.name, labels), []).append(sample.value)
    for (name, labels), values in samples.items():
        is_share = family.type == "gauge" and _QUEUES.get(name) not in _COUNTS
        yield name, dict(labels), sum(values) / len(values) if is_share else sum(values)


def labelled(name: str, labels: Mapping[str, str]) -> str:
    """A metric's name with its labels, without those of the server.

    >>> labelled("m", {"engine": "0", "b": "2", "a": "1"}), labelled("m", {"engine": "0"})
    ('m{a=1,b=2}', 'm')
    """
    kept = sorted(item for item in labels.items() if item[0] not in _SERVER_LABELS and item not in _FIRST_RANK)
    inside = ",".join(f"{label}={value}" for label, value in kept)
    return f"{name}{{{inside}}}" if inside else name


def queues(metrics: Mapping[str, Any]) -> Step:
    """The queues among a server's metrics; if several ranks report theirs, the longest.

    >>> queues({"sglang:num_running_reqs{engine_type=unified,tp_rank=0}": 3.0, "vllm:num_requests_waiting": 1.0})
    {'running': 3, 'waiting': 1}
    """
    step: dict[str, float] = {}
    for name, value in metrics.items():
        if column := _QUEUES.get(name.partition("{")[0]):
            step[column] = max(int(value) if column in _COUNTS else value, step.get(column, 0))
    return cast(Step, step)


def queues_noted(address: Address, steps: list[Step], interval_s: float = _INTERVAL_S) -> AbstractContextManager[None]:
    """While the context lasts, ask a server for its queues about once a second, from a thread, and add them to
    `steps`."""

    def watch(over: threading.Event) -> None:
        while True:
            asked_s = time.monotonic()
            if step := queues(read_metrics(address)):
                # The server answered at some moment between the question and now.
                steps.append({"time_s": (asked_s + time.monotonic()) / 2, **step})
            if over.wait(max(0.0, asked_s + interval_s - time.monotonic())):
                return

    return in_thread(watch)
