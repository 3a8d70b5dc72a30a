"""Failed cells are tried again by the same call once what they lacked is there, and no other cell is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import CHECKOUT, snakemake_command
from tests.integration.installing import Environment
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.study.paths import StudyPaths

STATIC = "cpu-all/hf-static/tiny-llama-57m/short/static-batch2-cachedynamic"
ECHO = "cpu-all/echo/tiny-llama-57m/short/atonce2"


@pytest.fixture
def call(tmp_path, environment, write_study):
    """Call snakemake with the Python of an environment."""
    sweeps = [
        {"name": "static", "engine": "hf-static", "knobs": {"batch_size": 2, "cache_implementation": "dynamic"}},
        {"name": "echo", "engine": "echo", "knobs": {"at_once": 2}},
    ]
    places = {"gpu": "cpu-all", "model": "tiny-llama-57m", "workload": "short"}
    study = write_study(tmp_path, sweeps=[places | sweep for sweep in sweeps], repeats=1, engine_defaults={})
    own = environment | {"KVSWEEP_ENGINES": "tests.echo_engine:ECHO", "TMPDIR": str(tmp_path)}

    def made(python: Path, *options: str) -> subprocess.CompletedProcess[str]:
        words = [str(python), *snakemake_command(study, tmp_path / "results", "--until=parse", *options)[1:]]
        return subprocess.run(words, cwd=CHECKOUT, env=own, capture_output=True, text=True, timeout=900)

    return made


def test_a_cell_that_lacked_a_package_is_measured_once_it_is_installed_and_no_other_cell(call, tmp_path):
    lacking = Environment(tmp_path / "env", "accelerate")
    paths = StudyPaths(tmp_path / "results", "small")
    first = call(lacking.python)
    assert first.returncode == 1
    assert "hf-static needs accelerate" in first.stdout + first.stderr
    assert not paths.outcome(STATIC).exists()
    echoed = paths.outcome(ECHO).stat().st_mtime_ns
    lacking.install()
    second = call(lacking.python)
    assert second.returncode == 0, second.stdout + second.stderr
    assert Outcome.read(paths.outcome(STATIC)).outcome == "ok"
    assert paths.outcome(ECHO).stat().st_mtime_ns == echoed


def test_failed_outcomes_are_tried_again_as_often_as_the_call_says(call, tmp_path):
    paths = StudyPaths(tmp_path / "results", "small")
    done = call(Path(sys.executable))
    assert done.returncode == 0, done.stdout + done.stderr
    record = Outcome.read(paths.outcome(ECHO))
    record.model_copy(update={"outcome": "engine_error", "reason": "RuntimeError: odd", "repeats": []}).write(
        paths.outcome(ECHO)
    )
    static = paths.outcome(STATIC).stat().st_mtime_ns
    dry = call(Path(sys.executable), "--dry-run")
    said = dry.stdout + dry.stderr
    assert "1 cell is tried again: engine_error 1" in said
    assert f"{ECHO}, start 1 (engine_error, tried again)" in said
    assert STATIC not in re.sub(r"(?s).*Round", "Round", said)
    assert paths.outcome(ECHO).exists()  # a dry run moves nothing
    again = call(Path(sys.executable))
    assert again.returncode == 0, again.stdout + again.stderr
    assert Outcome.read(paths.outcome(ECHO)).outcome == "ok"
    assert Outcome.read(paths.start(ECHO) / "attempt-1/outcome.json").reason == "RuntimeError: odd"
    assert (paths.start(ECHO) / "attempt-1/raw").is_dir()
    assert paths.outcome(STATIC).stat().st_mtime_ns == static
    assert re.search(r"^total +0$", call(Path(sys.executable), "--dry-run").stdout, re.MULTILINE)
