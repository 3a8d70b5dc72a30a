"""Every command ends in the same way, even if nobody reads its output."""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from workflow_scripts.common.command import ATTEMPT, ATTEMPTS

ROOT = Path(__file__).parents[3]
LOG = "tests/fixtures/logs/vllm-0.32-cpu-ok.log"


def piped(command: str) -> "subprocess.CompletedProcess[str]":
    """What `set -o pipefail; command` ends with in bash."""
    words = ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m {command}"]
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}  # as from a terminal
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("name", ["--attempt", "--attempts"])
@pytest.mark.parametrize("value", ["0", "-1", "x"])
def test_attempts_are_counted_from_one(name, value, capsys):
    parser = argparse.ArgumentParser()
    for add in (ATTEMPT, ATTEMPTS):
        add(parser)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args([name, value])
    assert f"argument {name}: {value!r}" in capsys.readouterr().err


COMMANDS = (f"workflow_scripts log {LOG}", "workflow_scripts parse-cells --help")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_whose_reader_is_gone_ends_without_a_word(command):
    gone = piped(f"{command} | true")
    assert (gone.returncode, gone.stderr) == (128 + signal.SIGPIPE, "")
    read = piped(f"{command} | tail -n 1")
    assert (read.returncode, read.stderr) == (0, "")
    assert read.stdout


def test_the_status_of_a_command_is_what_its_main_returns():
    failed = piped("workflow_scripts log missing.log")
    assert failed.returncode == 2
    assert failed.stderr == "kvsweep log: missing.log: No such file or directory\n"


@pytest.mark.parametrize("status", [0, 3])
def test_a_thread_of_arrow_that_aborts_at_the_end_does_not_change_the_status(status):
    code = f"""
import atexit, os, sys
import pyarrow
from workflow_scripts.common.command import run_command
atexit.register(os.abort)
run_command(lambda: print("done") or print("said", file=sys.stderr) or {status})
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "done\n", "said\n")


@pytest.mark.parametrize(("module", "name"), [("parse.engine_log", "log"), ("analyse.limits.limits", "table-limits")])
def test_a_module_that_is_run_instead_of_its_command_names_the_command(module, name):
    failed = piped(f"workflow_scripts.{module} {LOG}")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr.endswith(f" `kvsweep {name}`\n")
