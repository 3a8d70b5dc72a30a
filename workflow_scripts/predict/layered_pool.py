"""The pool of blocks that groups of layers share: what the prefix cache has of a request, and which blocks it gets.

(vllm/v1/core/kv_cache_manager.py and kv_cache_coordinator.py of vLLM 0.32.)
"""

from collections.abc import Sequence

from workflow_scripts.predict.block_tables import KeptStateTable, StateTable, Table
from workflow_scripts.predict.kv_groups import KvPool
from workflow_scripts.predict.pool_blocks import Block, Blocks, LiveRequest


class LayeredPool:
    """The blocks of one device, and a table for each group of layers. `capacity`: blocks that requests can get.
    `caching`: whether blocks keep their content when they are given back."""

    def __init__(self, pool: KvPool, capacity: int, max_model_len: int, *, caching: bool) -> None:
        self.block_size, self.caching = pool.block_size, caching
        self.blocks = Blocks(capacity)
        of_state = KeptStateTable if caching else StateTable
        self.tables = [
            (of_state if group.reach == 0 else Table)(number, pool, max_model_len, self.blocks)
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
        found: list[list[Block | None]] = [[] for _ in self.tables]
        request.junction = 0
        if not self.caching:
            return found, 0
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
                    found[table.number] = [None if row is None else row[group] for row in rows]
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
                del found[table.number][most // self.block_size :]
        request.junction = longest if longest > most else 0
        return found, most

    def allocate(
        self, request: LiveRequest, tokens: int, found: Sequence[Sequence[Block | None]] | None = None, start: int = 0
    ) -> bool:
        """Give a request the blocks for its next tokens; False if there are too few. A request that is admitted comes
        with what was `found` for it up to `start`, and all its tokens must fit."""
        of_table = found if found is not None else [()] * len(self.tables)
        start = request.computed + start
        if found is not None:
            if any(table.too_new(blocks) for table, blocks in zip(self.tables, found, strict=True)):
                return False
            if not self._fits(request, request.tokens, of_table, start, whole=True):
                return False
        for table in self.tables:
            table.give_back(request, max(0, start - request.in_flight))
        end = start + tokens
        if not self._fits(request, end, of_table, start, whole=False):
            return False
        if found is not None:
            for table, blocks in zip(self.tables, found, strict=True):
                table.adopt(request, blocks, start)
        for table in self.tables:
            table.extend(request, end)
        self.keep(request, min(end, request.tokens))
        return True

    def _fits(
        self, request: LiveRequest, end: int, found: Sequence[Sequence[Block | None]], start: int, *, whole: bool
    ) -> bool:
        tables = zip(self.tables, found, strict=True)
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
    """The longest beginning of at most `tokens` tokens that groups of one kind all have: their blocks, place by place.
    A place is None if no token after the beginning looks at it."""

    def cached(place: int) -> list[Block | None] | None:
        found = [table.blocks.find(table.content(request, place)) for table in tables]
        return None if None in found else list(found)

    one = tables[0]
    most = tokens // one.block_size
    if one.reach is None or one.chunked:
        rows: list[list[Block | None] | None] = [None] * one.skipped(tokens)
        while len(rows) < most and (row := cached(len(rows))) is not None:
            rows.append(row)
        return rows
    wanted = one.window_blocks if one.reach else 1
    rows, run = [None] * most, 0
    for place in range(most - 1, -1, -1):
        rows[place] = cached(place)
        run = 0 if rows[place] is None else run + 1
        if run and run >= wanted:
            return [None] * place + rows[place : place + run]
    return rows[:run] if one.reach else []  # the beginning may be shorter than a window
