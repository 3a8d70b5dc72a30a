"""The catalogue of OpenAI-compatible servers (`config/endpoints.yaml`) that the engine `openai` can measure."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from workflow_scripts.catalog.gpus_and_models import CONFIG, CatalogError
from workflow_scripts.common.records import Record, read_yaml, validated

ENDPOINTS = CONFIG / "endpoints.yaml"
PLACEHOLDERS = ("port", "model_dir", "api_key", "name")
CHAT_PATH = "/v1/chat/completions"
SamplingSetting = Literal["temperature", "top_p", "repetition_penalty", "seed", "thinking_token_budget"]
# Settings of the OpenAI API itself; a repetition penalty is an extension of some servers.
OPENAI_SAMPLING: tuple[SamplingSetting, ...] = ("temperature", "top_p", "seed")


class Endpoint(Record):
    """One server: where it is or how it is started, and how to talk to it.

    With `command` the server is started on this machine, on a free port of the loopback address. At the end it is
    stopped, by `stop_command` first if there is one. With `base_url` somebody else runs the server: nothing is started,
    its device is not checked, and no trace is taken.
    """

    command: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="words of the command; {port}, {model_dir} and {name} (unique to the run) are filled in",
    )
    stop_command: tuple[str, ...] | None = Field(None, min_length=1)
    environment: dict[str, str] = Field(
        {}, description="variables for the command; the same placeholders and {api_key} are filled in"
    )
    port: int | None = Field(None, ge=1, le=65535, description="a fixed port; by default any free one")
    base_url: str | None = Field(None, pattern=r"^https?://[^/?#\s@]+(/[^?#\s]*)?$")
    api_key_env: str | None = Field(
        None, pattern=r"^[A-Z_][A-Z0-9_]*$", description="variable that holds the key of a base_url while a cell runs"
    )
    served_model: str = Field(min_length=1, description="the model's name in requests; may be {model_dir}")
    health_path: str = Field("/health", pattern=r"^/")
    completions_path: str = Field("/v1/completions", pattern=r"^/.*completions$")
    # Fields that were added later are left out if they are not set, so that earlier measurements stay valid.
    chat_path: str = Field(
        CHAT_PATH,
        pattern=r"^/.*completions$",
        description="where messages of a chat go",
        exclude_if=lambda path: path == CHAT_PATH,
    )
    prompts: Literal["token_ids", "text"] = Field("token_ids", description="what the server takes as a prompt")
    ignores_eos: bool = Field(
        True, description="it generates as many tokens as requested; if false, those that it generated are counted"
    )
    extra_body: dict[str, Any] = Field(
        {}, description="further fields of each request, such as the one that ignores end tokens"
    )
    sampling: tuple[SamplingSetting, ...] = Field(
        OPENAI_SAMPLING,
        description="the settings of sampling that it applies",
        exclude_if=lambda names: names == OPENAI_SAMPLING,
    )
    sampled_body: dict[str, Any] = Field(
        {}, description="instead of `extra_body` where tokens are drawn", exclude_if=lambda body: not body
    )

    def needed_for(self, *, sampled: bool, chat: bool) -> "Endpoint":
        """The entry without fields that only matter for other requests, so that changing these repeats no cell."""
        of_sampled = {} if sampled else {"sampling": OPENAI_SAMPLING, "sampled_body": {}}
        return self.model_copy(update=of_sampled | ({} if chat else {"chat_path": CHAT_PATH}))

    @model_validator(mode="after")
    def _is_one_of_two(self) -> Self:
        if (self.command is None) == (self.base_url is None):
            raise ValueError("an endpoint has either a command or a base_url")
        if self.command is None and (self.stop_command or self.environment or self.port):
            raise ValueError("stop_command, environment and port belong to a command")
        if self.base_url is None and self.api_key_env:
            raise ValueError("api_key_env belongs to a base_url; a command gets a key of this run as {api_key}")
        words = (*(self.command or ()), *(self.stop_command or ()))
        if any("{api_key}" in word for word in words):
            raise ValueError("a key on a command line is visible to everybody on the machine; give it in environment")
        filled_in = dict.fromkeys((*words, *self.environment.values()), PLACEHOLDERS)
        for text, allowed in (filled_in | {self.served_model: ("model_dir",)}).items():
            if unknown := sorted(set(re.findall(r"\{(\w*)\}", text)) - set(allowed)):
                raise ValueError(f"{{{unknown[0]}}} is not filled in; placeholders there: {', '.join(allowed)}")
        return self


@cache
def load_endpoints() -> Mapping[str, Endpoint]:
    """All servers of the catalogue by name. Raises CatalogError if the file is missing or an entry is not valid."""
    return validated(dict[str, Endpoint], read_yaml(ENDPOINTS, CatalogError), str(ENDPOINTS), CatalogError)


def filled(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The words with placeholders replaced by their values; other braces stay.

    >>> filled(["--port={port}", '{"a": 1}'], {"port": "8000"})
    ['--port=8000', '{"a": 1}']
    """
    return [re.sub(r"\{(\w+)\}", lambda match: values[match[1]], word) for word in words]
