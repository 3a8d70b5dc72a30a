"""The pool of blocks that layers of several kinds share, block by block: who holds which, and what each holds.

Each group of layers (`vllm.kv_groups`) has a table of blocks for each request. Layers that keep all tokens have a
block for each `block_size` tokens. Those with a window give back the blocks behind it. Those with a state have the
block of the latest state, and with prefix caching those of former states from which a later prompt may go on.
(vllm/v1/core/single_type_kv_cache_manager.py, kv_cache_coordinator.py and kv_cache_manager.py of vLLM 0.32.)

Where all layers keep all tokens, `predict.kv_blocks` gets the same result by counting, which is much faster.
"""

from collections.abc import Sequence
from dataclasses import replace

from workflow_scripts.engines.capacity import KvPool
from workflow_scripts.physics.layer_groups import KvGroup
from workflow_scripts.predict.pool_blocks import Block, Blocks, Content, LiveRequest


class Table:
    """Blocks of a group of layers that keep all tokens, or with `reach` only a window or the current chunk of them."""

    def __init__(self, number: int, pool: KvPool, max_model_len: int, blocks: Blocks) -> None:
        self.number, group = number, pool.groups[number]
        self.reach, self.chunked = group.reach, group.chunked
        self.block_size = pool.block_size * group.stretch
        self.most = pool.blocks_of_group(group, max_model_len)
        self.blocks = blocks
        self.of: dict[int, list[Block | None]] = {}
        self.kept: dict[int, int] = {}  # blocks of a request up to which contents are noted
        self.given_back: dict[int, int] = {}  # those that no token looks at any more

    def skipped(self, tokens: int) -> int:
        """Blocks at the beginning that are not needed once `tokens` tokens are computed."""
        if self.reach is None:
            return 0
        if self.chunked:
            return tokens // self.reach * self.reach // self.block_size
        return max(0, tokens - self.reach + 1) // self.block_size

    def needed(self, r: LiveRequest, end: int, hits: Sequence[Block | None], start: int, *, whole: bool) -> int:
        """Free blocks needed for the tokens from `start` up to `end`, which is excluded. With `whole`, when a request
        is admitted, a window needs only the blocks that it holds at one time."""
        required = -(-end // self.block_size)
        if whole:
            required = min(required, self.most)
        held, skipped = len(self.of.get(r.index, ())), self.skipped(start)
        new = max(0, required - max(skipped, len(hits) + held))
        return new + _unused(hits[max(0, skipped - held) :])

    def too_new(self, hits: Sequence[Block | None]) -> bool:
        """Whether the found blocks are only written in this step, so that it cannot use them yet."""
        return False

    def give_back(self, r: LiveRequest, processed: int) -> None:
        """Give back the blocks that no token after the first `processed` tokens attends to."""
        table, first = self.of.get(r.index, []), self.given_back.get(r.index, 0)
        last = max(first, min(self.skipped(processed), len(table)))
        for index in range(last - 1, first - 1, -1):
            self._drop(r, index)
        self.given_back[r.index] = last

    def _drop(self, r: LiveRequest, index: int) -> None:
        block = self.of[r.index][index]
        self.of[r.index][index] = None
        self._release(r, index, block, "freed")

    def _release(self, r: LiveRequest, index: int, block: Block | None, event: str) -> None:
        if block is not None:
            self.blocks.release(block)
            self.blocks.note(event, r, self.number, index, block)

    def adopt(self, r: LiveRequest, hits: Sequence[Block | None], start: int) -> None:
        """Give a request the blocks that were found, as far as it needs them."""
        skipped = self.skipped(start)
        for index, block in enumerate(hits[skipped:], skipped):
            if block is not None:
                self.blocks.share(block)
                self.blocks.note("shared", r, self.number, index, block, start)
        self.of[r.index] = [*[None] * skipped, *hits[skipped:]]
        self.kept[r.index] = len(self.of[r.index])

    def extend(self, r: LiveRequest, end: int) -> None:
        table = self.of.setdefault(r.index, [])
        for _ in range(-(-end // self.block_size) - len(table)):
            table.append(self._taken(r, len(table), end))

    def _taken(self, r: LiveRequest, index: int, end: int) -> Block:
        """A new block for an index in the table of a request, which is to have `end` tokens."""
        block = self.blocks.take()
        event = "allocated" if index * self.block_size < r.prompt else "appended"
        self.blocks.note(event, r, self.number, index, block, end)
        return block

    def keep(self, r: LiveRequest, tokens: int) -> None:
        """Note the contents of full blocks of the first `tokens` tokens from which a later prompt may go on."""
        table, full = self.of[r.index], tokens // self.block_size
        for index in range(self.kept.get(r.index, 0), full):
            block = table[index]
            if block is not None and self.may_be_found(r, index):
                self.blocks.keep(block, self.content(r, index))
        self.kept[r.index] = max(full, self.kept.get(r.index, 0))

    def content(self, r: LiveRequest, index: int) -> Content:
        return self.number, r.owner(index), index

    def may_be_found(self, r: LiveRequest, index: int) -> bool:
        """Whether a later prompt may go on from here; with a window only at the prompt's end or where texts diverge."""
        if self.reach is None or self.chunked:
            return True
        ends = [(r.prompt - 1) // self.block_size, r.junction // self.block_size]
        return any(end - self.window_blocks <= index < end for end in ends)

    @property
    def window_blocks(self) -> int:
        assert self.reach is not None
        return -(-(self.reach - 1) // self.block_size)

    def free(self, r: LiveRequest, event: str) -> None:
        """Give back all blocks of a request, the last first; `event` says why."""
        for indices in (self.kept, self.given_back):
            indices.pop(r.index, None)
        for index, block in reversed([*enumerate(self.of.pop(r.index, []))]):
            self._release(r, index, block, event)


class KeptStateTable(Table):
    """Blocks of a group of layers with a state, with prefix caching: states at the ends of blocks can be found again. A
    step that passes the end of a block writes its state to a new one, and the former one is given back later. With
    `checkpoints`, a prefill also leaves behind the state at the end of its last block (Mamba-2 since vLLM 0.32)."""

    def __init__(self, number: int, pool: KvPool, max_model_len: int, blocks: Blocks) -> None:
        super().__init__(number, pool, max_model_len, blocks)
        self.checkpoints = pool.state_blocks > 2
        self.former: dict[int, int] = {}  # index of the state before the latest
        self.checkpoint: dict[int, int] = {}  # index of the state that the planned chunk leaves behind

    def skipped(self, tokens: int) -> int:
        return max(0, tokens - 1) // self.block_size

    def needed(self, r: LiveRequest, end: int, hits: Sequence[Block | None], start: int, *, whole: bool) -> int:
        held, required = self.of.get(r.index, []), -(-end // self.block_size)
        index = required - 2
        leaves = (
            self.checkpoints
            and end >= max(r.prompt, r.tokens - 1)
            and leaves_a_state(start, end, self.block_size)
            and (index >= len(held) or held[index] is None)
        )
        if leaves and not whole:
            self.checkpoint[r.index] = index
        elif not whole:
            self.checkpoint.pop(r.index, None)
        return min(required - len(hits) - len(held), 1 + leaves) + _unused(hits)

    def too_new(self, hits: Sequence[Block | None]) -> bool:
        return bool(hits) and hits[-1] is not None and hits[-1].content in self.blocks.new

    def give_back(self, r: LiveRequest, processed: int) -> None:
        super().give_back(r, processed)
        former = self.former.get(r.index)
        if former is not None and former < -(-processed // self.block_size) - 1:
            self._drop(r, former)

    def extend(self, r: LiveRequest, end: int) -> None:
        table, required = self.of.setdefault(r.index, []), -(-end // self.block_size)
        leaves = r.index in self.checkpoint
        if required > len(table) or leaves:
            if table:
                self.former[r.index] = len(table) - 1
            table.extend([None] * (required - 1 - leaves - len(table)))
            while len(table) < required:
                table.append(self._taken(r, len(table), end))

    def keep(self, r: LiveRequest, tokens: int) -> None:
        before = self.kept.get(r.index, 0)
        super().keep(r, tokens)
        at_end = (r.prompt - 1) // self.block_size - 1  # the last block from which the same prompt can go on
        table = self.of[r.index]
        if (left := self.checkpoint.get(r.index)) is not None:
            block = table[left]
            assert block is not None  # taken for this chunk
            if left not in (at_end, r.junction // self.block_size - 1):
                self.blocks.forget(block)
            elif block.content is None:
                self._keep_new(block, self.content(r, left))
        elif tokens // self.block_size - 1 == at_end >= 0 and at_end < len(table):
            block = table[at_end]
            if block is not None:
                self._keep_new(block, self.content(r, at_end))
        for block in table[before : self.kept[r.index]]:
            if block is not None and block.content is not None:
                self.blocks.new.add(block.content)

    def _keep_new(self, block: Block, content: Content) -> None:
        self.blocks.keep(block, content)
        self.blocks.new.add(content)

    def may_be_found(self, r: LiveRequest, index: int) -> bool:
        """Whether this is the state at the end of the prompt's last block, or where texts diverge."""
        return index + 1 in ((r.prompt - 1) // self.block_size, r.junction // self.block_size)

    def free(self, r: LiveRequest, event: str) -> None:
        super().free(r, event)
        for indices in (self.former, self.checkpoint):
            indices.pop(r.index, None)


def leaves_a_state(start: int, end: int, block_size: int) -> bool:
    """Whether a chunk of a prompt passes the end of a block after its first, so that it can leave that state behind.

    >>> leaves_a_state(0, 33, 32), leaves_a_state(0, 32, 32), leaves_a_state(8, 70, 32)
    (True, False, False)
    """
    last = (end - 1) // block_size * block_size
    return start % block_size == 0 and start + block_size <= last


def _unused(hits: Sequence[Block | None]) -> int:
    """Blocks that count as free until a request adopts them."""
    return sum(block is not None and not block.users for block in hits)


def _one_block(group: KvGroup, max_model_len: int) -> KvGroup:
    return replace(group, reach=None, stretch=max_model_len) if group.reach == 0 else group


class LayeredPool:
    """The blocks of one device, and a table for each group of layers. `capacity`: blocks that requests can get.
    `caching`: whether blocks keep their content when they are given back."""

    def __init__(self, pool: KvPool, capacity: int, max_model_len: int, *, caching: bool) -> None:
        self.block_size, self.caching = pool.block_size, caching
        self.blocks = Blocks(capacity)
        if not caching:  # a state is overwritten, so its one block serves all tokens
            pool = replace(pool, groups=tuple(_one_block(group, max_model_len) for group in pool.groups))
        self.tables = [
            (KeptStateTable if group.reach == 0 else Table)(number, pool, max_model_len, self.blocks)
            for number, group in enumerate(pool.groups)
        ]
        states = [table for table in self.tables if isinstance(table, KeptStateTable)]
        self.keeps_states, self.leaves_states = bool(states), bool(states) and states[0].checkpoints
        # Groups of one kind are looked up together, those that keep all tokens first.
        kinds: dict[tuple[int | None, bool], list[Table]] = {}
        for table in self.tables:
            kinds.setdefault((table.reach, table.chunked), []).append(table)
        self.kinds = sorted(kinds.values(), key=lambda tables: tables[0].reach is not None)
        self.most_asked = 0
        self.short = False

    def find(self, request: LiveRequest) -> tuple[list[list[Block | None]], int]:
        """What the prefix cache has of a request: blocks of each group, and up to which token."""
        hits: list[list[Block | None]] = [[] for _ in self.tables]
        request.junction = 0
        if not self.caching:
            return hits, 0
        most = request.tokens - 1  # the last token is computed in any case
        longest, looked_up = 0, -1
        while True:
            length = most
            for tables in self.kinds:
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
            if len(self.kinds) == 1 or (len(self.kinds) == 2 and self.kinds[0][0].reach is None):
                break
        for table in self.tables:
            if table.reach is None:
                del hits[table.number][most // self.block_size :]
        request.junction = longest if longest > most else 0
        return hits, most

    def allocate(
        self, request: LiveRequest, tokens: int, hits: Sequence[Sequence[Block | None]] | None = None, start: int = 0
    ) -> bool:
        """Give a request the blocks for its next tokens; False if there are too few. A request that is admitted comes
        with its `hits` in the prefix cache up to `start`, and all its tokens must fit."""
        of_table = hits if hits is not None else [()] * len(self.tables)
        start = request.computed + start
        if hits is not None:
            if any(table.too_new(blocks) for table, blocks in zip(self.tables, hits, strict=True)):
                return False
            if not self._fits(request, request.tokens, of_table, start, whole=True):
                return False
        for table in self.tables:
            table.give_back(request, max(0, start - request.in_flight))
        end = start + tokens
        if not self._fits(request, end, of_table, start, whole=False):
            return False
        if hits is not None:
            for table, blocks in zip(self.tables, hits, strict=True):
                table.adopt(request, blocks, start)
        for table in self.tables:
            table.extend(request, end)
        self.keep(request, min(end, request.tokens))
        return True

    def _fits(
        self, request: LiveRequest, end: int, hits: Sequence[Sequence[Block | None]], start: int, *, whole: bool
    ) -> bool:
        tables = zip(self.tables, hits, strict=True)
        needed = sum(table.needed(request, end, blocks, start, whole=whole) for table, blocks in tables)
        if needed > self.blocks.free:
            self.short = True
            return False
        self.most_asked = max(self.most_asked, self.blocks.held + needed)
        return True

    def keep(self, request: LiveRequest, tokens: int) -> None:
        if self.caching:
            for table in self.tables:
                table.keep(request, tokens)

    def free(self, request: LiveRequest, event: str = "freed") -> None:
        for table in self.tables:
            table.free(request, event)


def _find_kind(tables: Sequence[Table], request: LiveRequest, tokens: int) -> list[list[Block | None] | None]:
    """The longest beginning of at most `tokens` tokens that groups of one kind all have: their blocks, block by block.
    A block is None if no token after the beginning looks at it."""

    def cached(index: int) -> list[Block | None] | None:
        blocks = [table.blocks.find(table.content(request, index)) for table in tables]
        return None if None in blocks else list(blocks)

    first_table = tables[0]
    most = tokens // first_table.block_size
    if first_table.reach is None or first_table.chunked:
        rows: list[list[Block | None] | None] = [None] * first_table.skipped(tokens)
        while len(rows) < most and (row := cached(len(rows))) is not None:
            rows.append(row)
        return rows
    wanted = first_table.window_blocks if first_table.reach else 1
    rows, run = [None] * most, 0
    for index in range(most - 1, -1, -1):
        rows[index] = cached(index)
        run = 0 if rows[index] is None else run + 1
        if run and run >= wanted:
            return [None] * index + rows[index : index + run]
    return rows[:run] if first_table.reach else []  # the beginning may be shorter than a window
