"""Lengths of a workload's requests without a tokenizer: what a schedule needs, from the generators of the prompts."""

import math

import numpy as np

from workflow_scripts.predict.schedule import RequestLengths
from workflow_scripts.workloads.make_requests import make_requests
from workflow_scripts.workloads.vocabulary import Vocabulary
from workflow_scripts.workloads.workload_kinds import Workload

CHARACTERS_PER_TOKEN = 4


class _LengthsOnly(Vocabulary):
    """Stands in for a model's vocabulary where only the number of tokens matters."""

    def random_ids(self, rng: np.random.Generator, count: int) -> list[int]:
        """`count` tokens, all alike; nothing is drawn."""
        return [0] * count


def _guess(text: str) -> list[int]:
    return [0] * math.ceil(len(text) / CHARACTERS_PER_TOKEN)


_VOCABULARY = _LengthsOnly(np.zeros(1, dtype=np.int64), _guess)


def lengths_of(spec: Workload, count: int) -> tuple[RequestLengths, str]:
    """The first `count` requests of a workload by their lengths, and what they really are.

    They are those that are measured, but for texts of a file, whose tokens are guessed from their characters.

    Raises:
        WorkloadError: the workload's file is not there or not what it should be, or has fewer requests.
    """
    requests, stream = make_requests(spec, _VOCABULARY, count)
    guessed = stream.kind in ("sharegpt", "prompts")
    kind = f"{stream.kind}, a token for every {CHARACTERS_PER_TOKEN} characters" if guessed else stream.kind
    return RequestLengths.of(requests), kind
