"""The KV blocks of one device, which groups of layers share: who holds them, and which of them keep their content.

Each group of layers (`engines.vllm.kv_groups`) has a table of blocks for each request. Layers that keep all tokens have
a block for each `block_size` tokens. Those with a window give back the blocks behind it. Those with a state have the
block of the latest state, and with prefix caching those of former states from which a later prompt may go on.
(vllm/v1/core/single_type_kv_cache_manager.py, kv_cache_coordinator.py, kv_cache_manager.py and block_pool.py of vLLM
0.32.)

With prefix caching a block that is given back keeps its content until it is needed for something else; the block that
was given back first is used first.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from workflow_scripts.engines.capacity import KvPool

# What a block holds: the number of its group, the owner of its tokens, and which block of a request it is.
Content = tuple[int, int, int]


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request while it is served. `prompt`, `last`: tokens of its prompt, and with its answer. `runs`: of blocks that
    prompts share; `shared_blocks`: block by block, if these are listed. `goal`: tokens to compute before it decodes:
    its prompt, and what it had generated when it was preempted. `computed`: so many are; while it is in the group of
    decoding requests, which its `birth` shows, the group knows it. `junction`: tokens of its prompt that some groups of
    layers found, if all found fewer; else 0. `lost`: how often it lost its blocks with no other running, and `lost_at`
    its goal then."""

    index: int
    prompt: int
    last: int
    runs: Sequence[range]
    shared_blocks: Sequence[int]
    goal: int
    computed: int = 0
    junction: int = 0
    birth: int | None = None
    lost: int = 0
    lost_at: int = 0

    def owner(self, block: int) -> int:
        """Whose tokens a block of its text holds: a number for shared ones, or its own."""
        return self.shared_blocks[block] if block < len(self.shared_blocks) else -1 - self.index


class Lookup(NamedTuple):
    """What the prefix cache had of a request when it was admitted.

    `goal`: tokens that it is to have computed. `found`: tokens found. `kept`: those found if no block had ever lost its
    content. `lost`: of the first block that is missing for these, the steps in which it was given back and evicted.
    """

    step: int
    request: int
    goal: int
    found: int
    kept: int
    lost: tuple[int, int] | None


@dataclass(slots=True, eq=False)
class Block:
    """A block that requests hold, or that keeps its content until it is needed. `count` blocks of one request that
    follow each other are one object if they are only counted; the last of them is used again first. `since`: the step
    in which it was given back."""

    count: int = 1
    content: Content | None = None
    users: int = 1
    since: int = 0


# A block that lost its content, its group of layers, and which block of a request it was.
Evicted = tuple[Block, int, int]
# What the prefix cache has of a request: blocks of each group; None for one that it does not need.
Hits = Sequence[Sequence[Block | None]]


@dataclass(slots=True)
class Held:
    """What a request holds in a group of layers. `table`: its blocks; None for one that it does not need. Of these the
    first `kept` have their contents noted, and no token looks at the first `dropped` any more. `former`: index of the
    state before the latest. `checkpoint`: index of the state that the planned chunk leaves behind."""

    table: list[Block | None] = field(default_factory=list)
    kept: int = 0
    dropped: int = 0
    former: int | None = None
    checkpoint: int | None = None


