"""What a study promises of one measured vLLM setting: its rate and latencies after another start of the engine."""

import re
from typing import Annotated

import pandas as pd
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, ConfigDict, ValidationError, field_validator

from workflow_scripts.common.records import Record, faults
from workflow_scripts.common.wording import finite
from workflow_scripts.engines.arguments import arguments_of
from workflow_scripts.engines.knobs import ENGINE_ARGS
from workflow_scripts.engines.vllm.knobs import RESERVED, VLLM, VLLM_SERVE, VllmKnobs
from workflow_scripts.questions.recommendations.table import WITHIN_LATENCY, prepared_models, settings_of
from workflow_scripts.statistics.comparisons import interval_of, mean_errors
from workflow_scripts.statistics.errors import Error, FloatArray, added
from workflow_scripts.statistics.samples import Samples
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.serve_command import PromiseError, ServeSettings
from workflow_scripts.study.study import Name, Study
from workflow_scripts.tables.parsed_facts import REPEAT
from workflow_scripts.tables.summary import Row, comparable_rows, records, summarise

_KNOBS = VllmKnobs.described().items()
# What `serve_settings` may set: arguments under their command-line names, and environment variables.
ARGUMENTS = {"revision", "load-format", "trust-remote-code", "dtype"} | {
    (knob.argument or name).partition(".")[0].replace("_", "-")
    for name, knob in _KNOBS
    if not knob.variable and name != ENGINE_ARGS
}
# Of the engine's own arguments, numbers, switches and choices of memory and scheduling: others name modules, files and
# addresses, or let requests bring what is run.
_SERVED = re.compile(
    r"(?:kv_|mamba_|max_num_|max_cudagraph|prefix_|long_prefill|prefill_schedule|offload_|swa_|dcp_|disable_)\w+"
    r"|async_scheduling|watermark|scheduling_policy|performance_mode|stream_interval|cpu_offload_gb|\w+_backend"
    r"|decode_context_parallel_size"
)
ARGUMENTS |= {
    name.replace("_", "-")
    for name, kind in (arguments_of("vllm") or {}).items()
    if (isinstance(kind, list) or kind in ("bool", "int", "float")) and name not in RESERVED and _SERVED.fullmatch(name)
}
VARIABLES = {knob.variable for _, knob in _KNOBS if knob.variable}
# What the alerts and the dashboard compare with.
MEASURES = ("output_tokens_per_s", "ttft_s_p50", "itl_s_p50")
CELLS_NAMED = 8


def _line(text: str) -> str:
    if not text.isprintable() or set("{}$") & set(text):
        raise ValueError("must be one line of printable text without {, } and $")
    return text


