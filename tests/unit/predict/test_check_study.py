"""How faults in settings are reported; tests/integration/parallel/test_check_study.py tests what the engines say."""

from dataclasses import replace
from pathlib import Path

import pytest

from workflow_scripts.common.faults import InputError
from workflow_scripts.engines import description
from workflow_scripts.engines.vllm.check import vllm_faults
from workflow_scripts.engines.vllm.knobs import VllmKnobs
from workflow_scripts.predict import check_study
from workflow_scripts.predict.check_study import notes, unsupported
from workflow_scripts.study.grid import Cell


def cell(gpu: str = "h200", sweep: str = "a", workload: str = "w", model: str = "opt-125m", **knobs: object) -> Cell:
    return Cell(gpu, "vllm", model, workload, VllmKnobs.model_validate(knobs), (sweep,))


def test_what_is_predicted_to_be_refused_is_a_note():
    (note,) = notes([cell(block_size=8), cell(block_size=8, workload="x"), cell(block_size=16)])
    assert note.startswith("note: 2 cells")
    (note,) = notes([cell("v100-pcie-16gb", model="qwen2-7b"), cell("v100-pcie-16gb")])
    assert "v100-pcie-16gb/vllm/qwen2-7b/w/default" in note


def test_what_is_not_installed_or_cannot_be_measured_is_refused_before_its_settings_are_asked(monkeypatch, capsys):
    monkeypatch.setattr(check_study.importlib.util, "find_spec", lambda name: None)
    assert check_study.main(["--study", "config/studies/demo.yaml"]) == 2
    assert "vllm is not" in capsys.readouterr().err
    asked = []
    monkeypatch.setattr(check_study, "check_cells", lambda cells: asked.append(cells) or [])
    monkeypatch.setattr(check_study.importlib.util, "find_spec", lambda name: name)
    for version, status in {"0.10.2": 2, "0.20.0": 0}.items():
        installed = {"vllm": version, "transformers": "5.19.0"}
        monkeypatch.setattr(description, "installed_version", lambda package, known=installed: known[package])
        assert check_study.main(["--study", "config/studies/demo.yaml"]) == status
        assert (version in capsys.readouterr().err) == (status == 2)
    assert len(asked) == 1


def test_an_engine_that_cannot_be_imported_is_named_with_its_own_words(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    monkeypatch.syspath_prepend(tmp_path)  # also of the process that asks
    with pytest.raises(InputError, match="torchvision::nms"):
        vllm_faults([])


def test_cells_of_an_environment_that_is_not_installed_are_a_note(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("KVSWEEP_ENVIRONMENTS", str(tmp_path))
    assert check_study.check_elsewhere(Path("s.yaml"), "vllm-0.25.1", "cpu", 3)
    assert "3 cells are not checked: vllm-0.25.1-cpu is not installed yet" in capsys.readouterr().out


# Those that are measured were: docs/environments.md says how.
MEASURED = {"vllm-serve": "0.20.0 0.25.1 0.32.0", "hf-static": "4.57.6 5.5.3 5.23.0", "hf-continuous": "5.18.0"}
REFUSED = {"vllm-serve": "0.10.2 0.11.0rc1", "hf-static": "4.56.2", "hf-continuous": "5.17.0 4.57.6"}


@pytest.mark.parametrize(("versions", "refused"), [(MEASURED, 0), (REFUSED, 1)], ids=["measured", "refused"])
def test_each_engine_has_the_versions_that_it_can_be_measured_with(monkeypatch, versions, refused):
    for engine, of_engine in versions.items():
        for version in of_engine.split():
            monkeypatch.setattr(description, "installed_version", lambda package, version=version: version)
            assert len([*unsupported([replace(cell(), engine=engine)])]) == refused, (engine, version)
