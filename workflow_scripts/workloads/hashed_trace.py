"""Requests of a trace whose hashes say which blocks of prompts are equal: JSON Lines as Mooncake, Bailian or Weka
publish them.

Two prompts share the blocks up to the first hash that differs, also where a hash is of its block alone (Bailian).
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import ConfigDict, Field

from workflow_scripts.common.files import numbered_jsonl
from workflow_scripts.common.records import Record, validated
from workflow_scripts.workloads.random_prompts import TEXT_STREAM, generators
from workflow_scripts.workloads.request import HashedBlocks, Request, Vocabulary, WorkloadError, checked_file
from workflow_scripts.workloads.workload_kinds import MOST_TOKENS, TraceWorkload

_Length = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
_Time = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
_Hashes = Annotated[list[int], Field(max_length=MOST_TOKENS)]


class _Published(Record):
    # Lines also have what no prompt depends on, such as models and types of requests.
    model_config = ConfigDict(extra="ignore")


class _TraceLine(_Published):
    """A request of Mooncake (times in ms) and of Bailian, which names its chat (times in s)."""

    timestamp: _Time
    input_length: _Length
    output_length: _Length
    hash_ids: _Hashes


class _Call(_Published):
    t: _Time
    input_length: _Length = Field(alias="in")
    output_length: _Length = Field(alias="out")
    hash_ids: _Hashes


class _SubAgent(_Published):
    t: _Time
    requests: list[_Call]


class _TraceSession(_Published):
    """A session of Weka, with times in s from its beginning and hashes of its own."""

    block_size: int = Field(ge=2, le=MOST_TOKENS)
    requests: list[dict[str, Any]]

    def calls(self, where: str) -> Iterator[tuple[float, _Call]]:
        """When each request is sent. Some files count the times of a sub-agent from its beginning."""
        for position, entry in enumerate(self.requests):
            place = f"{where}: requests.{position}"
            if entry.get("type") == "subagent":
                agent = validated(_SubAgent, entry, place, WorkloadError)
                since_s = agent.t if agent.requests and agent.requests[0].t < agent.t else 0.0
                yield from ((since_s + call.t, call) for call in agent.requests)
            else:
                call = validated(_Call, entry, place, WorkloadError)
                yield call.t, call


class _Recorded(NamedTuple):
    """A recorded request: `scope` and `hash_ids` together identify its blocks."""

    arrival_s: float
    input_length: int
    output_length: int
    scope: int
    hash_ids: list[int]
    block_tokens: int


def hashed_trace(spec: TraceWorkload, vocabulary: Vocabulary) -> Iterator[Request]:
    """Requests of a trace in order of arrival, the first at 0 s. Tokens of a block follow from its hash, and those
    after the last hash are the request's own. Requests without prompt or output tokens are left out. Raises
    WorkloadError if the file cannot be used."""
    recorded = _read(checked_file(spec), spec.hash_block_tokens)
    usable = [one for one in recorded if one.input_length and one.output_length]
    numbers: dict[tuple[int, int], int] = {}
    for one, rng in zip(usable, generators(spec.seed), strict=False):
        ids = tuple(numbers.setdefault((one.scope, hash_id), len(numbers)) for hash_id in one.hash_ids)
        tokens = [token for number in ids for token in _block(number, one.block_tokens, spec.seed, vocabulary)]
        own = vocabulary.random_ids(rng, max(0, one.input_length - len(tokens)))
        yield Request(
            (tokens + own)[: one.input_length],
            one.output_length,
            arrival_s=round((one.arrival_s - usable[0].arrival_s) * spec.time_scale, 6),
            hashed=HashedBlocks(ids, one.block_tokens),
        )


def count_requests(path: Path, block_tokens: int | None, max_total_tokens: int | None) -> int:
    """Requests of a trace that have tokens, and no more than allowed. Raises WorkloadError if it cannot be used."""
    most = max_total_tokens or 2 * MOST_TOKENS
    recorded = _read(path, block_tokens)
    return sum(bool(r.input_length and r.output_length) and r.input_length + r.output_length <= most for r in recorded)


def _block(number: int, tokens: int, seed: int, vocabulary: Vocabulary) -> list[int]:
    """The tokens of a block: random, except that the first two are its number, so that no two blocks are equal."""
    block = vocabulary.random_ids(np.random.default_rng([seed, TEXT_STREAM, number]), tokens)
    ids = vocabulary.text_ids
    block[:2] = [int(ids[number % len(ids)]), int(ids[number // len(ids) % len(ids)])]
    return block


@lru_cache(maxsize=1)  # called for each model and number of requests, on a file of 100 MB
def _read(path: Path, block_tokens: int | None) -> list[_Recorded]:
    """The requests of a file in order of arrival."""
    recorded: list[_Recorded] = []
    for number, content in numbered_jsonl(path):
        where = f"{path}: line {number}"
        of_line = _of_line(content, where, number, block_tokens)
        for one in of_line:
            blocks, rest = divmod(one.input_length, one.block_tokens)
            if len(one.hash_ids) not in (blocks, blocks + bool(rest)):
                allowed = " or ".join(dict.fromkeys([str(blocks), str(blocks + bool(rest))]))
                raise WorkloadError(
                    f"{where}: {len(one.hash_ids)} hash_ids for {one.input_length} tokens in blocks of "
                    f"{one.block_tokens}; allowed: {allowed} (hash_block_tokens sets the size of a block)"
                )
        recorded += of_line
    if not recorded:
        raise WorkloadError(f"{path}: there is no request in it")
    return sorted(recorded, key=lambda one: one.arrival_s)


def _of_line(content: dict[str, Any], where: str, number: int, block_tokens: int | None) -> list[_Recorded]:
    if "requests" in content:
        session = validated(_TraceSession, content, where, WorkloadError)
        size = block_tokens or session.block_size
        calls = session.calls(where)
        return [_Recorded(at_s, c.input_length, c.output_length, number, c.hash_ids, size) for at_s, c in calls]
    line = validated(_TraceLine, content, where, WorkloadError)
    size, unit_s = (16, 1.0) if "chat_id" in content else (512, 0.001)  # of Bailian, of Mooncake
    of_line = (line.timestamp * unit_s, line.input_length, line.output_length, 0, line.hash_ids, block_tokens or size)
    return [_Recorded(*of_line)]
