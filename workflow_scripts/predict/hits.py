"""Say where prompt tokens go in the prefix cache: found or why not, and what would find more.

    kvsweep hits --model llama-3.1-8b-instruct --gpu h100-sxm --block-size 16 \\
        --num-gpu-blocks-override 8193 --trace tests/fixtures/traces/mooncake.jsonl

The prompts are those of a trace with hashes (`--trace`), of a study's workload (`--study STUDY --workload NAME`), or of
a cell of a study (`--study STUDY --cell ID`); for a measured cell, whose `raw/requests.jsonl` may be given as its ID,
what was found is printed too. All else is predicted: no engine runs. docs/hits.md explains the numbers.
"""

import json
import math
from argparse import Namespace
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from workflow_scripts.catalog.gpus_and_models import Gpu, load_gpus
from workflow_scripts.common.command import above_zero, command, option
from workflow_scripts.common.files import numbered_jsonl
from workflow_scripts.engines.capacity import Capacity
from workflow_scripts.engines.registry import capacity_of, get_engine
from workflow_scripts.engines.steps import SchedulerSettings
from workflow_scripts.engines.vllm.knobs import VLLM_SERVE
from workflow_scripts.engines.vllm.memory import GIB
from workflow_scripts.physics.step_time import FloatArray, IntArray
from workflow_scripts.predict.one_cell import REQUESTS, asked_cell, cell_options
from workflow_scripts.predict.predictions import tasks_of
from workflow_scripts.predict.prefix_hits import OF_PREEMPTED, OF_PROMPT, PrefixHits, curve, knee, prefix_hits
from workflow_scripts.predict.public_costs import public_costs
from workflow_scripts.predict.schedule import RequestLengths, ScheduleError
from workflow_scripts.predict.scheduler import make_schedule
from workflow_scripts.predict.speed import step_time_of, work_of
from workflow_scripts.predict.timing import time_schedule
from workflow_scripts.study.grid import Cell
from workflow_scripts.study.paths import RAW, StudyPaths
from workflow_scripts.study.study import Study, StudyError

BLOCK_SIZES = (16, 32, 64, 128)


class Case:
    """A cell whose prefix cache is looked at. Raises StudyError if it has none that can be predicted."""

    def __init__(self, study: Study, cell: Cell, prepared: Path | None) -> None:
        self.cell = cell
        tasks, unpredictable = tasks_of(study, [cell], prepared)
        if unpredictable:
            raise StudyError(f"{cell.id}: {unpredictable[0].infeasible or unpredictable[0].unknown}")
        self.task = task = tasks[0]
        self.of_cell = task.cells[0]
        if not isinstance(task.decides, SchedulerSettings) or not task.decides.enable_prefix_caching:
            raise StudyError(f"{cell.id}: it has no prefix cache; allowed: vllm or vllm-serve, with prefix caching on")
        self.settings = replace(task.decides, num_blocks=self.of_cell.num_blocks)
        asked = (get_engine(cell.engine), cell.knobs, load_gpus()[cell.gpu], self.of_cell.facts, cell.environment)
        self.bytes_per_block = int((capacity_of(*asked) or Capacity({})).value("bytes_per_block") or 0)
        self.step_time = step_time_of(self.of_cell, task.requests)

    def hits(self, requests: RequestLengths | None = None) -> PrefixHits:
        try:
            return prefix_hits(requests or self.task.requests, self.settings, self.step_time)
        except ScheduleError as e:
            raise StudyError(f"{self.cell.id}: {e}") from None

    def gib(self, blocks: int) -> float:
        return round(blocks * self.bytes_per_block / GIB, 6)


def evictions_s(case: Case, hits: PrefixHits) -> dict[str, float] | None:
    """Medians over the prompts that missed evicted tokens: seconds that the first missing block was unused before it
    was evicted, and before it was asked for. None if there are none, or the device's speed is not known."""
    cell, task, segments = case.of_cell, case.task, hits.schedule.segments
    if not len(hits.evictions) or cell.speed is None:
        return None
    work = work_of(hits.schedule, cell, task)
    segment_s = time_schedule(hits.schedule, work, cell.speed.costs, task.requests, cell.users).segment_s
    starts_s = np.cumsum(segments.idle_s + segment_s) - segment_s

    def ended_s(steps: IntArray) -> FloatArray:
        at = np.searchsorted(segments.first_step, steps, side="right") - 1
        return starts_s[at] + (steps - segments.first_step[at] + 1) * (segment_s / segments.steps)[at]

    freed, evicted, asked, _ = hits.evictions.T
    until = {"unused_until_evicted_s_p50": evicted, "unused_until_asked_for_s_p50": asked}
    return {name: round(float(np.median(ended_s(s) - ended_s(freed - 1))), 3) for name, s in until.items()}


