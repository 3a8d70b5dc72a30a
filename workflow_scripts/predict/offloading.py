"""Whether KV offloading pays: the time to load blocks from the host's memory against the time to compute their tokens.

docs/hits.md says what is left out.
"""

import math
from bisect import bisect_left
from dataclasses import replace

import numpy as np
from pydantic import JsonValue

from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.engines.steps import SchedulerSettings
from workflow_scripts.predict.public_costs import public_costs
from workflow_scripts.predict.schedule import RequestLengths
from workflow_scripts.predict.scheduler import make_schedule
from workflow_scripts.predict.speed import CellTask, Task, work_of
from workflow_scripts.predict.timing import time_schedule

# How GPUs with such links between them are usually attached to their host.
_HOST_LINKS = {
    "nvlink2": "pcie3",
    "nvlink3": "pcie4",
    "nvlink4": "pcie5",
    "nvlink5": "pcie5",
    "infinity_fabric": "pcie5",
}
# Those that are attached by faster links: NVLink-C2C and PCIe 6.
_FASTER = ("gh200-96gb", "gh200-144gb", "b300")


def host_link(gpu: Gpu) -> tuple[str, float] | None:
    """The link to the host's memory and its bytes per second in one direction; None if it is not known.

    >>> from workflow_scripts.catalog.gpus_and_models import get_gpu
    >>> host_link(get_gpu("h200")), host_link(get_gpu("l40s")), host_link(get_gpu("gh200-96gb"))
    (('pcie5', 52500000000.0), ('pcie4', 26200000000.0), None)
    """
    if gpu.link is None or gpu.name in _FASTER:
        return None
    link = _HOST_LINKS.get(gpu.link, gpu.link)
    return link, public_costs().links[link].bytes_per_s


def worth_of_offloading(
    task: Task, cell: CellTask, bytes_per_block: int, bytes_per_s: float, tokens: int
) -> dict[str, JsonValue] | None:
    """From how many tokens on loading takes less time than computing (None if never), and both times for about this
    many `tokens`, in whole blocks. None if the speed of the device is not known, or no request has two blocks.

    `bytes_per_block`: on each device, over a link of its own with `bytes_per_s`.
    """
    settings, speed = task.decides, cell.speed
    assert isinstance(settings, SchedulerSettings)
    unit = (settings.pool or settings).block_size
    most = (settings.max_model_len - 1) // unit - 1  # beside one that is computed in any case
    if speed is None or most < 1:
        return None
    reaches = [group.reach for group in settings.pool.groups] if settings.pool else [None]

    def loaded_s(blocks: int) -> float:
        needed = [blocks if reach is None else min(blocks, math.ceil(max(1, reach - 1) / unit)) for reach in reaches]
        return sum(needed) * bytes_per_block / bytes_per_s

    def served_s(blocks: int) -> float:
        one = RequestLengths(np.array([blocks * unit]), np.ones(1, dtype=np.int64))
        schedule = make_schedule(one, replace(settings, num_blocks=None))
        return time_schedule(schedule, work_of(schedule, cell, replace(task, requests=one)), speed.costs, one).wall_s

    def computed_s(blocks: int) -> float:
        return max(0.0, round(served_s(blocks + 1) - served_s(1), 9))

    from_blocks = 1 + bisect_left(range(1, most + 1), True, key=lambda count: loaded_s(count) < computed_s(count))
    blocks = min(most, max(1, tokens // unit))
    return {
        "pays_from_tokens": from_blocks * unit if from_blocks <= most else None,
        "tokens": blocks * unit,
        "load_s": loaded_s(blocks),
        "compute_s": computed_s(blocks),
    }
