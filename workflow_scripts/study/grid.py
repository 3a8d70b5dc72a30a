"""The grid: a study expanded into cells."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from workflow_scripts.catalog.endpoints import Endpoint, load_endpoints
from workflow_scripts.catalog.environments import DEFAULT, load_environments, package_of, version_of
from workflow_scripts.catalog.gpus_and_models import CatalogError, Model, load_gpus, load_models
from workflow_scripts.catalog.published import PUBLISHED, Published
from workflow_scripts.common.records import faults
from workflow_scripts.engines.arguments import fault_of
from workflow_scripts.engines.knobs import ENGINE_ARGS, Knobs
from workflow_scripts.engines.registry import every_knob, get_engine, load_engines
from workflow_scripts.study.study import Study, StudyError, Sweep, check_known
from workflow_scripts.workloads.arrivals import Load
from workflow_scripts.workloads.workload_kinds import MultiTurnWorkload

# The names that tell cells apart, besides the settings of the knobs.
COORDINATES = ["gpu", "engine", "model", "workload"]
_MOST_CELLS = 100_000
# Locks are files named after their cell; file systems allow names of 255 bytes.
MOST_ID = 240


@dataclass(frozen=True)
class Cell:
    """One point of the grid: the unit that is run, fails, is run again and is reported. `gpu`, `engine`, `model` and
    `workload` name entries of the catalogue or the study; `sweeps` names every sweep of the study that holds this
    cell. `environment` is empty for the default one."""

    gpu: str
    engine: str
    model: str
    workload: str
    knobs: Knobs
    sweeps: tuple[str, ...]
    environment: str = ""

    @property
    def engine_at(self) -> str:
        return f"{self.engine}@{self.environment}" if self.environment else self.engine

    @cached_property
    def id(self) -> str:
        """Path of the cell below `cells/`, e.g. `h200/vllm/opt-125m/short/bs16-seqs4`."""
        return f"{self.gpu}/{self.engine_at}/{self.model}/{self.workload}/{self.knobs.slug()}"

    @property
    def endpoint(self) -> str | None:
        return getattr(self.knobs, "endpoint", None)


def expand(study: Study) -> tuple[Cell, ...]:
    """All cells of a study, each once, in the order in which the sweeps name them. Raises StudyError if a name or value
    is not allowed, or a cell cannot be run."""
    gpus, models, endpoints = load_gpus(), load_models(), endpoints_of(study)
    cells: dict[str, Cell] = {}
    _check_models(study, models)
    if study.claims:  # a misspelt one is reported before anything is measured
        check_known(study.claims, [claim.id for claim in Published(PUBLISHED).claims], f"study {study.name!r}, claims")
    for i, sweep in enumerate(study.sweeps):
        where = f"study {study.name!r}, sweeps[{i}] ({sweep.name})"
        check_known(sweep.gpu, gpus, f"{where}.gpu")
        check_known(sweep.model, models, f"{where}.model")
        _check_environments(sweep, where)
        for name, values in sweep.knob_values().items():
            if not values:
                raise StudyError(f"{where}.knobs.{name}: an empty list leaves no cell; give at least one value")
            # As a default of all sweeps such a knob may be meant for only some of the study's devices.
            kind = every_knob()[name].only_on if name in every_knob() else None
            if kind and (others := [gpu for gpu in sweep.gpu if gpus[gpu].kind != kind]):
                raise StudyError(
                    f"{where}.knobs.{name}: only for {kind.upper()} devices; it changes nothing on {', '.join(others)}"
                )
        points = math.prod(map(len, (sweep.gpu, sweep.engine, sweep.environment, sweep.model, sweep.workload)))
        points *= math.prod(map(len, sweep.knob_values().values()))
        if points > _MOST_CELLS:
            raise StudyError(f"{where}: {points:,} cells; a sweep has at most {_MOST_CELLS:,}")
        for cell in _cells_of(sweep, study, where):
            if cell.knobs.draft_model is not None:
                check_known([cell.knobs.draft_model], models, f"{where}.knobs.speculative_model")
            if getattr(cell.knobs, "speculative_method", None) == "mtp" and not models[cell.model].has_drafting_layers:
                without = f"{cell.model} has no layers that draft (num_nextn_predict_layers and the like)"
                raise StudyError(f"{where}.knobs.speculative_method: mtp: {without}")
            if cell.endpoint is not None:
                check_known([cell.endpoint], endpoints, f"{where}.knobs.endpoint")
            if (fault := _fault_of(cell, study)) is not None:
                raise StudyError(f"{where}: {fault}")
            # The same point may belong to two sweeps: it is then measured once and counts in both.
            if earlier_cell := cells.get(cell.id):
                cell = replace(earlier_cell, sweeps=tuple(dict.fromkeys(earlier_cell.sweeps + cell.sweeps)))
            cells[cell.id] = cell
    return tuple(cells.values())


def find_cell(study: Study, cell_id: str) -> Cell:
    """The cell with that id. Raises StudyError if the grid of the study has no such cell."""
    cells = {cell.id: cell for cell in expand(study)}
    if cell_id not in cells:
        some = "\n  ".join(sorted(cells)[:40])
        raise StudyError(f"study {study.name!r} has no cell {cell_id!r}; it has {len(cells)}, such as:\n  {some}")
    return cells[cell_id]


def endpoints_of(study: Study) -> Mapping[str, Endpoint]:
    """The servers that a study may name: those of config/endpoints.yaml, and its own, which take precedence."""
    return {**load_endpoints(), **study.endpoints}


def _check_environments(sweep: Sweep, where: str) -> None:
    environments, gpus = load_environments(), load_gpus()
    others = [name for name in sweep.environment if name != DEFAULT]
    for engine in map(get_engine, sweep.engine):
        # A server of an endpoint brings its own environment.
        packages = () if "endpoint" in engine.knobs.model_fields else engine.packages
        own = [name for name in environments if package_of(name) in packages]
        allowed = [*([DEFAULT] if engine.locks else []), *own]
        check_known(sweep.environment, allowed, f"{where}.environment of engine {engine.name!r}")
        if refused := [name for name in others if not engine.supports(version_of(name))]:
            raise StudyError(
                f"{where}.environment: engine {engine.name!r} is measured with {package_of(refused[0])}"
                f" {engine.versions}, not in {refused[0]!r}"
            )
    for name, gpu in itertools.product(others, sweep.gpu):
        if (kind := gpus[gpu].kind) not in (locks := environments[name]):
            raise StudyError(
                f"{where}.environment: {name!r} has no lock for {gpu}, envs/{name}-{kind}.txt; it has"
                f" {', '.join(lock.name for lock in locks.values())}"
            )


def _check_models(study: Study, models: Mapping[str, Model]) -> None:
    """Check what a study changes of models: an entry for an unknown model would silently change nothing."""
    for name, override in study.models.items():
        where = f"study {study.name!r}, models"
        check_known([name], models, where)
        load_format = override.load_format or models[name].load_format
        if override.trust_remote_code and load_format != "hub":
            raise StudyError(f"{where}.{name}: trust_remote_code needs load_format: hub, where the code comes from")
        if load_format == "hub":
            try:
                models[name].pinned()
            except CatalogError as e:
                raise StudyError(f"{where}.{name}.load_format: {e}") from None


def _fault_of(cell: Cell, study: Study) -> str | None:
    """Why the cell cannot be run, regardless of the engine; None if it can."""
    workload = study.workloads[cell.workload]
    context, needed = cell.knobs.longest_request, workload.total_tokens_needed()
    if context is not None and needed is not None and needed > context:
        return f"requests of workload {cell.workload!r} have {needed} tokens, max_model_len is {context}"
    applied = (endpoints_of(study)[cell.endpoint] if cell.endpoint else get_engine(cell.engine)).sampling
    if workload.sampling and (unknown := sorted(workload.sampling.names() - set(applied))):
        says = f"workload {cell.workload!r} sets {', '.join(unknown)} of sampling"
        return f"{says}; {cell.endpoint or cell.engine} applies only {', '.join(sorted(applied)) or 'none'}"
    if isinstance(workload, MultiTurnWorkload) and workload.answers == "real":
        if not get_engine(cell.engine).tells_tokens:
            able = ", ".join(engine.name for engine in load_engines().values() if engine.tells_tokens)
            return f"workload {cell.workload!r} has real answers, whose tokens only {able} tells"
        if isinstance(cell.knobs, Load) and (cell.knobs.request_rate_per_s or cell.knobs.find):
            return f"workload {cell.workload!r} is a closed loop: `users` sets its load, not request_rate_per_s"
    engine = get_engine(cell.engine)
    if others := cell.knobs.other_arguments():
        reserved = dict.fromkeys(engine.knobs.model_fields, "a knob of its own") | dict(engine.reserved)
        version = version_of(cell.environment) or (engine.installed() or ("", ""))[1]
        if fault := fault_of(others, engine.arguments, version, reserved):
            return f"knobs.{ENGINE_ARGS}.{fault}"
    if isinstance(cell.knobs, Load) and cell.knobs.find and study.slo is None:
        return f"find: {cell.knobs.find} needs the study's `slo`, such as {{ttft_s: 1.0}}"
    if len(cell.id) > MOST_ID:
        return f"{cell.id[:60]}...: the names and knobs of a cell make {len(cell.id)} characters; at most {MOST_ID}"
    return None


def _cells_of(sweep: Sweep, study: Study, where: str) -> Iterator[Cell]:
    values = sweep.knob_values()
    settings: dict[str, list[Knobs]] = {}
    refused = []
    for engine in sweep.engine:
        defaults = study.engine_defaults.get(engine, {})
        chosen = (dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values()))
        try:
            settings[engine] = [_knobs(engine, defaults, one, where) for one in chosen]
        except StudyError as e:
            refused.append(str(e).removeprefix(f"{where}."))
    if refused:
        raise StudyError(f"{where}.{'; '.join(refused)}")
    coordinates = (sweep.gpu, sweep.environment, sweep.model, sweep.workload)
    for engine, of_engine in settings.items():
        for gpu, environment, model, workload, knobs in itertools.product(*coordinates, of_engine):
            yield Cell(
                gpu, engine, model, workload, knobs, (sweep.name,), "" if environment == DEFAULT else environment
            )


def _knobs(engine: str, defaults: dict[str, Any], chosen: dict[str, Any], where: str) -> Knobs:
    kind, others = get_engine(engine).knobs, f"{ENGINE_ARGS}."
    arguments = {name.removeprefix(others): value for name, value in chosen.items() if name.startswith(others)}
    values = {**defaults, **{name: value for name, value in chosen.items() if not name.startswith(others)}}
    if arguments:
        values[ENGINE_ARGS] = {**(values.get(ENGINE_ARGS) or {}), **arguments}
    try:
        return kind.model_validate(values)
    except ValidationError as e:
        own = {
            "extra_forbidden": f"engine {engine!r} has no such knob",
            "missing": f"engine {engine!r} needs this knob",
        }
        found = []
        for knob, message in faults(e, kind, own):
            origin = f" (from engine_defaults.{engine})" if knob in defaults.keys() - chosen.keys() else ""
            found.append(f"{'.'.join(filter(None, ('knobs', knob)))}{origin}: {message}")
        raise StudyError(f"{where}.{'; '.join(found)}") from None
