"""Run a benchmark, and print its time as a multiple of that of its last run here, or of another commit's in turns.

    make bench-plan AGAINST=905e3dda TURNS=2        (or: python -m benchmarks.turns plan --against 905e3dda --turns 2)

The commit's own benchmark runs in a checkout of its own, with the environment of this one. Without a commit the last
run of the same benchmark with the same options on the same processor counts; results/benchmarks.jsonl keeps all runs.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchmarks import checked
from workflow_scripts.common.checkout import CHECKOUT, commit_of
from workflow_scripts.common.command import positive, run_command
from workflow_scripts.common.files import read_jsonl
from workflow_scripts.device.processor import processor_facts

STORED = CHECKOUT / "results/benchmarks.jsonl"
Times = tuple[float, float]


def timed(checkout: Path, words: Sequence[str]) -> Times:
    """Seconds and CPU seconds of a benchmark in a checkout; if it fails, exit with its code."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    code = subprocess.run([sys.executable, "-m", *words], cwd=checkout).returncode
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if code:
        sys.exit(code)
    return time.monotonic() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _print(own: Sequence[Times], others: Sequence[Times], whose: str) -> None:
    for title, mine, theirs in zip(
        ("seconds", "CPU seconds"), zip(*own, strict=True), zip(*others, strict=True), strict=True
    ):
        ratio = np.median(mine) / np.median(theirs)
        texts = (", ".join(f"{value:.1f}" for value in values) for values in (mine, theirs))
        print("{}: {} here, {} {}: {:.3f} times".format(title, *texts, whose, ratio))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run a benchmark and compare its time.")
    parser.add_argument("benchmark", choices=["analysis", "harness", "plan", "report_in_browser"])
    parser.add_argument("--against", metavar="COMMIT", help="compare with this commit, in turns")
    parser.add_argument("--turns", type=positive, default=1, help="turns of the two commits (default: %(default)s)")
    args, options = parser.parse_known_args(argv)
    words = [f"benchmarks.{args.benchmark}", *options]
    if args.against is None:
        known = {"words": words, "processor": processor_facts(())["processor"]}
        earlier = [run for run in (read_jsonl(STORED) if STORED.exists() else ()) if known.items() <= run.items()]
        took = timed(CHECKOUT, words)
        at = datetime.now(UTC).isoformat(timespec="minutes")
        run = {**known, "at": at, "commit": commit_of(CHECKOUT)[0], "took": took}
        with STORED.open("a", encoding="utf-8") as file:
            file.write(json.dumps(run) + "\n")
        if earlier:
            _print([took], [earlier[-1]["took"]], "at {at}, commit {commit:.8}".format(**earlier[-1]))
        return 0
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        other = Path(folder) / "checkout"
        checked(["git", "worktree", "add", "--detach", str(other), args.against])
        try:
            turns = [(timed(CHECKOUT, words), timed(other, words)) for _ in range(args.turns)]
        finally:
            checked(["git", "worktree", "remove", "--force", str(other)])
    _print(*zip(*turns, strict=True), f"at {args.against}")
    return 0


if __name__ == "__main__":
    run_command(main)
