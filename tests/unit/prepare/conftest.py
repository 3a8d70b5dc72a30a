import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit import made_studies
from workflow_scripts.catalog.gpus_and_models import get_model
from workflow_scripts.prepare.model import prepare_model

MODEL = "tiny-llama-57m"


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / MODEL
    prepare_model(get_model(MODEL), "dummy", folder)
    return folder


@pytest.fixture
def command(tmp_path):
    """Runs a command as a process, since the hub's client reads its settings when it is imported."""

    def run(hub: Any, *words: object, token: str | None = None) -> subprocess.CompletedProcess[str]:
        env = {k: v for k, v in os.environ.items() if k != "HF_TOKEN"} | {"HF_HOME": str(tmp_path / "hf")}
        env |= {"HF_HUB_OFFLINE": "1"} if hub is None else {"HF_ENDPOINT": hub.address}
        env |= {"HF_TOKEN": token} if token else {}
        given = [sys.executable, "-m", "workflow_scripts", *map(str, words)]
        return subprocess.run(given, env=env, capture_output=True, text=True)

    return run


@pytest.fixture
def write_study(tmp_path):
    def write(workload: dict[str, Any], knobs: Any = None, model: str = MODEL, **changes: Any) -> Path:
        sweep = {"gpu": "cpu-all", "model": model, "knobs": knobs or {}}
        return made_studies.write_study(tmp_path, sweep, workloads={"load": workload}, **changes)

    return write
