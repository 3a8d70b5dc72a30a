"""Engines are registered once, and one from outside the package is an engine like any other."""

import re
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name

import pandas as pd
import pytest
import yaml

import tests.echo_engine
from tests import echo_engine
from tests.echo_engine import ECHO
from tests.recipes import blocks, recipe
from tests.unit.made_studies import fixed, study_content
from workflow_scripts.catalog.gpus_and_models import CatalogError
from workflow_scripts.engines.engine import Engine
from workflow_scripts.engines.registry import BUILT_IN, ENGINES_VARIABLE, get_engine, modules_that_predict
from workflow_scripts.measure import cell as cell_command
from workflow_scripts.parse import cell_tables
from workflow_scripts.predict import plan as plan_command
from workflow_scripts.predict.predictions import predict_cells
from workflow_scripts.prepare import model as model_command
from workflow_scripts.prepare import workload as workload_command
from workflow_scripts.questions.make_tables import main as make_tables
from workflow_scripts.study.calibrations import calibrations_of
from workflow_scripts.study.definition import cell_definition, model_key, resolved_models, workload_key
from workflow_scripts.study.grid import expand
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study import StudyError
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.measurements import read_measurements

STUDY = study_content(
    {"name": "groups", "gpu": "cpu-1core", "engine": "echo", "model": "tiny-llama-57m", "knobs": {"at_once": [1, 4]}},
    name="echoes",
    repeats=2,
    workloads={"few": fixed(4, 8, 5)},
)


@pytest.fixture
def study_file(tmp_path, monkeypatch):
    monkeypatch.setenv(ENGINES_VARIABLE, "tests.echo_engine:ECHO")
    path = tmp_path / "echoes.yaml"
    path.write_text(yaml.safe_dump(STUDY), encoding="utf-8")
    return path


def test_each_part_that_a_description_names_is_there():
    for engine in BUILT_IN:
        assert issubclass(resolve_name(engine.adapter), Engine)
        assert all(callable(resolve_name(place)) for place in (engine.steps, engine.capacity) if place)
    assert modules_that_predict() == ["engines.hf.predictions", "engines.vllm.predictions"]
    assert all(Path("envs", lock).is_file() for engine in BUILT_IN for lock in engine.locks.values())


def test_an_engine_of_ones_own_is_measured_from_study_file_to_tables(study_file, tmp_path):
    study = load_study(study_file)
    cells, paths, results = expand(study), StudyPaths(tmp_path, study.name), ["--results", str(tmp_path)]
    assert [cell.id for cell in cells] == [f"cpu-1core/echo/tiny-llama-57m/few/atonce{at_once}" for at_once in (1, 4)]
    # Four requests with answers of 5 tokens, one by one or all at once.
    predicted = {record.cell_id: record.steps for record in predict_cells(study, cells)}
    assert [predicted[cell.id] for cell in cells] == [4 * 5, 5]
    assert {calibration.cell.engine for calibration in calibrations_of(study, cells).values()} == {"echo"}
    of_study = ["--study", str(study_file)]
    for cell in cells:
        definition = cell_definition(study, cell, resolved_models(study))
        folder = paths.model(cell.model, model_key(definition.model))
        requests = paths.workload(cell.model, cell.workload, workload_key(definition))
        named_model = [*of_study, "--model", cell.model]
        assert model_command.main([*named_model, "--out", str(folder)]) == 0
        prepared = ["--workload", cell.workload, "--model-dir", str(folder), "--out", str(requests)]
        assert workload_command.main([*named_model, *prepared]) == 0
        assert cell_command.main([*of_study, *results, "--cell", cell.id]) == 0
        outcome = Outcome.read(paths.outcome(cell))
        assert outcome.outcome == "ok", outcome.reason
        assert outcome.effective["at_once"] == cell.knobs.max_concurrency
        assert outcome.provenance["engine_version"].startswith("pydantic ")
    parsed, tables = tmp_path / "parsed", tmp_path / "tables"
    of_gpu = ["--cells", str(paths.root / "cells"), "--gpu", "cpu-1core", "--out", str(parsed / "cpu-1core")]
    assert cell_tables.main(of_gpu) == 0
    assert plan_command.main([*of_study, *results, "--quiet"]) == 0
    made = ["cells", "fragmentation", "intervals", "predictions", "comparisons"]
    assert make_tables([*of_study, *results, "--parsed", str(parsed), "--out", str(tables), "--only", *made]) == 0

    table = read_measurements(tables)
    assert table["engine"].unique().tolist() == ["echo"]
    assert table.groupby("knob_at_once")["running_peak"].max().to_dict() == {1: 1, 4: 4}
    assert table["output_tokens"].tolist() == [20] * 4
    # Its own counter, as its description says.
    assert table["prefix_cache_hits"].tolist() == [20] * 4
    pairs = pd.read_parquet(tables / "comparisons.parquet").query("metric == 'output_tokens_per_s'")
    (pair,) = pairs.to_dict("records")
    assert (pair["name"], pair["value_a"], pair["value_b"]) == ("at_once", "1", "4")
    assert pair["bound_by_b"] == "sequences"


