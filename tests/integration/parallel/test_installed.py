"""kvsweep installed into an empty environment, from each form in which it is given away; called from other folders."""

import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks.start import CALLS
from tests.integration.conftest import CHECKOUT
from tests.integration.installing import run, uv
from workflow_scripts import __version__
from workflow_scripts.__main__ import GROUPS

TOOLS = CHECKOUT / "envs" / "tools.txt"


@pytest.fixture(scope="module")
def empty(tmp_path_factory) -> Path:
    """An environment with the declared dependencies, in the versions of the lock, and kvsweep from its wheel."""
    folder = tmp_path_factory.mktemp("installed")
    uv("build", "--quiet", "--out-dir", folder / "dist", CHECKOUT)
    uv("venv", "--quiet", "--python", sys.executable, folder / "env")
    (wheel,) = (folder / "dist").glob("*.whl")
    uv("pip", "install", "--quiet", "--python", folder / "env", "--constraint", TOOLS, wheel)
    return folder


def test_every_public_command_works_outside_a_checkout(empty, tmp_path):
    kvsweep = empty / "env/bin/kvsweep"
    folder = Path(run(kvsweep, "--folder", cwd=tmp_path).strip())
    assert folder.is_relative_to(empty)
    modules = [f"workflow_scripts.{module}" for group in GROUPS.values() for module in group.values()]
    code = "import sys, importlib; print([importlib.import_module(name).main.parser().prog for name in sys.argv[1:]])"
    assert run(empty / "env/bin/python", "-c", code, *modules, cwd=tmp_path).count("kvsweep ") == len(modules)
    trace = tmp_path / "smi.csv"
    trace.write_text("timestamp, power.draw [W]\n2026/01/01 00:00:00.000, 70.00 W\n")
    for command, words in CALLS.items():
        here = words.format(trace=trace).replace("config/", f"{folder}/config/").replace("tests/", f"{CHECKOUT}/tests/")
        assert run(kvsweep, command, *here.split(), cwd=tmp_path)
    study = folder / "config/studies/two_gpus.yaml"
    with tarfile.open(folder / "config/reference/two_gpus/evidence.tar.xz") as packed:
        packed.extractall(tmp_path / "results", filter="data")
    assert ": 25 cells on h100-sxm, h200\n" in run(kvsweep, "check", study, cwd=tmp_path)
    assert "infeasible" in run(kvsweep, "status", "--study", study, cwd=tmp_path)
    assert "25 cells" in run(kvsweep, "plan", "--study", study, cwd=tmp_path)


@pytest.mark.parametrize("form", ["path", "sdist", "git"])
def test_each_form_installs_the_same(empty, tmp_path, form):
    source = {"path": str(CHECKOUT), "git": f"git+file://{CHECKOUT}"}.get(form) or next((empty / "dist").glob("*.gz"))
    uv("pip", "install", "--quiet", "--no-deps", "--target", tmp_path / form, source)
    of_wheel = next((empty / "env/lib").glob("python*")) / "site-packages"
    for folder in ("kvsweep", "kvsweep/config/schemas", "kvsweep/workflow_scripts/deploy/templates", "kvsweep/report"):
        names = [{path.name for path in (root / folder).iterdir()} for root in (tmp_path / form, of_wheel)]
        assert names[0] == names[1] - {"__pycache__"}


def test_uvx_runs_a_command_from_a_folder(empty, tmp_path):
    said = uv("tool", "run", "--constraints", TOOLS, "--from", CHECKOUT, "kvsweep", "--version", cwd=tmp_path)
    assert said == f"kvsweep {__version__}\n"


def test_the_api_and_its_types_are_installed(empty, tmp_path):
    settings = "kvsweep.EngineSettings(max_model_len=2048)"
    code = f"import kvsweep; print(kvsweep.capacity('opt-125m', 'l4', {settings})['feasible'].value)"
    assert run(empty / "env/bin/python", "-c", code, cwd=tmp_path) == "True\n"
    assert (next((empty / "env/lib").glob("python*")) / "site-packages/kvsweep/py.typed").exists()
