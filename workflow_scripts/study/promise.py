"""A measured vLLM setting as input for `vllm serve`, a command line or what its `--config` holds, and what a study
promises for it: the record `deploy/promise.json`, from which a deployment is written.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, ConfigDict, Field, field_validator

from workflow_scripts.catalog.gpus_and_models import Dtype
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.records import Record
from workflow_scripts.engines.arguments import arguments_of
from workflow_scripts.engines.knobs import ENGINE_ARGS
from workflow_scripts.engines.vllm.knobs import RESERVED, SERVE_COMMAND, VllmKnobs, command_line
from workflow_scripts.study.definition import ResolvedModel
from workflow_scripts.study.study import Name

_KNOBS = VllmKnobs.described().items()
# What `serve_settings` may set: arguments under their command-line names, and environment variables.
ARGUMENTS = {"revision", "load-format", "trust-remote-code", "dtype"} | {
    (knob.argument or name).partition(".")[0].replace("_", "-")
    for name, knob in _KNOBS
    if not knob.variable and name != ENGINE_ARGS
}
# Of the engine's own arguments, numbers, switches and choices of memory and scheduling: others name modules, files and
# addresses, or let requests bring what is run.
_SERVED = re.compile(
    r"(?:kv_|mamba_|max_num_|max_cudagraph|prefix_|long_prefill|prefill_schedule|offload_|swa_|dcp_|disable_)\w+"
    r"|async_scheduling|watermark|scheduling_policy|performance_mode|stream_interval|cpu_offload_gb|\w+_backend"
    r"|decode_context_parallel_size"
)
ARGUMENTS |= {
    name.replace("_", "-")
    for name, kind in (arguments_of("vllm") or {}).items()
    if (isinstance(kind, list) or kind in ("bool", "int", "float")) and name not in RESERVED and _SERVED.fullmatch(name)
}
VARIABLES = {knob.variable for _, knob in _KNOBS if knob.variable}
# Files of a deployment that other commands read.
PROMISE = "promise.json"


@dataclass(frozen=True)
class ServeSettings:
    """What to serve and how: `arguments` under vLLM's command-line names, and environment variables."""

    model: str
    arguments: dict[str, Any]
    environment: dict[str, str]

    def command(self) -> str:
        """One line for a shell."""
        words = [f"{name}={value}" for name, value in self.environment.items()] + [*SERVE_COMMAND, self.model]
        return shlex.join(words + command_line(self.arguments))

    def in_file(self) -> dict[str, Any]:
        """The keys of a YAML file for `vllm serve --config`; it has no environment variables."""
        # vLLM 0.32 silently drops `enable-prefix-caching: false` from the file: it looks for the negative flag among
        # the options of `vllm`, which do not include those of `vllm serve`.
        written = dict(
            (f"no-{name}", True) if value is False else (name, value) for name, value in self.arguments.items()
        )
        return {"model": self.model} | written


Prepared = tuple[ResolvedModel, Path]


def serve_settings(
    model: ResolvedModel, model_dir: Path, knobs: VllmKnobs, effective: Mapping[str, int], draft: Prepared | None = None
) -> ServeSettings:
    """Settings that serve a model as a cell was measured. `model_dir` is served unless the model comes from the hub.
    `effective`: engine arguments that took effect and for which `vllm serve` has other defaults; the study's own
    settings take precedence. `draft`: the model that drafts tokens, and its prepared folder. Raises PromiseError for
    drafts that are accepted at random."""
    if knobs.drafts and knobs.synthetic_acceptance_length:
        raise PromiseError("synthetic_acceptance_length accepts drafts at random, so the answers are not the model's")
    name, arguments = _loaded(model, model_dir)
    if model.load_format not in ("hub", "auto"):
        arguments |= {"load-format": "dummy"}
    if model.trust_remote_code:
        arguments |= {"trust-remote-code": True}
    draft_name, draft_revision = _loaded(*draft) if draft else (None, {})
    settings = {**effective, **knobs.engine_arguments(draft_name)}
    if draft_revision:
        settings["speculative_config"] |= draft_revision
    names = (*VllmKnobs.model_fields, "speculative_config", *knobs.other_arguments())
    ordered = [field for field in names if field in settings]
    return ServeSettings(
        name,
        arguments | {"dtype": model.dtype} | {field.replace("_", "-"): settings[field] for field in ordered},
        knobs.environment(),
    )


def _loaded(model: ResolvedModel, folder: Path) -> tuple[str, dict[str, Any]]:
    if model.load_format == "hub":
        return str(model.hub_repo), {"revision": model.revision} if model.revision else {}
    return str(folder), {}


class PromiseError(InputError):
    """A study that promises nothing for the requested setting, or a record that cannot be used."""


def _line(text: str) -> str:
    if not text.isprintable() or set("{}$") & set(text):
        raise ValueError("must be one line of printable text without {, } and $")
    return text


def _release(text: str) -> str:
    from packaging.version import InvalidVersion, Version  # not every environment that reads studies has it

    try:
        return str(Version(text))
    except InvalidVersion:
        raise ValueError(f"must be a version, such as 0.32.0, not {text!r}") from None


# What a study measured may come from somebody else, and goes into comments, shell, YAML and queries. Text is one line,
# and holds no placeholder of a shell, Prometheus or Grafana.
OneLine = Annotated[str, AfterValidator(_line)]
Release = Annotated[str, AfterValidator(_release)]


class Promised(Record):
    """A measured value, and the 95 % interval in which one further start of the engine is expected to lie."""

    model_config = ConfigDict(allow_inf_nan=False)

    value: float
    low: float | None = None
    high: float | None = None


class Promise(Record):
    """A vLLM setting, the load that it was measured under, and what it did; times in s, rates per s."""

    model_config = ConfigDict(allow_inf_nan=False)

    schema_version: Literal[1] = 1
    study: Name
    cell_id: OneLine
    serve: ServeSettings
    served_model: Name = Field(description="the model's name in requests")
    engine_version: OneLine = Field(description="package and version that was measured")
    engine_release: Release = Field(description="version of vLLM that was measured, such as 0.32.0")
    effective: dict[str, Any] = Field(description="engine settings that took effect")
    max_num_seqs: int
    starts: int
    busy: float = Field(description="requests in the server from which on it is as busy as in the study")
    measured: dict[str, Promised] = Field(description="measure -> what it was, and will be after a restart")
    hit_rate: float | None = Field(description="lowest prefix-cache hit rate of a repeat; null without hits")
    slo: dict[str, float]
    growth_share: float = Field(description="the study's rule: a queue grows by this share of the arrivals")
    growth_requests: float = Field(description="and by this many requests")

    @field_validator("effective")
    @classmethod
    def _numbers_and_a_dtype(cls, effective: dict[str, Any]) -> dict[str, Any]:
        for name, value in effective.items():
            if not isinstance(value, int) and not (name == "dtype" and value in (None, *get_args(Dtype))):
                raise ValueError(f"{name} must be a whole number or a dtype of a model, not {value!r}")
        return effective

    @field_validator("serve")
    @classmethod
    def _only_what_a_study_sets(cls, serve: ServeSettings) -> ServeSettings:
        _line(serve.model)
        for given, allowed in ((serve.arguments, ARGUMENTS), (serve.environment, VARIABLES)):
            if unknown := given.keys() - allowed:
                raise ValueError(f"{min(unknown)!r} is no setting of a study; allowed: {', '.join(sorted(allowed))}")
        return serve
