"""A study: one YAML file that says what to cross, how often to repeat, and within which limits.

python -m workflow_scripts.study config/studies/demo.yaml     checks a study and counts its cells
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator

from workflow_scripts.endpoints import Endpoint
from workflow_scripts.knobs import ENGINES
from workflow_scripts.workloads import Workload

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]


class StudyError(ValueError):
    """A study that cannot be run; the message names the file, the place in it and the allowed values."""


def as_list(value: Any) -> Any:
    """A value that may stand alone, as a list."""
    return value if isinstance(value, list) else [value]


_NAME_SCHEMA = {"type": "string", "pattern": NAME_PATTERN}
OneOrMore = Annotated[
    list[Name],
    BeforeValidator(as_list),
    Field(min_length=1),
    WithJsonSchema({"anyOf": [_NAME_SCHEMA, {"type": "array", "items": _NAME_SCHEMA, "minItems": 1}]}),
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Sweep(_Strict):
    """A cross product: every GPU with every engine, model, workload and value of every knob."""

    name: Name
    gpu: OneOrMore
    engine: OneOrMore
    model: OneOrMore
    workload: OneOrMore
    knobs: Annotated[dict[str, Any], Field(description="knob -> one value or a list of values to cross")] = {}

    def knob_values(self) -> dict[str, list[Any]]:
        """Each knob with the list of values that it takes."""
        return {name: as_list(values) for name, values in self.knobs.items()}


class ModelOverride(_Strict):
    """What a study changes of a model's entry in config/models/."""

    load_format: Annotated[
        Literal["hub", "dummy"] | None, Field(description="weights from the hub, or random ones from the config alone")
    ] = None
    trust_remote_code: Annotated[
        bool, Field(description="run Python code of the model's repository; the report says so")
    ] = False


class Slo(_Strict):
    """Latencies that a served request has to keep, all of those that are set, to count for goodput; in seconds."""

    ttft_s: Annotated[float, Field(gt=0, description="time from the scheduled arrival to the first token")] | None = (
        None
    )
    tpot_s: Annotated[float, Field(gt=0, description="mean time of an output token after the first")] | None = None
    e2e_s: Annotated[float, Field(gt=0, description="time from the scheduled arrival to the last token")] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> "Slo":
        if not self.bounds():
            raise ValueError(f"an slo sets at least one of {', '.join(Slo.model_fields)}")
        return self

    def bounds(self) -> dict[str, float]:
        """Each latency that is bounded, with its bound."""
        return self.model_dump(exclude_none=True)


class Study(_Strict):
    """The file under config/studies/; its grid is the union of its sweeps."""

    schema_version: Literal[1]
    name: Name
    question: Annotated[str, Field(min_length=1, description="what the study is to answer; the report opens with it")]
    repeats: Annotated[int, Field(ge=1, description="timed passes over the workload in a cell, after warm-up")] = 3
    cell_time_limit_s: Annotated[float, Field(gt=0, description="a cell that runs longer ends as `timeout`")] = 1800
    equivalence_margin_pct: Annotated[float, Field(gt=0, le=50, description="within this, a knob is `flat`")] = 2.0
    server_start_limit_s: Annotated[
        float, Field(gt=0, description="a server that is not healthy by then ends its cell as `timeout`")
    ] = 600
    slo: Annotated[Slo | None, Field(description="what goodput of servers counts")] = None
    workloads: Annotated[dict[Name, Workload], Field(min_length=1)]
    models: dict[Name, ModelOverride] = {}
    endpoints: Annotated[
        dict[Name, Endpoint], Field(description="servers of this study, beside those of config/endpoints.yaml")
    ] = {}
    engine_defaults: Annotated[
        dict[str, dict[str, Any]], Field(description="engine -> knobs that all sweeps of that engine share")
    ] = {}
    sweeps: Annotated[list[Sweep], Field(min_length=1)]

    @model_validator(mode="after")
    def _known_names(self) -> "Study":
        seen: dict[str, str] = {}
        for i, sweep in enumerate(self.sweeps):
            place = f"sweeps[{i}] ({sweep.name})"
            for engine in sweep.engine:
                _check_known(engine, ENGINES, f"{place}.engine")
            for workload in sweep.workload:
                _check_known(workload, self.workloads, f"{place}.workload")
            if sweep.name in seen.values():
                raise ValueError(f"{place}: another sweep is named {sweep.name!r}; every sweep needs its own name")
            content = sweep.model_dump_json(exclude={"name"})
            if content in seen:
                raise ValueError(f"{place}: a duplicate of sweep {seen[content]!r}; remove one of them")
            seen[content] = sweep.name
        for engine in self.engine_defaults:
            _check_known(engine, ENGINES, "engine_defaults")
        return self


