"""One request of a workload, and the stream that a kind of workload draws its requests from."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workflow_scripts.common.faults import InputError
from workflow_scripts.workloads.vocabulary import Messages
from workflow_scripts.workloads.workload_kinds import FileWorkload

# What a server gets: token ids, text, or the messages of a chat.
Prompt = list[int] | str | Messages


class WorkloadError(InputError):
    """A workload that cannot be made; the message says what is wrong and where."""


@dataclass(frozen=True)
class Request:
    """A prompt, how many tokens to generate for it, and when it arrives.

    `prefix_tokens`: how many of the prompt's first tokens come from a text that other prompts also begin with.
    `prefix_id`: which text. Prompts of one text have the smaller of their `prefix_tokens` in common.
    `messages`: the chat that the prompt's tokens are, which a server gets instead of them.
    `request_id`: its name in `workload.jsonl`; a request that is not written yet has none.
    """

    prompt_token_ids: list[int]
    output_tokens: int
    arrival_s: float = 0.0
    prefix_tokens: int = 0
    prefix_id: int | None = None
    messages: Messages | None = None
    request_id: str = ""

    @property
    def prompt(self) -> Prompt:
        return self.messages or self.prompt_token_ids

    @property
    def total_tokens(self) -> int:
        """Tokens in the KV cache when the request ends."""
        return len(self.prompt_token_ids) + self.output_tokens

    def as_line(self, request_id: str) -> dict[str, Any]:
        line = {
            "request_id": request_id,
            "prompt_token_ids": self.prompt_token_ids,
            "output_tokens": self.output_tokens,
            "arrival_s": self.arrival_s,
        }
        prefix = {"prefix_tokens": self.prefix_tokens, "prefix_id": self.prefix_id}
        return line | (prefix if self.prefix_tokens else {}) | ({"messages": self.messages} if self.messages else {})


@dataclass(frozen=True)
class RequestStream:
    """Requests in a fixed order, as many as are asked for or as exist. `kind`: what the requests really are, as the
    report names it. `details`: facts for the manifest, among them the `source` if there is one; counts in it cover what
    has been drawn so far."""

    kind: str
    requests: Iterator[Request]
    details: dict[str, Any] = field(default_factory=dict)


def checked_file(spec: FileWorkload) -> Path:
    """Path of a workload's file. Raises WorkloadError if it is missing or its sha256 is not the study's."""
    if fault := spec.file_fault():
        raise WorkloadError(fault)
    return spec.path
