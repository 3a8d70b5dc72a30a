"""What a workload needs from a model's tokenizer."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Vocabulary:
    """What a workload needs from a model's tokenizer.

    `text_ids`: ids, ascending, that stand for text: known to tokenizer and model, and not special.
    `encode`: converts text to ids as a server does, including special tokens such as a leading BOS.
    """

    text_ids: NDArray[np.int64]
    encode: Callable[[str], list[int]]

    def random_ids(self, rng: np.random.Generator, count: int) -> list[int]:
        """`count` ids drawn uniformly from `text_ids`; they are never decoded, so their number is exact."""
        drawn: list[int] = rng.choice(self.text_ids, size=count).tolist()
        return drawn
