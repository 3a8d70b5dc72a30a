"""The costs of a device's steps, fitted to the steps of a calibration.

Each pass of a calibration has the schedule that `predict` makes for its requests, so each of its steps has its work by
kind (`physics.step_time.KINDS`) and its measured time. On a CPU non-negative least squares finds the costs that meet
the times best, as factors; `predict.pipeline_fit` does so for a GPU and its host. docs/plan.md describes the method and
its test.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workflow_scripts.catalog.gpus_and_models import get_gpu
from workflow_scripts.engines.registry import get_engine, steps_of
from workflow_scripts.engines.steps import EngineSteps, StaticBatches
from workflow_scripts.physics.model_facts import ModelFacts
from workflow_scripts.physics.step_time import KIND, KINDS, LAUNCHED, FloatArray, StepCosts, StepWork, single_steps
from workflow_scripts.predict.pipeline_fit import GUIDED, GUIDED_WITHIN, ObservedSteps, fit_pipeline, segments_of
from workflow_scripts.predict.schedule import RequestLengths, Schedule
from workflow_scripts.predict.scheduler import make_schedule
from workflow_scripts.predict.static_batches import static_schedule, static_work
from workflow_scripts.predict.timing import step_work, time_schedule
from workflow_scripts.study.calibrations import COVERAGE, CalibrationRecord, CalibrationStart, Pass

# No band is narrower, even if points are met better: models of this form miss the operators of other models by 3 to 6 %
# in the median (docs/plan.md), and starts of the same cell differ by 2.6 % (standard deviation).
LEAST_ERROR = 0.1
# With n points the quantile with this coverage is the ceil((n + 1) 0.9)-th, which needs at least so many points.
FEWEST_POINTS = 9
FOLDS = 8
WARM_ROUNDS = 1
FIT_ROUNDS, SETTLED = 20, 1e-4
# A step that took more than this many times what is predicted of it was disturbed, and weighs less.
_DISTURBED = 2.0
# A factor of two away from the value that a device's rates give a cost (`GUIDED`) weighs as much as an error of this
# share of the time of one step, so it decides only where the steps do not.
GUIDE_WEIGHT = 0.1
# Where a fit to a GPU's calibration begins, besides the costs that follow from rates.
_ON_GPU = {"layers": 3.0e-5, "sequences": 1.2e-5}
# Settings of a scheduler that an engine shows under these names once it runs.
SHOWN = (*("max_num_seqs", "max_num_batched_tokens", "block_size", "max_model_len", "enable_prefix_caching"),)


class FitError(ValueError):
    """A calibration to which nothing can be fitted; the message says why."""


@dataclass(frozen=True)
class CalibrationPoint:
    """One point in one start of the engine: its schedule and work, and what its passes without the first measured.
    `observed` is what costs are fitted to; `wall_s` and `ttft_s` are medians."""

    start: int
    number: int
    requests: RequestLengths
    schedule: Schedule
    work: StepWork
    observed: tuple[ObservedSteps, ...]
    wall_s: float
    ttft_s: float


@dataclass(frozen=True)
class FitBand:
    """Largest error of `COVERAGE` of cross-validated predictions, as a factor above 1; None with too few of them.
    `wall_s`, `ttft_s`: what comes on top, in seconds of a pass however long it takes."""

    throughput: float | None
    ttft: float | None
    points: int
    wall_s: float = 0.0
    ttft_s: float = 0.0


@dataclass(frozen=True)
class StepFit:
    """Fitted costs, their band, and the range that the calibration covered (largest work of a step, by kind). `passes`
    of `measured_passes` were used, with `steps` steps; each point's first pass only warms up."""

    costs: StepCosts
    band: FitBand
    most: Mapping[str, float]
    steps: int
    passes: int
    measured_passes: int


def fit_calibration(
    record: CalibrationRecord,
    facts: ModelFacts,
    on_cpu: bool,
    guide: StepCosts | None = None,
    within: float = GUIDED_WITHIN,
) -> StepFit:
    """Costs fitted to all points of a calibration, with a band from points that were held out in turn. `guide` has the
    costs by the device's rates, for costs that the steps cannot separate, and `within` how closely they hold on a GPU.
    Raises FitError if no point of the model itself has a complete pass after its first."""
    points = [point for start in range(len(record.starts)) for point in points_of(start, record, facts, on_cpu)]
    own = [point for point in points if record.starts[point.start].layers == facts.layers]
    if not own:
        raise FitError("no requests were served twice in steps that can be told from them")
    if not on_cpu and guide is None:
        raise FitError("the rates of the device are not known")

    def fit_to(some: Sequence[CalibrationPoint]) -> StepCosts:
        if on_cpu or guide is None:
            rows, times_s = zip(*(run.sums for run in observed_of(some)), strict=True)
            return fit_sums(np.concatenate(rows), np.concatenate(times_s), guide)
        # Each point counts alike.
        sizes = [sum(int((~np.isnan(run.ends_s)).sum()) for run in point.observed) for point in some]
        weights = [1 / np.sqrt(size) for point, size in zip(some, sizes, strict=True) for _ in point.observed]
        return fit_pipeline(observed_of(some), np.array(weights), guide.model_copy(update=_ON_GPU), within)

    most = np.max([run.rows.max(axis=0) for run in observed_of(own)], axis=0)
    return StepFit(
        costs=fit_to(points),
        band=band(own, points, fit_to, on_cpu),
        most=dict(zip(KINDS, most, strict=True)),
        steps=sum(len(run.ends_s) for run in observed_of(points)),
        passes=len(observed_of(points)),
        measured_passes=sum(len(again) - WARM_ROUNDS for start in record.starts for again in _by_point(start)),
    )


