"""The full definition of a cell: everything that decides what is measured. If it changes, the cell is repeated."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import JsonValue, model_serializer, model_validator

from workflow_scripts.catalog.endpoints import Endpoint
from workflow_scripts.catalog.gpus_and_models import Model, ModelDtype, load_models
from workflow_scripts.common.files import sha256_of
from workflow_scripts.common.records import Record, added
from workflow_scripts.engines.knobs import Knobs
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.study.grid import Cell, endpoints_of, expand
from workflow_scripts.study.protocol import PROTOCOL_VERSION
from workflow_scripts.study.study import Slo, Study, as_list
from workflow_scripts.workloads.arrivals import Load
from workflow_scripts.workloads.workload_kinds import TextWorkload, Workload

# Increased when the same definition of a workload leads to other prepared files.
# 2: as many warm-up requests as measured ones, of the same lengths.
PREPARED_REQUESTS_VERSION = 2


class ResolvedModel(Record):
    """A model as a study loads it."""

    name: str
    hub_repo: str | None
    revision: str | None
    dtype: ModelDtype
    load_format: Literal["hub", "auto", "dummy"]
    config_sha256: str
    files_sha256: str = added("")
    trust_remote_code: bool = added(False)


class Definition(Record):
    """A cell with its names resolved. A time limit is not part of it: giving a cell more time does not change what it
    measures. `slo` is part of it if the highest load is searched. `repeats` is recorded but does not tell definitions
    apart: each start has its own number of repeats."""

    gpu: str
    engine: str
    environment: str = ""
    model: ResolvedModel
    draft_model: ResolvedModel | None = None
    endpoint: Endpoint | None = None
    workload_name: str
    workload: Workload
    num_prompts: int
    knobs: Knobs
    slo: Slo | None = None
    repeats: int
    protocol: int

    @model_validator(mode="before")
    @classmethod
    def _read(cls, record: Any) -> Any:
        """Undo `as_json`: knobs are those of the engine, and the workload's name is inside the workload."""
        if not isinstance(record, Mapping) or "workload_name" in record:
            return record
        workload = dict(record["workload"])
        name = workload.pop("name")
        if workload["kind"] == "synthetic":
            workload.setdefault("lengths", "drawn")
        knobs = get_engine(record["engine"]).knobs.model_validate(record["knobs"])
        return {**record, "workload_name": name, "workload": workload, "knobs": knobs}

    @model_serializer
    def as_json(self) -> dict[str, JsonValue]:
        """The definition as plain JSON values, as it is hashed and written; what a cell does not have is left out."""
        return {
            "gpu": self.gpu,
            "engine": self.engine,
            **({"environment": self.environment} if self.environment else {}),
            "model": self.model.model_dump(),
            **({} if self.draft_model is None else {"draft_model": self.draft_model.model_dump()}),
            **({} if self.endpoint is None else {"endpoint": self.endpoint.model_dump(mode="json")}),
            "workload": {"name": self.workload_name, **self.workload.model_dump(mode="json")},
            "num_prompts": self.num_prompts,
            "knobs": self.knobs.set_values(),
            **({"slo": dict[str, JsonValue](self.slo.bounds())} if self.slo else {}),
            "repeats": self.repeats,
            "protocol": self.protocol,
        }


def resolved_models(study: Study) -> dict[str, ResolvedModel]:
    """Every model that the study names, including draft models, as it is loaded there."""
    names = {name for sweep in study.sweeps for name in sweep.model}
    settings = [*(sweep.knob_values() for sweep in study.sweeps), *study.engine_defaults.values()]
    names |= {str(name) for knobs in settings for name in as_list(knobs.get("speculative_model"))}
    models = load_models()
    return {name: _resolved(models[name], study) for name in models if name in names}


def _resolved(model: Model, study: Study) -> ResolvedModel:
    override = study.models.get(model.name)
    return ResolvedModel(
        name=model.name,
        hub_repo=model.hub_repo,
        revision=model.revision,
        dtype=model.dtype,
        load_format=(override.load_format if override else None) or model.load_format,
        config_sha256=sha256_of(model.config),
        files_sha256=model.files.sha256 if model.files else "",
        trust_remote_code=bool(override and override.trust_remote_code),
    )


