"""What a study says: what to combine, how often to repeat it, and within which limits."""

import operator
from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from workflow_scripts.catalog.endpoints import Endpoint
from workflow_scripts.catalog.gpus_and_models import GpuNumbers
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.records import StrictRecord, added, validated
from workflow_scripts.common.wording import allowed_names
from workflow_scripts.engines.knobs import ENGINE_ARGS
from workflow_scripts.engines.registry import get_engine, load_engines
from workflow_scripts.workloads.workload_kinds import Workload

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_MOST_NAME = 100  # names are joined into file names, which hold 255 bytes
NAMES = "a name has letters a to z, digits, '.', '_' and '-', and begins with a letter or digit"

Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=_MOST_NAME)]


class StudyError(InputError):
    """A study that cannot be run; the message names the file, the place in it and the allowed values."""


def as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


_NAME_SCHEMA = {"type": "string", "pattern": NAME_PATTERN, "maxLength": _MOST_NAME}
OneOrMore = Annotated[
    list[Name],
    BeforeValidator(as_list),
    Field(min_length=1),
    WithJsonSchema({"anyOf": [_NAME_SCHEMA, {"type": "array", "items": _NAME_SCHEMA, "minItems": 1}]}),
]


class Sweep(StrictRecord):
    """A cross product: every GPU with every engine, model, workload and value of every knob."""

    name: Name
    gpu: OneOrMore
    engine: OneOrMore
    environment: OneOrMore = Field(
        ["default"], description="versions of the engine, each a lock in envs/; `default` is the installed one"
    )
    model: OneOrMore
    workload: OneOrMore
    knobs: dict[str, Any] = Field({}, description="knob -> one value or a list of values to cross")

    def knob_values(self) -> dict[str, list[Any]]:
        """The values of each knob; those of the engine's own arguments as `engine_args.NAME`."""
        own = {name: as_list(values) for name, values in self.knobs.items() if name != ENGINE_ARGS}
        others = self.knobs.get(ENGINE_ARGS) or {}
        if not isinstance(others, dict):
            raise StudyError(f"sweep {self.name!r}, knobs.{ENGINE_ARGS}: names of arguments with their values")
        return own | {f"{ENGINE_ARGS}.{name}": as_list(values) for name, values in others.items()}


class ModelOverride(StrictRecord):
    """What a study changes of a model's entry in config/models/, or where a model without an entry comes from."""

    folder: str | None = Field(
        None, min_length=1, description="a folder with the config.json of a model, and its tokenizer"
    )
    hub: str | None = Field(None, pattern=r"^[\w.-]+/[\w.-]+$", description="a repository, ORG/REPO, with `revision`")
    revision: str | None = Field(
        None, pattern=r"^[0-9a-f]{40}$", description="the commit of that repository, 40 digits"
    )
    load_format: Literal["hub", "auto", "dummy"] | None = Field(
        None,
        description="weights from the hub, those of the folder (`auto`), or random ones that each engine makes up when"
        " it starts (`dummy`)",
    )
    trust_remote_code: bool = Field(False, description="run Python code of the model's repository; the report says so")

    @model_validator(mode="after")
    def _one_source(self) -> "ModelOverride":
        if self.folder is not None and self.hub is not None:
            raise ValueError("give folder or hub, not both")
        if (self.hub is None) != (self.revision is None):
            raise ValueError("hub and revision belong together: a repository, and the commit to fetch of it")
        if self.folder is not None and self.load_format == "hub":
            raise ValueError("load_format hub needs `hub` and `revision`; the weights of a folder are `auto`")
        if self.folder is None and self.load_format == "auto":
            raise ValueError("load_format auto needs `folder`, which holds the weights")
        return self


# A load is within the limits if this share of its requests keeps them, like a 99th percentile.
WITHIN_SHARE = 0.99


class Slo(StrictRecord):
    """Latency limits in seconds; a served request counts for goodput if it keeps all that are set."""

    ttft_s: float | None = Field(None, gt=0, description="time from the scheduled arrival to the first token")
    tpot_s: float | None = Field(None, gt=0, description="mean time of an output token after the first")
    e2e_s: float | None = Field(None, gt=0, description="time from the scheduled arrival to the last token")

    @model_validator(mode="after")
    def _says_something(self) -> "Slo":
        if not self.bounds():
            raise ValueError(f"an slo sets at least one of {', '.join(Slo.model_fields)}")
        return self

    def bounds(self) -> dict[str, float]:
        return self.model_dump(exclude_none=True)


def is_late(bounds: Mapping[str, float], latencies: Mapping[str, Any]) -> Any:
    """Whether a request is above one of the limits; of several requests, whose latencies are arrays, which ones are.
    One without a time per further token (NaN) keeps any limit on that time.

    >>> is_late({"ttft_s": 1, "tpot_s": 0.1}, {"ttft_s": 0.9, "tpot_s": 0.11, "e2e_s": 2.0})
    True
    """
    return reduce(operator.or_, (latencies[name] > bound for name, bound in bounds.items()), False)


