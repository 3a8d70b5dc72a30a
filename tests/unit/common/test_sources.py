"""An edited module causes a rerun of what depends on it, and of nothing else."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.unit.made_studies import end_cell
from workflow_scripts.__main__ import COMMANDS
from workflow_scripts.common.files import write_text
from workflow_scripts.common.sources import PACKAGE, sources
from workflow_scripts.questions.all_tables import TABLE_MODULES
from workflow_scripts.study.grid import expand
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study_file import load_study

CHECKOUT = Path(__file__).parents[3]


def test_imports_are_followed_however_they_are_written(tmp_path, monkeypatch):
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
        write_text(package / name, text)
    monkeypatch.setattr("workflow_scripts.common.sources.PACKAGE", package)
    expected = ["__init__.py", "core.py", *(f"room/{name}.py" for name in ("__init__", "one", "three", "two"))]
    assert sources("room.one") == [f"workflow_scripts/{name}" for name in expected]


def test_sources_hold_the_figures_of_other_studies_and_a_module_that_is_not_there_is_named():
    found = {module: sources(module) for module in TABLE_MODULES}
    with_figures = {module for module, files in found.items() if "config/variation.yaml" in files}
    assert with_figures == {m for m, files in found.items() if "workflow_scripts/statistics/variation.py" in files}
    assert {"questions.comparisons.table", "tables.cell_intervals"} < with_figures
    with pytest.raises(ValueError, match=r"no module workflow_scripts\.questions\.none"):
        sources("questions.none")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A checkout in which every cell of the demo is measured and every output lies, an empty file newer than the code.
    Cells have one start, because a decision on further rounds cannot be empty."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("Snakefile", "config", "profiles", "report", "rules", "workflow_scripts"):
        copy = shutil.copytree if (CHECKOUT / name).is_dir() else shutil.copy
        copy(CHECKOUT / name, root / name)
    demo = root / "config/studies/demo.yaml"
    demo.write_text(yaml.safe_dump(yaml.safe_load(demo.read_text()) | {"starts": 1}))
    study = load_study(demo)
    paths = StudyPaths(root / "results", study.name)
    for cell in expand(study):
        end_cell(study, paths, cell)
    for path in root.rglob("*"):
        os.utime(path, (1e9, 1e9))
    for line in snakemake(root, "--summary").splitlines()[1:]:
        output = root / line.split("\t")[0]
        output.parent.mkdir(parents=True, exist_ok=True)
        output.mkdir() if output.name == "figures" else output.touch()
        os.utime(output, (1.1e9, 1.1e9))
    snakemake(root, "--touch", "--forceall", "all")  # records the parameters of each job
    return root


def snakemake(root: Path, *options: str) -> str:
    environment = os.environ | {"XDG_CACHE_HOME": str(root / "cache"), "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--nolock", *options]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True).stdout


def planned_again(finished: Path, *edited: str) -> set[str]:
    """The rules that a dry run plans because their parameters have changed by edits, which are taken back."""
    modules = {finished / PACKAGE.name / name: (finished / PACKAGE.name / name).read_text() for name in edited}
    for module, text in modules.items():
        module.write_text(f"{text}# edited\n")
    planned = snakemake(finished, "--quiet", "host", "--dry-run", "--", "all")
    for module, text in modules.items():
        module.write_text(text)
    # Files of the workflow are no inputs of jobs.
    assert re.findall(r"^    input: .*\.(?:py|js)\b", planned, re.MULTILINE) == []
    reasons = re.findall(r"^rule (\w+):\n(?:.*\n)*?    reason: (.*)$", planned, re.MULTILINE)
    return {rule for rule, reason in reasons if "Params have changed" in reason}


@pytest.mark.parametrize(
    ("edited", "again"),
    [
        # What prints, measures or queues makes nothing again.
        (["study/status.py", "measure/run.py", "prepare/workload.py", "cluster/site.py"], set()),
        # A table that is made again is new to the rules that read it, whatever else they use.
        (["parse/cell_tables.py"], {"parse"}),
        (["predict/predictions.py", "engines/hf/predictions.py"], {"predict_cells"}),
        (["questions/comparisons/table.py", "tables/cell_intervals.py"], {"tables"}),
        (["present/page.py"], {"report"}),
    ],
    ids=["nothing", "rows", "predictions", "tables", "the page"],
)
def test_an_edit_makes_again_what_uses_the_module(finished, edited, again):
    assert planned_again(finished, *edited) == again


# What never becomes outdated by an edit: what was prepared, decided and measured, and the list of that.
ONCE = {"prepare-model", "prepare-workload", "measure-device", "calibrate", "measure-cell", "measure-batch"}
ONCE |= {"install-environment", "list-ended", "next-round"}


def test_every_rule_depends_on_the_module_that_it_calls():
    files = [CHECKOUT / "Snakefile", *(CHECKOUT / "rules").glob("*.smk")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    rules = re.split(r"^ *(?:rule|checkpoint) \w+:\n", text, flags=re.MULTILINE)[1:]
    commands = [(rule, re.findall(r"python -m workflow_scripts ([\w-]+)", rule)) for rule in rules]
    called = [(rule, names[-1]) for rule, names in commands if names]  # the last one makes the output
    made = [(rule, name) for rule, name in called if re.search(r"^ *output:$", rule, re.MULTILINE)]
    assert {name for rule, name in made if f'sources_sha256("{COMMANDS[name]}"' not in rule} == ONCE


@pytest.mark.parametrize("name", ["analyse", "present"])
def test_a_rule_that_makes_a_table_or_a_page_of_a_study_runs_again_if_its_settings_change(name):
    text = (CHECKOUT / f"rules/{name}.smk").read_text(encoding="utf-8")
    rules = re.split(r"^ *rule ?(?=\w*:\n)", text, flags=re.MULTILINE)[1:]
    of_study = {rule.partition(":")[0]: rule for rule in rules if '--study "$STUDY"' in rule}
    assert of_study
    assert all(re.search(r"^ *settings=SETTINGS,$", rule, re.MULTILINE) for rule in of_study.values())
