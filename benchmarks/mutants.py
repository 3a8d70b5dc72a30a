"""Which small faults in a module its tests detect: runs the tests on a random sample of mutmut's mutants.

    python -m benchmarks.mutants questions.limits.table [--sample 60]        (all modules that compute: make mutants)

For each mutant, a new process runs the tests and doctests of the module that call the changed function, the fastest
first, until one fails. The output has the surviving mutants, and a row of a Markdown table: module, mutants, tried,
killed.
"""

import argparse
import gc
import importlib.util
import os
import random
import resource
import sys
from collections import defaultdict
from contextlib import redirect_stdout
from difflib import ndiff
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state

from workflow_scripts.common.command import run_command

# Modules without a test file named after them.
TESTED_IN = {"facts": "cells", "memory": "capacity", "table_docs": "tables"}
CPU_LIMIT_S = 90  # for the tests on one mutant


class Survey:
    """A pytest plugin that runs each test once, to see what it calls, and then the tests on each mutant."""

    def __init__(self, module: str, sample: int) -> None:
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        self.module, self.mutated = module, mutate_file_contents(spec.origin, Path(spec.origin).read_text())
        # The module is replaced by one that contains all mutants; the one to call is set later.
        sys.modules[module] = mutants = importlib.util.module_from_spec(spec)
        exec(compile(self.mutated.code, spec.origin, "exec"), mutants.__dict__)
        setattr(sys.modules[spec.parent], module.rpartition(".")[2], mutants)
        names = list(self.mutated.mutant_names)
        random.Random(1).shuffle(names)
        self.sample = names[:sample]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed
        self.seconds += report.duration

    def passes(self, test: pytest.Item) -> bool:
        self.failed, self.seconds = False, 0.0
        names = dict(test.dtest.globs) if isinstance(test, pytest.DoctestItem) else {}
        test.ihook.pytest_runtest_protocol(item=test, nextitem=None)
        if isinstance(test, pytest.DoctestItem):
            test.dtest.globs.update(names)  # running it has cleared them
        return not self.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Take the place of pytest's own loop over the tests."""
        set_mutant_under_test("stats")
        calling = defaultdict(list)
        for test in session.items:
            state()._stats.clear()
            # Every mutant of a function is a copy of it, including its doctest.
            is_copy = isinstance(test, pytest.DoctestItem) and "__mutmut_orig" not in test.name
            if not is_copy and self.passes(test):
                for function in state()._stats:
                    calling[function].append((self.seconds, test))
        gc.freeze()  # so that garbage collection copies no memory that the processes share
        self.survivors = [mutant for mutant in self.sample if not self.is_killed(mutant, calling)]
        return True

    def is_killed(self, mutant: str, calling: dict[str, list[tuple[float, pytest.Item]]]) -> bool:
        """Whether a test fails on the mutant, or does not end."""
        if process := os.fork():
            return os.waitpid(process, 0)[1] != 0
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
        set_mutant_under_test(f"{self.module}.{mutant}")
        tests = sorted(calling[f"{self.module}.{mutant.rpartition('__mutmut_')[0]}"], key=lambda timed: timed[0])
        os._exit(not all(self.passes(test) for _, test in tests))

    def change(self, mutant: str) -> str:
        """The lines of a function that a mutant changes."""

        def lines(function: str) -> list[str]:
            span = self.mutated.line_span_by_function_name[function]
            return self.mutated.code.splitlines()[span.start : span.end]  # all but `def`

        original = lines(mutant.rpartition("__mutmut_")[0] + "__mutmut_orig")
        return "\n".join([mutant, *(line for line in ndiff(original, lines(mutant)) if line[0] in "+-")])


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a module's tests on a random sample of its mutants.")
    parser.add_argument("module", help="such as questions.limits.table")
    parser.add_argument("--sample", type=int, default=60, help="how many mutants (default: 60)")
    args = parser.parse_args()
    survey = Survey(f"workflow_scripts.{args.module}", args.sample)
    path = Path(*args.module.split("."))
    own = Path("tests/unit", path.parent, f"test_{TESTED_IN.get(path.name, path.name)}.py")
    files = [own, Path("workflow_scripts", path).with_suffix(".py")]
    settings.register_profile("mutants", deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    options = ["-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutants"]
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        pytest.main([*options, *map(str, files)], [survey])
    print(*map(survey.change, survey.survivors), sep="\n")
    killed = len(survey.sample) - len(survey.survivors)
    print(f"| `{args.module}` | {len(survey.mutated.mutant_names)} | {len(survey.sample)} | {killed} |")
    return 0


if __name__ == "__main__":
    run_command(main)