def _by_point(start: CalibrationStart) -> list[list[Pass]]:
    return [
        [run for run in start.passes if run.point == point] for point in dict.fromkeys(p.point for p in start.passes)
    ]


def observed_of(points: Iterable[CalibrationPoint]) -> list[ObservedSteps]:
    return [run for point in points for run in point.observed]


def points_of(start: int, record: CalibrationRecord, facts: ModelFacts, on_cpu: bool) -> list[CalibrationPoint]:
    """The points that were passed again in a start of the engine; the first pass of each warms up."""
    engine = record.starts[start]
    facts = replace(facts, stack=facts.stack[: engine.layers])
    steps = engine_steps(record, engine.effective, facts)
    made = []
    for again in _by_point(engine):
        prompts, outputs = (np.array(column) for column in zip(*again[0].requests, strict=True))
        requests = RequestLengths(prompts, outputs)
        schedule, work = scheduled(requests, record, engine.effective, facts, on_cpu)
        ahead = steps.graphs is not None and steps.decides.async_scheduling
        reports_steps = not get_engine(record.engine).serves
        whole = []
        for run in again[WARM_ROUNDS:]:
            ends_s = np.array(run.step_ends_s) - run.start_s
            if not reports_steps:
                whole.append((run, _seen_by_client(run, schedule, work)))
            elif ahead:
                segments = segments_of(run, schedule.settings.max_num_batched_tokens)
                if segments is not None:
                    rows = step_work(segments, facts, steps).first
                    rows[0, KIND["requests"]] = len(requests)
                    if run.step_graphs is not None:  # those that the engine reported
                        for kind, name in zip(LAUNCHED, ("PIECEWISE", "NONE"), strict=True):
                            rows[:, KIND[kind]] = rows[:, KIND["layers"]] * (np.array(run.step_graphs) == name)
                    whole.append((run, ObservedSteps(rows, ends_s)))
            elif len(ends_s) == int(schedule.segments.steps.sum()):
                whole.append((run, ObservedSteps(single_steps(work), ends_s)))
        if whole:
            made.append(
                CalibrationPoint(
                    *(start, again[0].point, requests, schedule, work),
                    observed=tuple(seen for _, seen in whole),
                    wall_s=float(np.median([run.end_s - run.start_s for run, _ in whole])),
                    ttft_s=float(np.median([np.median(run.ttft_s) for run, _ in whole])),
                )
            )
    return made


def _seen_by_client(run: Pass, schedule: Schedule, work: StepWork) -> ObservedSteps:
    """What a server's client sees: when the steps end that make first tokens, and the last one."""
    made_by, ttft_s = np.sort(schedule.first_token_step), np.sort(run.ttft_s)
    rows = single_steps(work)
    ends_s = np.full(len(rows), np.nan)
    for step in np.unique(made_by):
        ends_s[step] = np.median(ttft_s[made_by == step])
    ends_s[-1] = run.end_s - run.start_s
    if work.arrival is not None and work.arrival[KIND["steps"]]:
        return ObservedSteps(np.vstack([work.arrival, rows]), np.concatenate([[np.nan], ends_s]))
    if work.arrival is not None:
        rows[0] += work.arrival
    return ObservedSteps(rows, ends_s)


def engine_steps(record: CalibrationRecord, effective: Mapping[str, Any], facts: ModelFacts) -> EngineSteps:
    """How the engine of a calibration forms steps, with graphs as it shows them; raises as `steps_of` does."""
    engine = get_engine(record.engine)
    knobs = engine.knobs.model_validate(record.knobs)
    steps = steps_of(engine, knobs, get_gpu(record.gpu), facts, record.environment)
    return replace(steps, graphs=steps.graphs and steps.graphs.as_shown(effective))


def scheduled(
    requests: RequestLengths, record: CalibrationRecord, effective: Mapping[str, Any], facts: ModelFacts, on_cpu: bool
) -> tuple[Schedule, StepWork]:
    """What an engine with these settings runs when, and its work; raises as `engine_steps` does."""
    steps = engine_steps(record, effective, facts)
    if isinstance(steps.decides, StaticBatches):
        schedule = static_schedule(requests, steps.decides.max_num_seqs)
        return schedule, static_work(requests, steps.decides, facts, copies_matrices=on_cpu)
    shown = {name: effective[name] for name in SHOWN if name in effective}
    schedule = make_schedule(requests, replace(steps.decides, num_blocks=int(effective["num_gpu_blocks"]), **shown))
    return schedule, step_work(schedule.segments, facts, steps, taken_in=len(requests))


