"""The catalogue of servers: what an entry may contain, and that the existing entries are valid."""

import pytest
from pydantic import ValidationError

from tests.unit.made_studies import made_study
from workflow_scripts.catalog.endpoints import Endpoint, load_endpoints
from workflow_scripts.study.definition import cell_definition, resolved_models
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study import Study, StudyError

COMMAND = {"command": ["serve", "--port={port}"], "served_model": "m"}


def test_the_catalogue_is_valid_and_its_servers_listen_on_the_loopback_address_alone():
    endpoints = load_endpoints()
    assert {"tgi", "transformers-serve"} <= endpoints.keys()
    for name, endpoint in endpoints.items():
        words = " ".join(endpoint.command or ())
        assert "127.0.0.1" in (words or str(endpoint.base_url)), name
        assert "0.0.0.0" not in words, name
        assert "trust" not in words, name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base_url": "http://127.0.0.1:1"}, "either a command or a base_url"),
        ({"api_key_env": "KEY"}, "belongs to a base_url"),
        ({"command": ["serve", "--api-key={api_key}"]}, "visible to everybody"),
        ({"command": ["serve", "--key={password}"]}, r"\{password\} is not filled in; placeholders there: port"),
        ({"served_model": "{name}"}, r"\{name\} is not filled in; placeholders there: model_dir"),
        ({"command": None, "base_url": "http://key@host"}, "pattern"),
        ({"command": None, "base_url": "http://host", "port": 1}, "belong to a command"),
    ],
)
def test_an_entry_that_cannot_be_meant_is_refused(change, message):
    with pytest.raises(ValidationError, match=message):
        Endpoint.model_validate({**COMMAND, **change})


def study(**changes: object) -> Study:
    return made_study(
        {"gpu": "cpu-all", "engine": "openai", "model": "tiny-llama-57m", "knobs": {"endpoint": "mine"}}, **changes
    )


def test_a_study_names_servers_of_its_own_and_another_command_is_another_cell():
    with pytest.raises(StudyError, match=r"knobs.endpoint: 'mine' is unknown; allowed: .*tgi"):
        expand(study())
    commands = []
    for word in ("serve", "serve-faster"):
        changed = study(endpoints={"mine": {**COMMAND, "command": [word]}})
        (cell,) = expand(changed)
        endpoint = cell_definition(changed, cell, resolved_models(changed)).endpoint
        commands.append(endpoint and endpoint.command)
    assert commands == [("serve",), ("serve-faster",)]