def changes(study: Study, case: Case, points: list[tuple[int, int]], prepared: Path | None) -> Iterator[dict[str, Any]]:
    """What could be changed, the smallest change first, each with the tokens that are found then."""
    requests, settings = case.task.requests, case.settings
    unit = settings.tokens_per_block
    if requests.prefix_tokens is not None:
        parts = (requests.prefix_tokens < requests.prompt_tokens) & (requests.prefix_tokens > 0)
        added = np.where(parts, -requests.prefix_tokens % unit, 0)
        if added.any():
            lengths = {name: getattr(requests, name) + added for name in ("prompt_tokens", "prefix_tokens")}
            with suppress(StudyError):  # too long for the context
                # The added tokens are found too, but nobody asked for them before.
                found = case.hits(replace(requests, **lengths)).total("found") - int(added.sum())
                add = int(added.max())
                how = f"up to {add} more tokens in the shared beginning, so that it is a multiple of {unit}"
                yield {"change": "shared_prefix_tokens", "add": add, "how": how, "found": found}
    for block_size in BLOCK_SIZES:
        if block_size < settings.block_size and hasattr(case.cell.knobs, "block_size"):
            knobs = case.cell.knobs.model_copy(update={"block_size": block_size})
            with suppress(StudyError):  # this engine or device has no such blocks
                other = Case(study, replace(case.cell, knobs=knobs), prepared)
                how, found = f"a block size of {block_size}", other.hits().total("found")
                yield {"change": "block_size", "to": block_size, "how": how, "found": found}
    if (blocks := knee(points)) > (settings.num_blocks or blocks):
        found, gib, more_gib = dict(points)[blocks], case.gib(blocks), case.gib(blocks - (settings.num_blocks or 0))
        memory_bytes, weight_bytes = load_gpus()[case.cell.gpu].memory_bytes, case.of_cell.facts.weight_bytes
        if memory_bytes is None or gib * GIB + weight_bytes / case.of_cell.ranks < memory_bytes:
            how = f"{blocks:,} blocks ({more_gib:,.3g} GiB more)"
            yield {"change": "num_blocks", "to": blocks, "more_gib": more_gib, "how": how, "found": found}
        # The host's memory has a copy of what is on the device.
        how = f"{gib:,.3g} GiB of KV offloading"
        yield {"change": "kv_offloading_size", "to_gib": gib, "how": how, "found": found}


# How GPUs with such links between them are usually attached to their host.
_HOST_LINKS = {"nvlink2": "pcie3", "nvlink3": "pcie4"}
_HOST_LINKS |= dict.fromkeys(("nvlink4", "nvlink5"), "pcie5")
# Those that are attached by faster links: NVLink-C2C and PCIe 6.
_FASTER = ("gh200-96gb", "gh200-144gb", "b300")


def host_link(gpu: Gpu) -> tuple[str, float] | None:
    """The link to the host's memory and its bytes per second in one direction; None if it is not known.

    >>> host_link(load_gpus()["h200"]), host_link(load_gpus()["l40s"]), host_link(load_gpus()["gh200-96gb"])
    (('pcie5', 52500000000.0), ('pcie4', 26200000000.0), None)
    """
    if gpu.link is None or gpu.name in _FASTER:
        return None
    link = _HOST_LINKS.get(gpu.link, gpu.link)
    return link, public_costs().links[link].bytes_per_s


