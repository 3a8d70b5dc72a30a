"""How fast a cell should be: its schedule timed on its device, and what that means for its knobs and its cost."""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from workflow_scripts.physics.calibration import Speed
from workflow_scripts.physics.model_facts import ModelFacts
from workflow_scripts.physics.step_time import KINDS, StepCosts, StepWork, segment_times_s, split
from workflow_scripts.predict.engine_steps import Decides
from workflow_scripts.predict.schedule import FloatArray, RequestLengths, Schedule, ScheduleError, Segments, StepTime
from workflow_scripts.predict.scheduler import make_schedule
from workflow_scripts.predict.static_batches import StaticBatches, static_schedule, static_work
from workflow_scripts.predict.student_t import share_within
from workflow_scripts.predict.timing import Timed, lay, step_work
from workflow_scripts.workloads.warmup import USUAL_PASSES, pass_size

Record = dict[str, Any]

# Seconds that the pipeline itself takes for a cell besides the engine's work: `start` until the engine is ready, `stop`
# until its memory is free. On a CPU as `make bench-harness` measures it, where a cell is forked from a process that has
# the engine loaded; on a GPU an allowance for graphs and profiling; the time to load the weights is added to it.
START_S = {"cpu": 6.0, "cuda": 60.0, "rocm": 90.0}
EAGER_START_S = {"cpu": 6.0, "cuda": 25.0, "rocm": 35.0}
STOP_S = {"cpu": 1.0, "cuda": 5.0, "rocm": 5.0}
WEIGHTS_BYTES_PER_S = 1.5e9

# Standard deviation of the logarithm of repeated wall times if no ladder gives it.
DEFAULT_REPEAT_SD = {"cpu": 0.03, "cuda": 0.01, "rocm": 0.01}
MOST_REPEATS = 100

# A time limit is this many times what a cell takes at the slow end of its band, or if it has none, this much slower.
LIMIT_MARGIN, UNCALIBRATED_PCT = 2.0, 40.0

# A step with this many times more work of a kind than any step of the ladder is outside of what the ladder covered.
BEYOND = 1.5
RANGES = {"sequences": "sequences", "kv_bytes": "bytes of KV", "matrix_flops": "operations"}

# What keeps more sequences from running at once, in the terms of the analysis of measured cells.
PROMPTS, SEQUENCES, KV_BLOCKS, TOKEN_BUDGET = "prompts", "sequences", "kv_blocks", "token_budget"

# Fields of a record that are null if nothing is predicted.
TIMES = ("output_tokens_per_s", "total_tokens_per_s", "wall_s", "ttft_s_p50", "ttft_s_p99", "tpot_s_p50", "tpot_s_p99")
COUNTS = (
    "num_blocks",
    "kv_cache_tokens",
    "max_concurrency",
    "max_num_seqs",
    "max_num_batched_tokens",
    "num_requests",
    "prompt_tokens",
    "output_tokens",
    "steps",
    "running_peak",
    "running_mean",
    "waiting_peak",
    "full_share",
    "blocks_peak",
    "preemptions",
    "cached_tokens",
    "recomputed_tokens",
    "evicted_blocks",
    "prompts_to_fill",
)
SHARES = ("memory_share", "arithmetic_share", "overhead_share")
COSTS = ("start_s", "warmup_s", "stop_s", "cell_s", "limit_s", "gpus", "repeats_needed")
FIELDS = (
    *("cell_id", "gpu", "engine", "model", "workload", "knobs", "infeasible", "unknown", "lengths", "bound_by"),
    *COUNTS,
    *(name for time in TIMES for name in (time, f"{time}_low", f"{time}_high")),
    *SHARES,
    *COSTS,
    *("speed_source", "error_pct", "ttft_error_pct", "how", "source"),
)


@dataclass(frozen=True)
class Task:
    """Cells that one schedule may serve: same requests, same scheduler settings except for KV blocks.

    `decides` has the settings of the scheduler, without its KV blocks, or the static batches.
    """

    requests: RequestLengths
    decides: Decides
    cells: tuple["CellTask", ...]


@dataclass(frozen=True)
class CellTask:
    """One cell of a `Task`: what is known of it, and how fast its device does a step's work."""

    record: Record
    num_blocks: int | None
    facts: ModelFacts
    kv_cache_dtype: str
    ranks: int
    speed: Speed | None
    ceiling: StepCosts | None
    kind: str
    eager: bool
    repeats: int
    margin_pct: float


def predict_task(task: Task) -> list[Record]:
    """The records of cells that share a schedule, or of as many schedules as their KV blocks require."""
    made: list[Schedule] = []
    records = []
    # A schedule for many blocks serves all cells that have enough of them.
    for cell in sorted(task.cells, key=lambda cell: -(cell.num_blocks or 0)):
        try:
            records.append(_predict(cell, task, made))
        except ScheduleError as e:
            records.append(cell.record | {"unknown": str(e)})
    return records