class Starts(StrictRecord):
    """In how many starts of its engine each cell is measured, each in another round; a number alone is both counts.
    Beyond `at_least`, only cells of comparisons that are not decided get further starts."""

    at_least: int = Field(ge=1, description="starts of every cell")
    at_most: int = Field(le=100, description="starts of a cell while a comparison with it is not decided")
    budget_min: float | None = Field(
        None, gt=0, description="minutes of all devices after which no further round begins"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_number(cls, value: Any) -> Any:
        return {"at_least": value, "at_most": value} if type(value) is int else value

    @model_validator(mode="after")
    def _fit(self) -> "Starts":
        if self.at_least > self.at_most:
            raise ValueError(f"at_least is {self.at_least} and at_most {self.at_most}; at_most must not be smaller")
        if self.at_least == 1 < self.at_most:
            raise ValueError("at_least is 1; it takes 2 to see what starts vary, and so which cells need more")
        if self.budget_min is not None and not self.is_adaptive:
            raise ValueError("budget_min limits further rounds; there are some if at_most is above at_least")
        return self

    @property
    def is_adaptive(self) -> bool:
        return self.at_most > self.at_least

    @property
    def in_words(self) -> str:
        return f"{self.at_least}, or up to {self.at_most}" if self.is_adaptive else str(self.at_least)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 100}, handler(core)]}


class Study(StrictRecord):
    """The file under config/studies/; its grid is the union of its sweeps."""

    schema_version: Literal[1]
    name: Name
    title: str | None = Field(
        None,
        min_length=1,
        max_length=80,
        pattern=r"^\S+( \S+){0,7}$",
        description="what was found, in at most 8 words: the title of the report; if left out, its clearest answers",
    )
    question: str = Field(min_length=1, description="what the study is to answer; the report answers it in this order")
    repeats: int = Field(3, ge=1, description="timed passes over the workload per start of the engine, after warm-up")
    starts: Starts = Field(
        Starts(at_least=1, at_most=1),
        description="starts of the engine per cell, each in another round; more repeat nothing that was measured",
    )
    share_starts: bool = added(
        True, "one start of an engine per round serves all cells that differ only in their workload or load"
    )
    cell_time_limit_s: float = Field(1800, gt=0, description="a cell that runs longer ends as `timeout`")
    equivalence_margin_pct: float = Field(2.0, gt=0, le=50, description="within this margin, a knob is `flat`")
    server_start_limit_s: float = Field(
        600, gt=0, description="a server that is not healthy by then ends its cell as `timeout`"
    )
    slo: Slo | None = Field(None, description="latency limits; a request that keeps them counts for goodput")
    claims: list[Name] = Field([], description="published claims to re-test: ids in config/published/claims.yaml")
    workloads: dict[Name, Workload] = Field(min_length=1)
    models: dict[Name, ModelOverride] = {}
    gpus: dict[Name, GpuNumbers] = added({}, "GPUs to plan for that are not in config/gpus.yaml")
    endpoints: dict[Name, Endpoint] = Field(
        {}, description="servers of this study, beside those of config/endpoints.yaml"
    )
    engine_defaults: dict[str, dict[str, Any]] = Field(
        {}, description="engine -> knobs that all sweeps of that engine share"
    )
    sweeps: list[Sweep] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits_together(self) -> "Study":
        seen: dict[str, str] = {}
        for i, sweep in enumerate(self.sweeps):
            where = f"sweeps[{i}] ({sweep.name})"
            check_known(sweep.engine, load_engines(), f"{where}.engine")
            check_known(sweep.workload, self.workloads, f"{where}.workload")
            if sweep.name in seen.values():
                raise ValueError(f"{where}: another sweep is named {sweep.name!r}; every sweep needs its own name")
            content = sweep.model_dump_json(exclude={"name"})
            if content in seen:
                raise ValueError(f"{where}: a duplicate of sweep {seen[content]!r}; remove one of them")
            seen[content] = sweep.name
        for engine, knobs in self.engine_defaults.items():
            check_known([engine], load_engines(), "engine_defaults")
            where = f"engine_defaults.{engine}"
            for name, value in knobs.items():
                check_known([name], get_engine(engine).knobs.model_fields, where)
                if isinstance(value, list):
                    raise ValueError(f"{where}.{name}: one value for all sweeps; a list to cross belongs to a sweep")
        return self


def check_known(names: Iterable[str], allowed: Collection[str], where: str) -> None:
    for name in names:
        if name not in allowed:
            raise StudyError(f"{where}: {name!r} is unknown; {allowed_names(name, sorted(allowed))}")


def study_of(content: Any, where: str) -> Study:
    """A study from its content. Raises StudyError, beginning with `where`, if something in it is not allowed."""
    return validated(Study, content, where, StudyError, {NAME_PATTERN: NAMES})
