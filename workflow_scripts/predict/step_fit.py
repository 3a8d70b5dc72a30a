"""The costs of a device's steps, fitted to the steps of a ladder.

Each pass of a ladder has the schedule that `predict` makes for its requests, so each of its steps has its work by kind
(`physics.step_time.KINDS`) and its measured time. Non-negative least squares finds the costs
that meet the times best, as factors. docs/plan.md describes the method and its test.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workflow_scripts.catalog.gpus_and_models import get_gpu
from workflow_scripts.engines.description import named
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.physics.model_facts import ModelFacts
from workflow_scripts.physics.step_time import KINDS, FloatArray, StepCosts, StepWork, single_steps, split
from workflow_scripts.predict.engine_steps import StepsBy
from workflow_scripts.predict.schedule import RequestLengths, Schedule
from workflow_scripts.predict.scheduler import make_schedule
from workflow_scripts.predict.static_batches import StaticBatches, static_schedule, static_work
from workflow_scripts.predict.timing import lay, step_work
from workflow_scripts.study.ladders import Climb, LadderRecord, Pass

COVERAGE = 0.9
# With n points the quantile with this coverage is the ceil((n + 1) 0.9)-th, which needs at least so many points.
FEWEST_POINTS = 9
FOLDS = 8
WARM_ROUNDS = 1
FIT_ROUNDS, SETTLED = 20, 1e-4
# A step that took more than this many times what is expected of it was disturbed, and weighs less.
DISTURBED = 2.0
# Costs for which a device's rates give a first value. A factor of two away from it weighs as much as an error of
# GUIDE_WEIGHT of the time of one step, so it decides only where the steps do not.
GUIDED = ("weight_bytes", "kv_bytes", "matrix_flops", "attention_flops")
GUIDE_WEIGHT = 0.1
# Settings of a scheduler that an engine shows under these names once it runs.
SHOWN = (
    *("max_num_seqs", "max_num_batched_tokens", "block_size", "max_model_len"),
    *("enable_prefix_caching", "enable_chunked_prefill"),
)


class FitError(ValueError):
    """A ladder to which nothing can be fitted; the message says why."""


@dataclass(frozen=True)
class Rung:
    """One rung in one start of the engine: its schedule and work, and what its passes without the first measured.

    `rows` and `times_s` are what costs are fitted to: the work and the time of each step of each pass or, if the engine
    does not report its steps, from the start of each pass until its first tokens and until its end. `wall_s` and
    `ttft_s` are medians.
    """

    start: int
    number: int
    requests: RequestLengths
    schedule: Schedule
    work: StepWork
    rows: FloatArray
    times_s: FloatArray
    wall_s: float
    ttft_s: float


@dataclass(frozen=True)
class Band:
    """Largest error, as a factor above 1, of `COVERAGE` of held-out predictions; None with too few of them."""

    throughput: float | None
    ttft: float | None
    points: int


@dataclass(frozen=True)
class StepFit:
    """Fitted costs, their band, and the range that the ladder covered (largest work of a step, by kind)."""

    costs: StepCosts
    band: Band
    most: Mapping[str, float]
    steps: int
    repeat_sd: float | None = None


def fit_ladder(record: LadderRecord, facts: ModelFacts, on_cpu: bool, guide: StepCosts | None = None) -> StepFit:
    """Costs fitted to all rungs of a ladder, with a band from rungs that were held out in turn.

    `guide` has the costs by the device's rates, for costs that the steps cannot separate.

    Raises:
        FitError: no rung of the model itself has a complete pass after its first.
    """
    found = [rungs_of(start, record, facts, on_cpu) for start in range(len(record.climbs))]
    rungs = [rung for of_start in found for rung in of_start]
    own = [rung for climb, of in zip(record.climbs, found, strict=True) if climb.layers == facts.layers for rung in of]
    if not own:
        raise FitError("no rung was passed twice with the steps that its schedule has")
    return StepFit(
        costs=fit(*_steps_of(rungs), guide, overlap=not on_cpu),
        band=band(own, rungs, guide, overlap=not on_cpu),
        most=dict(zip(KINDS, np.max([rung.work.first.max(axis=0) for rung in own], axis=0).tolist(), strict=True)),
        steps=sum(len(rung.times_s) for rung in rungs),
        repeat_sd=_repeat_sd(record.climbs[0]),
    )


def rungs_of(start: int, record: LadderRecord, facts: ModelFacts, on_cpu: bool) -> list[Rung]:
    """The rungs that were passed again in a start of the engine; the first pass of each warms up."""
    climb = record.climbs[start]
    facts = replace(facts, stack=facts.stack[: climb.layers])
    passes: dict[int, list[Pass]] = {}
    for one in climb.passes:
        passes.setdefault(one.rung, []).append(one)
    made = []
    for again in passes.values():
        requests = RequestLengths(*(np.array(column) for column in zip(*again[0].requests, strict=True)))
        schedule, work = scheduled(requests, record, climb.effective, facts, on_cpu)
        steps = int(schedule.segments.steps.sum())
        told = not get_engine(record.engine).serves
        whole = [one for one in again[WARM_ROUNDS:] if len(one.step_ends_s) == steps or not told]
        if not whole:
            continue
        rows = single_steps(work)
        if told:
            timed = [(rows, np.diff([one.start_s, *one.step_ends_s])) for one in whole]
        else:
            timed = [_seen_by_client(one, schedule, rows) for one in whole]
        made.append(
            Rung(
                *(start, again[0].rung, requests, schedule, work),
                rows=np.concatenate([of_pass for of_pass, _ in timed]),
                times_s=np.concatenate([times_s for _, times_s in timed]),
                wall_s=float(np.median([one.end_s - one.start_s for one in whole])),
                ttft_s=float(np.median([np.median(one.ttft_s) for one in whole])),
            )
        )
    return made


def _seen_by_client(one: Pass, schedule: Schedule, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Work and time from the start of a pass until each step that makes first tokens, and until its end."""
    made_by, ttft_s = np.sort(schedule.first_token_step), np.sort(one.ttft_s)
    steps = np.unique(made_by)
    times_s = [float(np.median(ttft_s[made_by == step])) for step in steps]
    return rows.cumsum(axis=0)[[*steps, -1]], np.array([*times_s, one.end_s - one.start_s])


