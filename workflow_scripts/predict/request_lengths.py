"""Lengths of a workload's requests without a tokenizer, as a schedule needs them, from the generators of prompts."""

import math

import numpy as np

from workflow_scripts.predict.schedule import RequestLengths
from workflow_scripts.workloads.make_requests import make_requests
from workflow_scripts.workloads.vocabulary import Messages, Vocabulary
from workflow_scripts.workloads.workload_kinds import Workload

CHARACTERS_PER_TOKEN = 4


class _LengthsOnly(Vocabulary):
    """Replaces a model's vocabulary where only the number of tokens matters."""

    def random_ids(self, rng: np.random.Generator, count: int) -> list[int]:
        """`count` equal tokens; nothing is drawn."""
        return [0] * count


def _guess(text: str) -> list[int]:
    return [0] * math.ceil(len(text) / CHARACTERS_PER_TOKEN)


def _guess_chat(messages: Messages) -> list[int]:
    return _guess("".join(message["role"] + message["content"] for message in messages))


_VOCABULARY = _LengthsOnly(np.zeros(1, dtype=np.int64), _guess, _guess_chat)


def lengths_of(spec: Workload, count: int) -> tuple[RequestLengths, str]:
    """The lengths of the first `count` requests of a workload, and what they really are.

    They are the requests that are measured, except for texts of a file, whose tokens are estimated from characters.

    Raises:
        WorkloadError: the workload's file is missing or wrong, or has fewer requests.
    """
    requests, stream = make_requests(spec, _VOCABULARY, count)
    guessed = stream.kind in ("sharegpt", "prompts")
    kind = f"{stream.kind}, a token for every {CHARACTERS_PER_TOKEN} characters" if guessed else stream.kind
    return RequestLengths.of(requests), kind
