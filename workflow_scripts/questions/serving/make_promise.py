"""Write what a study measured of one vLLM setting, for a deployment with it.

    kvsweep promise --study config/studies/demo.yaml --tables results/demo/tables --out promise.json

`--pick` names the cell whose setting is used. Without it, the setting is the recommended one within the study's latency
limits, for the workload that `--workload` names if the study has several: of cells that were measured on a server, the
one that kept up with the highest request rate; without such cells, the fastest of the recommendations
`best_within_latency`.
"""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import pandas as pd
from pydantic import ValidationError

from workflow_scripts.common.command import RESULTS, STUDY, TABLES, command, option, out
from workflow_scripts.common.records import faults
from workflow_scripts.common.wording import finite
from workflow_scripts.engines.vllm.knobs import VLLM, VLLM_SERVE, VllmKnobs
from workflow_scripts.questions.limits.table import SCHEMA as LIMITS
from workflow_scripts.questions.memory.capacity import SCHEMA as CAPACITY
from workflow_scripts.questions.recommendations.table import WITHIN_LATENCY, prepared_models, settings_of
from workflow_scripts.questions.serving.table import GROWTH_REQUESTS, GROWTH_SHARE, bounds_text
from workflow_scripts.statistics.comparisons import interval_of, mean_errors, mean_interval
from workflow_scripts.statistics.errors import Error, FloatArray, added
from workflow_scripts.statistics.samples import Samples
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.promise import PROMISE, Promise, Promised, PromiseError
from workflow_scripts.study.study import WITHIN_SHARE, Study
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.parsed_facts import REPEAT
from workflow_scripts.tables.summary import Row, comparable_rows, knob_columns, records, summarise
from workflow_scripts.tables.table_maker import TableInputs
from workflow_scripts.workloads.arrivals import Load

ReadTable = Callable[[str], pd.DataFrame]

# What the alerts and the dashboard compare with.
MEASURES = ("output_tokens_per_s", "ttft_s_p50", "itl_s_p50")
CELLS_NAMED = 8
_PREDICTED = ("weights", "activation", "cuda_graphs", "other", "kv_cache")


def promise_of(
    study: Study,
    paths: StudyPaths,
    cells: pd.DataFrame,
    table: ReadTable,
    asked: str | None = None,
    workload: str | None = None,
) -> Promise:
    """What the study promises of the requested cell, or of the one that is recommended for a workload.

    Raises:
        PromiseError: there is no such cell, nothing may be promised of it, or a table has what no study measures.
    """
    try:
        return _promise_of(study, paths, comparable_rows(cells), table, asked, workload)
    except ValidationError as e:
        kind = VllmKnobs if e.title == VllmKnobs.__name__ else Promise
        raise PromiseError("\n".join(": ".join(("of the cell", *fault)) for fault in faults(e, kind, {}))) from None


