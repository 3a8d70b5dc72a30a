"""Any OpenAI-compatible server: started with a command of the catalogue, or already running."""

import os
import secrets
import shutil
import socket
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from workflow_scripts.catalog.endpoints import Endpoint, filled
from workflow_scripts.engines.engine import SCRATCH, Effective, EngineSetup
from workflow_scripts.engines.hf.model import with_random_weights
from workflow_scripts.engines.serving.client import Address, ServerError, Target
from workflow_scripts.engines.serving.processes import LastCommand, ServerProcess
from workflow_scripts.engines.serving.server import Serving
from workflow_scripts.workloads.request import Prompt, Request

LOOPBACK = "127.0.0.1"
STOP_LIMIT_S = 60
MOST_CUTS = 4


class OpenAiEndpoint(Serving):
    """A server of config/endpoints.yaml or of the study."""

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        assert setup.endpoint is not None
        self._endpoint: Endpoint = setup.endpoint
        self._last_command: LastCommand | None = None

    def _launch(self) -> tuple[ServerProcess | None, Target, str]:
        endpoint, setup = self._endpoint, self._setup
        # Servers other than vLLM do not create random weights.
        random = setup.load_format == "dummy" and endpoint.command is not None
        folder = setup.evidence / SCRATCH / "model" if random else setup.model_dir
        model_dir = str(folder.resolve())
        if endpoint.base_url is not None:
            key = os.environ.get(endpoint.api_key_env) if endpoint.api_key_env else None
            if endpoint.api_key_env and not key:
                raise ServerError(f"the environment has no {endpoint.api_key_env}, the key of {endpoint.base_url}")
            address, server = Address(endpoint.base_url.rstrip("/"), key), None
        else:
            port = endpoint.port or free_port()
            address = Address(f"http://{LOOPBACK}:{port}", secrets.token_urlsafe(24))
            name = f"kvsweep-{secrets.token_hex(4)}"
            values = {"port": str(port), "model_dir": model_dir, "api_key": str(address.api_key), "name": name}
            check_port_is_free(port)
            own = dict(zip(endpoint.environment, filled(list(endpoint.environment.values()), values), strict=True))
            words, environment = filled(endpoint.command or (), values), {**os.environ, **own}
            if shutil.which(words[0], path=environment.get("PATH")) is None:
                raise ServerError(f"there is no command {words[0]!r} in PATH")
            if endpoint.stop_command:
                self._last_command = LastCommand(filled(endpoint.stop_command, values), environment)

            def serve() -> None:
                if random:
                    with_random_weights(setup, folder)
                os.execvpe(words[0], words, environment)

            server = ServerProcess.forked(serve)
        sampling = setup.sampling
        drawn = sampling is not None and not sampling.is_greedy
        target = Target(
            address,
            endpoint.served_model.replace("{model_dir}", model_dir),
            endpoint.completions_path,
            (drawn and endpoint.sampled_body) or endpoint.extra_body,
            sampling,
            setup.keep_answers,
            endpoint.chat_path,
        )
        return server, target, endpoint.health_path

    def _effective(self) -> Effective:
        return {"prompts": self._endpoint.prompts, "ignores_eos": self._endpoint.ignores_eos}

    def _prompts(self, requests: Sequence[Request]) -> Sequence[Prompt]:
        if self._endpoint.prompts == "token_ids":
            return super()._prompts(requests)
        return [
            request.messages or text_of_as_many_tokens(self._tokenizer, request.prompt_token_ids)
            for request in requests
        ]

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self._setup.model_dir)

    def stop(self) -> None:
        if self._last_command is not None:
            self._last_command.run(STOP_LIMIT_S)
        super().stop()


def text_of_as_many_tokens(tokenizer: Any, token_ids: Sequence[int]) -> str:
    """Decode tokens to text that a server with this tokenizer reads as about the same number of tokens. The text of
    random tokens is often read as more tokens; then its end is cut off. Special tokens that the tokenizer adds count
    too. Sometimes no text gives exactly this number, so results use the server's own count."""
    text = str(tokenizer.decode(token_ids))
    for _ in range(MOST_CUTS):
        surplus = len(tokenizer(text)["input_ids"]) - len(token_ids)
        own = tokenizer(text, add_special_tokens=False)["input_ids"]
        if surplus <= 0 or len(own) <= surplus:
            break
        text = str(tokenizer.decode(own[:-surplus]))
    return text


def free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as probe:
        return int(probe.getsockname()[1])


def check_port_is_free(port: int) -> None:
    """Make sure that no other server is measured instead of the one to be started. Raises ServerError if something
    listens there."""
    try:
        # As for servers, a connection that an earlier server left in TIME_WAIT does not block the port.
        socket.create_server((LOOPBACK, port)).close()
    except OSError as e:
        raise ServerError(f"port {port} of {LOOPBACK} is not available: {os.strerror(e.errno or 0)}") from None
