"""An environment is an axis of a sweep; the default one leaves ids and definitions as they are."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from workflow_scripts.catalog import environments
from workflow_scripts.catalog.environments import install, load_environments, python_of
from workflow_scripts.study import grid
from workflow_scripts.study.calibrations import calibrations_of
from workflow_scripts.study.definition import Definition, cell_definition, definition_sha256, resolved_models
from workflow_scripts.study.study import Study, StudyError
from workflow_scripts.study.study_file import load_study

DEMO = load_study(Path("config/studies/demo.yaml"))
OLD = "vllm-0.25.1"


@pytest.fixture(autouse=True)
def locks(tmp_path, monkeypatch):
    """Locks of an old vLLM for CPUs and of an old transformers for GPUs, beside files that are none."""
    for name in (f"{OLD}-cpu.txt", "transformers-4.57.6-cuda.txt", "cpu.txt", "cpu.excludes.txt", f"{OLD}-cpu.in"):
        (tmp_path / name).touch()
    found = load_environments(tmp_path)
    monkeypatch.setattr(grid, "load_environments", lambda: found)
    return found


def study_with(*environments: str, **changes: object) -> Study:
    sweep = DEMO.sweeps[0].model_copy(update={"environment": list(environments), **changes})
    return DEMO.model_copy(update={"sweeps": [sweep]})


def test_a_lock_of_a_version_for_a_kind_of_device_is_an_environment(locks):
    assert {name: list(kinds) for name, kinds in locks.items()} == {OLD: ["cpu"], "transformers-4.57.6": ["cuda"]}


def test_cells_of_another_environment_have_their_own_ids_definitions_and_calibrations_and_the_default_none():
    named, unnamed = grid.expand(study_with("default")), grid.expand(DEMO)[: len(grid.expand(study_with("default")))]
    assert [cell.id for cell in named] == [cell.id for cell in unnamed]
    definition = cell_definition(DEMO, named[0], resolved_models(DEMO))
    assert "environment" not in definition.as_json()
    # The demo's first cell has the definition that it had before there were environments.
    assert named[0].id == "cpu-all/vllm/tiny-llama-57m/chat/bs32-seqs2-len128-eager1-cpukv1"
    assert definition_sha256(definition) == "20b5d440f26321a89b05b17787125b5907dfcf9a90e5833df5c8b7f87cf4bb4d"
    study = study_with("default", OLD)
    cells = grid.expand(study)
    default, old = ([cell for cell in cells if cell.environment == name] for name in ("", OLD))
    assert [cell.id for cell in old] == [cell.id.replace("/vllm/", f"/vllm@{OLD}/", 1) for cell in default]
    a, b = (cell_definition(study, of[0], resolved_models(study)) for of in (default, old))
    assert b.as_json() == {**a.as_json(), "environment": OLD}
    assert definition_sha256(a) != definition_sha256(b)
    assert Definition.model_validate(b.as_json()) == b
    assert {name.split("/")[1] for name in calibrations_of(study, cells)} == {"vllm", f"vllm@{OLD}"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"environment": ["vllm-0.1"]}, f"of engine 'vllm': 'vllm-0.1' is unknown; allowed: default, {OLD}"),
        ({"gpu": ["h200"]}, f"no lock for h200, envs/{OLD}-cuda.txt; it has {OLD}-cpu.txt"),
        ({"engine": ["hf-static"]}, f"'hf-static': {OLD!r} is unknown; allowed: default, transformers-4.57.6"),
        ({"engine": ["sglang-serve"], "environment": ["default"]}, "of engine 'sglang-serve': 'default' is unknown; "),
        (
            {"environment": ["transformers-4.57.6"], "engine": ["hf-continuous"], "gpu": ["h200"]},
            "engine 'hf-continuous' is measured with transformers >=5.18, not in 'transformers-4.57.6'",
        ),
    ],
)
def test_an_environment_that_cannot_be_is_told_before_anything_runs(changes, says):
    with pytest.raises(StudyError) as e:
        grid.expand(study_with(*changes.pop("environment", [OLD]), **changes))
    assert says in str(e.value)


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """Write what `envs/setup.sh` does; environments are in a folder of the test."""
    monkeypatch.setenv("KVSWEEP_ENVIRONMENTS", str(tmp_path))
    monkeypatch.setattr(environments, "CHECKOUT", tmp_path)
    script = tmp_path / "envs/setup.sh"
    script.parent.mkdir()

    def write(text: str) -> None:
        script.write_text(f"#!/bin/sh\necho >> {tmp_path}/calls\n{text}")
        script.chmod(0o700)

    return write


def test_a_failed_installation_is_recorded_and_tried_again(setup, tmp_path):
    python = python_of(OLD, "cpu")
    setup(f"mkdir -p {python.parent}; touch {python}; echo no index; exit 2")
    assert install(OLD, "cpu") == "envs/setup.sh ended with status 2: no index"
    setup("")
    assert [install(OLD, "cpu"), install(OLD, "cpu")] == [None, None]
    assert len((tmp_path / "calls").read_text().splitlines()) == 2  # once it is there, nothing is installed


def test_one_of_several_jobs_installs_an_environment_and_the_others_wait_for_it(setup, tmp_path):
    python = python_of(OLD, "cpu")
    setup(f"mkdir -p {python.parent}; touch {python}; sleep 0.3")
    with ThreadPoolExecutor(3) as jobs:
        assert list(jobs.map(lambda _: install(OLD, "cpu"), range(3))) == [None] * 3
    assert len((tmp_path / "calls").read_text().splitlines()) == 1
