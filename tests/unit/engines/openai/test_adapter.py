"""Prompts as text, for servers that accept only text, and how a server is started and ended."""

import os
import socket
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest

from workflow_scripts.catalog.endpoints import Endpoint
from workflow_scripts.engines.engine import EngineSetup
from workflow_scripts.engines.openai.adapter import OpenAiEndpoint, _become, text_of_as_many_tokens
from workflow_scripts.engines.serving.client import ServerError
from workflow_scripts.workloads.sampling import Sampling


class Characters:
    """Writes a token as its number in brackets and reads each character as a token, after one for the beginning."""

    def decode(self, token_ids: list[object]) -> str:
        return "".join(token if isinstance(token, str) else f"<{token}>" for token in token_ids)

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[str]]:
        return {"input_ids": ["^"] * add_special_tokens + list(text)}


@pytest.mark.parametrize("tokens", [1, 2, 5, 40])
def test_a_text_is_cut_to_as_many_tokens_as_were_meant(tokens):
    meant = [1234] * tokens
    tokenizer = Characters()
    text = text_of_as_many_tokens(tokenizer, meant)
    assert tokenizer.decode(meant).startswith(text)
    # The token of the beginning counts. Nothing is left to cut where it is all that was meant.
    assert len(tokenizer(text)["input_ids"]) == (tokens if tokens > 1 else 7)


def endpoint(sampling: Sampling | None = None, **entry: object) -> OpenAiEndpoint:
    """A server that never answers."""
    entry = {"command": ["sleep", "600"], "served_model": "m", **entry}
    server = Endpoint.model_validate(entry)
    setup = EngineSetup(Path(), "auto", "float32", 0, {"endpoint": "e"}, "cpu", endpoint=server, start_limit_s=0.3)
    return OpenAiEndpoint(replace(setup, sampling=sampling))


@pytest.mark.parametrize(
    ("sampling", "sent"),
    [
        (None, {"draw": False}),
        (Sampling(repetition_penalty=1.1), {"draw": False}),
        (Sampling(temperature=0.5), {"draw": True}),
    ],
)
def test_a_server_gets_other_fields_if_tokens_are_drawn(sampling, sent):
    here = {"command": None, "base_url": "http://127.0.0.1/", "extra_body": {"draw": False}}
    server, target, _ = endpoint(sampling, **here, sampled_body={"draw": True})._launch()
    assert (server, target.address.base_url, target.extra_body) == (None, "http://127.0.0.1", sent)
    assert endpoint(sampling, **here)._launch()[1].extra_body == {"draw": False}


def test_a_server_that_is_not_healthy_in_time_is_ended_by_its_own_command_or_by_force(tmp_path):
    done = tmp_path / "done"
    # A stop command that is not there leaves no server either.
    for stop_command in (["sh", "-c", 'echo "{name}" > "$0"', str(done)], ["no-such-command"]):
        engine = endpoint(stop_command=stop_command)
        with pytest.raises(RuntimeError, match=r"not healthy after 0.3 s"):
            engine.start()
        assert engine._server is not None
        assert not psutil.pid_exists(engine._server.pid)
    assert done.read_text().startswith("kvsweep-")


def test_a_server_that_cannot_be_started_is_told():
    with pytest.raises(ServerError, match="no command 'no-such-server'"):
        endpoint(command=["no-such-server"], stop_command=["false"]).start()
    with pytest.raises(ServerError, match="the server ended with status 1 before"):
        endpoint(command=["false"]).start()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=rf"port {port} of 127.0.0.1 .*: Address already in use"):
            endpoint(port=port).start()


def test_a_command_of_huggingface_goes_on_in_the_process_that_has_imported_its_libraries(monkeypatch, capsys):
    started = []
    monkeypatch.setattr(os, "execvpe", lambda *command: started.append(command))
    monkeypatch.setattr(sys, "argv", [])
    with patch.dict(os.environ), pytest.raises(SystemExit) as ended:
        _become(["transformers", "version"], {"ONLY": "this"})
    assert (started, ended.value.code, capsys.readouterr().out.strip()) == ([], 0, version("transformers"))
