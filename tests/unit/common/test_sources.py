"""An edited module causes a rerun of what depends on it, and of nothing else."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workflow_scripts.common.sources import PACKAGE, sources

CHECKOUT = Path(__file__).parents[3]


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"no module workflow_scripts\.analyse\.none"):
        sources("analyse.none")


def test_imports_are_followed_however_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "workflow_scripts"
    texts = {
        "__init__.py": "",
        "room/__init__.py": "",
        "room/one.py": "from workflow_scripts import (\n    core,  # why\n)\nfrom workflow_scripts.room import two\n",
        "room/two.py": "def late():\n    from workflow_scripts.room.three import name  # noqa\n",
        "room/three.py": "import os\n",
        "core.py": "",
        "other.py": "",
    }
    for name, text in texts.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    monkeypatch.setattr("workflow_scripts.common.sources.PACKAGE", package)
    expected = ["__init__.py", "core.py", *(f"room/{name}.py" for name in ("__init__", "one", "three", "two"))]
    assert sources("room.one") == [f"workflow_scripts/{name}" for name in expected]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which every output of the demo lies, each an empty file newer than the code."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("Snakefile", "config", "profiles", "report", "rules", "workflow_scripts"):
        copy = shutil.copytree if (CHECKOUT / name).is_dir() else shutil.copy
        copy(CHECKOUT / name, root / name)
    for path in root.rglob("*"):
        os.utime(path, (1e9, 1e9))
    for line in snakemake(root, "--summary").splitlines()[1:]:
        output = root / line.split("\t")[0]
        output.parent.mkdir(parents=True, exist_ok=True)
        if output.name == "figures":
            output.mkdir()
        else:
            output.touch()
        os.utime(output, (1.1e9, 1.1e9))
    return root


def snakemake(root: Path, *options: str) -> str:
    environment = os.environ | {"XDG_CACHE_HOME": str(root / "cache"), "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--nolock", *options]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("edited", "again"),
    [
        ("study/status.py", set()),
        ("measure/run.py", set()),
        ("parse/cell_facts.py", {"parse"}),
        ("analyse/effects.py", {"effects"}),
        ("present/page.py", {"report"}),
    ],
)
def test_an_edit_makes_again_what_depends_on_it(finished: Path, edited: str, again: set[str]) -> None:
    module = finished / PACKAGE.name / edited
    module.touch()
    planned = snakemake(finished, "--dry-run", "all")
    os.utime(module, (1e9, 1e9))
    asked = dict(re.findall(r"^rule (\w+):\n(?:.*\n)*?    reason: (.*)$", planned, re.MULTILINE))
    edited_first = {rule for rule, reason in asked.items() if str(module.relative_to(finished)) in reason}
    assert edited_first == again
    assert bool(asked) == bool(again)
