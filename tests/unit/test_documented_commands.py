"""Every command on a page of the project is correct, as far as this can be checked.

`kvsweep` and `python -m` commands run as printed, in a copy of the checkout with made-up results. Commands that do not
run are listed with the reason: `INSTEAD` has other programs, `PARSED` has commands of which only the options are read.
A command that is in neither list and does not run is a failure, and so is one that cannot be read.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.present.synthetic import write_results
from workflow_scripts.study.archive import CODE
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study_file import load_study

ROOT = Path(__file__).parents[2]
CELL = expand(load_study(ROOT / "config/studies/demo.yaml"))[0].id
# What stands for something else on a page.
MEANT = {
    "results/demo/cells/...": f"results/demo/cells/{CELL}",
    "results/my-study/cells/...": f"results/my-study/cells/{CELL}",
    "config/studies/NAME.yaml": "config/studies/my-study.yaml",
}
READ_OPTIONS = """
import argparse, runpy, sys
parse = argparse.ArgumentParser.parse_args
def parse_and_end(*arguments):
    parse(*arguments)
    sys.exit(0)
argparse.ArgumentParser.parse_args = parse_and_end
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def dry_run(command: str) -> str:
    return command.replace(" --dry-run", "") + " --dry-run"


def dry_run_in_archive(command: str) -> str:
    return f"cd unpacked && {command} --dry-run"


def make_dry_run(command: str) -> str:
    return command.replace("make ", "make --dry-run --no-print-directory ", 1)


def paths_exist(command: str) -> str:
    files = [word for word in shlex.split(command) if re.match(r"(envs|config|slurm|profiles)/", word)]
    assert files, command
    return " && ".join(f"test -e {file}" for file in files)


def syntax(command: str) -> str:
    return f"bash -n -c {shlex.quote(command)}"


# What a command begins with, what is run instead of it, and why.
INSTEAD: dict[str, tuple[Callable[[str], str], str]] = {
    "snakemake --cores all partial_report --config study=study.yaml": (
        dry_run_in_archive,
        "redraws a study, and is for a folder of its own",
    ),
    "snakemake --profile slurm": (
        lambda command: syntax(command) if command == "snakemake --profile slurm" else dry_run(command),
        "stops where the site lacks the study's devices, as tests/integration/test_slurm.py shows",
    ),
    "snakemake": (dry_run, "hours, GPUs or a cluster"),
    "make": (make_dry_run, "installs, or takes minutes"),
    ".ci/run": (lambda command: f"bash -n {command}", "runs this very test"),
    "source .venv/bin/activate": (syntax, "there is no environment in the copy"),
    "PIP_NO_DEPS=1": (paths_exist, "needs conda and a network"),
    "apptainer": (paths_exist, "needs Apptainer and a network"),
    "rsync": (syntax, "needs another cluster"),
    "for archive in": (syntax, "needs evidence from another host"),
    "python3 -m compileall": (syntax, "is for the folder of another host's modules"),
    "vllm serve --config": (syntax, "starts a server, which tests/integration/test_production.py does"),
    "docker compose": (syntax, "needs Docker and a network"),
    "kubectl": (syntax, "needs a cluster"),
    "sbatch results": (syntax, "needs a cluster"),
    "promtool": (syntax, "needs an exported study, which tests/unit/deploy/test_alert_rules.py makes up"),
    "prometheus": (syntax, "runs until it is stopped; tests/integration/test_production.py runs it"),
    "curl": (syntax, "needs a running Prometheus"),
}
# Commands of which only the options are read, and why.
PARSED = {
    "python3 -m benchmarks.gpu_host.run": "needs a GPU",
    "kvsweep check-engines": "imports the engines, which tests/integration/parallel/test_check_study.py does",
    "kvsweep measure-cell": "measures a cell, which tests/integration/test_measure.py does",
    "kvsweep measure-device": "measures this machine, which takes it seconds",
    "kvsweep check-server": "needs a running server, which tests/integration/test_production.py has",
    "kvsweep compare": "needs the results of two runs, which tests/unit/analyse/compare/test_compare.py makes up",
    "kvsweep regress": "needs the results of two runs, which tests/unit/analyse/compare/test_regress.py makes up",
    "kvsweep status --study config/studies/paged_attention.yaml --watch": "ends with the study",
    "kvsweep figures": "draws for a quarter of a minute",
    "kvsweep calibrate": "measures for minutes; tests/integration/test_measure.py measures one calibration",
}


def documented() -> Iterator[tuple[str, str]]:
    """Each page with each of its commands: from console blocks, and from indented lines that begin as commands do."""
    known = re.compile("|".join(map(re.escape, ["kvsweep ", "python ", "python3 ", *INSTEAD])))
    for page in tracked("*.md"):
        text = (ROOT / page).read_text().replace("\\\n", " ")
        for language, block in re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
            lines = [line.strip() for line in block.splitlines()]
            if any(line.startswith("$ ") for line in lines):  # the others are what it prints
                lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
            assert language, f"{page}: a block without a language"
            if language in ("console", "bash", "sh"):
                yield from ((page, line) for line in lines)
        for line in re.findall(r"^    (\S.*)$", text, re.MULTILINE):
            if known.match(line):
                yield page, line