def scheduled(
    requests: RequestLengths, record: LadderRecord, effective: Mapping[str, Any], facts: ModelFacts, on_cpu: bool
) -> tuple[Schedule, StepWork]:
    """What an engine with these settings runs when, and the work of it.

    Raises:
        FitError, UnpredictableError: the engine or its settings are not modelled.
    """
    engine = get_engine(record.engine)
    if engine.steps_by is None:
        raise FitError(f"there is no schedule of the engine {engine.name}")
    steps_by: StepsBy = named(engine.steps_by)
    steps = steps_by(engine.knobs.model_validate(record.knobs), get_gpu(record.gpu), facts)
    if isinstance(steps.decides, StaticBatches):
        schedule = static_schedule(requests, steps.decides.batch_size)
        return schedule, static_work(requests, steps.decides, facts, copies_matrices=on_cpu)
    told = {name: effective[name] for name in SHOWN if name in effective}
    schedule = make_schedule(requests, replace(steps.decides, num_blocks=int(effective["num_gpu_blocks"]), **told))
    return schedule, step_work(
        schedule.segments, facts, steps.kv_cache_dtype, taken_in=len(requests), one_mask=steps.one_mask
    )


def _repeat_sd(climb: Climb) -> float | None:
    """Standard deviation of the logarithm of a rung's times over its passes; the median over all rungs."""
    walls: dict[int, list[float]] = {}
    for one in climb.passes:
        walls.setdefault(one.rung, []).append(one.end_s - one.start_s)
    found = [np.std(np.log(again[WARM_ROUNDS:]), ddof=1) for again in walls.values() if len(again) > WARM_ROUNDS + 1]
    return float(np.median(found)) if found else None


def _steps_of(rungs: Sequence[Rung]) -> tuple[FloatArray, FloatArray]:
    """Work and time of every step."""
    return np.concatenate([rung.rows for rung in rungs]), np.concatenate([rung.times_s for rung in rungs])


