"""Before settings are asked; tests/integration/parallel/test_check_study.py tests what vLLM says."""

import pytest

from workflow_scripts.common.faults import InputError
from workflow_scripts.engines import description
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.engines.vllm.check import vllm_faults
from workflow_scripts.predict import check_study


def test_a_version_that_is_missing_or_cannot_be_measured_is_refused_before_settings_are_asked(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(check_study, "check_cells", lambda cells: asked.append(cells) or [])
    for version, status in {None: 2, "0.10.2": 2, "0.20.0": 0}.items():
        monkeypatch.setattr(description, "installed_version", lambda package, version=version: version)
        assert check_study.main(["--study", "config/studies/demo.yaml"]) == status
        assert bool(capsys.readouterr().err) == (status == 2)
    assert len(asked) == 1


def test_an_engine_that_cannot_be_imported_is_named_with_its_own_words(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    monkeypatch.syspath_prepend(tmp_path)  # also of the process that asks
    with pytest.raises(InputError, match="torchvision::nms"):
        vllm_faults([])


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
