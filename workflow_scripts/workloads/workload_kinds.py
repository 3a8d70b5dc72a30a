"""What a study specifies of a workload: which requests, how many, how long, and what their prompts share.

`prepare.workload` makes the requests from it; docs/workloads.md and docs/traffic.md describe the kinds.
"""

import math
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from workflow_scripts.common.checkout import own_or_of_checkout
from workflow_scripts.common.files import sha256_of
from workflow_scripts.common.records import StrictRecord, added
from workflow_scripts.workloads.sampling import Sampling

# Far above every context and benchmark; a typing error should not fill the memory.
MOST_TOKENS = MOST_PROMPTS = 10_000_000
Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
MOST_TURNS = 1_000


class LengthDistribution(StrictRecord):
    """Token counts drawn from a lognormal distribution truncated to [minimum, maximum]."""

    median: float = Field(gt=0, description="median of the lognormal, in tokens")
    sigma: float = Field(ge=0, description="standard deviation of the logarithm")
    minimum: Tokens = 1
    maximum: Tokens

    @model_validator(mode="before")
    @classmethod
    def _is_no_length(cls, given: Any) -> Any:
        if isinstance(given, int):
            of_one = f"{{median: {given}, sigma: 0, maximum: {given}}}"
            raise ValueError(f"{given} is one length: write {of_one}, or kind: fixed if all lengths are equal")
        return given

    @model_validator(mode="after")
    def _ordered(self) -> "LengthDistribution":
        if self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum} is above maximum {self.maximum}")
        return self


class SharedText(NamedTuple):
    """The beginning of a prompt: the first `tokens` tokens of the text `id`. Two prompts that begin with the same text
    have the shorter of their beginnings in common."""

    id: int
    tokens: int


class _Workload(StrictRecord):
    kind: str
    num_prompts: int = Field(ge=1, le=MOST_PROMPTS, description="requests in one repeat")
    prompts_per_seq: int | None = Field(
        None, ge=1, le=100_000, description="at least this many requests for each sequence that may run at once"
    )
    max_total_tokens: int | None = added(
        None, "requests with more prompt and output tokens together are left out", ge=2
    )
    seed: int = Field(0, ge=0)
    sampling: Sampling | None = added(None, "how tokens are chosen; if left out, greedily")
    keep_answers: bool = added(False, "keep each request's tokens, and a server's text, to compare them between cells")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        needed = self.total_tokens_needed()
        if needed is not None and needed > MOST_TOKENS:
            raise ValueError(f"requests have {needed:,} tokens; at most {MOST_TOKENS:,}")
        if self.max_total_tokens is not None and needed is not None and needed > self.max_total_tokens:
            raise ValueError(f"max_total_tokens {self.max_total_tokens} is too small: requests have {needed} tokens")
        return self

    @property
    def actual_kind(self) -> str:
        """What the requests really are, as the report names it."""
        return self.kind

    def prompts_for(self, max_concurrency: int) -> int:
        """Requests in one repeat of a cell in which at most `max_concurrency` sequences may run at once."""
        return max(self.num_prompts, (self.prompts_per_seq or 0) * max_concurrency)

    def total_tokens_needed(self) -> int | None:
        """Tokens that a request must be allowed to have: of the longest one if the study fixes every length, of the
        shortest one if lengths are drawn; None if a file decides."""
        return None

    def shared_text(self, index: int) -> SharedText | None:
        """The shared text that the prompt of the request at `index` begins with; None if it shares none."""
        return None


class FixedWorkload(_Workload):
    """Every request has the same number of prompt and output tokens; prompts are random tokens."""

    kind: Literal["fixed"]
    prompt_tokens: Tokens
    output_tokens: Tokens

    def total_tokens_needed(self) -> int:
        return self.prompt_tokens + self.output_tokens


class SyntheticWorkload(_Workload):
    """Random prompts whose lengths follow lognormal distributions; ShareGPT-like with suitable medians."""

    kind: Literal["synthetic"]
    prompt_tokens: LengthDistribution
    output_tokens: LengthDistribution
    # Studies from before there was a choice drew lengths; their definitions have no such field.
    lengths: Literal["stratified", "drawn"] = Field(
        "stratified",
        description="`stratified`: any number of requests has the same mean lengths, so that cells with more requests"
        " have the same mix; `drawn`: each length is drawn on its own, as also with `max_total_tokens`",
        exclude_if=lambda lengths: lengths == "drawn",
    )

    def total_tokens_needed(self) -> int:
        return self.prompt_tokens.minimum + self.output_tokens.minimum