def tracked(pattern: str) -> list[str]:
    command = ["git", "ls-files", "-z", "--", pattern]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def without_comment(command: str) -> str:
    """The command alone, in single spaces."""
    return re.sub(" +", " ", command.split(" #")[0]).strip()


def checked(command: str) -> str:
    """What is run to check a command of a page."""
    for words, meaning in MEANT.items():
        command = command.replace(words, meaning)
    for beginning, (instead, _) in INSTEAD.items():
        if re.match(rf"{re.escape(beginning)}\b", command):
            return instead(command)
    assert re.match(r"kvsweep|python3? -m", command), f"{command}: in no list, so nothing says how to check it"
    for beginning in PARSED:
        if command.startswith(beginning):
            words = command.replace("kvsweep", "workflow_scripts", 1).removeprefix("python3 -m ")
            return f"export OUT=.; python -c {shlex.quote(READ_OPTIONS)} {words}"
    return command


def commands_by_page() -> dict[str, list[str]]:
    """What is run for each page, in its order; what several pages show is run once."""
    by_page: dict[str, list[str]] = {}
    seen: set[str] = set()
    for page, command in documented():
        if (run := checked(without_comment(command))) not in seen:
            seen.add(run)
            by_page.setdefault(page, []).append(run)
    return by_page


COMMANDS = commands_by_page()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the checkout with what the pages speak of: results of the demo, logs, a study of one's own."""
    root = tmp_path_factory.mktemp("checkout")
    for name in tracked("*"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, root / name)
    (unpacked := root / "unpacked").mkdir()
    for name in CODE:
        copy = shutil.copytree if (root / name).is_dir() else shutil.copy2
        copy(root / name, unpacked / name)
    shutil.copy(root / "config/studies/demo.yaml", unpacked / "study.yaml")
    demo = (root / "config/studies/demo.yaml").read_text()
    (root / "config/studies/my-study.yaml").write_text(re.sub("^name: .*", "name: my-study", demo, flags=re.MULTILINE))
    write_results(root / "results/demo")
    for baseline in ("before/results/demo", "results/nights/2026-01-01/demo", "results/nights/2026-01-02/demo"):
        (root / baseline).mkdir(parents=True)
    (root / "before/report.html").touch()
    shutil.copy(root / "tests/fixtures/logs/vllm-0.32-cpu-ok.log", root / "vllm.log")
    (root / "bin").mkdir()  # where an installed command would run the code of the checkout that it belongs to
    (root / "bin/kvsweep").write_text(f'#!/bin/sh\nexec {sys.executable} -m workflow_scripts "$@"\n')
    (root / "bin/kvsweep").chmod(0o755)
    (root / "smi.csv").write_text("timestamp, power.draw [W]\n2026/01/01 00:00:00.000, 70.00 W\n")
    (root / "elsewhere").mkdir()
    example = re.search(r"```yaml\n(.*?)```", (root / "docs/importing.md").read_text(), re.DOTALL)
    assert example is not None
    (root / "elsewhere/runs.yaml").write_text(example[1])
    shutil.copy(root / "vllm.log", root / "elsewhere/results_16_64.txt")
    shutil.copy(root / "smi.csv", root / "elsewhere/smi_16_64.csv")
    return root


@pytest.fixture(scope="module")
def ended(checkout):
    """How each command ended; those of a page ran one after another."""
    of_make = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")  # how the tests were called is nothing to the commands
    environment = {name: value for name, value in os.environ.items() if name not in of_make}
    environment |= {"PATH": f"{checkout / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment |= {"XDG_CACHE_HOME": str(checkout / "cache")}

    def run(commands: list[str]) -> dict[str, "subprocess.CompletedProcess[str]"]:
        bash = ["bash", "-euo", "pipefail", "-c"]
        how = {"cwd": checkout, "env": environment, "capture_output": True, "text": True}
        return {command: subprocess.run([*bash, command], **how) for command in commands}

    with ThreadPoolExecutor(2) as pool:
        return dict(ChainMap(*pool.map(run, COMMANDS.values())))


@pytest.mark.parametrize(("page", "command"), [(page, command) for page in COMMANDS for command in COMMANDS[page]])
def test_a_command_of_a_page_is_right(ended, page, command):
    done = ended[command]
    assert done.returncode == 0, f"{page}: {done.stdout}{done.stderr}"


def test_the_lists_hold_nothing_that_no_page_shows():
    shown = "\n".join(command for _, command in documented())
    assert [word for word in [*INSTEAD, *PARSED, *MEANT] if word not in shown] == []


@pytest.mark.parametrize("command", ["docker run kvsweep", "python setup.py install", "snakemaker all"])
def test_a_command_of_no_list_is_an_error(command):
    with pytest.raises(AssertionError, match="in no list"):
        checked(command)
