"""What a workload needs from a model's tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # each measuring command would take a fifth of a second to import it
    import numpy as np
    from numpy.typing import NDArray

# The messages of a chat as the OpenAI API has them, each with its `role` and `content`.
Messages = Sequence[dict[str, str]]


@dataclass(frozen=True)
class Vocabulary:
    """What a workload needs from a model's tokenizer.

    `text_ids`: ids, ascending, that stand for text: known to tokenizer and model, and not special.
    `encode`: converts text to ids as a server does, including special tokens such as a leading BOS.
    `encode_chat`: converts messages to ids with the model's chat template, up to where the answer begins.
    """

    text_ids: NDArray[np.int64]
    encode: Callable[[str], list[int]]
    encode_chat: Callable[[Messages], list[int]]

    def random_ids(self, rng: np.random.Generator, count: int) -> list[int]:
        """`count` ids drawn uniformly from `text_ids`; they are never decoded, so their number is exact."""
        drawn: list[int] = rng.choice(self.text_ids, size=count).tolist()
        return drawn
