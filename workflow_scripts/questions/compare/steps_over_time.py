"""The runs of a study over time: since when a cell is slower or faster.

ruptures proposes where the runs of a cell step (PELT with least squares: Killick et al., Optimal detection of
changepoints with a linear computational cost, J. Am. Stat. Assoc. 107, 2012). Whether there is a step is decided by the
comparison of the runs on both sides, with an error for all places where a step could have been proposed.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import ruptures

from workflow_scripts.common.records import Record
from workflow_scripts.questions.compare.comparison import CellRatio, Comparison, cell_ratios, means_of, on_cpu
from workflow_scripts.questions.compare.digest import Digest, Mean
from workflow_scripts.statistics.comparisons import CHANGES
from workflow_scripts.statistics.variation import of_occasions

# A cell and its measure.
Key = tuple[str, str]
# The position of a run among all, and what it measured.
Runs = Sequence[tuple[int, Mean]]


class Step(Record):
    """A step that is shown: the position of its first run, and the parts before and after it compared."""

    run: int
    found: CellRatio


class Series(Record):
    """A measure of a cell over time: the positions of its runs with their values, its steps, and the last run compared
    with the earlier ones since the step before it."""

    cell: str
    measure: str
    runs: list[int]
    values: list[float]
    steps: list[Step]
    now: CellRatio

    @property
    def last(self) -> CellRatio:
        """Where the last run stands: the last step, or the comparison with all earlier runs if there is none."""
        return self.steps[-1].found if self.steps else self.now


class StepsOverTime(Record):
    """The runs of a study by name, the oldest first, and each measure of each cell over them."""

    study: str
    runs: list[str]
    series: list[Series]


def steps_over_time(names: Sequence[str], runs: Sequence[Digest], results: Sequence[Comparison]) -> StepsOverTime:
    """The steps of each cell over the runs, the oldest first; `results` compare each but the last with the last one.

    A run of a cell that may not be compared with the last one is left out.
    """
    series = dict(_series(runs, results))
    steps = _steps(series, results[-1])
    before_last = {key: max(at for at in (0, *steps[key]) if at < len(of) - 1) for key, of in series.items()}
    ends = [(key, before_last[key], len(of) - 1, len(of)) for key, of in series.items()]
    now = dict(zip(series, _compared(series, ends, results[-1], [1.0] * len(ends)), strict=True))
    if len(runs) == 2:  # also says whether only the waiting for the host changed
        now = {(c.cell, c.measure): c for c in results[-1].cells}
    for key, of in series.items():
        if now[key].verdict == CHANGES:
            steps[key][len(of) - 1] = now[key]
    return StepsOverTime(
        study=results[-1].study_b,
        runs=list(names),
        series=[
            Series(
                cell=key[0],
                measure=key[1],
                runs=[run for run, _ in of],
                values=[math.exp(mean.log_mean) for _, mean in of],
                steps=[Step(run=of[at][0], found=step) for at, step in sorted(steps[key].items())],
                now=now[key],
            )
            for key, of in series.items()
        ],
    )


def _series(runs: Sequence[Digest], results: Sequence[Comparison]) -> Iterator[tuple[Key, Runs]]:
    means = [{(cell.id, mean.measure): mean for cell in run.cells for mean in cell.means} for run in runs]
    comparable = [{(c.cell, c.measure) for c in each.cells} for each in results]
    for key, last in means[-1].items():
        if earlier := [(run, means[run][key]) for run, keys in enumerate(comparable) if key in keys]:
            yield key, [*earlier, (len(runs) - 1, last)]


def _steps(series: Mapping[Key, Runs], like: Comparison) -> dict[Key, dict[int, CellRatio]]:
    """The proposed steps that are shown, by their place; of the others of a series, the weakest is dropped first."""
    places = {key: _proposed(of, like.occasions_vary_pct, on_cpu(key[0])) for key, of in series.items()}
    while True:
        cuts = [
            (key, *cut)
            for key, at in places.items()
            for cut in zip([0, *at], at, [*at[1:], len(series[key])], strict=False)
        ]
        # Any two neighbouring parts of a series could have been compared.
        shares = [1 / math.comb(len(series[key]) + 1, 3) for key, *_ in cuts]
        ratios = _compared(series, cuts, like, shares)
        weakest: dict[Key, tuple[float, int]] = {}
        for (key, _, at, _), ratio in zip(cuts, ratios, strict=True):
            if ratio.verdict != CHANGES:
                width = math.log(ratio.high / ratio.low) if ratio.low and ratio.high else math.inf
                weakest[key] = min(weakest.get(key, (math.inf, at)), (ratio.size / width, at))
        if not weakest:
            shown: dict[Key, dict[int, CellRatio]] = {key: {} for key in series}
            for (key, _, at, _), ratio in zip(cuts, ratios, strict=True):
                shown[key][at] = ratio
            return shown
        for key, (_, at) in weakest.items():
            places[key].remove(at)


def _proposed(runs: Runs, vary_pct: float | None, is_cpu: bool) -> list[int]:
    """Where a series may step: the places of the first runs after it."""
    errors = [mean.squared_error or 0.0 for _, mean in runs]
    vary_pct = of_occasions(is_cpu)[0] if vary_pct is None else vary_pct
    sd = max(math.sqrt((vary_pct / 100) ** 2 + float(np.median(errors))), 1e-9)
    signal = np.array([[mean.log_mean / sd] for _, mean in runs])
    places: list[int] = ruptures.Pelt(model="l2", min_size=1, jump=1).fit(signal).predict(pen=2 * math.log(len(runs)))
    return places[:-1]


def _compared(
    series: Mapping[Key, Runs], cuts: Sequence[tuple[Key, int, int, int]], like: Comparison, shares: Sequence[float]
) -> list[CellRatio]:
    """For each cut of a series, what begins in its middle over what begins at its start."""
    if not cuts:
        return []
    before = means_of([mean for _, mean in series[key][low:at]] for key, low, at, _ in cuts)
    after = means_of([mean for _, mean in series[key][at:high]] for key, _, at, high in cuts)
    names = [key for key, *_ in cuts]
    return cell_ratios(names, before, after, like.margin_pct, like.occasions_vary_pct, np.array(shares))
