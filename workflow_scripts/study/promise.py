"""What a study promises for one vLLM setting: the record `deploy/promise.json`, from which a deployment is written."""

from typing import Any, Literal

from pydantic import Field

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.records import Record
from workflow_scripts.study.serve_command import ServeSettings

# Files of a deployment that other commands read.
PROMISE = "promise.json"


class PromiseError(InputError):
    """A study that promises nothing for the requested setting, or a record that cannot be used."""


class Promised(Record):
    """A measured value, and the 95 % interval in which one further start of the engine is expected to lie."""

    value: float
    low: float | None = None
    high: float | None = None


class Promise(Record):
    """A vLLM setting, the load that it was measured under, and what it did; times in s, rates per s."""

    schema_version: Literal[1] = 1
    study: str
    cell_id: str
    why: str = Field(description="why this cell, in one sentence")
    serve: ServeSettings
    served_model: str = Field(description="the model's name in requests")
    engine_version: str | None = Field(description="package and version that was measured")
    engine_release: str = Field(description="version of vLLM that was measured, such as 0.32.0")
    effective: dict[str, Any] = Field(description="engine settings that took effect")
    max_num_seqs: int
    start_s: float = Field(description="longest measured start, without the import of libraries")
    starts: int
    repeats: int
    load: str = Field(description="the load in words")
    server: bool = Field(description="a server was measured, not the offline engine")
    request_rate_per_s: float | None
    busy: float = Field(description="requests in the server from which on it is as busy as in the study")
    measured: dict[str, Promised] = Field(description="measure -> what it was, and will be after a restart")
    scope: str | None = Field(description="what the intervals rest on; null if there are none")
    ceiling_output_tokens_per_s: float | None = Field(description="what the hardware allows")
    kv_cache_usage_peak: float | None
    preemptions_per_s: float
    hit_rate: float | None = Field(description="lowest prefix-cache hit rate of a repeat; null without hits")
    slo: dict[str, float]
    sustained_per_s: float | None = Field(description="highest measured request rate that it kept up with")
    too_much_per_s: float | None = Field(description="lowest measured request rate that was too much")
    growth_share: float = Field(description="the study's rule: a queue grows by this share of the arrivals")
    growth_requests: float = Field(description="and by this many requests")
    predicted_bytes: dict[str, float] = Field(description="predicted device memory per rank, by its use")
