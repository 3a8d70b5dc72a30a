"""How fast a cell should be: its schedule timed on its device, and what that means for its knobs and its cost."""

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Any

import numpy as np

from workflow_scripts.engines.steps import Decides, EngineSteps, StaticBatches
from workflow_scripts.physics.model_facts import ModelFacts
from workflow_scripts.physics.step_time import (
    KIND,
    KINDS,
    FloatArray,
    StepCosts,
    StepWork,
    segment_parts_s,
    segment_times_s,
    usual_waits_s,
)
from workflow_scripts.predict.calibrated import Speed
from workflow_scripts.predict.prediction_record import KV_BLOCKS, PROMPTS, SEQUENCES, TOKEN_BUDGET, Band, Prediction
from workflow_scripts.predict.prefix_hits import OF_PROMPT, is_explained, prefix_hits
from workflow_scripts.predict.schedule import RequestLengths, Schedule, ScheduleError, Segments, StepTime
from workflow_scripts.predict.scheduler import make_schedule
from workflow_scripts.predict.static_batches import static_schedule, static_work
from workflow_scripts.predict.timing import Timed, step_work, time_schedule
from workflow_scripts.workloads.warmup import USUAL_PASSES, pass_size

# Seconds that the pipeline itself takes for a cell besides the engine's work: `start` until the engine is ready, `stop`
# until its memory is free. These are allowances where no calibration tells it, and in time limits, because a job may
# have to load the engine first; on a GPU they are for graphs and profiling, and the time to load the weights is added.
START_S = {"cpu": 6.0, "cuda": 60.0}
EAGER_START_S = {"cpu": 6.0, "cuda": 25.0}
STOP_S = {"cpu": 1.0, "cuda": 5.0}
WEIGHTS_BYTES_PER_S = 1.5e9


# A step with this many times more work of a kind than any step of the calibration is beyond the calibration.
BEYOND = 1.5
_FIXED = ("steps", "layers", "sequences", "prompts", "reductions", "reduced_bytes")
RANGES = {"sequences": "sequences", "kv_bytes": "bytes of KV", "matrix_flops": "operations"}


@dataclass(frozen=True)
class Task:
    """Cells that one schedule may serve: same requests, same scheduler settings except for KV blocks. `decides` has the
    settings of the scheduler, without its KV blocks, or the static batches. Of several engines `requests` are those of
    one."""

    requests: RequestLengths
    decides: Decides
    cells: tuple["CellTask", ...]


@dataclass(frozen=True)
class CellTask:
    """One cell of a `Task`: what is known of it, and how fast its device does a step's work. `record` is of all its
    engines, `ranks` of one."""

    record: Prediction
    facts: ModelFacts
    steps: EngineSteps
    ranks: int
    speed: Speed | None
    ceiling: StepCosts | None
    kind: str
    users: int | None
    unmodelled: str
    repeats: int
    # Costs of other devices' calibrations, scaled to this device by measured rates.
    scaled: tuple[StepCosts, ...] = ()

    @property
    def num_blocks(self) -> int | None:
        """KV blocks of one engine; None if their number is not known."""
        return self.record.num_blocks and self.record.num_blocks // self.steps.engines

    @property
    def decided_by(self) -> tuple[Hashable, ...]:
        """What tells how fast it is, beside its schedule; what each cell of a model and device shares is one object."""
        shared = id(self.facts), id(self.speed), id(self.scaled)
        return (*shared, self.steps, self.ranks, self.record.gpu, self.record.engine, self.users, self.unmodelled)


def predict_task(task: Task) -> list[Prediction]:
    """The records of cells that share a schedule, or of as many schedules as their KV blocks require."""
    made: list[Schedule] = []
    records = []
    # Cells that differ only in blocks that are enough, by what else decides, have the same record but for their own.
    alike: dict[tuple[Hashable, ...], tuple[CellTask, Prediction]] = {}
    # A schedule for many blocks serves all cells that have enough of them.
    for cell in sorted(task.cells, key=lambda cell: -(cell.record.num_blocks or 0)):
        try:
            schedule = schedule_for(cell, task, made)
            decided_by = id(schedule), *cell.decided_by
            if decided_by not in alike:
                alike[decided_by] = cell, _predict(cell, task, schedule)
            first, record = alike[decided_by]
            own = {name: value for name, value in vars(cell.record).items() if value != getattr(first.record, name)}
            records.append(replace(record, **own))
        except ScheduleError as e:
            records.append(replace(cell.record, unknown=str(e)))
    return records