def fit_sums(rows: FloatArray, times: FloatArray, guide: StepCosts | None = None) -> StepCosts:
    """The costs that meet the times of steps best where all times add up, by non-negative least squares.

    Errors are counted in shares of the geometric mean of measured and predicted time, so that twice too slow weighs as
    much as twice too fast. Shares of the measured time would weigh slow steps less, and find costs that are too low.
    What is predicted follows from the costs, so the fit is repeated until it settles. `rows`: work of each step, one
    column per kind. `guide` decides where the steps of one model leave open which of two kinds of work takes the time.
    """
    from scipy.optimize import nnls  # takes longer than a prediction that fits no calibration

    work = rows[:, : -len(LAUNCHED)]
    guides = np.zeros((len(GUIDED) if guide else 0, work.shape[1]))
    for row in range(len(guides)):
        guides[row, KIND[GUIDED[row]]] = GUIDE_WEIGHT / getattr(guide, GUIDED[row])
    predicted = times
    for _ in range(FIT_ROUNDS):
        size = np.sqrt(times * np.maximum(predicted, times / _DISTURBED))
        shares = np.vstack([work / size[:, None], guides])
        target = np.append(times / size, np.full(len(guides), GUIDE_WEIGHT))
        # Columns of equal size, because work in bytes and work in steps differ by many orders of magnitude.
        columns = np.where(shares.any(axis=0), np.linalg.norm(shares, axis=0), 1.0)
        solution = nnls(shares / columns, target)[0] / columns
        costs = StepCosts(**dict(zip(KINDS, solution.tolist(), strict=False)), overlap=False)
        before, predicted = predicted, rows @ costs.seconds
        if np.allclose(before, predicted, rtol=SETTLED):
            break
    return costs


def band(
    held_out: Sequence[CalibrationPoint],
    points: Sequence[CalibrationPoint],
    fit_to: Callable[[Sequence[CalibrationPoint]], StepCosts],
    on_cpu: bool,
) -> FitBand:
    """The band from points of the model itself, by cross-validation: each is predicted by costs fitted without it.

    If the model was started several times, they are also fitted without the start that it was measured in, so the band
    has what differs from one moment to another. It is the ceil((n + 1) 0.9)-th smallest of n errors.

    On a GPU a calibration's passes take 20 to 400 ms, and most of their errors are of arrivals and single launches.
    These do not grow with the length of a pass, so the band has `LEAST_ERROR` and as many seconds as points need.
    """
    if len(held_out) < FEWEST_POINTS:
        return FitBand(throughput=None, ttft=None, points=len(held_out))
    starts = {point.start for point in held_out}
    numbers = sorted({point.number for point in held_out})
    walls, firsts = [], []
    for start in starts:
        others = [point for point in points if len(starts) == 1 or point.start != start]
        for fold in range(min(FOLDS, len(numbers))):
            out = set(numbers[fold::FOLDS])
            costs = fit_to([point for point in others if point.number not in out])
            for point in held_out:
                if point.start == start and point.number in out:
                    timed = time_schedule(point.schedule, point.work, costs, point.requests)
                    walls.append((timed.wall_s, point.wall_s))
                    firsts.append((float(np.median(timed.first_token_s)), point.ttft_s))
    if on_cpu:
        wall, first = (float(np.exp(quantile(np.abs(np.log(pairs) @ [1, -1])))) for pairs in (walls, firsts))
        return FitBand(wall, first, len(walls))
    least = 1 + LEAST_ERROR
    return FitBand(least, least, len(walls), wall_s=quantile(beyond_s(walls)), ttft_s=quantile(beyond_s(firsts)))


def beyond_s(pairs: Sequence[tuple[float, float]]) -> FloatArray:
    """Errors of (predicted, measured) times beyond `LEAST_ERROR`, which is independent of the rest.

    >>> beyond_s([(1.0, 1.05), (1.0, 1.26)]).round(2).tolist()
    [0.0, 0.24]
    """
    predicted_s, measured_s = np.array(pairs).T
    excess_s: FloatArray = np.sqrt(np.maximum(0, (predicted_s - measured_s) ** 2 - (LEAST_ERROR * predicted_s) ** 2))
    return excess_s


def quantile(errors: FloatArray) -> float:
    """The ceil((n + 1) 0.9)-th smallest of n errors.

    >>> quantile(np.arange(19)), quantile(np.arange(9))
    (17.0, 8.0)
    """
    return float(np.sort(errors)[int(np.ceil((len(errors) + 1) * COVERAGE)) - 1])
