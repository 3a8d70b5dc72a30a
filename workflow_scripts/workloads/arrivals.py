"""When requests reach a server: the load that a study asks for, and the arrival times that follow from it."""

import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from workflow_scripts.common.knob import Knob
from workflow_scripts.common.records import StrictRecord

Rate = Annotated[float, Field(gt=0)]


class Load(StrictRecord):
    """Knobs of every engine that serves.

    Open loop: requests arrive at a rate, whatever the server does. Closed loop: each of several users sends the next
    request when the last one is answered. Both: requests arrive at a rate, but at most `users` are in progress.
    Neither: requests arrive when the workload says, which is all at once for most kinds. With `find`, the rate is
    searched.
    """

    request_rate_per_s: Annotated[
        Annotated[Rate, Field(description="mean rate at which requests arrive")] | None,
        Knob("rate", wording="{} requests/s"),
    ] = None
    burstiness: Annotated[
        Annotated[Rate, Field(description="shape of the gamma distribution of gaps; 1: Poisson, less: bursts")] | None,
        Knob("burst"),
    ] = None
    users: Annotated[
        Annotated[
            int,
            Field(ge=1, description="maximum number of requests, or of conversations, that the client has in flight"),
        ]
        | None,
        Knob("users", wording="{} users"),
    ] = None

    find: Annotated[
        Annotated[Literal["highest_rate"], Field(description="search the highest rate that meets the study's slo")]
        | None,
        Knob("find-"),
    ] = None

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.burstiness is not None and not (self.request_rate_per_s or self.find):
            raise ValueError("burstiness needs request_rate_per_s")
        if self.find and self.request_rate_per_s:
            raise ValueError(f"find: {self.find} searches the rate itself; leave out request_rate_per_s")
        return self

    def arrivals_s(self, of_workload: Sequence[float], seed: int) -> list[float]:
        """When each request arrives, from 0 for the first: at the rate asked for, otherwise as the workload says.

        Gaps are drawn from a gamma distribution of shape `burstiness` and then scaled, so that all requests together
        arrive at exactly the mean rate (vllm/benchmarks/serve.py scales them too). The same seed gives the same gaps
        at every rate.

        >>> Load(users=4).arrivals_s([3.0, 4.5], seed=0)
        [0.0, 1.5]
        """
        count = len(of_workload)
        if self.request_rate_per_s is None:
            first_s = min(of_workload, default=0.0)
            return [round(arrival_s - first_s, 9) for arrival_s in of_workload]
        draw = random.Random(seed)
        shape = self.burstiness or 1.0
        units = [draw.gammavariate(shape, 1 / shape) for _ in range(count - 1)]
        scale = len(units) / sum(units) if sum(units) > 0 else 1.0
        gaps_s = (scale * unit / self.request_rate_per_s for unit in units)
        return [round(at_s, 9) for at_s in accumulate(gaps_s, initial=0.0)][:count]
