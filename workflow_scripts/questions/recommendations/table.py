"""Recommend vLLM configurations to serve with: the fastest, and the smallest equally fast one.

Each comes with its interval, with the configurations that cannot be distinguished from it, and as a `vllm serve`
command. docs/tables.md documents every column.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from workflow_scripts.common.wording import number
from workflow_scripts.engines.vllm.knobs import VLLM, VllmKnobs
from workflow_scripts.questions.comparisons.pairs import ENGINE, looks_at
from workflow_scripts.questions.comparisons.table import DEVICE, DIFFERS
from workflow_scripts.statistics.comparisons import CHANGES, FLAT, LIKELY, NOT_DECIDED, SCOPE_MEANING, mean_interval
from workflow_scripts.statistics.errors import BoolArray
from workflow_scripts.statistics.further_starts import ONE_LOOK, Looks, decide
from workflow_scripts.statistics.samples import Samples
from workflow_scripts.statistics.variation import cell_means
from workflow_scripts.study.definition import model_key, resolved_models
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.serve_command import Prepared, ServeSettings, serve_settings
from workflow_scripts.study.study import Study
from workflow_scripts.tables.summary import (
    ENVIRONMENT,
    IDENTITY,
    PLACE,
    RATE,
    STEADY,
    WORK,
    Row,
    Summaries,
    numbers,
    records,
)
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import FLAG, INTEGER, NUMBER, TEXT, table_schema

RANKED_BY = ("tpot_s_p50", "ttft_s_p50")
_TAILS = ("ttft_s_p99", "tpot_s_p99")
BEST, WITHIN_LATENCY, SMALLEST = "best_throughput", "best_within_latency", "smallest_within_margin"
# The bound if the study sets none is this many times the lowest time per output token of any configuration.
DEFAULT_TPOT_FACTOR = 2.0
TESTS_ONLY = ("knob_num_gpu_blocks_override", "knob_synthetic_acceptance_length")
# The mean of equal values may differ from them by this share.
_ROUNDING = 1e-9

SCHEMA = table_schema(
    "recommendations",
    "vLLM configurations to serve with, per device, model and workload. Requests are submitted all "
    "at once, so TTFT includes the wait for a free place. Settings with `num_gpu_blocks_override`, which is for tests, "
    "are left out.",
    TEXT("study source gpu model workload", "as in `cells`"),
    TEXT(
        "role",
        "`best_throughput`: the highest rate without the effects of rounds; `best_within_latency`: the same within the "
        "bound; "
        "`smallest_within_margin`: fewest sequences, then least memory, then smallest block, among those "
        "shown to be within the margin of the highest rate",
    ),
    TEXT("cell_id knobs", "the configuration"),
    INTEGER("repeats", "valid repeats of all starts"),
    TEXT(
        "metric",
        "the compared rate: `output_tokens_per_s`, or `steady_output_tokens_per_s` if requests differ and several "
        "configurations have it; those without it are left out",
    ),
    NUMBER(
        [f"{name}{end}" for name in ("rate", *RANKED_BY) for end in ("", "_low", "_high")],
        "`metric`, the latencies of whole repeats: geometric means over the cell's starts",
    ),
    TEXT("scope", SCOPE_MEANING),
    NUMBER(
        "ttft_s_p99 tpot_s_p99",
        "99th percentile of a repeat, geometric mean over the starts; the lowest if none keeps the bound",
    ),
    TEXT(
        "latency_bound", "bound of `best_within_latency`; default: `tpot_s_p99` at most twice the lowest `tpot_s_p50`"
    ),
    NUMBER("margin_pct", "margin of `smallest_within_margin`"),
    TEXT(
        "ties",
        "knobs of configurations not shown to be slower than the highest rate by more than the margin, comma-separated",
    ),
    FLAG("equal_work", "whether all compared configurations served the same requests"),
    INTEGER("compared", "configurations of this device, model and workload"),
    INTEGER("eligible", "those of them among which the role chooses; 0: none keeps the bound"),
    TEXT("command", "`vllm serve` with this configuration and the model's published weights"),
)

_PINNED = [name for name, knob in VllmKnobs.described().items() if knob.pinned]
_RESERVES = [f"knob_{name}" for name, knob in VllmKnobs.described().items() if knob.reserves]

# Model -> its resolved definition and its prepared folder.
Settings = Mapping[str, Prepared]


def recommendations(
    summed: Summaries,
    comparisons: pd.DataFrame,
    margin_pct: float,
    models: Settings,
    tpot_p99_s: float | None = None,
    looks: Looks = ONE_LOOK,
) -> pd.DataFrame:
    """The recommendations table: the rows of each device, model and workload, for each lock and processor.

    Settings that differ in one knob have the verdict of `comparisons`; others are tested against the highest rate
    of their place. Models that are not in `models` get no command. `tpot_p99_s` bounds the 99th percentile of the time
    per output token, as mean over the starts.
    """
    summary, samples = _summary(summed)
    shown = _shown(comparisons)
    rows = [
        row
        for _, place in summary.groupby([*PLACE, *ENVIRONMENT], dropna=False, sort=False)
        for row in _of_place(_by_one_rate(place), samples, shown, margin_pct, models, tpot_p99_s, looks)
    ]
    return pd.DataFrame(rows, columns=list(SCHEMA.columns))


def _summary(summed: Summaries) -> tuple[pd.DataFrame, Mapping[str, Samples]]:
    """vLLM's cells with means and intervals of rates and latencies; and the samples of each rate.

    The samples of all engines tell how much starts vary, as in the table `intervals`. Cells with a set number of KV
    blocks, or drafts that are accepted at random, are left out: vLLM has these settings for tests.
    """
    summary, samples = summed(RATE)
    summary = summary.drop(columns=STEADY)
    serves = summary["engine"].eq(VLLM.name) & summary.reindex(columns=list(TESTS_ONLY)).isna().all(axis="columns")
    summary = _with_interval(summary[serves].reset_index(drop=True), samples, RATE)
    of_rates = {RATE: samples}
    for metric in (STEADY, *RANKED_BY, *_TAILS):
        of_metric, of_rates[metric] = summed(metric)
        other = _with_interval(of_metric[[*IDENTITY, "sample"]], of_rates[metric], metric)
        columns = [*IDENTITY, metric, *(f"{metric}_{end}" for end in ("low", "high", "scope", "rank"))]
        summary = summary.merge(other[columns], on=list(IDENTITY), how="left")
    return summary, of_rates


def _by_one_rate(place: pd.DataFrame) -> pd.DataFrame:
    """The cells of a place that have the rate by which it is ranked, as `metric` and `rate`.

    Rates of whole repeats do not rank cells that served other requests.
    """
    equal_work = len(place[list(WORK)].drop_duplicates()) == 1
    metric = RATE if equal_work or place[STEADY].count() < 2 else STEADY
    place = place[place[metric].notna()].reset_index(drop=True)
    rates = {f"rate{end}": place[f"{metric}{end}"] for end in ("", "_low", "_high")}
    return place.assign(metric=metric, **rates, scope=place[f"{metric}_scope"], equal_work=equal_work)


def _shown(comparisons: pd.DataFrame) -> "pd.Series[str]":
    """What is shown of a setting being slower than another, by the identifiers of both cells, from the comparisons of
    settings; without those by rates of whole repeats of other requests."""
    of_settings = comparisons["verdict"].notna() & ~comparisons["kind"].isin([DEVICE, ENGINE])
    by_work = comparisons["metric"].eq(STEADY) | (comparisons["metric"].eq(RATE) & comparisons["work"].ne(DIFFERS))
    rows = comparisons[of_settings & by_work.fillna(True)]
    falls = rows["ratio"] < 1
    verdict = rows["verdict"].replace(LIKELY, NOT_DECIDED)
    shown = pd.DataFrame(
        {"slower": rows["a"].mask(falls, rows["b"]), "faster": rows["b"].mask(falls, rows["a"]), "verdict": verdict}
    )
    turned = shown.rename(columns={"slower": "faster", "faster": "slower"}).replace({"verdict": {CHANGES: NOT_DECIDED}})
    return pd.concat([shown, turned]).set_index(["slower", "faster"])["verdict"]


def _with_interval(summary: pd.DataFrame, samples: Samples, metric: str) -> pd.DataFrame:
    (value, low, high), scope = mean_interval(samples)
    means = pd.DataFrame({metric: value, f"{metric}_low": low, f"{metric}_high": high, f"{metric}_scope": scope})
    means[f"{metric}_rank"] = cell_means(samples.log, samples.group)
    return summary.join(means, on="sample")


def _of_place(
    place: pd.DataFrame,
    of_rates: Mapping[str, Samples],
    shown: "pd.Series[str]",
    margin_pct: float,
    models: Settings,
    tpot_p99_s: float | None,
    looks: Looks,
) -> Iterator[Row]:
    cells = records(place.assign(compared=len(place)))
    by = str(place["metric"].iloc[0])
    sample, samples = place["sample"].to_numpy(dtype=int), of_rates[by]
    # Means of logarithms without the effects of rounds.
    rate = numbers(place[f"{by}_rank"])
    memory = [name for name in _RESERVES if name in place]
    changes = shown.index[shown == CHANGES]

    def row(cell: int, role: str, **more: object) -> Row:
        settings = settings_of(cells[cell], models)
        return cells[cell] | {"command": settings and settings.command(), "role": role} | more

    def verdicts(highest: int, others: npt.NDArray[np.intp]) -> npt.NDArray[np.str_]:
        """What is shown of others being slower than the one of the highest rate."""
        alone = decide(samples, sample[others], sample[[highest]], margin_pct, looks)
        found = np.where((alone.verdict == CHANGES) & (alone.found.difference > 0), NOT_DECIDED, alone.verdict)
        pairs = pd.MultiIndex.from_product([place["cell_id"][others], [place["cell_id"][highest]]])
        known = shown.reindex(pairs)
        return np.where(known.isna(), found, known.astype(str))

    def fastest(among: BoolArray, role: str, **more: object) -> Row:
        highest = int(np.where(among, rate, -np.inf).argmax())
        others = np.flatnonzero(among & (place.index != highest))
        others = others[verdicts(highest, others) != CHANGES]
        # What is shown to be slower than another of them is not the fastest.
        slower, faster = (changes.get_level_values(name) for name in ("slower", "faster"))
        is_slower = place["cell_id"][others].isin(slower[faster.isin(place["cell_id"][among])])
        tied = others[~is_slower.to_numpy()]
        ties = ", ".join(place.loc[sorted(tied), "knobs"]) or None
        return row(highest, role, ties=ties, eligible=among.sum(), **more)

    best = int(rate.argmax())
    yield fastest(np.ones(len(place), dtype=bool), BEST)

    bound_s = tpot_p99_s or DEFAULT_TPOT_FACTOR * float(place["tpot_s_p50"].min())
    source = "" if tpot_p99_s else f", {DEFAULT_TPOT_FACTOR:g} times the lowest median"
    bound = None if np.isnan(bound_s) else f"p99 TPOT <= {number(1000 * bound_s)} ms{source}"
    within = numbers(place["tpot_s_p99"]) <= bound_s * (1 + _ROUNDING)
    if within.any():
        yield fastest(within, WITHIN_LATENCY, latency_bound=bound)
    else:
        where: Row = {name: cells[best][name] for name in (*PLACE, "metric", "compared", "equal_work")}
        lowest = place["tpot_s_p99"].min()
        yield where | {"role": WITHIN_LATENCY, "latency_bound": bound, "eligible": 0, "tpot_s_p99": lowest}

    as_fast = place.index.to_numpy() == best
    as_fast[~as_fast] = verdicts(best, np.flatnonzero(~as_fast)) == FLAT
    order = ["max_concurrency_allowed", *memory, "block_size_effective", "knobs"]
    smallest = int(place[as_fast].sort_values(order, kind="stable").index[0])
    yield row(smallest, SMALLEST, margin_pct=margin_pct, eligible=as_fast.sum())


def settings_of(cell: Row, models: Settings) -> ServeSettings | None:
    """How to serve with the settings of a row of the cells table; None for a model that the study does not have."""
    if cell["model"] not in models:
        return None
    model, folder = models[cell["model"]]
    knobs = {
        name.removeprefix("knob_"): value
        for name, value in cell.items()
        if name.startswith("knob_") and name.removeprefix("knob_") in VllmKnobs.model_fields and not pd.isna(value)
    }
    effective = {name: cell[f"{name}_effective"] for name in _PINNED if not pd.isna(cell[f"{name}_effective"])}
    # In a column with nulls, whole numbers may be floats.
    settings = VllmKnobs.model_validate(knobs, strict=False)
    if model.dtype == "native":
        model = model.model_copy(update={"dtype": cell["dtype"]})
    return serve_settings(model, folder, settings, effective, models.get(settings.draft_model or ""))


def prepared_models(study: Study, paths: StudyPaths) -> Settings:
    return {name: (model, paths.model(name, model_key(model))) for name, model in resolved_models(study).items()}


@makes(SCHEMA)
def make_tables(inputs: TableInputs) -> pd.DataFrame:
    study = inputs.study
    # Weights of a published model may have been random, which does not change the speed; a server needs the real ones.
    models = {
        name: (model.model_copy(update={"load_format": "hub"}) if model.hub_repo else model, folder)
        for name, (model, folder) in prepared_models(study, inputs.paths).items()
    }
    # Requests that are submitted at once wait for a free place, so only the study's limit on this time is a bound.
    bound_s = study.slo.tpot_s if study.slo else None
    looks, comparisons = looks_at(study.starts, inputs.cells), inputs.table("comparisons")
    return recommendations(inputs.summed, comparisons, study.equivalence_margin_pct, models, bound_s, looks)