def _predict(cell: CellTask, task: Task, made: list[Schedule]) -> Record:
    found = schedule_for(cell, task, made)
    work = work_of(found, cell, task)
    if cell.speed is None:
        counts = _counts(found, work.steps, task.requests)
        unknown = "the rates of this device are not known: `snakemake calibrate` measures them"
        return cell.record | counts | {"prompts_to_fill": _prompts_to_fill(counts, task), "unknown": unknown}
    timed = lay(found, work, cell.speed.costs, task.requests)
    fastest = lay(found, work, cell.ceiling, task.requests) if cell.ceiling else None
    counts = _counts(found, timed.segment_s, task.requests)
    return (
        cell.record
        | counts
        | {"prompts_to_fill": _prompts_to_fill(counts, task)}
        | _times(cell.speed, timed, fastest, task.requests)
        | _shares(work, cell.speed.costs)
        | _costs(cell, cell.speed, task, timed)
        | {"speed_source": cell.speed.source, "how": cell.speed.how + _beyond(work, cell.speed)}
        | {"error_pct": cell.speed.error_pct, "ttft_error_pct": cell.speed.ttft_error_pct}
    )


def schedule_for(cell: CellTask, task: Task, made: list[Schedule]) -> Schedule:
    """A schedule that holds for the cell's blocks; an existing one if possible."""
    for known in made:
        if cell.num_blocks is None or known.holds_for(cell.num_blocks):
            return known
    if isinstance(task.decides, StaticBatches):
        found = static_schedule(task.requests, task.decides.batch_size)
    else:
        settings = replace(task.decides, num_blocks=cell.num_blocks)
        # Without arrivals no decision depends on time.
        arrives = task.requests.arrival_s is not None
        found = make_schedule(
            task.requests, settings, step_time_of(cell, cell.speed) if arrives and cell.speed else None
        )
    made.append(found)
    return found


def work_of(found: Schedule, cell: CellTask, task: Task) -> StepWork:
    """What the steps of the task's schedule read and compute for a cell."""
    if isinstance(task.decides, StaticBatches):
        return static_work(task.requests, task.decides, cell.facts, copies_matrices=cell.kind == "cpu")
    # A request that comes later is taken in when its prompt is computed.
    taken_in = len(task.requests) if task.requests.arrival_s is None else found.segments.prefill_seqs
    return step_work(found.segments, cell.facts, cell.kv_cache_dtype, cell.ranks, taken_in)


def step_time_of(cell: CellTask, speed: Speed) -> StepTime:
    """The function that gives the seconds of steps on the device of a cell."""

    def seconds(segments: Segments) -> FloatArray:
        work = step_work(segments, cell.facts, cell.kv_cache_dtype, cell.ranks, segments.prefill_seqs)
        return segment_times_s(work, speed.costs)

    return seconds


def _counts(found: Schedule, segment_s: FloatArray, requests: RequestLengths) -> Record:
    """How many sequences run at once and why not more; shares are of the time that segments take."""
    segments, settings = found.segments, found.settings
    # A request that has ended keeps its place for one step, but does nothing in it.
    active = segments.decode_seqs + segments.prefill_seqs
    peak = int(active.max())
    short_of_blocks = found.needs_blocks is None
    if found.preemptions.any():
        bound_by = KV_BLOCKS
    elif peak >= settings.max_num_seqs:
        bound_by = SEQUENCES
    elif peak >= len(requests):
        bound_by = PROMPTS
    else:
        bound_by = KV_BLOCKS if short_of_blocks else TOKEN_BUDGET
    return {
        "bound_by": bound_by,
        "steps": int(segments.steps.sum()),
        "running_peak": peak,
        "running_mean": float(active @ segment_s / segment_s.sum()),
        "waiting_peak": int(segments.waiting_seqs.max()),
        "full_share": float(segment_s[segments.running_seqs >= settings.max_num_seqs].sum() / segment_s.sum()),
        "blocks_peak": found.peak_blocks_held,
        "preemptions": int(found.preemptions.sum()),
        "cached_tokens": int(found.cached_tokens.sum()),
        "recomputed_tokens": int(found.recomputed_tokens.sum()),
        "evicted_blocks": found.evicted_blocks,
    }


def _times(speed: Speed, timed: Timed, fastest: Timed | None, requests: RequestLengths) -> Record:
    """Rates and latencies with their bands; no band exceeds what the device's data sheet allows.

    Without a band only that upper limit of speed is given, if the data sheet has one.
    """
    allowed = _seconds(fastest) if fastest else {}
    record: Record = {}
    for name, estimated in _seconds(timed).items():
        value = max(estimated, allowed.get(name, 0.0))
        error_pct = speed.ttft_error_pct if name.startswith("ttft_s") else speed.error_pct
        slower, faster = _ends(error_pct, allowed.get(name, 0.0) / value)
        for suffix, factor in (("", 1.0), ("_low", faster), ("_high", slower)):
            record[name + suffix] = None if np.isnan(value) or factor is None else value * factor
    output, total = requests.output_tokens.sum(), requests.output_tokens.sum() + requests.prompt_tokens.sum()
    for name, tokens in (("output_tokens_per_s", output), ("total_tokens_per_s", total)):
        for suffix, wall in (("", "wall_s"), ("_low", "wall_s_high"), ("_high", "wall_s_low")):
            record[name + suffix] = float(tokens) / record[wall] if record[wall] else None
    return record