class BlockTable:
    """Blocks of a group of layers that keep all tokens, or with `reach` only a window of them."""

    def __init__(self, number: int, pool: KvPool, max_model_len: int, blocks: "BlockPool") -> None:
        self.number, group = number, pool.groups[number]
        # A prompt may go on from the state after its last token as it does from a window of the two tokens around it.
        self.reach = 2 if group.reach == 0 else group.reach
        self.block_size = int(pool.block_size * group.stretch)
        self.most = pool.blocks_of_group(group, max_model_len)
        self.blocks = blocks
        self.held: defaultdict[int, Held] = defaultdict(Held)  # of each request

    def skipped(self, tokens: int) -> int:
        """Blocks at the beginning that are not needed once `tokens` tokens are computed."""
        if self.reach is None:
            return 0
        return max(0, tokens - self.reach + 1) // self.block_size

    def needed(self, r: LiveRequest, end: int, hits: Sequence[Block | None], start: int, *, whole: bool) -> int:
        """Free blocks needed for the tokens from `start` up to `end`, which is excluded. With `whole`, when a request
        is admitted, a window needs only the blocks that it holds at one time."""
        required = -(-end // self.block_size)
        if whole:
            required = min(required, self.most)
        held, skipped = len(self.held[r.index].table), self.skipped(start)
        new = max(0, required - max(skipped, len(hits) + held))
        return new + _unused(hits[max(0, skipped - held) :])

    def drop_behind(self, r: LiveRequest, processed: int) -> None:
        """Give back the blocks that no token after the first `processed` tokens attends to."""
        if self.reach is None:
            return
        held = self.held[r.index]
        last = max(held.dropped, min(self.skipped(processed), len(held.table)))
        for index in range(last - 1, held.dropped - 1, -1):
            self._drop(r, index)
        held.dropped = last

    def _drop(self, r: LiveRequest, index: int) -> None:
        table = self.held[r.index].table
        block, table[index] = table[index], None
        if block is not None:
            self.blocks.release(block)

    def adopt(self, r: LiveRequest, hits: Sequence[Block | None], start: int) -> None:
        """Give a request the blocks that were found, as far as it needs them."""
        held, skipped = self.held[r.index], self.skipped(start)
        for block in hits[skipped:]:
            if block is not None:
                self.blocks.share(block)
        held.table = [*[None] * skipped, *hits[skipped:]]
        held.kept = len(held.table)

    def extend(self, r: LiveRequest, start: int, end: int) -> None:
        """Take blocks for the tokens from `start` up to `end`."""
        table = self.held[r.index].table
        for _ in range(len(table), -(-end // self.block_size)):
            table.append(self.blocks.take_one())

    def keep(self, r: LiveRequest, tokens: int) -> None:
        """Note the contents of full blocks of the first `tokens` tokens from which a later prompt may go on."""
        held, full = self.held[r.index], tokens // self.block_size
        for index in range(held.kept, full):
            block = held.table[index]
            if block is not None and self.may_be_found(r, index):
                self.blocks.keep(block, self.content(r, index))
        held.kept = max(full, held.kept)

    def content(self, r: LiveRequest, index: int) -> Content:
        return self.number, r.owner(index), index

    def may_be_found(self, r: LiveRequest, index: int) -> bool:
        """Whether a later prompt may go on from here; with a window or a state only at the end of the prompt's last
        block, or where texts diverge."""
        if self.reach is None:
            return True
        ends = [(r.prompt - 1) // self.block_size, r.junction // self.block_size]
        return any(end - self.window_blocks <= index < end for end in ends)

    @property
    def window_blocks(self) -> int:
        assert self.reach is not None
        return -(-(self.reach - 1) // self.block_size)

    def free(self, r: LiveRequest, known: int, *, preempted: bool) -> None:
        """Give back all blocks of a request, the last first. `known`: its tokens that are known. `preempted`: whether
        it will look for them."""
        for index in reversed(range(len(self.held[r.index].table))):
            self._drop(r, index)
        del self.held[r.index]


class KeptStateTable(BlockTable):
    """Blocks of a group of layers with a state, with prefix caching: states at the ends of blocks can be found again. A
    step that passes the end of a block writes its state to a new one, and the former one is given back later. With
    `checkpoints`, a prefill also leaves behind the state at the end of its last block (Mamba-2 since vLLM 0.32)."""

    def __init__(self, number: int, pool: KvPool, max_model_len: int, blocks: "BlockPool") -> None:
        super().__init__(number, pool, max_model_len, blocks)
        self.checkpoints = pool.state_blocks > 2

    def needed(self, r: LiveRequest, end: int, hits: Sequence[Block | None], start: int, *, whole: bool) -> int:
        held, required = self.held[r.index], -(-end // self.block_size)
        index = required - 2
        leaves = (
            self.checkpoints
            and end >= max(r.prompt, r.goal - 1)
            and leaves_a_state(start, end, self.block_size)
            and (index >= len(held.table) or held.table[index] is None)
        )
        if not whole:
            held.checkpoint = index if leaves else None
        return min(required - len(hits) - len(held.table), 1 + leaves) + _unused(hits)

    def too_new(self, hits: Sequence[Block | None]) -> bool:
        """Whether the found blocks are only written in this step, so that it cannot use them yet."""
        return bool(hits) and hits[-1] is not None and hits[-1].content in self.blocks.new

    def drop_behind(self, r: LiveRequest, processed: int) -> None:
        super().drop_behind(r, processed)
        former = self.held[r.index].former
        if former is not None and former < -(-processed // self.block_size) - 1:
            self._drop(r, former)

    def extend(self, r: LiveRequest, start: int, end: int) -> None:
        held, required = self.held[r.index], -(-end // self.block_size)
        leaves = held.checkpoint is not None
        if required > len(held.table) or leaves:
            if held.table:
                held.former = len(held.table) - 1
            held.table.extend([None] * (required - 1 - leaves - len(held.table)))
            super().extend(r, start, end)

    def keep(self, r: LiveRequest, tokens: int) -> None:
        held = self.held[r.index]
        before, left = held.kept, held.checkpoint
        super().keep(r, tokens)
        at_end = (r.prompt - 1) // self.block_size - 1  # the last block from which the same prompt can go on
        written = held.table[before : held.kept]
        if left is not None and left not in (at_end, r.junction // self.block_size - 1):
            if (block := held.table[left]) is not None:
                self.blocks.forget(block)
        elif left is not None or tokens // self.block_size - 1 == at_end:
            index = at_end if left is None else left
            if 0 <= index < len(held.table) and (block := held.table[index]) is not None:
                self.blocks.keep(block, self.content(r, index))
                written.append(block)
        self.blocks.new.update(block.content for block in written if block is not None and block.content is not None)


class CountedTable(BlockTable):
    """Blocks of the only group of layers, which keep all tokens, counted instead of listed. Three kinds of blocks
    suffice to find every hit in the prefix cache: those of a run that several prompts begin with are one object, or a
    few if it was computed in chunks or partly evicted; full blocks of only one request, which only that request can
    hit, when it comes back from a preemption, are one object; the block that is not full holds nothing that could be
    hit."""

    def __init__(self, number: int, pool: KvPool, max_model_len: int, blocks: "BlockPool") -> None:
        super().__init__(number, pool, max_model_len, blocks)
        self.reached: dict[int, int] = {}  # blocks of a run that were ever kept, by its first number

    def _count(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def needed(self, r: LiveRequest, end: int, hits: Sequence[Block | None], start: int, *, whole: bool) -> int:
        blocks = self._count(end) - self._count(start)
        return blocks + _unused(hits) if hits else blocks

    def find(self, r: LiveRequest, tokens: int) -> tuple[Hits, int]:
        """The blocks of the longest beginning of at most `tokens` tokens that the cache has, and its tokens."""
        hits: list[Block | None] = []
        blocks = last = 0
        for run in r.runs:
            first, last = run.start - last, last + len(run)
            while blocks < min(last, tokens // self.block_size):
                if (block := self.blocks.found((self.number, first + blocks, blocks))) is None:
                    return [hits], blocks * self.block_size
                hits.append(block)
                blocks += block.count
        # After the shared ones those of the request itself, if it was preempted.
        if block := self.blocks.found((self.number, -1 - r.index, last)):
            hits.append(block)
            blocks += block.count
        return [hits], blocks * self.block_size

    def explained(self, r: LiveRequest, found: int) -> tuple[int, tuple[int, int] | None]:
        """Tokens of a prompt that would be found had no block lost its content, where `found` tokens are, and when the
        first missing block lost it."""
        kept, missing, lost = 0, found // self.block_size, None
        for run in r.runs:
            if kept <= missing < kept + len(run):
                lost = self.blocks.lost.get((self.number, run.start + missing - kept, missing))
            reached = self.reached.get(run.start, 0)
            kept += reached
            if reached < len(run):
                break
        kept = min(kept, (r.goal - 1) // self.block_size) * self.block_size
        return (kept, lost) if kept > found else (found, None)

    def adopt(self, r: LiveRequest, hits: Sequence[Block | None], start: int) -> None:
        for block in hits:
            assert block is not None
            assert block.content is not None
            self.blocks.share(block)
            if block.content[1] < 0:  # only this request's
                self.blocks.forget(block)
            else:
                self.held[r.index].table.append(block)
                self.held[r.index].kept += block.count

    def extend(self, r: LiveRequest, start: int, end: int) -> None:
        self.blocks.take(self._count(end) - self._count(start))

    def keep(self, r: LiveRequest, tokens: int) -> None:
        held, last = self.held[r.index], 0
        for run in r.runs:
            first, last = run.start - last, last + len(run)
            if held.kept < (end := min(last, tokens // self.block_size)):
                block = Block(count=end - held.kept)
                self.blocks.keep(block, (self.number, first + held.kept, held.kept))
                self.reached[run.start] = max(end - last + len(run), self.reached.get(run.start, 0))
                held.table.append(block)
                held.kept = end

    def free(self, r: LiveRequest, known: int, *, preempted: bool) -> None:
        held = self.held.pop(r.index, _NOTHING)
        own = known // self.block_size - held.kept if self.blocks.caching else 0
        run = None
        if own:
            run, content = Block(count=own), (self.number, -1 - r.index, held.kept)
            if preempted:
                self.blocks.keep(run, content)
            else:  # nobody will look for it
                run.content = content
        self.blocks.release_counted(self._count(r.computed) - own - held.kept, run)
        for block in reversed(held.table):
            if block is not None:
                self.blocks.release(block)


_NOTHING = Held()


def leaves_a_state(start: int, end: int, block_size: int) -> bool:
    """Whether a chunk of a prompt passes the end of a block after its first, so that it can leave that state behind.

    >>> leaves_a_state(0, 33, 32), leaves_a_state(0, 32, 32), leaves_a_state(8, 70, 32)
    (True, False, False)
    """
    last = (end - 1) // block_size * block_size
    return start % block_size == 0 and start + block_size <= last


def _unused(hits: Sequence[Block | None]) -> int:
    """Blocks that count as free until a request adopts them."""
    return sum(block.count for block in hits if block is not None and not block.users)


class BlockPool:
    """The free and the kept blocks of one device, and a table for each group of layers. Blocks that keep nothing are
    counted, and used first. `capacity`: blocks that requests can get. `caching`: whether blocks keep their content when
    they are given back. `counted`: whether blocks are counted, where all layers keep all tokens. `lookups` collects
    what each admitted request finds, `evictions` the blocks that lost their content."""

    def __init__(self, pool: KvPool, capacity: int, max_model_len: int, *, caching: bool, counted: bool) -> None:
        self.capacity = self.free = self._empty = capacity
        self.block_size, self.caching = pool.block_size, caching
        self.most_filled = self.most_asked = 0
        self.short = False
        self.evicted, self.evicted_shared = False, 0  # whether any block, and how many of texts that prompts share
        # Contents that the planned step writes: no state can be taken from them yet.
        self.new: set[Content] = set()
        self.lookups: list[Lookup] | None = None
        self.evictions: list[Evicted] | None = None
        self.step = 0  # the number of the planned step
        self._kept: OrderedDict[Block, None] = OrderedDict()
        self._holders: dict[Content, dict[Block, None]] = {}
        # If lookups are explained: every content that was ever kept, and when those that were evicted were last; of
        # several blocks that are one object the first that was.
        self.ever: dict[Content, dict[Block, None]] = {}
        self.lost: dict[Content, tuple[int, int]] = {}

        if not caching:  # a state is overwritten, so its one block serves all tokens
            groups = [replace(g, reach=None, stretch=max_model_len) if g.reach == 0 else g for g in pool.groups]
            pool = replace(pool, groups=tuple(groups))
        kinds = [
            CountedTable if counted else KeptStateTable if group.reach == 0 else BlockTable for group in pool.groups
        ]
        self.tables = [kind(number, pool, max_model_len, self) for number, kind in enumerate(kinds)]
        self.counting = self.tables[0] if isinstance(self.tables[0], CountedTable) else None
        self.states = [table for table in self.tables if isinstance(table, KeptStateTable)]
        # Groups of one kind are looked up together, those that keep all tokens first.
        of_kind: defaultdict[int | None, list[BlockTable]] = defaultdict(list)
        for group, table in zip(pool.groups, self.tables, strict=True):
            of_kind[group.reach].append(table)
        self._kinds = sorted(of_kind.values(), key=lambda tables: tables[0].reach is not None)
        self._no_hits: Hits = [()] * len(self.tables)

    @property
    def held(self) -> int:
        return self.capacity - self.free

    def found(self, content: Content) -> Block | None:
        return next(iter(self._holders.get(content, ())), None)

    def take(self, count: int) -> None:
        """Take blocks without content: empty ones, then those that were given back first."""
        self.free -= count
        self._empty -= count
        while self._empty < 0:
            self.most_filled = self.capacity
            block = next(iter(self._kept))
            assert block.content is not None  # else it would have been empty
            group, owner, place = block.content
            count = min(block.count, -self._empty)
            block.count -= count
            self._empty += count
            self.evicted = True
            if owner >= 0:
                self.evicted_shared += count
                if self.lookups is not None:
                    self.lost[group, owner + block.count, place + block.count] = block.since, self.step
            if not block.count:
                if self.evictions is not None:
                    self.evictions.append((block, group, place))
                del self._kept[block]
                self.forget(block)

    def take_one(self) -> Block:
        self.take(1)
        self.most_filled = max(self.most_filled, self.capacity - self._empty)
        return Block()

    def share(self, block: Block) -> None:
        if not block.users:
            del self._kept[block]
            self.free -= block.count
        block.users += 1

    def release(self, block: Block) -> None:
        block.users -= 1
        if block.users:
            return
        self.free += block.count
        block.since = self.step
        if block.content is None:
            self._empty += 1
        else:
            self._kept[block] = None

    def release_counted(self, empty: int, run: Block | None) -> None:
        """Take back blocks that were only counted: those without content, and those with."""
        self.most_filled = max(self.most_filled, self.capacity - self._empty)
        self._empty += empty
        self.free += empty
        if run is not None:
            run.users, run.since = 0, self.step
            self.free += run.count
            self._kept[run] = None

    def keep(self, block: Block, content: Content) -> None:
        if block.content is None:
            block.content = content
            self._holders.setdefault(content, {})[block] = None
            if self.lookups is not None:
                self.ever.setdefault(content, {block: None})
        assert block.content == content

    def forget(self, block: Block) -> None:
        if block.content is not None and (holders := self._holders.get(block.content)):
            holders.pop(block, None)
            if not holders:
                del self._holders[block.content]
        block.content = None

    def find(self, request: LiveRequest) -> tuple[Hits, int]:
        """What the prefix cache has of a request: blocks of each group, and up to which token."""
        if not self.caching:
            return self._no_hits, 0
        if self.counting is not None:
            return self.counting.find(request, request.goal - 1)
        hits: list[list[Block | None]] = [[] for _ in self.tables]
        request.junction = 0
        most = request.goal - 1  # the last token is computed in any case
        longest, looked_up = 0, -1
        while True:
            length = most
            for tables in self._kinds:
                if tables[0].reach is None and looked_up >= 0:
                    length = min(length, looked_up)
                    continue
                rows = _find_kind(tables, request, length)
                for group, table in enumerate(tables):
                    hits[table.number] = [None if row is None else row[group] for row in rows]
                length = len(rows) * self.block_size
                if tables[0].reach is None:
                    looked_up = length
                longest = max(longest, length)
            if length >= most:
                break
            most = length
            if len(self._kinds) == 1 or (len(self._kinds) == 2 and self._kinds[0][0].reach is None):
                break
        for table in self.tables:
            if table.reach is None:
                del hits[table.number][most // self.block_size :]
        request.junction = longest if longest > most else 0
        return hits, most

    def explained(self, request: LiveRequest, found: int) -> Lookup:
        """A lookup that found the first `found` tokens, and what it would have found had no block lost its content."""
        if self.counting is not None:
            return Lookup(self.step, request.index, request.goal, found, *self.counting.explained(request, found))
        junction, holders = request.junction, self._holders
        self._holders = self.ever
        _, kept = self.find(request)
        request.junction, self._holders = junction, holders
        contents = (
            table.content(request, index)
            for table in self.tables
            for index in range(found // table.block_size, kept // table.block_size)
        )
        lost = (self.lost[content] for content in contents if content in self.lost and self.found(content) is None)
        return Lookup(self.step, request.index, request.goal, found, kept, next(lost, None))

    def admit(self, request: LiveRequest, end: int, hits: Hits, start: int) -> bool:
        """Give a request that waits its `hits` in the prefix cache up to token `start`, and the blocks up to token
        `end`; False if not all its tokens fit."""
        if any(table.too_new(hits[table.number]) for table in self.states):
            return False
        if not self._fits(request, request.goal, hits, start, whole=True):
            return False
        # Of windows and states those up to `end` may be more.
        if self.counting is None and not self._fits(request, end, hits, start, whole=False):
            return False
        if self.lookups is not None:
            self.lookups.append(self.explained(request, start))
        for table in self.tables:
            table.adopt(request, hits[table.number], start)
        request.computed = start
        self._extend(request, end, end)
        return True

    def allocate(self, request: LiveRequest, end: int, known: int, in_flight: int) -> bool:
        """Give a request the blocks up to token `end`; False if there are too few. Of its tokens `known` are, and
        `in_flight` of the computed ones are of a step that still runs."""
        for table in self.tables:
            table.drop_behind(request, max(0, request.computed - in_flight))
        if not self._fits(request, end, self._no_hits, request.computed, whole=False):
            return False
        self._extend(request, end, known)
        return True

    def _extend(self, request: LiveRequest, end: int, known: int) -> None:
        for table in self.tables:
            table.extend(request, request.computed, end)
        if request.runs or self.counting is None:
            self.remember(request, known)

    def remember(self, request: LiveRequest, known: int) -> None:
        """Note the contents of full blocks of the first `known` tokens."""
        if self.caching:
            for table in self.tables:
                table.keep(request, known)

    def give_back(self, request: LiveRequest, known: int, *, preempted: bool) -> None:
        for table in self.tables:
            table.free(request, known, preempted=preempted)

    def _fits(self, request: LiveRequest, end: int, hits: Hits, start: int, *, whole: bool) -> bool:
        needed = 0
        for table in self.tables:
            needed += table.needed(request, end, hits[table.number], start, whole=whole)
        if needed > self.free:
            self.short = True
            return False
        self.most_asked = max(self.most_asked, self.held + needed)
        return True


def _find_kind(tables: Sequence[BlockTable], request: LiveRequest, tokens: int) -> list[list[Block | None] | None]:
    """The longest beginning of at most `tokens` tokens that groups of one kind all have: their blocks, block by block.
    A block is None if no token after the beginning looks at it."""

    def cached(index: int) -> list[Block | None] | None:
        blocks = [table.blocks.found(table.content(request, index)) for table in tables]
        return None if None in blocks else list(blocks)

    first_table = tables[0]
    most = tokens // first_table.block_size
    if first_table.reach is None:
        rows: list[list[Block | None] | None] = []
        while len(rows) < most and (row := cached(len(rows))) is not None:
            rows.append(row)
        return rows
    rows, run = [None] * most, 0
    for index in range(most - 1, -1, -1):
        rows[index] = cached(index)
        run = 0 if rows[index] is None else run + 1
        if run and run >= first_table.window_blocks:
            return [None] * index + rows[index : index + run]
    return rows[:run]  # the beginning may be shorter than a window
