"""Trace which KV blocks each request of a cell gets, shares and gives back, step by step.

    kvsweep trace-blocks --study config/studies/kv_pressure.yaml --out blocks.csv \\
        --cell h100-sxm/vllm/llama-3.1-8b-instruct/chat/bs16-seqs256-len2048-pool513

One row per event; docs/schedule.md describes the events. All of it is predicted from the lengths of the requests, by
the rules of vLLM's scheduler and block manager: no engine runs. With data parallelism it is that of one engine.
"""

from argparse import Namespace
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from workflow_scripts.common.command import command, out
from workflow_scripts.common.csv_rows import with_texts
from workflow_scripts.common.files import write_text
from workflow_scripts.engines.steps import SchedulerSettings
from workflow_scripts.engines.vllm.knobs import VLLM
from workflow_scripts.predict.kv_pool import Block, Evicted, LiveRequest
from workflow_scripts.predict.one_cell import asked_cell, cell_options
from workflow_scripts.predict.predictions import tasks_of
from workflow_scripts.predict.schedule import Schedule, ScheduleError
from workflow_scripts.predict.scheduler import Scheduler, make_schedule
from workflow_scripts.predict.speed import step_time_of
from workflow_scripts.study.study import StudyError


class BlockEvent(NamedTuple):
    """What happens to a block: `event` is allocated (prompt), appended (answer), shared, freed, preempted or evicted.

    `step`: the step before which it happens. `request`: its index; None for evicted. `group`: number of the group of
    layers. `place`: which block of the request's table. `block`: its number, from 1 on in the order of first use.
    `users`: requests that hold it afterwards. `tokens`: of the request, after the step; None if it gives the block
    back.
    """

    step: int
    event: str
    request: int | None
    group: int
    place: int
    block: int
    users: int
    tokens: int | None = None


class Traced(Scheduler):
    """A scheduler that adds to `events` how the tables of blocks differ from one step to the next."""

    counts = False

    def __init__(self, events: list[BlockEvent], *case: Any) -> None:
        super().__init__(*case)
        self.events = events
        self.blocks.evictions = self._evicted = list[Evicted]()
        self._held: dict[tuple[int, int, int], Block] = {}  # by request, group and place
        self._numbers: dict[Block, int] = {}
        self._unused: list[int] = []  # numbers of blocks that are empty again
        self._users: Counter[Block] = Counter()
        self._lost: list[int] = []  # of each request, how often it had lost its blocks

    def run(self) -> Schedule:
        schedule = super().run()
        self._note({})
        return schedule

    def _pass(self, scheduled: dict[LiveRequest, int], preempted: list[LiveRequest]) -> None:
        self._note({request.index: request.computed + tokens for request, tokens in scheduled.items()})
        super()._pass(scheduled, preempted)

    def _note(self, tokens: Mapping[int, int]) -> None:
        held = {
            (request, table.number, place): block
            for table in self.blocks.tables
            for request, of_request in table.held.items()
            for place, block in enumerate(of_request.table)
            if block is not None
        }
        gone = {where: block for where, block in self._held.items() if held.get(where) is not block}
        for where, block in gone.items():
            self._users[block] -= 1
            is_lost = self._lost[where[0]] < self.preemptions[where[0]]
            self._add("preempted" if is_lost else "freed", where, block)
        # One that was taken and lost again before the step has no number.
        evicted = {block: (None, group, place) for block, group, place in self._evicted if block in self._numbers}
        for block, of_evicted in evicted.items():
            self._add("evicted", of_evicted, block)
        for block in dict.fromkeys([*gone.values(), *evicted]):
            if block.content is None and not block.users:
                self._unused.append(self._numbers.pop(block))
        self._evicted.clear()
        for where, block in held.items():
            if self._held.get(where) is not block:
                self._take(where, block, tokens)
        self._held, self._lost = held, self.preemptions.copy()

    def _take(self, where: tuple[int, int, int], block: Block, tokens: Mapping[int, int]) -> None:
        request, group, place = where
        is_of_prompt = place * self.blocks.tables[group].block_size < self.requests.prompt_tokens[request]
        event = "shared" if block in self._numbers else "allocated" if is_of_prompt else "appended"
        if block not in self._numbers:
            self._numbers[block] = self._unused.pop() if self._unused else len(self._numbers) + 1
        self._users[block] += 1
        self._add(event, where, block, tokens[request])

    def _add(self, event: str, where: tuple[int | None, int, int], block: Block, tokens: int | None = None) -> None:
        number, users = self._numbers[block], self._users[block]
        self.events.append(BlockEvent(self.step, event, *where, number, users, tokens))


@command("trace-blocks", *cell_options(VLLM.name), out("CSV file to write"))
def main(args: Namespace) -> None:
    study, cell, prepared = asked_cell(args)
    tasks, untraced = tasks_of(study, [cell], prepared)
    if untraced:
        raise StudyError(f"{cell.id}: {untraced[0].infeasible or untraced[0].unknown}")
    task, of_cell = tasks[0], tasks[0].cells[0]
    if not isinstance(task.decides, SchedulerSettings):
        raise StudyError(f"{cell.id}: static batches have no KV blocks")
    settings = replace(task.decides, num_blocks=of_cell.num_blocks)
    events: list[BlockEvent] = []
    try:
        make_schedule(task.requests, settings, step_time_of(of_cell, task.requests), kind=partial(Traced, events))
    except ScheduleError as e:
        raise StudyError(f"{cell.id}: {e}") from None
    rows = pd.DataFrame(events).assign(cell_id=cell.id, source="predicted")
    write_text(args.out, with_texts(rows.astype({"request": "Int64", "tokens": "Int64"})).to_csv(index=False))