def _seconds(timed: Timed) -> dict[str, float]:
    """Wall time and latencies; NaN for those that no request has."""
    values = {"wall_s": timed.wall_s}
    for name, per_request in (("ttft_s", timed.ttft_s), ("tpot_s", timed.tpot_s)):
        known = per_request[~np.isnan(per_request)]
        for percent in (50, 99):
            values[f"{name}_p{percent}"] = float(np.percentile(known, percent)) if len(known) else np.nan
    return values


def _ends(error_pct: float | None, fastest: float) -> tuple[float | None, float | None]:
    """Factors of a time at the slow and the fast end of its band; `fastest` by the data sheet, or 0.

    >>> _ends(25.0, 0.9), _ends(None, 0.5), _ends(None, 0.0)
    ((1.25, 0.9), (None, 0.5), (None, None))
    """
    if error_pct is None:
        return None, fastest or None
    return 1 + error_pct / 100, max(1 / (1 + error_pct / 100), fastest)


def _beyond(work: StepWork, speed: Speed) -> str:
    """In words, of which work a step has far more than any step that the costs were fitted to; empty if of none."""
    if not speed.covered:
        return ""
    last = work.first + (work.steps - 1)[:, None] * work.growth
    most = dict(zip(KINDS, np.maximum(work.first, last).max(axis=0), strict=True))
    found = [
        f"{most[kind]:.3g} {name} in a step, fitted up to {speed.covered[kind]:.3g}"
        for kind, name in RANGES.items()
        if most[kind] > BEYOND * speed.covered.get(kind, np.inf)
    ]
    return f"; beyond the ladder: {', '.join(found)}" if found else ""


def _shares(work: StepWork, costs: StepCosts) -> Record:
    """Shares of reading, computing and overhead, as if they came one after the other."""
    parts = [float(part) for part in split(work.totals(), costs)]
    return dict(zip(SHARES, (part / sum(parts) for part in parts), strict=True))


def _prompts_to_fill(counts: Record, task: Task) -> int | None:
    """Fewest prompts with which as many sequences run as allowed; null if prompts are not the limit.

    Additional prompts repeat the lengths of the existing ones.
    """
    settings = task.decides
    arrives = task.requests.arrival_s is not None
    if isinstance(settings, StaticBatches) or counts["bound_by"] != PROMPTS or arrives:
        return None
    wanted = settings.max_num_seqs
    count = wanted
    for _ in range(4):
        order = np.arange(count) % len(task.requests)
        more = RequestLengths(task.requests.prompt_tokens[order], task.requests.output_tokens[order])
        segments = make_schedule(more, settings).segments
        peak = int((segments.decode_seqs + segments.prefill_seqs).max())
        if peak >= wanted:
            return count
        count = -(-count * 5 // 4)
    return None


def _costs(cell: CellTask, speed: Speed, task: Task, timed: Timed) -> Record:
    """Seconds of the whole cell, and how many repeats the study's margin requires."""
    requests, decides = len(task.requests), task.decides
    at_once = decides.batch_size if isinstance(decides, StaticBatches) else decides.max_num_seqs
    warmup_s = USUAL_PASSES * pass_size(requests, at_once) / requests * timed.wall_s
    start_s = (EAGER_START_S if cell.eager else START_S)[cell.kind]
    if cell.kind != "cpu":
        start_s += cell.facts.weight_bytes / cell.ranks / WEIGHTS_BYTES_PER_S
    stop_s = STOP_S[cell.kind]
    cell_s = start_s + warmup_s + cell.repeats * timed.wall_s + stop_s
    return {
        "start_s": start_s,
        "warmup_s": warmup_s,
        "stop_s": stop_s,
        "gpus": cell.ranks,
        "cell_s": cell_s,
        "limit_s": LIMIT_MARGIN * (1 + (speed.error_pct or UNCALIBRATED_PCT) / 100) * cell_s,
        "repeats_needed": repeats_needed(speed.repeat_sd or DEFAULT_REPEAT_SD[cell.kind], cell.margin_pct),
    }


@cache
def repeats_needed(repeat_sd: float, margin_pct: float) -> int | None:
    """Fewest repeats whose mean has a 95 % interval within a margin; null if `MOST_REPEATS` are not enough.

    Repeats vary by 1 % (standard deviation of their logarithm); the mean is to be known within 2 %:

    >>> repeats_needed(0.01, 2.0)
    4
    """
    margin = math.log1p(margin_pct / 100)
    for repeats in range(2, MOST_REPEATS + 1):
        if share_within(margin * math.sqrt(repeats) / repeat_sd, repeats - 1) >= 0.95:
            return repeats
    return None
