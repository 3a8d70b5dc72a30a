"""Conversations of a ShareGPT file, selected as vLLM's own benchmark selects them."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from workflow_scripts.workloads.prompts_file import chat_request, said_by_user
from workflow_scripts.workloads.random_prompts import synthetic
from workflow_scripts.workloads.request import Request, RequestStream, WorkloadError, checked_file
from workflow_scripts.workloads.vocabulary import Vocabulary
from workflow_scripts.workloads.workload_kinds import ShareGptWorkload

# The limits of `vllm.benchmarks.datasets.is_valid_sequence` (vLLM 0.32).
MIN_TOKENS = 4
MAX_PROMPT_TOKENS = 1024
MAX_TOTAL_TOKENS = 2048


def sharegpt(spec: ShareGptWorkload, vocabulary: Vocabulary, seed: int) -> RequestStream:
    """First question and first answer of conversations in a seeded order; if there is no file, its stand-in. Raises
    WorkloadError if the file's content differs from the study's sha256, or it is not a ShareGPT file."""
    if not spec.path.is_file() and not spec.chat:
        stand_ins = synthetic(spec.fallback, vocabulary, seed).requests
        requests = (replace(one, output_tokens=spec.output_tokens or one.output_tokens) for one in stand_ins)
        return RequestStream("synthetic, stands in for ShareGPT: file not there", requests, {"source": str(spec.file)})
    order = list(_first_turns(checked_file(spec)))
    # The same shuffle of the same list as in vLLM's ShareGPTDataset: the same seed gives the same order.
    random.Random(seed).shuffle(order)
    counts: Counter[str] = Counter()

    def usable() -> Iterator[Request]:
        for prompt, answer in order:
            prompt_token_ids = vocabulary.encode(prompt)
            answer_tokens = spec.output_tokens or len(vocabulary.encode(answer))
            # A length that the study sets is intended, however short.
            fault = fault_of(len(prompt_token_ids), answer_tokens, 1 if spec.output_tokens else MIN_TOKENS)
            counts[fault or "used"] += 1
            if fault is None and spec.chat:
                yield chat_request(said_by_user(prompt), vocabulary, answer_tokens)
            elif fault is None:
                yield Request(prompt_token_ids, answer_tokens)

    details = {"source": str(spec.file), "sha256": spec.sha256, "conversations": len(order), "filter": counts}
    return RequestStream("sharegpt", usable(), details)


@lru_cache(maxsize=1)  # called for each model and number of requests, on a file of 0.7 GB
def _first_turns(path: Path) -> tuple[tuple[str, str], ...]:
    """First two turns of every conversation that has at least two."""
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


def fault_of(prompt_tokens: int, output_tokens: int, min_output_tokens: int = MIN_TOKENS) -> str | None:
    """Why vLLM's filter leaves a conversation out, or None.

    >>> fault_of(1024, 1024), fault_of(1025, 8), fault_of(1024, 1025)
    (None, 'prompt_too_long', 'total_too_long')
    >>> fault_of(4, 3), fault_of(4, 3, min_output_tokens=1)
    ('output_too_short', None)
    """
    if prompt_tokens < MIN_TOKENS:
        return "prompt_too_short"
    if output_tokens < min_output_tokens:
        return "output_too_short"
    if prompt_tokens > MAX_PROMPT_TOKENS:
        return "prompt_too_long"
    if prompt_tokens + output_tokens > MAX_TOTAL_TOKENS:
        return "total_too_long"
    return None