def cell_definition(study: Study, cell: Cell, models: Mapping[str, ResolvedModel]) -> Definition:
    workload = study.workloads[cell.workload]
    draft = cell.knobs.draft_model
    requests = {"sampled": workload.sampling is not None, "chat": isinstance(workload, TextWorkload) and workload.chat}
    endpoint = endpoints_of(study)[cell.endpoint].needed_for(**requests) if cell.endpoint else None
    return Definition(
        gpu=cell.gpu,
        engine=cell.engine,
        environment=cell.environment,
        model=models[cell.model],
        draft_model=None if draft is None else models[draft],
        endpoint=endpoint,
        workload_name=cell.workload,
        workload=workload,
        num_prompts=workload.prompts_for(cell.knobs.max_concurrency),
        knobs=cell.knobs,
        slo=study.slo if isinstance(cell.knobs, Load) and cell.knobs.find else None,
        repeats=study.repeats,
        protocol=PROTOCOL_VERSION,
    )


def json_sha256(value: JsonValue) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def definition_sha256(definition: Definition) -> str:
    """SHA-256 of what a cell measures, for any number of repeats."""
    return json_sha256({name: value for name, value in definition.as_json().items() if name != "repeats"})


def without_load(knobs: Knobs) -> Knobs:
    """The knobs of a server without the load on it: a point's requests are sent at once."""
    return knobs.model_copy(update=dict.fromkeys(Load.model_fields)) if isinstance(knobs, Load) else knobs


def session_key(definition: Definition) -> str:
    """Hash of the settings with which an engine starts: one start serves all cells that agree in it."""
    whole = definition.as_json()
    of_cell = ("workload", "num_prompts", "knobs", "slo", "repeats")
    settings = {name: value for name, value in whole.items() if name not in of_cell}
    requests = definition.workload.model_dump(mode="json", include={"sampling", "keep_answers"})
    return json_sha256({**settings, **requests, "knobs": without_load(definition.knobs).set_values()})


class Cells:
    """The cells of a study with what they measure, and the hashes of that and of their sessions, by id."""

    def __init__(self, study: Study) -> None:
        self.study, self.cells, models = study, {cell.id: cell for cell in expand(study)}, resolved_models(study)
        self.measured = {name: cell_definition(study, cell, models) for name, cell in self.cells.items()}
        self._elsewhere = {name for name, endpoint in endpoints_of(study).items() if endpoint.base_url is not None}

    @cached_property
    def definitions(self) -> dict[str, str]:
        return {name: definition_sha256(measured) for name, measured in self.measured.items()}

    @cached_property
    def sessions(self) -> dict[str, str]:
        """Of its own for each cell if the study shares no starts."""
        shares = self.study.share_starts
        return {name: session_key(measured) if shares else name for name, measured in self.measured.items()}

    def needs(self, cell: Cell) -> tuple[str, int]:
        """The device of a cell and how many its job needs: none for a server elsewhere."""
        return cell.gpu, 0 if cell.endpoint in self._elsewhere else cell.knobs.ranks

    def in_sessions(self, cells: Iterable[str]) -> list[list[str]]:
        """The cells that may share a start of their engine, in the order of the first of each."""
        shared: dict[str, list[str]] = {}
        for cell in cells:
            shared.setdefault(self.sessions[cell], []).append(cell)
        return list(shared.values())


def study_sha256(study: Study) -> str:
    return json_sha256([*sorted(Cells(study).definitions.values())])


def model_key(model: ResolvedModel) -> str:
    """Name of what is prepared for a model; another definition of the model gets another folder. A prepared file never
    changes under its name: cells measured with it stay valid, and new cells find that theirs is missing."""
    return json_sha256(model.model_dump())[:8]


def workload_key(definition: Definition) -> str:
    """Name of a cell's requests, e.g. `24-1f0c2a9b`: their number, and what they are made from."""
    whole = definition.as_json()
    made_from = {"workload": whole["workload"], "model": whole["model"], "version": PREPARED_REQUESTS_VERSION}
    return f"{definition.num_prompts}-{json_sha256(made_from)[:8]}"
