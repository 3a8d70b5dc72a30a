"""The blocks of a device: which are free, which keep their content, and what happens to each of them."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple, Protocol

# What a block holds: the number of its group, the owner of its tokens, and which block of this owner it is.
Content = tuple[int, int, int]


class Owner(Protocol):
    """What a table must know of a request. `prompt`, `tokens`, `computed`: tokens of its prompt, known so far, and
    computed. `in_flight`: computed in steps that still run. `junction`: tokens of its prompt that some groups of layers
    found, if all found fewer; else 0."""

    index: int
    prompt: int
    tokens: int
    computed: int
    in_flight: int
    junction: int

    def owner(self, block: int) -> int:
        """Whose tokens a block of its text holds: a shared text's, or its own."""


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
    """A block that a request holds, or that keeps its content until it is needed."""

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
        """Blocks that can be taken."""
        return self._empty + len(self._kept)

    @property
    def held(self) -> int:
        """Blocks that requests hold."""
        return self.capacity - self.free

    def find(self, content: Content) -> Block | None:
        """A block with this content."""
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
        """Give a block to one more request."""
        if not block.users:
            del self._kept[block]
        block.users += 1

    def release(self, blocks: Iterable[Block | None]) -> None:
        """Take blocks back; of those that keep their content, the first is used again first."""
        for block in blocks:
            if block is not None:
                block.users -= 1
                if not block.users and block.content is None:
                    self._empty += 1
                    self._numbers.append(block.number)
                elif not block.users:
                    self._kept[block] = None

    def keep(self, block: Block, content: Content) -> None:
        """Note what a block holds."""
        if block.content is None:
            block.content = content
            self._holders.setdefault(content, {})[block] = None
        assert block.content == content

    def note(
        self, event: str, request: Owner | None, group: int, place: int, block: Block, tokens: int | None = None
    ) -> None:
        """Add an event to the list, if there is one."""
        if self.events is not None:
            index = None if request is None else request.index
            self.events.append(BlockEvent(self.step, event, index, group, place, block.number, block.users, tokens))

    def forget(self, block: Block) -> None:
        """A block no longer holds what it held."""
        if block.content is not None:
            holders = self._holders[block.content]
            del holders[block]
            if not holders:
                del self._holders[block.content]
            block.content = None
