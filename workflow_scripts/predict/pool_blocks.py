"""The blocks of a device: which are free, which keep their content, and what happens to each of them."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

# What a block holds: the number of its group, the owner of its tokens, and which block of a request it is.
Content = tuple[int, int, int]


class LiveRequest:
    """A request while it is served. `prompt`, `tokens`, `computed`: tokens of its prompt, known so far (its prompt and
    the known part of its answer), and computed. `in_flight`: computed in steps that still run, of which `stale` before
    the request was preempted. `awaited`: tokens of the answer that scheduled steps will still generate. `junction`:
    tokens of its prompt that some groups of layers found, if all found fewer; else 0."""

    def __init__(self, index: int, prompt: int, output: int, shared_blocks: Sequence[int]) -> None:
        self.index = index
        self.prompt = self.tokens = prompt
        self.last = prompt + output
        self.shared_blocks = shared_blocks
        self.computed = self.in_flight = self.stale = self.awaited = self.junction = 0
        self.runs = self.is_prefill = False
        # How often it lost its blocks with no other running, and how many tokens were known then.
        self.lost = self.lost_at = 0

    def owner(self, block: int) -> int:
        """Whose tokens a block of its text holds: a number for shared ones, or its own."""
        return self.shared_blocks[block] if block < len(self.shared_blocks) else -1 - self.index


class BlockEvent(NamedTuple):
    """What happens to a block: `event` is allocated, appended, shared, freed, preempted or evicted.

    `step`: the step that is being planned, or planned next. `request`: its index; None for evicted. `group`: number of
    the group of layers. `place`: which block of the request's table. `block`: its number in the pool, from 1 on.
    `users`: requests that hold it afterwards. `tokens`: of the request, in its blocks after the step; None if its
    blocks are taken back.
    """

    step: int
    event: str
    request: int | None
    group: int
    place: int
    block: int
    users: int
    tokens: int | None


class Block:
    """A block that requests hold, or that keeps its content until it is needed."""

    __slots__ = ("content", "number", "users")

    def __init__(self, number: int) -> None:
        self.content: Content | None = None
        self.number = number
        self.users = 1


class Blocks:
    """The free and the kept blocks of one device. Those that keep nothing are counted, and used first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.most_filled = 0
        self.evicted = False
        # Contents that the planned step writes: no state can be taken from them yet.
        self.new: set[Content] = set()
        # What happens to blocks, if it is traced, and the number of the planned step.
        self.events: list[BlockEvent] | None = None
        self.step = 0
        self._empty = capacity
        self._numbers: list[int] = []  # of empty blocks that were used before
        self._used = 0
        self._kept: OrderedDict[Block, None] = OrderedDict()
        self._holders: dict[Content, dict[Block, None]] = {}

    @property
    def free(self) -> int:
        return self._empty + len(self._kept)

    @property
    def held(self) -> int:
        return self.capacity - self.free

    def find(self, content: Content) -> Block | None:
        return next(iter(self._holders.get(content, ())), None)

    def take(self) -> Block:
        """A block without content: an empty one, or the one that was given back first."""
        if self._empty:
            self._empty -= 1
            self.most_filled = max(self.most_filled, self.capacity - self._empty)
            if self._numbers:
                return Block(self._numbers.pop())
            self._used += 1
            return Block(self._used)
        block, _ = self._kept.popitem(last=False)
        assert block.content is not None  # else it would have been empty
        self.note("evicted", None, block.content[0], block.content[2], block)
        self.forget(block)
        self.evicted = True
        return Block(block.number)

    def share(self, block: Block) -> None:
        if not block.users:
            del self._kept[block]
        block.users += 1

    def release(self, block: Block) -> None:
        """Take a block back; of those that keep their content, the first is used again first."""
        block.users -= 1
        if not block.users and block.content is None:
            self._empty += 1
            self._numbers.append(block.number)
        elif not block.users:
            self._kept[block] = None

    def keep(self, block: Block, content: Content) -> None:
        if block.content is None:
            block.content = content
            self._holders.setdefault(content, {})[block] = None
        assert block.content == content

    def note(
        self, event: str, request: LiveRequest | None, group: int, index: int, block: Block, tokens: int | None = None
    ) -> None:
        if self.events is not None:
            of = None if request is None else request.index
            self.events.append(BlockEvent(self.step, event, of, group, index, block.number, block.users, tokens))

    def forget(self, block: Block) -> None:
        if block.content is not None:
            holders = self._holders[block.content]
            del holders[block]
            if not holders:
                del self._holders[block.content]
            block.content = None