def _predict(cell: CellTask, task: Task, schedule: Schedule) -> Prediction:
    work, speed, record = work_of(schedule, cell, task), cell.speed, cell.record
    if speed is None:
        unknown = "the rates of this device are not known: `snakemake calibrate --configfile STUDY` measures them"
        if cell.kind == "rocm":
            unknown = "speed is not predicted on AMD GPUs"
        return replace(record, **_counts(cell, schedule, work.steps, task), unknown=unknown)
    if why := _beyond(work, speed) + (f"; {cell.unmodelled}" if cell.unmodelled else ""):
        speed = speed.model_copy(update={"how": speed.how + why})
        speed = speed.with_band_of(None if cell.steps.drafts else speed.of_group)  # no public run has drafts
    timed = time_schedule(schedule, work, speed.costs, task.requests, cell.users)
    fastest = time_schedule(schedule, work, cell.ceiling, task.requests, cell.users) if cell.ceiling else None
    found = {name: getattr(speed, name) for name in ("band_group", "calibrated_at", "calibrated_of")}
    found |= {"speed_source": speed.source, "how": speed.in_words}
    found |= _counts(cell, schedule, timed.segment_s, task) | _times(record, speed, timed, fastest)
    found |= _shares(work, speed.costs, timed) | _costs(cell, speed, task, timed)
    if cell.scaled and record.output_tokens:
        walls_s = [time_schedule(schedule, work, costs, task.requests).wall_s for costs in cell.scaled]
        found["scaled_output_tokens_per_s"] = record.output_tokens / geometric_mean(walls_s)
    return replace(record, **found)


def schedule_for(cell: CellTask, task: Task, made: list[Schedule]) -> Schedule:
    """A schedule that holds for the cell's blocks; an existing one if possible."""
    for schedule in made:
        if cell.num_blocks is None or schedule.holds_for(cell.num_blocks):
            return schedule
    if isinstance(task.decides, StaticBatches):
        schedule = static_schedule(task.requests, task.decides.max_num_seqs)
    else:
        settings = replace(task.decides, num_blocks=cell.num_blocks)
        asked = task.requests, settings, step_time_of(cell, task.requests)
        if is_explained(*asked[:2]):
            hits = prefix_hits(*asked)
            not_found = {f"{name}_tokens": hits.total(name) for name in OF_PROMPT if name != "found"}
            schedule = replace(hits.schedule, not_found=not_found)
        else:
            schedule = make_schedule(*asked)
    made.append(schedule)
    return schedule


def work_of(schedule: Schedule, cell: CellTask, task: Task) -> StepWork:
    if isinstance(task.decides, StaticBatches):
        return static_work(task.requests, task.decides, cell.facts, copies_matrices=cell.kind == "cpu")
    # A request that comes later is taken in when its prompt is computed.
    later = task.requests.arrival_s is not None or cell.users
    taken_in = schedule.segments.prefill_seqs if later else len(task.requests)
    return step_work(schedule.segments, cell.facts, cell.steps, cell.ranks, taken_in)


def step_time_of(cell: CellTask, requests: RequestLengths) -> StepTime | None:
    """The function that gives the seconds of steps on the device of a cell. None if its costs are not known, or all
    requests are there from the start, so that no decision depends on time."""
    speed = cell.speed
    if speed is None or requests.arrival_s is None:
        return None

    def seconds(segments: Segments) -> FloatArray:
        work = step_work(segments, cell.facts, cell.steps, cell.ranks, segments.prefill_seqs)
        return segment_times_s(work, speed.costs) + usual_waits_s(work, speed.costs)

    return seconds