def offloading(case: Case, hits: PrefixHits, link_gb_per_s: float | None) -> dict[str, Any] | None:
    """Whether KV offloading pays: the time to load blocks from the host's memory, over a link of each device's own,
    against the time to compute their tokens. From how many tokens on (None if never), and both times for the median of
    evicted tokens, or of prompts if none were evicted, in whole blocks. None if the link or the speed of the device is
    not known, or no request has two blocks. docs/hits.md says what is left out."""
    task, cell, settings = case.task, case.of_cell, case.settings
    given = ("given", link_gb_per_s * 1e9) if link_gb_per_s else None
    link, speed, unit = given or host_link(load_gpus()[case.cell.gpu]), cell.speed, settings.tokens_per_block
    most = (settings.max_model_len - 1) // unit - 1  # beside one that is computed in any case
    if link is None or speed is None or most < 1:
        return None
    reaches = [group.reach for group in settings.pool.groups] if settings.pool else [None]

    def loaded_s(blocks: int) -> float:
        needed = [blocks if reach is None else min(blocks, math.ceil(max(1, reach - 1) / unit)) for reach in reaches]
        return sum(needed) * case.bytes_per_block / link[1]

    def served_s(blocks: int) -> float:
        one = RequestLengths(np.array([blocks * unit]), np.ones(1, dtype=np.int64))
        schedule = make_schedule(one, replace(settings, num_blocks=None))
        return time_schedule(schedule, work_of(schedule, cell, replace(task, requests=one)), speed.costs, one).wall_s

    def computed_s(blocks: int) -> float:
        return max(0.0, round(served_s(blocks + 1) - served_s(1), 9))

    tokens = int(np.median(hits.evictions[:, 3] if len(hits.evictions) else task.requests.prompt_tokens))
    from_blocks = 1 + bisect_left(range(1, most + 1), True, key=lambda count: loaded_s(count) < computed_s(count))
    blocks = min(most, max(1, tokens // unit))
    return {
        "link": link[0],
        "link_gb_per_s": link[1] / 1e9,
        "pays_from_tokens": from_blocks * unit if from_blocks <= most else None,
        "tokens": blocks * unit,
        "load_s": loaded_s(blocks),
        "compute_s": computed_s(blocks),
    }


def measured_found(path: Path) -> int | None:
    """Prompt tokens that a measured cell found in its prefix cache, the mean of its repeats; None without any."""
    found: dict[int, int] = {}
    for number, row in numbered_jsonl(path):
        repeat, tokens = row.get("repeat"), row.get("cached_prompt_tokens") or 0
        if type(repeat) is not int or type(tokens) is not int:
            raise StudyError(f"{path}: line {number}: not of a measured cell, with repeat and cached_prompt_tokens")
        found[repeat] = found.get(repeat, 0) + tokens
    return round(sum(found.values()) / len(found)) if found else None


def report_of(
    study: Study, case: Case, measured: int | None, prepared: Path | None, link_gb_per_s: float | None
) -> dict[str, Any]:
    """Everything that the command says, as JSON."""
    hits, settings, cell = case.hits(), case.settings, case.cell
    points = curve(case.task.requests, settings, case.step_time)
    prompts, found = int(case.task.requests.prompt_tokens.sum()), hits.total("found")
    of_cell = {name: getattr(cell, name) for name in ("gpu", "model", "workload")}
    unit = settings.tokens_per_block
    options = list(changes(study, case, points, prepared))
    most = max((one["found"] for one in options), default=found)
    # Nearly as good is good enough, if it is a smaller change.
    best = next((one for one in options if one["found"] - found >= 0.9 * (most - found) > 0), None)
    return {
        "source": "predicted",
        **of_cell,
        "block_size": settings.block_size,
        "tokens_per_block": unit,
        "num_blocks": settings.num_blocks,
        "requests": len(case.task.requests),
        "prompt_tokens": prompts,
        "of_prompts": {name: hits.total(name) for name in OF_PROMPT},
        "of_preempted": {name: hits.total(name) for name in OF_PREEMPTED},
        "evicted": evictions_s(case, hits),
        "curve": [{"num_blocks": b, "gib": case.gib(b), "found": tokens} for b, tokens in points],
        "ceiling": max(tokens for _, tokens in points),
        "knee_blocks": knee(points) if any(tokens for _, tokens in points) else None,
        "changes": options,
        "best_change": best,
        "offloading": offloading(case, hits, link_gb_per_s),
        # The numbers are those of one engine.
        "measured_found": measured if case.of_cell.steps.engines == 1 else None,
    }


def in_words(report: dict[str, Any]) -> Iterator[str]:
    prompts = report["prompt_tokens"]

    def share(tokens: int) -> str:
        return f"{tokens:>15,} {100 * tokens / prompts:6.1f} %"

    yield sentence(report)
    blocks = f"{report['num_blocks']:,} blocks of {report['tokens_per_block']} tokens"
    yield f"{report['model']} on {report['gpu']}, {blocks}, {report['requests']:,} requests, predicted"
    yield f"{'prompt tokens':42}{share(prompts)}"
    for name, tokens in report["of_prompts"].items():
        yield f"{'=' if name == 'found' else '+'} {OF_PROMPT[name]:40}{share(tokens)}"
    for name, tokens in report["of_preempted"].items():
        if tokens:
            yield f"beside them, {OF_PREEMPTED[name]}: {tokens:,}"
    if seconds := report["evicted"]:
        until, asked = seconds.values()
        yield f"Evicted blocks were unused for {until:g} s (median), and asked for after {asked:g} s."
    if report["measured_found"] is not None:
        yield f"Measured: found {report['measured_found']:,} ({100 * report['measured_found'] / prompts:.1f} %)."
    yield "Found by the size of the cache:"
    for point in report["curve"]:
        here = "  <- this cell" if point["num_blocks"] == report["num_blocks"] else ""
        here += "  <- knee" if point["num_blocks"] == report["knee_blocks"] else ""
        yield f"{point['num_blocks']:>12,} blocks {point['gib']:>10,.3f} GiB{share(point['found'])}{here}"
    if off := report["offloading"]:
        pays = f"pays from {off['pays_from_tokens']:,} tokens on" if off["pays_from_tokens"] else "never pays"
        times = f"{off['tokens']:,} tokens take {off['load_s']:.3g} s to load, {off['compute_s']:.3g} s more to compute"
        yield f"Predicted: KV offloading at {off['link_gb_per_s']:g} GB/s ({off['link']}) {pays}: {times}."


def sentence(report: dict[str, Any]) -> str:
    """What to do, in one sentence."""
    prompts, found = report["prompt_tokens"], report["of_prompts"]["found"]
    missed = {name: tokens for name, tokens in report["of_prompts"].items() if name not in ("found", "last_token")}
    worst = max(missed, key=lambda name: missed[name])
    ceiling = f"at most {100 * report['ceiling'] / prompts:.1f} % with a cache of any size"
    text = f"The cache finds {100 * found / prompts:.1f} % of the prompt tokens ({ceiling}); most others were "
    text += f"{OF_PROMPT[worst].removeprefix('seen, but ')} ({100 * missed[worst] / prompts:.1f} %)"
    if not (best := report["best_change"]):
        return f"{text}; no change of block size or cache finds more."
    return f"{text}; {100 * best['found'] / prompts:.1f} % with {best['how']}."


def draw(report: dict[str, Any], out: Path) -> None:
    """Write the curve as `hits.svg` and `hits.png`."""
    import pandas as pd

    from workflow_scripts.page.kit import Reference, line, use_style
    from workflow_scripts.page.plot import write_plot
    from workflow_scripts.page.style import PREDICTED_LINE

    use_style()
    percent = 100 / report["prompt_tokens"]
    points = [{"x": p["gib"], "y": percent * p["found"], "series": "predicted"} for p in report["curve"]]
    here = Reference(percent * report["of_prompts"]["found"], f"here, {report['num_blocks']:,} blocks")
    plot = line(
        pd.DataFrame(points).assign(low=np.nan, high=np.nan),
        {"predicted": PREDICTED_LINE},
        "Prompt tokens found in the prefix cache",
        "found prompt tokens (%)",
        "size of the cache (GiB per device)",
        unit=" %",
        references=[here],
        is_share=True,
        sources=("predicted",),
    )
    write_plot(plot, out, "hits")


@command(
    "hits",
    *cell_options(VLLM_SERVE.name),
    option("--link-gb-per-s", type=above_zero(1e6), help="to the host's memory, one way (default: the GPU's PCIe)"),
    option("--out", type=Path, help="folder for the curve as a figure, hits.svg and hits.png"),
    option("--json", action="store_true", help="print JSON"),
)
def main(args: Namespace) -> None:
    study, cell, prepared = asked_cell(args)
    own = StudyPaths(args.results, study.name).start(cell) / RAW / REQUESTS
    path = Path(args.cell) if args.cell and Path(args.cell).name == REQUESTS else own
    measured = measured_found(path) if path != own or path.is_file() else None
    report = report_of(study, Case(study, cell, prepared), measured, prepared, args.link_gb_per_s)
    print(json.dumps(report, indent=2) if args.json else "\n".join(in_words(report)))
    if args.out:
        if not report["ceiling"]:
            raise StudyError(f"--out {args.out}: a cache of any size finds nothing, so there is no curve to draw")
        draw(report, args.out)
