"""A tiny engine of the tests' own, which docs/extending.md shows: it repeats the end of each prompt."""

import time
from collections.abc import Sequence
from typing import Annotated, Any

from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.common.knob import Knob
from workflow_scripts.engines.description import EngineDescription
from workflow_scripts.engines.engine import EngineSetup, RequestRecord
from workflow_scripts.engines.knobs import Knobs, Positive
from workflow_scripts.engines.steps import EngineSteps, StaticBatches
from workflow_scripts.physics.model_facts import ModelFacts
from workflow_scripts.workloads.request import Request


class EchoKnobs(Knobs):
    """What a study may set."""

    at_once: Annotated[Positive, Knob("atonce", limits="sequences")]

    @property
    def max_concurrency(self) -> int:
        """Requests are answered in groups of this size."""
        return self.at_once


class Echo:
    """The engine; each step gives every request of a group one token."""

    def __init__(self, setup: EngineSetup) -> None:
        self._at_once = int(setup.knobs["at_once"])
        self._steps: list[dict[str, Any]] = []
        self._echoed = 0

    def start(self) -> dict[str, Any]:
        """Nothing is loaded; the settings that took effect are those asked for."""
        return {"at_once": self._at_once, "dtype": "float32"}

    def run(self, requests: Sequence[Request]) -> list[RequestRecord]:
        """Answer the requests group by group."""
        queued_s = time.monotonic()
        groups = [requests[i : i + self._at_once] for i in range(0, len(requests), self._at_once)]
        return [record for group in groups for record in self._group(group, queued_s)]

    def _group(self, group: Sequence[Request], queued_s: float) -> list[RequestRecord]:
        scheduled_s, times_s = time.monotonic(), []
        for step in range(max(request.output_tokens for request in group)):
            time.sleep(0.001)
            times_s.append(time.monotonic())
            live = sum(step < request.output_tokens for request in group)
            self._steps.append({"time_s": times_s[-1], "running": live, "generation_tokens": live})
            self._echoed += live
        return [
            RequestRecord(
                request_id=request.request_id,
                prompt_tokens=len(request.prompt_token_ids),
                output_tokens=request.output_tokens,
                queued_s=queued_s,
                scheduled_s=scheduled_s,
                first_token_s=times_s[0],
                last_token_s=times_s[request.output_tokens - 1],
            )
            for request in group
        ]

    def warm_up(self, requests: Sequence[Request]) -> None:
        """Serve requests that do not count."""
        self.run(requests)

    def reset(self) -> None:
        """Nothing is kept between repeats."""

    def metrics(self) -> dict[str, Any]:
        """A counter under the engine's own name."""
        return {"echo:tokens": self._echoed}

    def take_steps(self) -> list[dict[str, Any]]:
        """One record per step."""
        taken, self._steps = self._steps, []
        return taken

    def stop(self) -> None:
        """Nothing runs outside this process."""


def echo_steps(knobs: EchoKnobs, gpu: Gpu, facts: ModelFacts, version: str) -> EngineSteps:
    """Groups stay together until their longest answer is done, like static batches."""
    return EngineSteps(StaticBatches(knobs.at_once), longest_request=facts.max_positions, eager=True)


ECHO = EngineDescription(
    name="echo",
    knobs=EchoKnobs,
    packages=("pydantic",),
    counters={"prefix_cache_hits": "echo:tokens"},
    adapter="tests.echo_engine:Echo",
    steps="tests.echo_engine:echo_steps",
)
