"""The interface between the measuring code and an engine."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from workflow_scripts.catalog.endpoints import Endpoint
from workflow_scripts.workloads.request import Request
from workflow_scripts.workloads.sampling import Sampling

# Folder below the evidence for files that an engine needs only while it runs.
SCRATCH = "scratch"


@dataclass(frozen=True)
class RequestRecord:
    """What happened to one request; times in seconds of the host's monotonic clock, None where unknown.

    `output_tokens` counts tokens that were generated for the request itself: no padding, nothing past its length.
    `queued_s` is the scheduled arrival; for a request to a server it may lie before `sent_s`. `itl_s` holds the times
    between the pieces of a streamed answer; a piece is one token, unless client or server falls behind.
    `first_answer_s`: the first token after the reasoning that a server tells from its answer; None without reasoning,
    and if nothing comes after it. A request with an `error` is not counted. `token_ids`, `text` and `reasoning` are the
    tokens, the answer and what comes before it, if the workload keeps answers and the engine reports them.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    queued_s: float | None = None
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    preemptions: int | None = None
    cached_prompt_tokens: int | None = None
    sent_s: float | None = None
    itl_s: list[float] | None = None
    error: str | None = None
    token_ids: list[int] | None = None
    text: str | None = None
    first_answer_s: float | None = None
    reasoning: str | None = None


class Step(TypedDict, total=False):
    """A step of a scheduler, or its queues at one moment; `docs/tables.md` says what the fields mean. An engine leaves
    out what it does not know. `time_s` is of the monotonic clock. `computed_tokens` are all tokens of the step, and
    `graph` is how a GPU's host launched it, by vLLM's names."""

    time_s: float
    running: int
    waiting: int
    kv_cache_usage: float
    prompt_tokens: int
    generation_tokens: int
    preempted: int
    prefix_hits: int
    recomputed_tokens: int
    kv_tokens_live: int
    kv_slots_reserved: int
    kv_bytes_reserved: int
    computed_tokens: int
    graph: str


# The settings that took effect, under the engine's own names; what they are differs with engine and version.
Effective = dict[str, Any]
# Counters and gauges under the engine's own names; its description says which of them are used.
Metrics = dict[str, Any]
# Among the metrics of a server: the CPU time of its client.
CLIENT_CPU_S = "client_cpu_s"


@dataclass(frozen=True)
class EngineSetup:
    """Everything that an engine needs to start.

    `cores` are those of a CPU device, `host_cores` all that this process may use. Files that an engine writes besides
    its log go to `evidence`. `endpoint` is a server from config/endpoints.yaml, for the engine that needs one. Without
    `sampling`, tokens are chosen greedily. With `keep_answers`, the records of requests have the answers. A server is
    sent no more requests once `is_enough` says so of one that has ended.
    """

    model_dir: Path
    load_format: str
    dtype: str
    seed: int
    knobs: Mapping[str, Any]
    device_kind: str
    cores: list[int] = field(default_factory=list)
    draft_model_dir: Path | None = None
    trust_remote_code: bool = False
    host_cores: list[int] = field(default_factory=list)
    evidence: Path = Path()
    start_limit_s: float = math.inf
    endpoint: Endpoint | None = None
    arrival_seed: int = 0
    is_enough: Callable[[RequestRecord], bool] | None = None
    sampling: Sampling | None = None
    keep_answers: bool = False


class Engine:
    """An engine in this process; a cell starts it, runs the workload a few times and stops it. An engine from outside
    has the same methods, inherited or not."""

    def __init__(self, setup: EngineSetup) -> None:
        self._setup = setup
        self._steps: list[Step] = []

    def start(self) -> Effective:
        """Start up; return the settings that took effect."""
        raise NotImplementedError

    def use(self, setup: EngineSetup) -> None:
        """Serve another cell from now on: another workload, or another load; all else of its setup is the same."""
        self._setup = setup

    def warm_up(self, requests: Sequence[Request]) -> None:
        """Serve requests that do not count, all at once; for a server up to the limit of its users."""
        self.run(requests)

    def run(self, requests: Sequence[Request]) -> list[RequestRecord]:
        """Serve all requests and return when the last one is done. All requests are there from the beginning, except
        that requests to a server arrive as the load says."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget cached prefixes, so that a repeat does not measure the cache; do nothing if none are kept, or how is
        not known. Raises CacheHeldError if the engine keeps some of them."""

    def metrics(self) -> Metrics:
        """The engine's own counters and gauges now; empty if it has none."""
        return {}

    def take_steps(self) -> list[Step]:
        """The scheduler's steps since the last call, with times of the monotonic clock."""
        taken, self._steps = self._steps, []
        return taken

    def stop(self) -> None:
        """End the engine's processes, if it has any."""


class CacheHeldError(RuntimeError):
    """The prefix cache could not be cleared of an earlier pass's entries."""


def forget_prefixes(attempt: Callable[[], bool], limit_s: float = 5.0) -> None:
    """Try until an engine says that its prefix cache is empty; an engine refuses while a request still holds blocks.
    Raises CacheHeldError if the engine has not said so after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not attempt():
        if time.monotonic() > deadline:
            raise CacheHeldError(
                f"the engine did not empty its prefix cache within {limit_s:g} s, because some of its blocks are still "
                "in use: the next pass would have found what an earlier one left"
            )
        time.sleep(0.05)
