"""Read thousands of damaged and hostile files with the real commands, and check that each is refused or accepted.

    make bench-hostile SEED=1 CASES=2000 [ARGS="--only studies"]

The cases follow from the seed: real files (a small study of the two GPUs with its evidence, tables and page;
the studies in config/; logs of engines) in which bytes or values were changed, or which are large or slow to read. Each
is read in a child process with limits. A command ends with 0 if a file is accepted, and with 2 and one message if it is
refused. The exit code is 1 if any command ended with a traceback, or took more than 1 GB of memory, or 5 s of processor
time more than for the real files.
"""

import argparse
import tempfile
from collections import Counter
from pathlib import Path

from tests.hostile.child import ACCEPTED, REFUSED, case, made
from tests.hostile.kinds import KINDS
from workflow_scripts.common.command import run_command


def main() -> int:
    parser = argparse.ArgumentParser(description="Damaged and hostile files, and how the commands end that read them.")
    parser.add_argument("--seed", type=int, default=1, help="what decides the cases (%(default)s)")
    parser.add_argument("--cases", type=int, default=2000, help="their number, over all kinds (%(default)s)")
    parser.add_argument("--only", choices=KINDS, nargs="+", default=[*KINDS], help="make only these kinds")
    parser.add_argument("--number", type=int, help="make only the case with this number of each kind")
    args = parser.parse_args()
    each = -(-args.cases // len(args.only))
    numbers = range(each) if args.number is None else [args.number]
    findings = 0
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        (Path(folder) / "base").mkdir()
        base = made(Path(folder) / "base")
        for kind in args.only:
            counts: Counter[str] = Counter()
            cpu_s, peak_bytes = 0.0, 0
            for number in numbers:
                ended = case(base, kind, args.seed, number)
                counts[ended.how] += 1
                cpu_s, peak_bytes = max(cpu_s, ended.cpu_s), max(peak_bytes, ended.peak_bytes)
                if ended.how not in (ACCEPTED, REFUSED) or args.number is not None:
                    print(f"{kind} {number}: {ended.how}, {ended.cpu_s:.1f} s, {ended.peak_bytes / 1e6:.0f} MB")
                    print(ended.words, flush=True)
            told = ", ".join(f"{count} {how}" for how, count in sorted(counts.items()))
            print(f"{kind}: {told}; at most {cpu_s:.1f} s and {peak_bytes / 1e6:.0f} MB", flush=True)
            findings += counts.total() - counts[ACCEPTED] - counts[REFUSED]
    print(f"{len(args.only) * len(numbers)} cases, seed {args.seed}: {findings} findings")
    return int(findings > 0)


if __name__ == "__main__":
    run_command(main)