def fit(rows: FloatArray, times: FloatArray, guide: StepCosts | None = None, *, overlap: bool) -> StepCosts:
    """The costs that meet the times of steps best, by non-negative least squares.

    Errors are counted in shares of the geometric mean of measured and expected time, so that twice too slow weighs as
    much as twice too fast. Shares of the measured time would weigh slow steps less, and find costs that are too low.
    What is expected follows from the costs, so the fit is repeated until it settles.

    Args:
        rows: work of each step, one column per kind.
        times: seconds of each step.
        guide: decides where the steps of one model leave open which of two kinds of work takes the time.
        overlap: whether reading overlaps with computing.
    """
    reads, computes = slice(0, 2), slice(2, 4)
    best: tuple[float, StepCosts] | None = None
    # max(read, compute): which of the two decides in a step follows from the costs, and the costs from that.
    for share in (0.25, 0.5, 1.0, 2.0, 4.0) if overlap else (1.0,):
        intensity = rows[:, computes].sum(axis=1) / rows[:, reads].sum(axis=1)
        computing, expected = intensity > share * np.median(intensity), times
        for _ in range(FIT_ROUNDS):
            counted = rows.copy()
            if overlap:
                counted[computing, reads], counted[~computing, computes] = 0.0, 0.0
            costs = _solved(counted, times, expected, guide, overlap=overlap)
            reading_s, computing_s, overhead_s = split(rows, costs)
            together_s = np.maximum(reading_s, computing_s) if overlap else reading_s + computing_s
            settled = np.allclose(expected, together_s + overhead_s, rtol=SETTLED)
            computing, expected = computing_s > reading_s, together_s + overhead_s
            if settled:
                break
        off = float(np.square(np.log(times / expected)).sum())
        if best is None or off < best[0]:
            best = off, costs
    assert best is not None
    return best[1]


def _solved(
    rows: FloatArray, times: FloatArray, expected: FloatArray, guide: StepCosts | None, *, overlap: bool
) -> StepCosts:
    size = np.sqrt(times * np.maximum(expected, times / DISTURBED))
    shares, target = rows / size[:, None], times / size
    for kind in GUIDED if guide else ():
        row = np.zeros(len(KINDS))
        row[KINDS.index(kind)] = GUIDE_WEIGHT / getattr(guide, kind)
        shares, target = np.vstack([shares, row]), np.append(target, GUIDE_WEIGHT)
    # Columns of equal size, because work in bytes and work in steps differ by many orders of magnitude.
    columns = np.where(shares.any(axis=0), np.linalg.norm(shares, axis=0), 1.0)
    from scipy.optimize import nnls  # takes longer than a prediction that fits no ladder

    solution, _ = nnls(shares / columns, target)
    return StepCosts(**dict(zip(KINDS, (solution / columns).tolist(), strict=True)), overlap=overlap)


def band(held_out: Sequence[Rung], rungs: Sequence[Rung], guide: StepCosts | None = None, *, overlap: bool) -> Band:
    """The band from rungs of the model itself: each is predicted by costs that were fitted without it.

    If the model was started several times, they are also fitted without the start that it was measured in, so the band
    has what differs from one moment to another. By split conformal prediction the error of a new point is below the
    ceil((n + 1) 0.9)-th smallest of n.
    """
    if len(held_out) < FEWEST_POINTS:
        return Band(throughput=None, ttft=None, points=len(held_out))
    starts = {rung.start for rung in held_out}
    numbers = sorted({rung.number for rung in held_out})
    walls, firsts = [], []
    for start in starts:
        others = [rung for rung in rungs if len(starts) == 1 or rung.start != start]
        for fold in range(min(FOLDS, len(numbers))):
            out = set(numbers[fold::FOLDS])
            costs = fit(*_steps_of([rung for rung in others if rung.number not in out]), guide, overlap=overlap)
            for rung in held_out:
                if rung.start == start and rung.number in out:
                    timed = lay(rung.schedule, rung.work, costs, rung.requests)
                    walls.append(abs(np.log(timed.wall_s / rung.wall_s)))
                    firsts.append(abs(np.log(np.median(timed.ttft_s) / rung.ttft_s)))
    return Band(throughput=quantile(walls), ttft=quantile(firsts), points=len(walls))


def quantile(errors: Sequence[float]) -> float | None:
    """The conformal quantile of errors (of logarithms) as a factor; None with fewer than `FEWEST_POINTS`.

    >>> quantile([0.1] * 8) is None, round(quantile([0.1] * 8 + [0.5]), 3)
    (True, 1.649)
    """
    if len(errors) < FEWEST_POINTS:
        return None
    place = int(np.ceil((len(errors) + 1) * COVERAGE))
    return float(np.exp(sorted(errors)[place - 1]))
