"""Write what a study measured of one vLLM setting, for a deployment with it.

    kvsweep promise --study config/studies/demo.yaml --tables results/demo/tables --out promise.json

`--pick` names the cell whose setting is used. Without it, that is the recommendation
`best_within_latency`, if the study has only one.
"""

from argparse import Namespace
from typing import Any

import pandas as pd
from pydantic import ValidationError

from workflow_scripts.common.command import RESULTS, STUDY, TABLES, command, option, out
from workflow_scripts.common.records import faults
from workflow_scripts.common.wording import finite
from workflow_scripts.engines.vllm.knobs import VLLM, VLLM_SERVE, VllmKnobs
from workflow_scripts.questions.recommendations.table import WITHIN_LATENCY, prepared_models, settings_of
from workflow_scripts.questions.serving.table import GROWTH_REQUESTS, GROWTH_SHARE
from workflow_scripts.statistics.comparisons import interval_of, mean_errors
from workflow_scripts.statistics.errors import Error, FloatArray, added
from workflow_scripts.statistics.samples import Samples
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.promise import PROMISE, Promise, Promised, PromiseError
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.parsed_facts import REPEAT
from workflow_scripts.tables.summary import Row, comparable_rows, records, summarise
from workflow_scripts.tables.table_maker import TableInputs

# What the alerts and the dashboard compare with.
MEASURES = ("output_tokens_per_s", "ttft_s_p50", "itl_s_p50")
CELLS_NAMED = 8


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
            growth_share=GROWTH_SHARE,
            growth_requests=GROWTH_REQUESTS,
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


def _effective(row: Row) -> dict[str, Any]:
    names = ("block_size", "num_gpu_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
    facts = {name: row.get(f"{name}_effective", row.get(name)) for name in names}
    return {name: int(value) for name, value in facts.items() if not pd.isna(value)} | {
        "dtype": None if pd.isna(row["dtype"]) else str(row["dtype"])
    }


@command(
    "promise",
    STUDY,
    RESULTS,
    TABLES,
    option(
        "--pick", help="the cell: gpu/engine/model/workload/knobs, or its knobs alone; without it, the recommended one"
    ),
    out(PROMISE),
)
def main(args: Namespace) -> None:
    study = load_study(args.study)
    paths = StudyPaths(args.results, study.name)
    tables = TableInputs(study, paths, folder=args.tables)
    others = tables.table("serving"), tables.table("recommendations")
    promise_of(study, paths, tables.cells, *others, args.pick or None).write(args.out)
