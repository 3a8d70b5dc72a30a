"""What all tests share: `@pytest.mark.needs_tool("chromium")`.

A test with this mark is skipped if one of the named commands is missing. With KVSWEEP_REQUIRE_TOOLS set,
as .ci/run sets it, nothing may be skipped: every skip, of a test or of a whole module, is a failure.
"""

import os
import shutil
import tarfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import pytest
from filelock import FileLock
from hypothesis import settings

from workflow_scripts.catalog.gpus_and_models import study_gpus, study_models
from workflow_scripts.device.device_lock import SCOPE

# How long an example takes says something of the machine, not of the code. Where tools are required, as .ci/run does,
# the same code meets the same examples each time; elsewhere each run looks further.
settings.register_profile("kvsweep", deadline=None, derandomize="KVSWEEP_REQUIRE_TOOLS" in os.environ)
settings.load_profile("kvsweep")

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Fill a folder of this name once for all processes of this run; it is read-only afterwards."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def filled(name: str, fill: Callable[[Path], object]) -> Path:
        folder, done = shared / "once" / name, shared / f"{name}.done"
        with FileLock(shared / f"{name}.lock"):
            if not done.exists():
                folder.mkdir(parents=True, exist_ok=True)
                fill(folder)
                done.touch()
        return folder

    return filled


@pytest.fixture(scope="session")
def synthetic(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """The folder of made-up results, with their figures and their page."""
    from tests.unit.present.synthetic import draw_results

    return once("synthetic", draw_results)


@pytest.fixture(scope="session")
def two_gpus_evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the study two_gpus with what one H200 and one H100 measured; read-only, for all tests."""
    return evidence_of("two_gpus", tmp_path_factory.mktemp("two_gpus"))


def evidence_of(study: str, results: Path) -> Path:
    """Unpack what a study of config/reference/ has measured, into a folder of results; its own folder there."""
    with tarfile.open(Path(__file__).parents[1] / f"config/reference/{study}/evidence.tar.xz") as packed:
        packed.extractall(results, filter="data")
    return results / study


@pytest.fixture(autouse=True)
def known_models() -> Generator[None, None, None]:
    """A model that a test has named is unknown to the next one."""
    with patch.dict(study_models), patch.dict(study_gpus):
        yield


def pytest_configure(config: pytest.Config) -> None:
    os.environ[SCOPE] = f"tests of {os.getpid()}"  # devices that other sessions use are free for this one
    config.addinivalue_line("markers", "needs_tool(*commands): skip the test where a command is missing")


def pytest_runtest_setup(item: pytest.Item) -> None:
    search_path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])  # where daemons are
    needed = {command for mark in item.iter_markers("needs_tool") for command in mark.args}
    missing = sorted(command for command in needed if shutil.which(command, path=search_path) is None)
    if missing:
        pytest.skip(f"no {' or '.join(missing)} here; `make debian` installs what is missing")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return without_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return without_skip((yield))


def without_skip(report: Report) -> Report:
    """Turn a skip into a failure where tools are required; an expected failure is no skip."""
    if report.skipped and os.environ.get("KVSWEEP_REQUIRE_TOOLS") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"KVSWEEP_REQUIRE_TOOLS is set, so this may not be skipped: {report.longrepr}"
    return report