class SharedTextWorkload(_Workload):
    """Requests of random tokens that may begin with shared texts."""

    output_tokens: Tokens

    def tokens_of_prompt(self, index: int) -> int:
        raise NotImplementedError

    def total_tokens_needed(self) -> int:
        """Those of the first request; no prompt is longer, except in conversations."""
        return self.tokens_of_prompt(0) + self.output_tokens


class IdenticalWorkload(SharedTextWorkload):
    """One prompt, repeated."""

    kind: Literal["identical"]
    prompt_tokens: Tokens

    def tokens_of_prompt(self, index: int) -> int:
        return self.prompt_tokens

    def shared_text(self, index: int) -> SharedText:
        """The whole prompt."""
        return SharedText(0, self.prompt_tokens)


class SharedPrefixWorkload(SharedTextWorkload):
    """A share of the requests begins with a system prompt, one per user; then comes text of their own."""

    kind: Literal["shared_prefix"]
    prefix_tokens: int = Field(ge=1, description="length of the shared system prompt")
    prompt_tokens: int = Field(ge=1, description="unique tokens of each request after the prefix")
    share: float = Field(1.0, ge=0, le=1, description="share of the requests that begin with a prefix")
    users: int = added(1, "users who take turns, each with their own system prompt", ge=1)

    def tokens_of_prompt(self, index: int) -> int:
        """The same length for all, with or without the prefix."""
        return self.prefix_tokens + self.prompt_tokens

    def shared_text(self, index: int) -> SharedText | None:
        """The prefix of the user whose turn it is, for a share of the requests: evenly spread, including the first.

        >>> lengths = {"prefix_tokens": 32, "prompt_tokens": 8, "output_tokens": 4}
        >>> spec = SharedPrefixWorkload(kind="shared_prefix", num_prompts=6, share=0.5, users=2, **lengths)
        >>> [text and text.id for text in map(spec.shared_text, range(6))]
        [0, None, 1, None, 0, None]
        """
        before, after = math.ceil(index * self.share), math.ceil((index + 1) * self.share)
        return SharedText(before % self.users, self.prefix_tokens) if after > before else None


class MultiTurnWorkload(SharedTextWorkload):
    """Conversations: each turn's prompt holds all earlier prompts and answers, and what the user says next.

    Random answers are in the prompts of any engine; a prefix cache finds the previous prompt but not the previous
    answer. Real answers are those of the server, which is sent a turn when the answers in its prompt have ended.
    """

    kind: Literal["multi_turn"]
    turns: int = Field(ge=2, le=MOST_TURNS, description="requests of one conversation")
    prompt_tokens: int = Field(ge=1, description="tokens that the user adds in a turn")
    output_tokens: int = Field(ge=1, description="tokens of an answer")
    users: int = Field(1, ge=1, description="conversations at once; their turns alternate")
    answers: Literal["random", "real"] = added(
        "random", "what prompts hold as earlier answers; `real`: those of the server, in a closed loop"
    )
    think_s: float = added(0.0, "mean pause before a turn, drawn exponentially", ge=0, le=86_400)

    @model_validator(mode="after")
    def _a_closed_loop(self) -> Self:
        if self.answers == "real" and self.users > 1:
            raise ValueError("users: with real answers the knob `users` says how many conversations run at once")
        if self.answers == "random" and self.think_s:
            raise ValueError("think_s needs answers: real")
        return self

    def place(self, index: int) -> tuple[int, int]:
        """The conversation of a request, and which turn it is, both from 0.

        >>> spec = MultiTurnWorkload(
        ...     kind="multi_turn", num_prompts=8, turns=3, prompt_tokens=10, output_tokens=5, users=2
        ... )
        >>> [(*spec.place(i), spec.tokens_of_prompt(i)) for i in range(5)]
        [(0, 0, 10), (1, 0, 10), (0, 1, 25), (1, 1, 25), (0, 2, 40)]
        """
        group, position = divmod(index, self.users * self.turns)
        return group * self.users + position % self.users, position // self.users

    def answers_in(self, index: int) -> list[tuple[int, int]]:
        """The earlier requests whose answers a prompt holds, by their index, and where each begins."""
        _, turn = self.place(index)
        both = self.prompt_tokens + self.output_tokens
        return [(index - turn + earlier, self.prompt_tokens + earlier * both) for earlier in range(turn)]

    def tokens_of_prompt(self, index: int) -> int:
        _, turn = self.place(index)
        return self.prompt_tokens + turn * (self.prompt_tokens + self.output_tokens)

    def total_tokens_needed(self) -> int:
        """Those of the last turn, which are all of a conversation."""
        return self.turns * (self.prompt_tokens + self.output_tokens)

    def shared_text(self, index: int) -> SharedText:
        """The whole prompt: all that was said before, and what the user says."""
        return SharedText(self.place(index)[0], self.tokens_of_prompt(index))


