"""The full definition of a cell: everything that decides what is measured. If it changes, the cell is repeated."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from workflow_scripts.catalog.gpus_and_models import Model, load_models
from workflow_scripts.common.files import sha256_of
from workflow_scripts.study.grid import Cell, endpoints_of
from workflow_scripts.study.protocol import PROTOCOL_VERSION
from workflow_scripts.study.study_file import Study, as_list

# Raised when the same definition of a workload leads to other prepared files.
# 2: as many warm-up requests as measured ones, of the same lengths.
PREPARED_REQUESTS_VERSION = 2


def resolved_models(study: Study) -> dict[str, dict[str, Any]]:
    """Every model that the study names, including draft models, as it is loaded there, as plain JSON values."""
    names = {name for sweep in study.sweeps for name in sweep.model}
    settings = [*(sweep.knob_values() for sweep in study.sweeps), *study.engine_defaults.values()]
    names |= {str(name) for knobs in settings for name in as_list(knobs.get("speculative_model"))}
    models = load_models()
    return {name: _resolved(models[name], study) for name in models if name in names}


def _resolved(model: Model, study: Study) -> dict[str, Any]:
    override = study.models.get(model.name)
    return {
        "name": model.name,
        "hub_repo": model.hub_repo,
        "revision": model.revision,
        "dtype": model.dtype,
        "load_format": (override.load_format if override else None) or model.load_format,
        "config_sha256": sha256_of(model.config),
        # Left out if it is off, the usual case, so that the definitions of such cells stay as they were.
        **({"trust_remote_code": True} if override and override.trust_remote_code else {}),
    }


def cell_definition(study: Study, cell: Cell, models: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The cell with its names resolved, as plain JSON values; `models` are the study's resolved ones.

    A time limit is not part of it: giving a cell more time does not change what it measures.
    """
    workload = study.workloads[cell.workload]
    draft = cell.knobs.draft_model
    endpoint = cell.knobs.set_values().get("endpoint")
    return {
        "gpu": cell.gpu,
        "engine": cell.engine,
        "model": models[cell.model],
        **({} if draft is None else {"draft_model": models[draft]}),
        **({} if endpoint is None else {"endpoint": endpoints_of(study)[endpoint].model_dump(mode="json")}),
        "workload": {"name": cell.workload, **workload.model_dump(mode="json")},
        "num_prompts": workload.prompts_for(cell.knobs.max_concurrency),
        "knobs": cell.knobs.set_values(),
        "repeats": study.repeats,
        "protocol": PROTOCOL_VERSION,
    }


def definition_sha256(definition: dict[str, Any]) -> str:
    """SHA-256 of a definition's canonical JSON."""
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()


def model_key(model: dict[str, Any]) -> str:
    """Name of what is prepared for a model; another definition of the model gets another folder.

    A prepared file never changes under its name: cells measured with it stay valid, and new cells find that theirs is
    missing.
    """
    return definition_sha256(model)[:8]


def workload_key(definition: dict[str, Any]) -> str:
    """Name of a cell's requests, e.g. `24-1f0c2a9b`: their number, and what they are made from."""
    made_from = {
        "workload": definition["workload"],
        "model": definition["model"],
        "version": PREPARED_REQUESTS_VERSION,
    }
    return f"{definition['num_prompts']}-{definition_sha256(made_from)[:8]}"
