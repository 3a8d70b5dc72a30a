"""What a workload needs of a model's tokenizer."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Vocabulary:
    """What a workload needs of a model's tokenizer.

    `text_ids`: ids, ascending, that stand for text: known to tokenizer and model, and not special.
    `encode`: text to ids as a server does it, special tokens such as a leading BOS included.
    """

    text_ids: NDArray[np.int64]
    encode: Callable[[str], list[int]]

    def random_ids(self, rng: np.random.Generator, count: int) -> list[int]:
        """`count` ids drawn evenly from `text_ids`; as they are never decoded, their number is exact."""
        drawn: list[int] = rng.choice(self.text_ids, size=count).tolist()
        return drawn
