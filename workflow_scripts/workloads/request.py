"""One request of a workload, and what workloads need of a model's tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import read_jsonl
from workflow_scripts.workloads.workload_kinds import FileWorkload

if TYPE_CHECKING:  # each measuring command would take a fifth of a second to import it
    import numpy as np
    from numpy.typing import NDArray

# The messages of a chat as the OpenAI API has them, each with its `role` and `content`.
Messages = Sequence[dict[str, str]]
# What a server gets: token ids, text, or the messages of a chat.
Prompt = list[int] | str | Messages


class WorkloadError(InputError):
    """A workload that cannot be made; the message says what is wrong and where."""


class HashedBlocks(NamedTuple):
    """Blocks that a prompt begins with, of `tokens` tokens each, the last of which may be cut off. Blocks with one of
    the `ids` are equal in all prompts, those with others differ in their first two tokens."""

    ids: tuple[int, ...] = ()
    tokens: int = 0


@dataclass(frozen=True)
class Request:
    """A prompt, how many tokens to generate for it, and when it arrives.

    `prefix_tokens`: how many of the prompt's first tokens come from a text that other prompts also begin with.
    `prefix_id`: which text. Prompts of one text have the smaller of their `prefix_tokens` in common.
    `answers`: earlier requests of its conversation, by position, and where in the prompt each answer begins; a server
    gets its own answers there, `think_s` after they have ended. `session`: the number of the conversation.
    `hashed`: instead of a text, the blocks with hashes that the prompt begins with; not in the file.
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
    answers: Sequence[tuple[int, int]] = ()
    think_s: float = 0.0
    session: int | None = None
    hashed: HashedBlocks = field(default_factory=HashedBlocks)

    @property
    def prompt(self) -> Prompt:
        return self.messages or self.prompt_token_ids

    @property
    def total_tokens(self) -> int:
        """Tokens in the KV cache when the request ends."""
        return len(self.prompt_token_ids) + self.output_tokens

    def as_line(self, request_id: str) -> dict[str, Any]:
        names = ["prompt_token_ids", "output_tokens", "arrival_s"]
        names += ["prefix_tokens", "prefix_id"] if self.prefix_tokens else []
        names += ["messages"] if self.messages else []
        names += ["session", "answers", "think_s"] if self.session is not None else []
        return {"request_id": request_id, **{name: getattr(self, name) for name in names}}


def read_requests(path: Path) -> list[Request]:
    return [Request(**line) for line in read_jsonl(path)]


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


def checked_file(spec: FileWorkload) -> Path:
    """Path of a workload's file. Raises WorkloadError if it is missing or its sha256 is not the study's."""
    if fault := spec.file_fault():
        raise WorkloadError(fault)
    return spec.path