def _counts(cell: CellTask, schedule: Schedule, segment_s: FloatArray, task: Task) -> dict[str, Any]:
    """How many sequences run at once and why not more; shares are of the time that segments take."""
    segments, settings, engines = schedule.segments, schedule.settings, cell.steps.engines
    # A request that has ended keeps its place for one step, but does nothing in it.
    active = segments.decode_seqs + segments.prefill_seqs
    peak, queued = int(active.max()), segments.waiting > 0
    if schedule.preemptions.any():
        bound_by = KV_BLOCKS
    elif peak >= settings.max_num_seqs:
        bound_by = SEQUENCES
    elif peak >= len(task.requests):
        bound_by = PROMPTS
    else:
        bound_by = KV_BLOCKS if schedule.needs_blocks is None else TOKEN_BUDGET
    beyond_graphs: dict[str, float | None] = {}
    if (graphs := cell.steps.graphs) and graphs.sizes:
        tokens = segments.decode_seqs * (1 + (cell.steps.drafts.tokens if cell.steps.drafts else 0))
        beyond = (segments.prefill_seqs == 0) & (tokens > (graphs.decode_tokens or 0))
        of_steps, of_time = (float(each[beyond].sum() / each.sum()) for each in (segments.steps, segment_s))
        beyond_graphs["beyond_graphs_steps_share"] = of_steps
        beyond_graphs["beyond_graphs_time_share"] = of_time if cell.speed else None
    of_all_engines: dict[str, float | None] = {
        **schedule.not_found,
        "steps": int(segments.steps.sum()),
        "running_peak": peak,
        "running_mean": float(active @ segment_s / segment_s.sum()),
        "running_while_others_wait": float(active[queued] @ segment_s[queued] / segment_s[queued].sum())
        if queued.any()
        else None,
        "waiting_peak": int(segments.waiting.max()),
        "blocks_peak": None if cell.steps.drafts else schedule.peak_blocks_held,
        "evicted_blocks": schedule.evicted_blocks,
        **{name: int(getattr(schedule, name).sum()) for name in ("preemptions", "cached_tokens", "recomputed_tokens")},
    }
    of_cell = {name: count and count * engines for name, count in of_all_engines.items()}
    return {**of_cell, **beyond_graphs, "bound_by": bound_by}


def _times(record: Prediction, speed: Speed, timed: Timed, fastest: Timed | None) -> dict[str, Any]:
    """Rates and latencies with their bands; no band exceeds what the device's data sheet allows. Without a band only
    that upper limit of speed is given, if the data sheet has one."""
    error_pct = _error_pct(speed.error_pct, speed.error_s, timed.wall_s)
    ttft_s, output = timed.ttft_s + speed.client_s, record.output_tokens or 0
    ttft_error_pct = _error_pct(speed.ttft_error_pct, speed.ttft_error_s, float(np.median(ttft_s)))
    tpot_error_pct = error_pct if speed.tpot_error_pct is None else speed.tpot_error_pct
    wall = _band(timed.wall_s, fastest.wall_s if fastest else 0.0, error_pct)
    return {
        "error_pct": error_pct,
        "ttft_error_pct": ttft_error_pct,
        "output_tokens_per_s": _rate(output, wall),
        "total_tokens_per_s": _rate(output + (record.prompt_tokens or 0), wall),
        "wall_s": wall,
        **_bands("ttft_s", ttft_s, fastest.ttft_s if fastest else None, ttft_error_pct),
        **_bands("tpot_s", timed.tpot_s, fastest.tpot_s if fastest else None, tpot_error_pct),
    }


def _error_pct(share_pct: float | None, error_s: float, of_s: float) -> float | None:
    """Half width of the band of a time, from independent errors in per cent of it and in seconds.

    >>> _error_pct(30.0, 0.4, 1.0), _error_pct(None, 0.4, 1.0)
    (50.0, None)
    """
    return None if share_pct is None else math.hypot(share_pct, 100 * error_s / of_s)