def _promise_of(
    study: Study, paths: StudyPaths, cells: pd.DataFrame, table: ReadTable, asked: str | None, workload: str | None
) -> Promise:
    cells = cells[cells["engine"].isin([VLLM.name, VLLM_SERVE.name])]
    searched = cells.loc[cells["repeat"].isna() & cells["outcome"].eq("ok"), "cell_id"].unique()
    cells = cells[cells["repeat"].notna()]
    if named := [cell for cell in searched if _names(asked, cell) or (cells.empty and not asked)]:
        raise PromiseError(
            f"{named[0]}: only searched the highest load, which the table `searches` has, and measured no rate and"
            " latency at one load; allowed: a cell with `request_rate_per_s` or `users`, such as this setting at a"
            " lower load"
        )
    if cells.empty:
        raise PromiseError(
            f"study {study.name}: no cell of vLLM was measured as the study asks, so there is no setting to promise"
        )
    served = table("serving_summary")
    if asked:
        cell_id, why = _asked(cells, asked)
    else:
        of_workload = cells[cells["workload"] == _workload(study, cells, workload)]
        cell_id, why = _recommended(study, of_workload, served, table("recommendations"))
    rows = cells[cells["cell_id"] == cell_id]
    row = records(rows)[0]
    settings = settings_of(row, prepared_models(study, paths))
    if settings is None:
        raise PromiseError(f"{cell_id}: the study no longer has the model {row['model']}")
    of_server = row["engine"] == VLLM_SERVE.name
    extra, ceilings = table("serving"), table(LIMITS.name).groupby("cell_id")["output_tokens_per_s_ceiling"].min()
    if of_server:
        rows = rows.merge(extra[[*REPEAT, *extra.columns.difference(rows.columns)]], on=REPEAT, how="left")
    # Only the first cell of a session started the engine.
    started = cells[cells["cell_id"].eq(cell_id) | cells["session"].isin(rows["session"].dropna())]
    expected = {
        name: summarise(rows, ["gpu", "cell_id"], name)[1]
        for name in MEASURES
        if name in rows and rows[name].gt(0).any()
    }
    sustained, too_much = _loads(served, cells, rows) if of_server else (None, None)
    seqs = row["max_num_seqs_effective"]
    seqs = int(row["max_concurrency_allowed"] if pd.isna(seqs) else seqs)
    return Promise(
        study=study.name,
        cell_id=cell_id,
        why=why,
        serve=settings,
        served_model=str(row["model"]),
        engine_version=str(row["engine_version"]),
        engine_release=str(row["engine_version"]).rpartition(" ")[2],
        effective=_effective(row),
        max_num_seqs=seqs,
        start_s=finite(started["start_s"].max()) or 0.0,
        starts=int(rows["start"].nunique()),
        load=_load_text(row, of_server),
        busy=float(rows["in_flight_peak"].max()) if of_server else seqs,
        measured={name: _promised(samples) for name, samples in expected.items()},
        scope=next((mean_interval(samples)[1][0] for samples in expected.values()), None),
        ceiling_output_tokens_per_s=finite(ceilings.get(cell_id)),
        kv_cache_usage_peak=finite(rows["kv_cache_usage_peak"].max()),
        preemptions_per_s=float((rows["preemptions"].fillna(0) / rows["wall_s"]).max()),
        hit_rate=finite(rows["prefix_cache_hit_rate"].min()) or None,
        slo=study.slo.bounds() if study.slo else {},
        sustained_per_s=sustained,
        too_much_per_s=too_much,
        growth_share=GROWTH_SHARE,
        growth_requests=GROWTH_REQUESTS,
        predicted_bytes=_predicted(table(CAPACITY.name), cell_id),
    )


def _asked(cells: pd.DataFrame, asked: str) -> tuple[str, str]:
    allowed = cells["cell_id"].unique()
    matches = [cell for cell in allowed if _names(asked, cell)]
    if len(matches) != 1:
        named = ", ".join((matches or allowed)[:CELLS_NAMED])
        raise PromiseError(f"pick={asked}: names {len(matches)} measured cells of vLLM; name one, such as {named}")
    return str(matches[0]), "It was picked by hand."


def _names(asked: str | None, cell: str) -> bool:
    return asked in (cell, cell.rpartition("/")[2])


def _workload(study: Study, cells: pd.DataFrame, asked: str | None) -> str:
    """The workload to serve. Rates of different workloads do not say which setting is better for one of them."""
    allowed: list[str] = cells["workload"].unique().tolist()
    matches = allowed if asked is None else [name for name in allowed if name == asked]
    if len(matches) != 1:
        raise PromiseError(
            f"study {study.name}: {len(matches)} measured workloads fit; name the one to serve with workload=, or a "
            f"cell with pick=; allowed workloads: {', '.join(allowed)}"
        )
    return matches[0]


