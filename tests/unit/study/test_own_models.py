"""Studies that name their own models, also such whose structure is not understood."""

import json
import os
import shutil
from unittest.mock import patch

import pytest
import yaml

from tests.unit import made_studies
from workflow_scripts.analyse.cells.imported_cells import imported_cells
from workflow_scripts.catalog import hub
from workflow_scripts.catalog.gpus_and_models import ENTERED, CatalogError, get_model
from workflow_scripts.common.faults import InputError
from workflow_scripts.parse.imported_runs import read_runs
from workflow_scripts.predict.forecast import predict_cells
from workflow_scripts.prepare.model import main as prepare_model
from workflow_scripts.study.definition import definitions_sha256, resolved_models
from workflow_scripts.study.grid import expand
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study_file import load_study, store_configs

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = get_model("tiny-llama-57m").config


@pytest.fixture(autouse=True)
def _nothing_entered(monkeypatch, tmp_path):
    monkeypatch.setenv("RESULTS", str(tmp_path / "results"))
    with patch.dict(ENTERED, clear=True):
        yield


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "given").mkdir()
    shutil.copy(CONFIG, tmp_path / "given")
    return tmp_path / "given"


@pytest.fixture
def write_study(tmp_path):
    def write(own):
        sweep = {"gpu": "h100-sxm", "model": "mine"}
        return made_studies.write_study(tmp_path, sweep, name="own", models={"mine": own})

    return write


def test_a_folder_is_a_model_of_the_study(write_study, folder, tmp_path):
    path, environment = write_study({"folder": str(folder)}), dict(os.environ)
    study = load_study(path)
    assert dict(os.environ) == environment
    (model,) = resolved_models(study).values()
    assert (model.name, model.load_format, model.hub_repo) == ("mine", "dummy", None)
    (record,) = predict_cells(study, expand(study))
    assert record.output_tokens_per_s.value > 0
    assert prepare_model(["--study", str(path), "--model", "mine", "--out", str(tmp_path / "made")]) == 0
    assert (tmp_path / "made/config.json").read_bytes() == CONFIG.read_bytes()
    assert json.loads((tmp_path / "made/model_manifest.json").read_text())["source"] == str(folder / "config.json")


def test_a_stored_config_stands_in_for_a_lost_folder(write_study, folder, tmp_path):
    path, paths = write_study({"folder": str(folder)}), StudyPaths(tmp_path / "results", "own")
    study = load_study(path)
    before = definitions_sha256(study)
    assert not paths.root.exists()  # reading a study changes no file
    store_configs(study, paths)
    shutil.rmtree(folder)
    assert definitions_sha256(load_study(path)) == before
    shutil.rmtree(paths.root)
    with pytest.raises(CatalogError, match=r"model 'mine': .*given/config.json: "):
        load_study(path)


def test_another_config_in_the_folder_is_another_model(write_study, folder, tmp_path):
    path, paths = write_study({"folder": str(folder)}), StudyPaths(tmp_path / "results", "own")
    before = definitions_sha256(load_study(path))
    store_configs(load_study(path), paths)
    (folder / "config.json").write_text(json.dumps(json.loads(CONFIG.read_text()) | {"num_hidden_layers": 4}))
    assert definitions_sha256(load_study(path)).keys() == before.keys()
    assert definitions_sha256(load_study(path)) != before


def test_a_repository_needs_the_hub_once(write_study, tmp_path, monkeypatch):
    path, paths = write_study({"hub": "org/model", "revision": COMMIT}), StudyPaths(tmp_path / "results", "own")
    monkeypatch.setattr(hub, "fetch", lambda *asked: [CONFIG])
    study = load_study(path)
    (model,) = resolved_models(study).values()
    assert (model.hub_repo, model.revision, model.load_format) == ("org/model", COMMIT, "hub")
    store_configs(study, paths)

    def unreachable(*args, **kwargs):
        raise hub.LocalEntryNotFoundError("no network")

    monkeypatch.undo()
    ENTERED.clear()
    monkeypatch.setattr(hub, "snapshot_download", unreachable)
    assert resolved_models(load_study(path, tmp_path / "results"))["mine"] == model
    with pytest.raises(InputError, match=f"org/model at {COMMIT}: the hub cannot be reached"):
        load_study(path, tmp_path / "elsewhere")


def test_an_imported_run_may_name_a_model_of_the_study(write_study, folder, tmp_path):
    mapping = tmp_path / "runs.yaml"
    (tmp_path / "log.txt").write_text("Throughput: 1.00 requests/s, 20.00 total tokens/s, 10.00 output tokens/s\n")
    run = {"gpu": "h100-sxm", "engine": "vllm", "model": "mine", "results": "log.txt", "tokens_per_request": [10, 10]}
    mapping.write_text(yaml.safe_dump({"schema_version": 1, "runs": [run]}))
    with pytest.raises(InputError, match=r"runs.0: unknown model 'mine'; allowed: "):
        read_runs(mapping)
    load_study(write_study({"folder": str(folder)}))
    (record,) = read_runs(mapping)
    row = imported_cells([record], "own").iloc[0]
    assert (row["model"], row["outcome"]) == ("mine", "ok")