def _bands(
    name: str, of_requests_s: FloatArray, fastest_s: FloatArray | None, error_pct: float | None
) -> dict[str, Band]:
    if np.isnan(of_requests_s).all():
        return {}
    shown = (50, 99)
    allowed_s = (0.0, 0.0) if fastest_s is None else np.nanpercentile(fastest_s, shown)
    ends = zip(shown, np.nanpercentile(of_requests_s, shown), allowed_s, strict=True)
    return {f"{name}_p{percent}": _band(found_s, least_s, error_pct) for percent, found_s, least_s in ends}


def _band(estimated_s: float, allowed_s: float, error_pct: float | None) -> Band:
    """A time with its band. `allowed_s`: the least by the data sheet, or 0.

    >>> _band(2.0, 1.9, 25.0), _band(2.0, 1.0, None), _band(2.0, 0.0, None)
    (Band(value=2.0, low=1.9, high=2.5), Band(value=2.0, low=1.0, high=None), Band(value=2.0, low=None, high=None))
    """
    value = float(max(estimated_s, allowed_s))
    fastest = float(allowed_s) / value
    if error_pct is None:
        return Band(value, value * fastest or None)
    slowest = 1 + error_pct / 100
    return Band(value, value * max(1 / slowest, fastest), value * slowest)


def _rate(tokens: float, wall: Band) -> Band:
    return Band(tokens / wall.value, wall.high and tokens / wall.high, wall.low and tokens / wall.low)


def _beyond(work: StepWork, speed: Speed) -> str:
    """The kinds of work of which a step has far more than any step of the calibration, in words; empty without any."""
    most, covered = np.maximum(work.first, work.last).max(axis=0), speed.covered or {}
    kinds = [
        f"{most[KIND[kind]]:.3g} {name} in a step, fitted up to {covered[kind]:.3g}"
        for kind, name in RANGES.items()
        if kind in covered and most[KIND[kind]] > BEYOND * covered[kind]
    ]
    return f"; beyond the calibration, so without its band: {', '.join(kinds)}" if kinds else ""


def _shares(work: StepWork, costs: StepCosts, timed: Timed) -> dict[str, float]:
    """What the time goes to. Operations count beyond the reading that hides them, launches beyond the work."""
    parts = dict(zip(KINDS, segment_parts_s(work, costs).sum(axis=0).tolist(), strict=True))
    shares = {
        "weights_share": parts["weight_bytes"],
        "kv_share": parts["kv_bytes"],
        "operations_share": parts["matrix_flops"] + parts["attention_flops"] + parts["activation_bytes"],
        "fixed_share": sum(parts[kind] for kind in _FIXED),
        # The difference of two sums may be -1e-16.
        "launch_share": max(timed.launch_s + timed.arrival_s + parts["requests"], 0.0),
    }
    busy_s = sum(shares.values())
    return {name: seconds / busy_s for name, seconds in shares.items()}


def _costs(cell: CellTask, speed: Speed, task: Task, timed: Timed) -> dict[str, float]:
    """Seconds of the whole cell."""
    requests = len(task.requests)
    in_a_pass = pass_size(requests, task.decides.max_num_seqs, not isinstance(task.decides, StaticBatches))
    pass_s = in_a_pass / requests * timed.wall_s
    if task.requests.arrival_s is not None:  # a warm-up does not wait for arrivals
        at_once = replace(task, requests=replace(task.requests[:in_a_pass], arrival_s=None))
        schedule = schedule_for(cell, at_once, [])
        pass_s = time_schedule(schedule, work_of(schedule, cell, at_once), speed.costs, at_once.requests).wall_s
    warmup_s = USUAL_PASSES * pass_s
    allowed_s = (EAGER_START_S if cell.steps.eager else START_S)[cell.kind]
    if cell.kind != "cpu":
        allowed_s += cell.facts.weight_bytes / cell.ranks / WEIGHTS_BYTES_PER_S
    start_s, stop_s = speed.around_s or (allowed_s, STOP_S[cell.kind])
    of_parts = {"start_s": start_s, "warmup_s": warmup_s, "stop_s": stop_s}
    cell_s = start_s + warmup_s + cell.repeats * timed.wall_s + stop_s
    return {**of_parts, "gpus": cell.ranks * cell.steps.engines, "cell_s": cell_s}
