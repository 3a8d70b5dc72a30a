"""What the scheduler counts instead of listing: KV blocks of a device, and the sequences that decode.

With prefix caching a freed block of vLLM's pool keeps its content until it is needed for something else; the block that
was freed first is used first. So the free blocks form a queue: blocks that hold nothing at the front, then runs of full
blocks. Three kinds of blocks suffice to find every cache hit (vllm/v1/core/block_pool.py):

- blocks of a text that several prompts begin with: each has its own place in the queue and a count of its users;
- full blocks of only one request, which only that request can hit, when it comes back from a preemption: a run
  in the queue, of which the last block is used first;
- the rest, the block that is not full: it holds nothing that could be hit.
"""

from collections import OrderedDict
from collections.abc import Sequence


class SharedBlock:
    """A full block of a text with which several prompts begin."""

    __slots__ = ("content", "users")

    def __init__(self, content: int) -> None:
        self.content = content
        self.users = 1


class BlockPool:
    """The blocks of one device. `capacity`: those that requests can get, without the one that the engine reserves.
    `caching`: whether blocks keep their content when they are freed. `shared_contents`: for each request, numbers that
    identify the contents of its prompt's leading blocks, as far as other prompts may have them too; empty without
    caching.
    """

    def __init__(self, capacity: int, block_size: int, caching: bool, shared_contents: Sequence[Sequence[int]]) -> None:
        self.capacity = capacity
        self.free = capacity
        self.block_size = block_size
        self.caching = caching
        self.shared_contents = shared_contents
        self.evicted_shared = 0  # blocks of shared texts
        self.most_filled = 0
        self._empty = capacity
        self._evictable: OrderedDict[int | SharedBlock, int] = OrderedDict()
        self._holders: dict[int, list[SharedBlock]] = {}
        self._shared_of: dict[int, list[SharedBlock]] = {}

    @property
    def held(self) -> int:
        return self.capacity - self.free

    def take(self, count: int) -> None:
        self.free -= count
        self._empty -= count  # those that hold nothing come first
        if self._empty < 0:
            self.most_filled = self.capacity
        while self._empty < 0:
            owner, blocks = next(iter(self._evictable.items()))
            if blocks > -self._empty:
                self._evictable[owner] = blocks + self._empty
                self._empty = 0
                return
            del self._evictable[owner]
            self._empty += blocks
            if isinstance(owner, SharedBlock):
                self.evicted_shared += 1
                holders = self._holders[owner.content]
                holders.remove(owner)
                if not holders:
                    del self._holders[owner.content]

    def lookup(self, request: int, most_blocks: int) -> tuple[list[SharedBlock], int]:
        """Leading blocks of a waiting request that are still there: the shared ones, and the number of its own; at most
        `most_blocks`, because the last token must be computed anyway."""
        shared: list[SharedBlock] = []
        contents = self.shared_contents[request]
        for content in contents[:most_blocks]:
            if content not in self._holders:
                return shared, 0
            shared.append(self._holders[content][0])
        return shared, min(self._evictable.get(request, 0), most_blocks - len(shared))

    def adopt(self, request: int, shared: list[SharedBlock], own: int) -> None:
        for block in shared:
            if not block.users:
                del self._evictable[block]
                self.free -= 1
            block.users += 1
        if shared:
            self._shared_of[request] = shared
        if own:
            del self._evictable[request]
            self.free -= own

    def fill(self, request: int, tokens: int) -> None:
        """Note that a prompt is computed up to `tokens` tokens: its shared blocks can be hit from now on."""
        contents = self.shared_contents[request]
        if not contents:
            return
        mine = self._shared_of.setdefault(request, [])
        for content in contents[len(mine) : tokens // self.block_size]:
            block = SharedBlock(content)
            self._holders.setdefault(content, []).append(block)
            mine.append(block)

    def release(self, request: int, blocks: int, full_blocks: int) -> None:
        """Take back a request's blocks, the last first; the contents of the first `full_blocks` are known."""
        self.most_filled = max(self.most_filled, self.capacity - self._empty)
        if not self.caching:
            full_blocks = 0
        shared = self._shared_of.pop(request, [])
        own = full_blocks - len(shared)
        self._empty += blocks - full_blocks
        if own:
            self._evictable[request] = own
        self.free += blocks - len(shared)
        for block in reversed(shared):
            block.users -= 1
            if not block.users:
                self._evictable[block] = 1
                self.free += 1


class DecodeGroup:
    """What a group of decoding sequences does in any step, without visiting each sequence.

    A sequence is represented by its birth: the step before which it would have computed nothing, had it always been
    decoding. Before step t it has computed t - birth tokens, and it takes a block in step t if that is a multiple of
    the block size. So the group only needs the sum of births and, for each remainder, their number.

    >>> group = DecodeGroup(block_size=4)
    >>> group.join(birth=-4)
    >>> group.join(birth=-6)
    >>> group.kv_tokens(step=0)
    12
    >>> [group.blocks(step, 1) for step in range(6)]
    [1, 0, 1, 0, 1, 0]
    """

    def __init__(self, block_size: int) -> None:
        self.size = 0
        self._block_size = block_size
        self._sum_of_births = 0
        self._by_remainder = [0] * block_size

    def join(self, birth: int) -> None:
        self.size += 1
        self._sum_of_births += birth
        self._by_remainder[birth % self._block_size] += 1

    def leave(self, birth: int) -> None:
        self.size -= 1
        self._sum_of_births -= birth
        self._by_remainder[birth % self._block_size] -= 1

    def kv_tokens(self, step: int) -> int:
        return self.size * (step + 1) - self._sum_of_births

    def blocks(self, step: int, steps: int) -> int:
        """Blocks that the group takes in `steps` steps, beginning with `step`."""
        cycles, rest = divmod(steps, self._block_size)
        first = step % self._block_size
        beyond = max(0, first + rest - self._block_size)
        return cycles * self.size + sum(self._by_remainder[first : first + rest]) + sum(self._by_remainder[:beyond])

    def steps_with(self, blocks: int, step: int) -> int:
        """Number of steps, beginning with `step`, for which this many blocks suffice; the group must not be empty."""
        # Each sequence takes one block every `block_size` steps.
        cycles, left = divmod(blocks, self.size)
        steps = cycles * self._block_size
        while (taken := self._by_remainder[(step + steps) % self._block_size]) <= left:
            left -= taken
            steps += 1
        return steps