def _check_known(name: str, allowed: Any, place: str) -> None:
    if name not in allowed:
        raise ValueError(f"{place}: {name!r} is unknown; allowed: {', '.join(sorted(allowed))}")


def load_study(path: Path) -> Study:
    """Read and check a study file.

    Raises:
        StudyError: the file is missing, is no YAML, or says something that is not allowed.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StudyError(f"{path}: there is no such study file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise StudyError(f"{path}: not readable as YAML: {' '.join(str(e).split())}") from None
    if not isinstance(content, dict):
        raise StudyError(f"{path}: a study is a mapping with the keys {', '.join(Study.model_fields)}")
    try:
        return Study.model_validate(content)
    except ValidationError as e:
        raise StudyError(explain(e, str(path))) from None


def study_file(config: Mapping[str, Any], configfiles: Sequence[str | Path]) -> Path:
    """The study that a snakemake call is for.

    `snakemake --configfile config/studies/NAME.yaml` gives the study itself as configuration; without it,
    `config/config.yaml` names one under `study`.
    """
    studies = [Path(path) for path in configfiles if "sweeps" in (yaml.safe_load(Path(path).read_text()) or {})]
    if studies:
        return studies[-1]
    if "study" not in config:
        raise StudyError("config/config.yaml: the key `study` must name a study file, e.g. config/studies/demo.yaml")
    return Path(config["study"])


def explain(error: ValidationError, where: str) -> str:
    """One line a fault: file, place and what is allowed there."""
    return "\n".join(_explain_one(fault, where) for fault in error.errors())


def _explain_one(fault: Any, where: str) -> str:
    place = ".".join(str(part) for part in fault["loc"])
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        message = f"unknown key{_allowed_keys(fault['loc'])}"
    else:
        shown = repr(fault["input"])
        if fault["type"] not in ("missing", "value_error") and len(shown) < 80:
            message += f", not {shown}"
    return f"{where}: {place + ': ' if place else ''}{message}"


def _allowed_keys(loc: tuple[int | str, ...]) -> str:
    owner: Any = Study
    if loc and loc[0] == "sweeps" and len(loc) == 3:
        owner = Sweep
    elif loc and loc[0] == "models" and len(loc) == 3:
        owner = ModelOverride
    elif len(loc) != 1:
        return "; config/schemas/study.schema.json has the keys allowed here"
    return f"; allowed: {', '.join(owner.model_fields)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Check a study file and count its cells."""
    parser = argparse.ArgumentParser(
        description="Check a study file and count its cells.",
        epilog="example: python -m workflow_scripts.study config/studies/demo.yaml",
    )
    parser.add_argument("study", type=Path, help="a YAML file under config/studies/")
    args = parser.parse_args(argv)
    from workflow_scripts.grid import expand  # grid builds on this module

    try:
        study = load_study(args.study)
        cells = expand(study)
    except StudyError as e:
        print(e, file=sys.stderr)
        return 2
    print(f"{args.study}: {len(cells)} cells on {', '.join(sorted({c.gpu for c in cells}))}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
