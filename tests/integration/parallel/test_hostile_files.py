"""Some of the damaged and hostile files that `make bench-hostile` reads, in a process of its own, because it forks."""

import subprocess
import sys

from tests.integration.conftest import CHECKOUT


def test_hostile_files_are_refused_or_accepted():
    words = [sys.executable, "-m", "benchmarks.hostile", "--seed", "7", "--cases", "14"]
    done = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "14 cases, seed 7: 0 findings" in done.stdout