def _recommended(
    study: Study, cells: pd.DataFrame, served: pd.DataFrame, recommendations: pd.DataFrame
) -> tuple[str, str]:
    limits = bounds_text(study.slo.bounds()) if study.slo else ""
    servers = cells.loc[cells["engine"] == VLLM_SERVE.name, "cell_id"]
    at_a_rate = served["cell_id"].isin(servers) & served["request_rate_per_s"].notna()
    within = served[at_a_rate & served["saturated"].eq(False)]
    within = within[within["slo_attainment"] >= WITHIN_SHARE] if study.slo else within
    if len(within):
        best = records(within.sort_values("request_rate_per_s", kind="stable"))[-1]
        limit = f" and at which at least {100 * WITHIN_SHARE:g} % of the requests kept {limits}" if limits else ""
        return str(best["cell_id"]), (
            f"Of the server loads that were kept up with{limit} ({len(within)} in all), it has the highest rate:"
            f" {best['request_rate_per_s']:g} requests/s."
        )
    rows = recommendations[recommendations["role"].eq(WITHIN_LATENCY)]
    rows = rows[rows["cell_id"].isin(cells["cell_id"])]
    if rows.empty:
        raise PromiseError(
            f"study {study.name}: no measured setting keeps the latency limit ({limits or 'of the recommendations'}); "
            f"name one with pick=, such as {cells['cell_id'].iloc[0]}"
        )
    best = records(rows.sort_values("rate", kind="stable"))[-1]
    kept = f"{best['eligible']} of {best['compared']} settings that keep {best['latency_bound']}"
    others = f", and of {len(rows)} devices and models" if len(rows) > 1 else ""
    return str(best["cell_id"]), f"It is the fastest of {kept}{others}."


def another_start(samples: Samples) -> tuple[FloatArray, Error]:
    """The logarithm of what one further start of each cell is to measure on another day, with its error:
    of the mean of the study, of both occasions, and of the start itself."""
    mean, error = mean_errors(samples)
    occasions = Error(2 * (samples.known.occasions**2 + samples.known.cards**2))
    # The squared error of a mean of n starts is the variance of one over n.
    return mean, added(error.times(samples.starts + 1), occasions)


def _promised(samples: Samples) -> Promised:
    value, low, high = (float(of[0]) for of in interval_of(*another_start(samples)))
    return Promised(value=value, low=finite(low), high=finite(high))


def _loads(served: pd.DataFrame, cells: pd.DataFrame, rows: pd.DataFrame) -> tuple[float | None, float | None]:
    """The request rates between which this setting saturates: the highest that it kept up with, the lowest too high."""
    loads = {f"knob_{name}" for name in Load.model_fields}
    setting = ["gpu", "engine", "model", "workload", *(name for name in knob_columns(cells) if name not in loads)]
    same = cells.merge(rows[setting].head(1))
    of_setting = served[served["cell_id"].isin(same["cell_id"])]
    rates = of_setting["request_rate_per_s"].astype(float)
    kept, over = (rates[of_setting["saturated"].eq(state).fillna(False)] for state in (False, True))
    return finite(kept.max()), finite(over.min())


def _load_text(row: Row, of_server: bool) -> str:
    loads = {"requests/s": row.get("knob_request_rate_per_s"), "users": row.get("knob_users")}
    words = " of ".join(f"{value:g} {what}" for what, value in loads.items() if not pd.isna(value))
    otherwise = "as the workload says" if of_server else "all at once, without a server"
    return f"{row['num_requests']} requests of workload {row['workload']}, {words or otherwise}"


def _effective(row: Row) -> dict[str, Any]:
    names = ("block_size", "num_gpu_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
    facts = {name: row.get(f"{name}_effective", row.get(name)) for name in names}
    return {name: int(value) for name, value in facts.items() if not pd.isna(value)} | {
        "dtype": None if pd.isna(row["dtype"]) else str(row["dtype"])
    }


def _predicted(capacity: pd.DataFrame, cell_id: str) -> dict[str, float]:
    names = {f"predicted_{name}_bytes": name for name in _PREDICTED}
    sizes = capacity.loc[capacity["cell_id"] == cell_id, list(names)].min().dropna()
    return {names[str(name)]: float(value) for name, value in sizes.items()}


@command(
    "promise",
    STUDY,
    RESULTS,
    TABLES,
    option(
        "--pick", help="the cell: gpu/engine/model/workload/knobs, or its knobs alone; without it, the recommended one"
    ),
    option("--workload", help="the workload to serve, if the study has several"),
    out(PROMISE),
)
def main(args: Namespace) -> None:
    study = load_study(args.study)
    paths = StudyPaths(args.results, study.name)
    tables = TableInputs(study, paths, folder=args.tables)
    promise_of(study, paths, tables.cells, tables.table, args.pick or None, args.workload or None).write(args.out)
