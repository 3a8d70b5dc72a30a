"""Prompts from a file, one per line: plain text, or JSON Lines that may give an output length."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from workflow_scripts.common.records import StrictRecord, validated
from workflow_scripts.workloads.request import Request, RequestStream, WorkloadError, checked_file
from workflow_scripts.workloads.vocabulary import Messages, Vocabulary
from workflow_scripts.workloads.workload_kinds import PromptsWorkload


class _Message(StrictRecord):
    role: Literal["system", "user", "assistant"]
    content: str = Field(min_length=1)


class _Line(StrictRecord):
    # Such files also have other fields, for example answers and sources.
    model_config = ConfigDict(extra="ignore")

    prompt: str | None = Field(default=None, min_length=1)
    messages: list[_Message] | None = Field(default=None, min_length=1)
    output_tokens: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("a line has either a prompt or messages")
        return self


def said_by_user(text: str) -> Messages:
    return [{"role": "user", "content": text}]


def chat_request(messages: Messages, vocabulary: Vocabulary, output_tokens: int) -> Request:
    return Request(vocabulary.encode_chat(messages), output_tokens, messages=messages)


def prompts(spec: PromptsWorkload, vocabulary: Vocabulary, seed: int) -> RequestStream:
    """The texts in the order of the file; the seed has no effect. Raises WorkloadError if the file's content differs
    from the study's sha256, or it holds no texts."""
    path = checked_file(spec)
    lines = list(read_prompts(path))
    if not spec.chat and any(line.messages for line in lines):
        raise WorkloadError(f"{path}: it has messages; set chat: true")

    def request(line: _Line) -> Request:
        output_tokens = line.output_tokens or spec.output_tokens
        if not spec.chat:
            return Request(vocabulary.encode(line.prompt or ""), output_tokens)
        messages = [message.model_dump() for message in line.messages or ()]
        return chat_request(messages or said_by_user(line.prompt or ""), vocabulary, output_tokens)

    details = {"source": str(spec.file), "sha256": spec.sha256, "texts": len(lines)}
    return RequestStream("prompts", map(request, lines), details)


def read_prompts(path: Path) -> Iterator[_Line]:
    """Texts of a file: each line that is not blank, or `prompt` of each line if the file's name ends in .jsonl. Raises
    WorkloadError if a line is not such a record, or there is none."""
    try:
        # Not splitlines(): it also breaks at separators such as U+2028, which a text or a JSON string may hold.
        text = path.read_text(encoding="utf-8-sig").split("\n")
        lines = [(number, line) for number, line in enumerate(text, 1) if line.strip()]
    except UnicodeDecodeError as e:
        raise WorkloadError(f"{path}: not UTF-8 text: {e}") from None
    if not lines:
        raise WorkloadError(f"{path}: there is no text in it")
    for number, line in lines:
        yield _record(line, f"{path}:{number}") if path.suffix == ".jsonl" else _Line(prompt=line)


def _record(line: str, where: str) -> _Line:
    try:
        content = json.loads(line)
    except ValueError as e:
        raise WorkloadError(f"{where}: not JSON: {e}") from None
    return validated(
        _Line, content, where, WorkloadError, {"model_type": "not a JSON object with a `prompt` or `messages`"}
    )