class FileWorkload(_Workload):
    """Requests made from a file, which is checked against its checksum."""

    file: Annotated[Path, Field(strict=False, description="the file, relative to the working folder or the checkout")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="of the file, as sha256sum FILE prints it")]

    @model_validator(mode="before")
    @classmethod
    def _asks_for_the_sum(cls, given: Any) -> Any:
        if isinstance(given, dict) and "sha256" not in given and isinstance(file := given.get("file"), (str, Path)):
            found = own_or_of_checkout(file)
            how = f"computed: {sha256_of(found)}" if found.is_file() else f"sha256sum {file} prints it"
            raise ValueError(
                f"sha256: needed, so that it is known later which requests were measured; {how}; write it here"
            )
        return given

    @property
    def path(self) -> Path:
        return own_or_of_checkout(self.file)

    def file_fault(self) -> str | None:
        """Why requests cannot be made from the file: it is missing, or its content differs; None if they can."""
        if not self.path.is_file():
            return (
                f"{self.path}: there is no such file; docs/workloads.md and docs/traffic.md say where to get such files"
            )
        if (sha256 := sha256_of(self.path)) != self.sha256:
            return f"{self.path}: its sha256 is {sha256}, the study expects {self.sha256}"
        return None


class TextWorkload(FileWorkload):
    """Texts of a file, as prompts or as chats."""

    chat: bool = added(False, "texts are messages of a user; they go through the model's chat template")


class ShareGptWorkload(TextWorkload):
    """Conversations of a ShareGPT file, filtered as `vllm bench` filters them. Without the file the workload uses
    `fallback` instead, if there is one, and the results say so."""

    kind: Literal["sharegpt"]
    output_tokens: int | None = Field(None, ge=1, description="instead of the answer's own length")
    fallback: SyntheticWorkload | None = added(None, "what stands in for a missing file")

    def file_fault(self) -> str | None:
        """Another content; and a missing file for which nothing stands in, as for the texts of a chat."""
        return None if self.stand_in else super().file_fault()

    @property
    def actual_kind(self) -> str:
        return "synthetic, stands in for ShareGPT: file not there" if self.stand_in else self.kind

    @property
    def stand_in(self) -> SyntheticWorkload | None:
        """The fallback, if it makes the requests, because the file is missing."""
        return None if self.chat or self.path.is_file() else self.fallback


class TraceWorkload(FileWorkload):
    """Requests that arrive as in a CSV file, with its lengths and random tokens as prompts; or as in a JSON Lines file,
    whose hashes say which blocks of prompts are equal."""

    kind: Literal["trace"]
    columns: None = None  # earlier versions named them; definitions that have this field stay as they were
    time_scale: float = Field(
        1.0, gt=0, le=1e6, description="factor on arrival times: 0.5 makes requests arrive twice as fast"
    )
    hash_block_tokens: int | None = added(
        None, "tokens of a block with a hash, where they are not those of a known format", ge=2, le=MOST_TOKENS
    )

    @property
    def is_hashed(self) -> bool:
        return self.file.suffix == ".jsonl"

    @model_validator(mode="after")
    def _fields_of_its_file(self) -> Self:
        if self.hash_block_tokens and not self.is_hashed:
            raise ValueError("hash_block_tokens is for a .jsonl file, whose lines have hash_ids")
        return self


class PromptsWorkload(TextWorkload):
    """Texts of a file, in its order: one per line, or JSON Lines with a `prompt` or the `messages` of a chat each."""

    kind: Literal["prompts"]
    output_tokens: int = Field(ge=1, description="for every text whose line gives none")
    samples: int | None = added(None, "answers to each prompt, like `n` of the OpenAI API; if left out, one", ge=1)

    def shared_text(self, index: int) -> SharedText | None:
        """The whole prompt, however long."""
        return SharedText(index // self.samples, MOST_TOKENS) if self.samples else None


Workload = Annotated[
    FixedWorkload
    | SyntheticWorkload
    | IdenticalWorkload
    | SharedPrefixWorkload
    | MultiTurnWorkload
    | ShareGptWorkload
    | TraceWorkload
    | PromptsWorkload,
    Field(discriminator="kind"),
]
