"""What a study says of a workload: which requests, how many, of which lengths.

The requests themselves are made from it by `prepare.workload`.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LengthDistribution(_Strict):
    """Token counts drawn from a lognormal distribution truncated to [minimum, maximum]."""

    median: Annotated[float, Field(gt=0, description="median of the lognormal, in tokens")]
    sigma: Annotated[float, Field(ge=0, description="standard deviation of the logarithm")]
    minimum: Annotated[int, Field(ge=1)] = 1
    maximum: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _ordered(self) -> "LengthDistribution":
        if self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum} is above maximum {self.maximum}")
        return self


class _Workload(_Strict):
    num_prompts: Annotated[int, Field(ge=1, description="requests in one repeat")]
    prompts_per_seq: Annotated[
        int | None,
        Field(ge=1, description="at least this many requests for each sequence that may run at once"),
    ] = None
    seed: Annotated[int, Field(ge=0)] = 0

    def prompts_for(self, max_concurrency: int) -> int:
        """Requests in one repeat of a cell where at most `max_concurrency` sequences may run at once."""
        return max(self.num_prompts, (self.prompts_per_seq or 0) * max_concurrency)


class FixedWorkload(_Workload):
    """Every request has the same number of prompt and output tokens; prompts are random tokens."""

    kind: Literal["fixed"]
    prompt_tokens: Annotated[int, Field(ge=1)]
    output_tokens: Annotated[int, Field(ge=1)]


class SyntheticWorkload(_Workload):
    """Random prompts whose lengths follow lognormal distributions; ShareGPT-like with suitable medians."""

    kind: Literal["synthetic"]
    prompt_tokens: LengthDistribution
    output_tokens: LengthDistribution


class SharedPrefixWorkload(_Workload):
    """A system prompt that a share of the requests begins with, then text of their own."""

    kind: Literal["shared_prefix"]
    prefix_tokens: Annotated[int, Field(ge=1, description="length of the shared system prompt")]
    prompt_tokens: Annotated[int, Field(ge=1, description="tokens of a request's own after the prefix")]
    output_tokens: Annotated[int, Field(ge=1)]
    share: Annotated[float, Field(ge=0, le=1, description="share of the requests that begin with the prefix")] = 1.0


class ShareGptWorkload(_Workload):
    """Conversations of a ShareGPT file, filtered as `vllm bench` filters them.

    Without the file the workload falls back to `fallback`, and the results name it so.
    """

    kind: Literal["sharegpt"]
    file: Annotated[Path, Field(description="the JSON file, relative to the checkout")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    output_tokens: Annotated[int | None, Field(ge=1, description="instead of the answer's own length")] = None
    fallback: SyntheticWorkload


Workload = Annotated[
    FixedWorkload | SyntheticWorkload | SharedPrefixWorkload | ShareGptWorkload, Field(discriminator="kind")
]
