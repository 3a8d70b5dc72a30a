"""The console command: what is registered, what the overview says, that the examples of all helps are right, and that
every command ends in the same way, even if nobody reads its output."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from benchmarks.start import CALLS
from tests.unit.examples import example_of, module_of
from workflow_scripts.__main__ import COMMANDS, GROUPS, STEPS, main, sentence
from workflow_scripts.common.command import DeclaredCommand
from workflow_scripts.common.files import write_text

ROOT = Path(__file__).parents[3]
# What the fork server calls in a child is no command.
STARTED_OTHERWISE = {"__main__", "measure.run"}


def test_every_module_with_a_main_is_registered_once():
    package = ROOT / "workflow_scripts"
    found = {
        ".".join(path.relative_to(package).with_suffix("").parts)
        for path in package.rglob("*.py")
        if re.search(r"^def main\(", path.read_text(), re.MULTILINE)
    }
    assert found - STARTED_OTHERWISE == set(COMMANDS.values())
    assert len(COMMANDS) == sum(map(len, (GROUPS | STEPS).values()))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_its_name_and_its_example_can_be_parsed(name):
    command = module_of(name).main
    assert isinstance(command, DeclaredCommand)
    assert command.name == name
    command.parser().parse_args(example_of(name))
    about = sentence(COMMANDS[name])
    assert about.endswith(".")
    assert ". " not in about


@pytest.mark.parametrize("words", [("--study", "s.yaml"), ("s.yaml",), ("s.yaml", "--results", "elsewhere")])
@pytest.mark.parametrize("name", ["check", "plan", "status", "sbatch"])
def test_a_study_may_be_the_first_word(name, words):
    words = words[:1] if name in ("check", "sbatch") and "--results" in words else words
    assert module_of(name).main.parser().parse_args(words).study == Path("s.yaml")


def python(code: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True)


CALL = "import sys, workflow_scripts.__main__ as m; m.main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"


def test_the_overview_imports_no_command_and_no_command_an_engine():
    loaded = python(CALL, "--help").stderr.split()
    assert {name for name in loaded if name.startswith("workflow_scripts.")} == {
        "workflow_scripts.__main__",
        "workflow_scripts.common",
        "workflow_scripts.common.checkout",
        "workflow_scripts.common.command",
        "workflow_scripts.common.faults",
        "workflow_scripts.common.printable",
    }
    # A command imports no engine, because that runs in a process of its environment.
    code = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]; print(*sys.modules)"
    loaded = python(code, *(f"workflow_scripts.{module}" for module in COMMANDS.values())).stdout.split()
    assert "pandas" in loaded
    assert {"vllm", "transformers", "torch", "sglang"} & {*loaded} == set()


# Commands that need no engine have the lock envs/tools.txt: what that does not hold, and what takes longer to import
# than a small call may last.
NOT_IN_THE_LOCK = {"vllm", "torch", "transformers", "snakemake", "pandera", "statsmodels", "matplotlib", "jinja2"}
SLOW_TO_IMPORT = {"pandas", "scipy"}


@pytest.mark.parametrize("name", CALLS)
def test_a_small_call_that_needs_no_engine_imports_little(name, tmp_path):
    trace = tmp_path / "smi.csv"
    trace.write_text("timestamp, power.draw [W]\n2026/01/01 00:00:00.000, 70.00 W\n")
    done = python(CALL, name, *CALLS[name].format(trace=trace).split())
    assert done.stdout
    assert (NOT_IN_THE_LOCK | SLOW_TO_IMPORT) & set(done.stderr.split()) == set()


def test_a_command_that_does_not_exist_ends_with_2(capsys):
    assert main(["statsu"]) == 2
    assert re.fullmatch(r"kvsweep: no command 'statsu'; .*; did you mean 'status'\?\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "lacks"),
    [
        ("tables", "pandera"),
        # Imported only once the command runs.
        ("sbatch --study config/studies/demo.yaml --site config/site_cpu.yaml", "snakemake_executor_plugin_slurm"),
    ],
)
def test_a_command_says_what_its_environment_lacks(words, lacks):
    code = f"import sys; sys.modules['{lacks}'] = None; from workflow_scripts.__main__ import main; sys.exit(main())"
    ended = python(code, *words.split())
    assert ended.returncode == 2
    assert re.match(f"kvsweep {words.split()[0]}: .*{lacks}.*make env ENV=cpu", ended.stderr)


LOG = "tests/fixtures/logs/vllm-0.32-cpu-ok.log"


def piped(command: str) -> "subprocess.CompletedProcess[str]":
    """What `set -o pipefail; command` ends with in bash."""
    words = ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m {command}"]
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}  # as from a terminal
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("command", [f"workflow_scripts log {LOG}", "workflow_scripts parse-cells --help"])
def test_a_command_whose_reader_is_gone_ends_without_a_word(command):
    gone = piped(f"{command} | true")
    assert (gone.returncode, gone.stderr) == (128 + signal.SIGPIPE, "")
    read = piped(f"{command} | tail -n 1")
    assert (read.returncode, read.stderr) == (0, "")
    assert read.stdout


@pytest.mark.parametrize("status", [0, 3])
def test_a_thread_of_arrow_that_aborts_at_the_end_does_not_change_the_status(status):
    code = f"""
import atexit, os, sys
import pyarrow
from workflow_scripts.common.command import run_command
atexit.register(os.abort)
run_command(lambda: print("done") or print("said", file=sys.stderr) or {status})
"""
    ended = python(code)
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "done\n", "said\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (" log missing.log", "kvsweep log: missing.log: No such file or directory"),
        (f" log {300 * 'x'}", "File name too long"),
        # A module that is run instead of its command names the command.
        (f".parse.engine_log {LOG}", " `kvsweep log`"),
    ],
)
def test_a_command_that_cannot_run_ends_with_2_and_the_reason(words, said):
    failed = piped(f"workflow_scripts{words}")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr.endswith(f"{said}\n")


def test_a_fault_of_the_code_is_no_answer_of_a_command(monkeypatch, capsys):
    command = module_of("compare").main
    monkeypatch.setattr(command, "body", Mock(side_effect=MemoryError("of a test")))
    assert command(example_of("compare")) == 3
    assert "MemoryError: of a test" in capsys.readouterr().err


def test_a_full_disk_is_one_message_with_the_file_and_no_bad_input(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    written = DeclaredCommand("write", lambda _: write_text(tmp_path / "a.json", "1"), [], None)
    assert written([]) == 1
    assert capsys.readouterr().err == f"kvsweep write: {tmp_path}/a.json: No space left on device\n"
