"""What a study promises of a setting: which one, its numbers, and what a further start may do."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from tests.unit.deploy.promises import HOSTILE, shapes
from tests.unit.present.synthetic import write_results
from tests.unit.questions.synthetic_cells import write_measurements
from tests.unit.questions.synthetic_starts import samples
from workflow_scripts.cluster.site import SITE, load_site
from workflow_scripts.common.faults import InputError
from workflow_scripts.deploy.export import FILES, deployment_of, main
from workflow_scripts.deploy.promise import Promise, another_start, promise_of
from workflow_scripts.statistics.variation import known_elsewhere
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.serve_command import PromiseError
from workflow_scripts.study.study import Slo, Study
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.measurements import read_measurements
from workflow_scripts.tables.typed_tables import read_table, write_table

SERVED = "h200/vllm-serve/llama-3.1-8b-instruct/chat/bs16-seqs64-rate{}"


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
    found = {name: read_table(results / f"tables/{name}.parquet") for name in ("serving", "recommendations")}
    found["cells"] = read_measurements(results / "tables").assign(
        max_num_seqs_effective=64, engine_version="vllm 0.32.0"
    )
    return found | {"serving": found["serving"].assign(in_flight_peak=20)}


def promised(study: Study, tables: dict[str, pd.DataFrame], pick: str | None = SERVED.format(4)) -> Promise:
    paths = StudyPaths(Path("results"), study.name)
    return promise_of(study, paths, tables["cells"], tables["serving"], tables["recommendations"], pick)


def test_a_cell_is_picked_by_its_id_or_its_knobs(study, tables):
    found = promised(study.model_copy(update={"slo": Slo(ttft_s=0.5)}), tables)
    assert found.cell_id == SERVED.format(4)
    assert (found.busy, found.slo) == (20.0, {"ttft_s": 0.5})
    assert found.serve.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert found.serve.arguments["block-size"] == 16
    assert found.serve.arguments["max-num-seqs"] == 64
    assert found.effective["num_gpu_blocks"] == 144_000
    assert promised(study, tables, SERVED.format(1).rpartition("/")[2]).cell_id == SERVED.format(1)
    for pick, cells in (("bs16-seqs64-len4096", r"[2-9]"), ("bs9", "0")):
        with pytest.raises(PromiseError, match=rf"pick={pick}: names {cells} measured cells of vLLM; .*/bs16-seqs64"):
            promised(study, tables, pick)


def test_the_files_are_for_the_picked_cell_and_another_address_is_asked_for(results, study, tables, tmp_path):
    write_measurements(tables["cells"], tmp_path)
    for name in ("serving", "recommendations"):
        write_table(tables[name], tmp_path / f"{name}.parquet")
    words = ["--study", str(results / "synthetic.yaml"), "--tables", str(tmp_path), "--pick", SERVED.format(4)]

    def address(*more: str) -> str:
        assert main([*words, *more, "--out", str(tmp_path / "deploy")]) == 0
        return str(yaml.safe_load((tmp_path / "deploy/vllm.yaml").read_text())["host"])

    assert (address(), address("--host", "0.0.0.0")) == ("127.0.0.1", "0.0.0.0")
    assert address("--window-s", "20", "--target", "127.0.0.1:9") == "127.0.0.1"
    assert "[20s]" in (tmp_path / "deploy/alerts.yml").read_text()
    assert "127.0.0.1:9" in (tmp_path / "deploy/prometheus.yml").read_text()
    files = {str(p.relative_to(tmp_path / "deploy")) for p in (tmp_path / "deploy").rglob("*") if p.is_file()}
    assert files == {*FILES}
    with pytest.raises(SystemExit):
        address("--host", "all\nkey: 1")


def test_without_a_pick_it_is_the_only_recommendation_within_the_latency_bound(study, tables):
    rows = tables["recommendations"]
    best = rows[rows["role"] == "best_throughput"].sort_values("rate").tail(1).assign(role="best_within_latency")
    tables["recommendations"] = best
    found = promised(study, tables, None)
    assert (found.cell_id, found.busy) == (best["cell_id"].item(), 64)
    two = pd.concat([best, best.assign(cell_id=SERVED.format(1))])
    for some, count in ((two, 2), (best.head(0), 0)):
        with pytest.raises(PromiseError, match=rf"pick=: {count} cells are recommended; name one: h200/"):
            promised(study, tables | {"recommendations": some}, None)
    with pytest.raises(PromiseError, match="no cell of vLLM was measured"):
        promised(study, tables | {"cells": tables["cells"].assign(outcome="timeout")}, None)


def test_starts_promise_what_they_vary_and_a_single_one_what_those_of_other_studies_do(study, tables, monkeypatch):
    monkeypatch.setattr("workflow_scripts.statistics.samples.known_elsewhere", known_elsewhere)
    found = promised(study, tables)
    rate = found.measured["output_tokens_per_s"]
    assert rate.low is not None
    assert rate.high is not None
    assert rate.high / rate.value == pytest.approx(rate.value / rate.low)
    assert rate.high / rate.value > np.exp(1.96 * np.sqrt(2) * known_elsewhere(False).occasions)
    for name in ("cells", "serving"):
        starts = (tables[name].assign(start=n, **({"round": n} if name == "cells" else {})) for n in (1, 2, 3))
        tables[name] = pd.concat(starts, ignore_index=True)
    found = promised(study, tables)
    assert found.starts == 3
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
