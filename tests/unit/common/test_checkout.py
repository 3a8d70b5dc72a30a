"""The commit to which code belongs, with its repository and without."""

import shutil
import subprocess
from pathlib import Path

import pytest

from workflow_scripts.common import checkout
from workflow_scripts.common.checkout import CHECKOUT, COMMIT_VARIABLE, commit_of, how_to_install


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv(COMMIT_VARIABLE, raising=False)


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "code.py").write_text("1\n")
    who = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (["init"], ["add", "code.py"], [*who, "commit", "--message", "one"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)
    return tmp_path


def test_a_repository_knows_its_commit_and_its_changes(repository, monkeypatch):
    monkeypatch.setenv(COMMIT_VARIABLE, "another")
    commit, dirty = commit_of(repository)
    assert (len(commit or ""), dirty) == (40, False)
    (repository / "code.py").write_text("2\n")
    assert commit_of(repository) == (commit, True)


@pytest.mark.parametrize(("variable", "commit"), [(None, None), ("", None), ("f00", "f00")])
def test_without_a_repository_of_its_own_the_environment_tells(repository, monkeypatch, variable, commit):
    if variable is not None:
        monkeypatch.setenv(COMMIT_VARIABLE, variable)
    (repository / "copy").mkdir()
    assert commit_of(repository / "copy") == (commit, None)  # not that of the repository around it


def test_what_installs_an_environment_names_a_file_that_is_there(monkeypatch, tmp_path):
    assert "make" in how_to_install("cpu")
    monkeypatch.setattr(checkout, "CHECKOUT", package := tmp_path / "kvsweep")
    shutil.copytree(CHECKOUT / "envs", package / "envs")
    excludes = how_to_install("cpu").split("--excludes ")[1].split()[0]
    assert "torchvision" in Path(excludes).read_text()
    assert not any("make" in how_to_install(name) for name in ("cpu", "cuda", "vllm-0.25.1-cpu"))
