"""Requests from a file of texts: prompts, one per line, or conversations as vLLM's own benchmark selects them."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import MOST_LINES_BYTES, read_text
from workflow_scripts.common.records import StrictRecord, validated
from workflow_scripts.workloads.random_prompts import synthetic
from workflow_scripts.workloads.request import Messages, Request, Vocabulary, WorkloadError, checked_file
from workflow_scripts.workloads.workload_kinds import PromptsWorkload, ShareGptWorkload

# The limits of `vllm.benchmarks.datasets.is_valid_sequence` (vLLM 0.32).
MIN_TOKENS = 4
MAX_PROMPT_TOKENS = 1024
MAX_TOTAL_TOKENS = 2048


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


def chat_request(prompt: Messages | str, vocabulary: Vocabulary, output_tokens: int) -> Request:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return Request(vocabulary.encode_chat(messages), output_tokens, messages=messages)


def prompts(spec: PromptsWorkload, vocabulary: Vocabulary, count: int) -> Iterator[Request]:
    """The texts in the order of the file. Raises WorkloadError if the file cannot be used."""
    path = checked_file(spec)
    lines = list(read_prompts(path))
    if not spec.chat and any(line.messages for line in lines):
        raise WorkloadError(f"{path}: it has messages; set chat: true")

    def request(line: _Line) -> Request:
        output_tokens = line.output_tokens or spec.output_tokens
        if not spec.chat:
            return Request(vocabulary.encode(line.prompt or ""), output_tokens)
        messages = [message.model_dump() for message in line.messages or ()]
        return chat_request(messages or line.prompt or "", vocabulary, output_tokens)

    for number, made in enumerate(map(request, lines)):
        tokens, text = (len(made.prompt_token_ids), number) if spec.samples else (0, None)
        yield from [replace(made, prefix_tokens=tokens, prefix_id=text)] * (spec.samples or 1)


def read_prompts(path: Path) -> Iterator[_Line]:
    """Texts of a file: each line that is not blank; in a .jsonl file its `prompt` or `messages`. Raises
    WorkloadError."""
    try:
        # Not splitlines(): it also breaks at separators such as U+2028, which a text or a JSON string may hold.
        text = read_text(path, MOST_LINES_BYTES).split("\n")
    except InputError as e:
        raise WorkloadError(str(e)) from None
    lines = [(number, line) for number, line in enumerate(text, 1) if line.strip()]
    if not lines:
        raise WorkloadError(f"{path}: there is no text in it")
    words = {"model_type": "not a JSON object with a `prompt` or `messages`"}
    for number, line in lines:
        if path.suffix != ".jsonl":
            yield _Line(prompt=line)
            continue
        try:
            content = json.loads(line)
        except ValueError as e:
            raise WorkloadError(f"{path}:{number}: not JSON: {e}") from None
        yield validated(_Line, content, f"{path}:{number}", WorkloadError, words)


def sharegpt(spec: ShareGptWorkload, vocabulary: Vocabulary, count: int) -> Iterator[Request]:
    """First question and answer of conversations in a seeded order, or the stand-in. Raises WorkloadError."""
    if spec.stand_in:
        for request in synthetic(spec.stand_in.model_copy(update={"seed": spec.seed}), vocabulary, count):
            yield replace(request, output_tokens=spec.output_tokens or request.output_tokens)
        return
    order = list(_first_turns(checked_file(spec)))
    # The same shuffle of the same list as in vLLM's ShareGPTDataset: the same seed gives the same order.
    random.Random(spec.seed).shuffle(order)
    for prompt, answer in order:
        prompt_token_ids = vocabulary.encode(prompt)
        answer_tokens = spec.output_tokens or len(vocabulary.encode(answer))
        # A length that the study sets is intended, however short.
        if is_usable(len(prompt_token_ids), answer_tokens, 1 if spec.output_tokens else MIN_TOKENS):
            of_chat = spec.chat and chat_request(prompt, vocabulary, answer_tokens)
            yield of_chat or Request(prompt_token_ids, answer_tokens)


@lru_cache(maxsize=1)  # called for each model and number of requests, on a file of 0.7 GB
def _first_turns(path: Path) -> tuple[tuple[str, str], ...]:
    try:
        conversations = [entry.get("conversations", []) for entry in json.loads(path.read_bytes())]
        turns = tuple((turns[0]["value"], turns[1]["value"]) for turns in conversations if len(turns) >= 2)
        if wrong := [value for pair in turns for value in pair if not isinstance(value, str)]:
            raise TypeError(f"{wrong[0]!r} is not a text")
        return turns
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as e:
        raise WorkloadError(
            f"{path}: not a ShareGPT file, a JSON list of {{'conversations': [{{'value': text}}, ...]}}: {e!r}"
        ) from None


def is_usable(prompt_tokens: int, output_tokens: int, min_output_tokens: int = MIN_TOKENS) -> bool:
    """Whether vLLM's filter takes a conversation.

    >>> is_usable(1024, 1024), is_usable(1025, 8), is_usable(1024, 1025)
    (True, False, False)
    >>> is_usable(4, 3), is_usable(4, 3, min_output_tokens=1)
    (False, True)
    """
    is_short = prompt_tokens <= MAX_PROMPT_TOKENS and prompt_tokens + output_tokens <= MAX_TOTAL_TOKENS
    return is_short and prompt_tokens >= MIN_TOKENS and output_tokens >= min_output_tokens