def test_without_a_word_on_its_steps_an_engine_is_measured_but_not_predicted(study_file, monkeypatch):
    monkeypatch.setattr(echo_engine, "SILENT", replace(ECHO, name="silent", steps=""), raising=False)
    monkeypatch.setenv(ENGINES_VARIABLE, "tests.echo_engine:SILENT")
    study_file.write_text(study_file.read_text(encoding="utf-8").replace("echo\n", "silent\n"), encoding="utf-8")
    study = load_study(study_file)
    cells = expand(study)
    assert {record.unknown for record in predict_cells(study, cells)} == {"silent: there is no schedule of this engine"}
    assert calibrations_of(study, cells) == {}


def test_without_the_variable_it_is_unknown(study_file, monkeypatch):
    monkeypatch.delenv(ENGINES_VARIABLE)
    with pytest.raises(StudyError, match=r"'echo' is unknown; allowed: hf-continuous, hf-static"):
        load_study(study_file)
    with pytest.raises(CatalogError, match="unknown engine 'echo'; allowed: vllm, "):
        get_engine("echo")


@pytest.mark.parametrize(
    ("engine", "versions", "supported"),
    [
        # Those that are measured were: docs/environments.md says how.
        ("vllm-serve", "0.20.0 0.25.1 0.32.0", True),
        ("hf-static", "4.57.6 5.5.3 5.23.0", True),
        ("hf-continuous", "5.18.0", True),
        ("vllm-serve", "0.10.2 0.11.0rc1", False),
        ("hf-static", "4.56.2", False),
        ("hf-continuous", "5.17.0 4.57.6", False),
    ],
)
def test_each_engine_has_the_versions_that_it_can_be_measured_with(engine, versions, supported):
    assert {get_engine(engine).supports(version) for version in versions.split()} == {supported}


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("nowhere.at_all:ECHO", "is not module:NAME of an engine's description"),
        ("tests.echo_engine:NONE", "has no attribute 'NONE'"),
        ("tests.echo_engine:Echo", "is type, not an EngineDescription"),
        ("tests.echo_engine:ECHO,tests.echo_engine:ECHO", "the name 'echo' is taken"),
    ],
)
def test_a_wrong_value_of_the_variable_is_one_message(value, fault, study_file, monkeypatch):
    monkeypatch.setenv(ENGINES_VARIABLE, value)
    with pytest.raises(StudyError) as told:
        load_study(study_file)
    assert f"${ENGINES_VARIABLE}" in str(told.value)
    assert fault in str(told.value)


# --- the recipe "an engine" of docs/extending.md: what it shows is what the tests run ---------------------------------

ENGINE = recipe("An engine")


def unindented(code: str) -> str:
    """The lines of code that are not empty, without their indentation, which the page lacks."""
    return "\n".join(line.strip() for line in code.splitlines() if line.strip())


def test_the_engine_of_the_page_is_the_one_that_is_measured():
    source = Path(tests.echo_engine.__file__).read_text(encoding="utf-8")
    shown = blocks(ENGINE, "python")
    assert len(shown) == 4
    assert [block for block in shown if unindented(block) not in unindented(source)] == []
    (sweep,) = yaml.safe_load(blocks(ENGINE, "yaml")[0])["sweeps"]
    assert [sweep] == STUDY["sweeps"]
    assert f"`{ENGINES_VARIABLE}=tests.echo_engine:ECHO`" in ENGINE
    assert len(re.findall(r"^\d\. ", ENGINE, flags=re.MULTILINE)) <= 6
