"""Prompts from a file, one per line: plain text, or JSON Lines that may give an output length."""

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import ConfigDict, Field

from workflow_scripts.common.records import StrictRecord, validated
from workflow_scripts.workloads.request import Request, RequestStream, WorkloadError
from workflow_scripts.workloads.source_file import checked_file
from workflow_scripts.workloads.vocabulary import Vocabulary
from workflow_scripts.workloads.workload_kinds import PromptsWorkload


class _Line(StrictRecord):
    # Files of prompts also have other fields, such as answers and sources.
    model_config = ConfigDict(extra="ignore")

    prompt: str = Field(min_length=1)
    output_tokens: int | None = Field(default=None, ge=1)


def prompts(spec: PromptsWorkload, vocabulary: Vocabulary, seed: int) -> RequestStream:
    """The texts in the order of the file; the seed has no effect.

    Raises:
        WorkloadError: the file's content differs from the study's sha256, or it holds no texts.
    """
    path = checked_file(spec)
    lines = list(read_prompts(path))
    requests = (Request(vocabulary.encode(line.prompt), line.output_tokens or spec.output_tokens) for line in lines)
    return RequestStream("prompts", requests, {"source": str(spec.file), "sha256": spec.sha256, "texts": len(lines)})


def read_prompts(path: Path) -> Iterator[_Line]:
    """Texts of a file: each line that is not blank, or `prompt` of each line if the file's name ends in .jsonl.

    Raises:
        WorkloadError: a line is not such a record, or there is none.
    """
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
    return validated(_Line, content, where, WorkloadError, {"model_type": "no JSON object with a `prompt`"})
