"""What a study promises of a setting: which one, its numbers, and what a further start may do."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.unit.deploy.promises import HOSTILE, shapes
from tests.unit.present.synthetic import write_results
from tests.unit.questions.synthetic_starts import samples
from workflow_scripts.cluster.site import SITE, load_site
from workflow_scripts.common.faults import InputError
from workflow_scripts.deploy.export import deployment_of
from workflow_scripts.questions.serving.make_promise import another_start, promise_of
from workflow_scripts.statistics.comparisons import BETWEEN_STARTS, ONE_START
from workflow_scripts.statistics.variation import known_elsewhere
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.promise import Promise, PromiseError
from workflow_scripts.study.study import Slo, Study
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.measurements import read_measurements
from workflow_scripts.tables.typed_tables import read_table

SERVED = "h200/vllm-serve/llama-3.1-8b-instruct/chat/bs16-seqs64-rate{}"
TABLES = ("serving", "serving_summary", "recommendations", "limits", "memory")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    write_results(folder)
    return folder


@pytest.fixture(scope="module")
def study(results):
    return load_study(results / "synthetic.yaml")


@pytest.fixture
def tables(results):
    found = {name: read_table(results / f"tables/{name}.parquet") for name in TABLES}
    found["cells"] = read_measurements(results / "tables").assign(
        start_s=12.5, max_num_seqs_effective=64, engine_version="vllm 0.32.0"
    )
    for name in ("serving", "serving_summary"):
        found[name] = found[name].assign(in_flight_peak=20, slo_attainment=1.0)
    return found


def promised(
    study: Study, tables: dict[str, pd.DataFrame], pick: str | None = None, workload: str | None = "chat"
) -> Promise:
    return promise_of(
        study, StudyPaths(Path("results"), study.name), tables["cells"], tables.__getitem__, pick, workload
    )


def test_it_is_the_highest_rate_that_a_server_kept_up_with(study, tables):
    found = promised(study, tables)
    assert found.cell_id == SERVED.format(4)  # at 16 requests/s it is saturated
    assert "(2 in all)" in found.why
    assert (found.sustained_per_s, found.too_much_per_s) == (4.0, 16.0)
    assert found.busy == 20.0
    assert found.load == "64 requests of workload chat, 4 requests/s"
    assert (found.growth_share, found.growth_requests) == (0.1, 2.0)
    assert found.serve.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert found.serve.arguments["block-size"] == 16
    assert found.serve.arguments["max-num-seqs"] == 64
    assert found.effective["num_gpu_blocks"] == 144_000
    assert found.predicted_bytes == {}


def test_a_server_starts_as_fast_as_the_start_that_it_shared(study, tables):
    first, later = (tables["cells"]["cell_id"] == SERVED.format(rate) for rate in (1, 4))
    tables["cells"].loc[later, "start_s"] = None
    tables["cells"].loc[first | later, "session"] = "1f"
    found = promised(study, tables)
    assert (found.cell_id, found.start_s) == (SERVED.format(4), 12.5)


def test_a_load_that_breaks_the_slo_is_not_recommended(study, tables):
    summary = tables["serving_summary"]
    summary.loc[summary["cell_id"] == SERVED.format(4), "slo_attainment"] = 0.98
    found = promised(study.model_copy(update={"slo": Slo(ttft_s=0.5)}), tables)
    assert found.cell_id == SERVED.format(1)
    # The rate of 4 requests/s was kept up with too, so the sentence counts only the loads that kept the limit.
    assert "(1 in all)" in found.why
    assert found.slo == {"ttft_s": 0.5}


def test_without_a_server_it_is_the_fastest_within_the_latency_bound(study, tables):
    tables["serving_summary"] = tables["serving_summary"].head(0)
    rows = tables["recommendations"]
    fastest = rows[rows["role"] == "best_throughput"]
    tables["recommendations"] = fastest.assign(role="best_within_latency")
    best = fastest.sort_values("rate").iloc[-1]
    found = promised(study, tables, workload=best["workload"])
    assert found.cell_id == best["cell_id"]
    assert found.busy == 64
    assert (found.sustained_per_s, found.too_much_per_s) == (None, None)
    # Where nothing keeps the bound a cell must be named.
    tables["recommendations"] = tables["recommendations"].head(0)
    with pytest.raises(PromiseError, match=r"no measured setting .* pick="):
        promised(study, tables)
    tables["cells"] = tables["cells"].assign(outcome="timeout")
    with pytest.raises(PromiseError, match="no cell of vLLM was measured"):
        promised(study, tables)


def test_a_cell_is_picked_by_its_id_or_its_knobs(study, tables):
    by_id = promised(study, tables, SERVED.format(1))
    assert by_id.cell_id == SERVED.format(1)
    assert by_id.why == "It was picked by hand."
    assert promised(study, tables, SERVED.format(1).rpartition("/")[2]).cell_id == SERVED.format(1)
    for pick, cells in (("bs16-seqs64-len4096", r"[2-9]"), ("bs9", "0")):
        with pytest.raises(PromiseError, match=rf"pick={pick}: names {cells} measured cells of vLLM; .*/bs16-seqs64"):
            promised(study, tables, pick)


def test_a_cell_that_only_searched_the_highest_load_promises_nothing(study, tables):
    cells = tables["cells"]
    of_cell = cells["cell_id"].eq(SERVED.format(4))
    searched = cells[of_cell].head(1).assign(repeat=pd.NA).astype(cells.dtypes)
    for others, pick in ((cells.head(0), None), (cells[~of_cell], SERVED.format(4))):
        tables["cells"] = pd.concat([others, searched])
        with pytest.raises(PromiseError, match=rf"^{SERVED.format(4)}: only searched .* `searches`"):
            promised(study, tables, pick)
    assert promised(study, tables).cell_id == SERVED.format(1)


def test_of_several_workloads_one_must_be_named(study, tables):
    """The highest rate of another workload says nothing about the setting to serve this one."""
    served = tables["cells"]["cell_id"] == SERVED.format(4)
    tables["cells"] = tables["cells"].assign(
        workload=tables["cells"]["workload"].mask(served, "shared-prefix").astype("string")
    )
    for workload, count in ((None, "[2-9]"), ("chess", "0")):
        with pytest.raises(PromiseError, match=rf"{count} measured .* allowed workloads: chat, .*shared-prefix"):
            promised(study, tables, workload=workload)
    assert promised(study, tables).cell_id == SERVED.format(1)
    assert promised(study, tables, workload="shared-prefix").cell_id == SERVED.format(4)
    assert promised(study, tables, SERVED.format(1)).cell_id == SERVED.format(1)


def test_starts_promise_what_they_vary_and_a_single_one_what_those_of_other_studies_do(study, tables, monkeypatch):
    monkeypatch.setattr("workflow_scripts.statistics.samples.known_elsewhere", known_elsewhere)
    found = promised(study, tables)
    rate = found.measured["output_tokens_per_s"]
    assert found.scope == ONE_START
    assert rate.low is not None
    assert rate.high is not None
    assert rate.high / rate.value == pytest.approx(rate.value / rate.low)
    assert rate.high / rate.value > np.exp(1.96 * np.sqrt(2) * known_elsewhere(False).occasions)
    for name in ("cells", "serving"):
        starts = (tables[name].assign(start=n, **({"round": n} if name == "cells" else {})) for n in (1, 2, 3))
        tables[name] = pd.concat(starts, ignore_index=True)
    found = promised(study, tables)
    assert (found.starts, found.scope) == (3, BETWEEN_STARTS)
    of_three = found.measured["output_tokens_per_s"]
    assert 1 < of_three.value / of_three.low < rate.value / rate.low  # the starts are copies of each other


def test_another_start_has_the_errors_of_two_occasions(monkeypatch):
    monkeypatch.setattr("workflow_scripts.statistics.samples.known_elsewhere", known_elsewhere)
    log, sure = np.log([[100.0, 101.0, 99.0]]), {"within": 1e-8, "within_df": 100}
    for shared in (False, True):
        known, (_, error) = known_elsewhere(shared), another_start(samples(log, shared=shared, **sure))
        occasions = 2 * (known.occasions**2 + known.cards**2)
        assert occasions < error.variance[0] < occasions + 5 * (known.starts**2 + known.rounds**2)


# Texts of the cells table that decide what is promised, or that a promise holds.
READ = ("cell_id", "gpu", "engine", "engine_version", "model", "workload", "outcome", "source", "dtype")


@pytest.mark.parametrize("hostile", HOSTILE, ids=["any", "printable"])
def test_texts_of_cells_stay_values(tmp_path, study, tables, hostile):
    """Each that is read is refused, or the exported files hold what they hold with a harmless one."""
    site, cells, harmless = load_site(SITE), tables["cells"], promised(study, tables)
    texts = cells.select_dtypes("string").columns
    others = dict.fromkeys(texts.difference(READ), hostile)
    assert len(others) > 15
    assert promised(study, tables | {"cells": cells.assign(**others).astype(cells.dtypes)}) == harmless
    expected, accepted = shapes(deployment_of(harmless, study, site)), []
    for name in READ:
        try:
            found = promised(study, tables | {"cells": cells.assign(**{name: hostile})})
            made = deployment_of(found, study, site)
        except InputError:
            continue
        accepted.append(name)
        assert shapes(made) == expected
    assert "engine_version" not in accepted