def _release(text: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion:
        raise ValueError(f"must be a version, such as 0.32.0, not {text!r}") from None


# What a study measured may come from somebody else, and goes into comments, shell, YAML and queries. Text is one line,
# and holds no placeholder of a shell, Prometheus or Grafana.
OneLine = Annotated[str, AfterValidator(_line)]
Release = Annotated[str, AfterValidator(_release)]


class Promised(Record):
    """A measured value, and the 95 % interval in which one further start of the engine is expected to lie."""

    model_config = ConfigDict(allow_inf_nan=False)

    value: float
    low: float | None = None
    high: float | None = None


class Promise(Record):
    """A vLLM setting, the load that it was measured under, and what it did; times in s, rates per s.

    `served_model`: the model's name in requests. `engine_version`: package and version; `engine_release`: its version
    alone. `effective`: sizes that took effect. `busy`: requests in the server from which on it is as busy as in the
    study. `measured`: by measure. `hit_rate`: lowest prefix-cache hit rate of a repeat; None without hits.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    study: Name
    cell_id: OneLine
    serve: ServeSettings
    served_model: Name
    engine_version: OneLine
    engine_release: Release
    effective: dict[str, int]
    max_num_seqs: int
    starts: int
    busy: float
    measured: dict[str, Promised]
    hit_rate: float | None
    slo: dict[str, float]

    @field_validator("serve")
    @classmethod
    def _only_what_a_study_sets(cls, serve: ServeSettings) -> ServeSettings:
        _line(serve.model)
        for given, allowed in ((serve.arguments, ARGUMENTS), (serve.environment, VARIABLES)):
            if unknown := given.keys() - allowed:
                raise ValueError(f"{min(unknown)!r} is no setting of a study; allowed: {', '.join(sorted(allowed))}")
        return serve


def promise_of(
    study: Study,
    paths: StudyPaths,
    cells: pd.DataFrame,
    served: pd.DataFrame,
    recommendations: pd.DataFrame,
    asked: str | None = None,
) -> Promise:
    """What the study promises of the requested cell, or of the recommended one; `served` is the table `serving`.

    Raises:
        PromiseError: there is no such cell, nothing may be promised of it, or a table has what no study measures.
    """
    cells = comparable_rows(cells)
    cells = cells[cells["engine"].isin([VLLM.name, VLLM_SERVE.name]) & cells["repeat"].notna()]
    cell_id = _chosen(cells, recommendations, asked)
    rows = cells[cells["cell_id"] == cell_id]
    row = records(rows)[0]
    of_server = row["engine"] == VLLM_SERVE.name
    if of_server:
        rows = rows.merge(served[[*REPEAT, *served.columns.difference(rows.columns)]], on=REPEAT, how="left")
    seqs = row["max_num_seqs_effective"]
    seqs = int(row["max_concurrency_allowed"] if pd.isna(seqs) else seqs)
    try:
        settings = settings_of(row, prepared_models(study, paths))
        if settings is None:
            raise PromiseError(f"{cell_id}: the study no longer has the model {row['model']}")
        return Promise(
            study=study.name,
            cell_id=cell_id,
            serve=settings,
            served_model=str(row["model"]),
            engine_version=str(row["engine_version"]),
            engine_release=str(row["engine_version"]).rpartition(" ")[2],
            effective=_effective(row),
            max_num_seqs=seqs,
            starts=int(rows["start"].nunique()),
            busy=float(rows["in_flight_peak"].max()) if of_server else seqs,
            measured={
                name: _promised(summarise(rows, ["gpu", "cell_id"], name)[1])
                for name in MEASURES
                if name in rows and rows[name].gt(0).any()
            },
            hit_rate=finite(rows["prefix_cache_hit_rate"].min()) or None,
            slo=study.slo.bounds() if study.slo else {},
        )
    except ValidationError as e:
        kind = VllmKnobs if e.title == VllmKnobs.__name__ else Promise
        raise PromiseError("\n".join(": ".join(("of the cell", *fault)) for fault in faults(e, kind, {}))) from None


def _chosen(cells: pd.DataFrame, recommendations: pd.DataFrame, asked: str | None) -> str:
    """The one measured cell that was asked for by its id or its knobs, or the one that is recommended."""
    allowed = cells["cell_id"].unique()
    recommended = set(recommendations.loc[recommendations["role"].eq(WITHIN_LATENCY), "cell_id"])
    found = [cell for cell in allowed if (asked in (cell, cell.rpartition("/")[2]) if asked else cell in recommended)]
    if len(found) != 1:
        named = ", ".join((found or list(allowed))[:CELLS_NAMED]) or "no cell of vLLM was measured as the study asks"
        fit = f"names {len(found)} measured cells of vLLM" if asked else f"{len(found)} cells are recommended"
        raise PromiseError(f"pick={asked or ''}: {fit}; name one: {named}")
    return str(found[0])


def another_start(samples: Samples) -> tuple[FloatArray, Error]:
    """The logarithm of what one further start of each cell is to measure on another day, with its error:
    of the mean of the study, of both occasions, and of the start itself."""
    mean, error = mean_errors(samples)
    occasions = Error(2 * (samples.known.occasions**2 + samples.known.cards**2))
    # The squared error of a mean of n starts is the variance of one over n.
    return mean, added(error.times(samples.starts + 1), occasions)


def _promised(samples: Samples) -> Promised:
    value, low, high = (float(end[0]) for end in interval_of(*another_start(samples)))
    return Promised(value=value, low=finite(low), high=finite(high))


def _effective(row: Row) -> dict[str, int]:
    names = ("block_size", "num_gpu_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
    facts = {name: row.get(f"{name}_effective", row.get(name)) for name in names}
    return {name: int(value) for name, value in facts.items() if not pd.isna(value)}
