"""How long the commands that need no engine take to start: user CPU seconds of the help and of a small call.

    make bench-start

The goal is 0.5 s for each. The first call of a command compiles its modules, so the best of several calls counts.
"""

import argparse
import resource
import sys
import tempfile

from benchmarks import checked
from workflow_scripts.common.command import run_command

GOAL_S = 0.5
CALLS = {
    "audit": "config/published/paged_attention_lab_max_num_seqs.csv --model llama-3.1-8b-instruct"
    " --tokens-per-request 200,200",
    "capacity": "--model llama-3.1-8b-instruct --gpu h200 --block-size 16 --gpu-memory-utilization 0.9"
    " --max-model-len 4096",
    "log": "tests/fixtures/logs/vllm-0.32-cpu-ok.log",
    "trace": "{trace}",
}


def user_s(name: str, words: str) -> float:
    """User CPU seconds of one call of a command; if it fails, exit with its messages."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    checked([sys.executable, "-m", "workflow_scripts", name, *words.split()])
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def main() -> int:
    parser = argparse.ArgumentParser(description="User CPU seconds of the commands that need no engine.")
    parser.add_argument("--calls", type=int, default=5, help="calls of which the best counts (%(default)s)")
    calls = parser.parse_args().calls
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as trace:
        trace.write("timestamp, power.draw [W]\n2026/01/01 00:00:00.000, 70.00 W\n")
        trace.flush()
        print(f"{'command':10} {'--help':>8} {'a call':>8}   goal: {GOAL_S} s")
        for name, words in CALLS.items():
            both = "--help", words.format(trace=trace.name)
            shown, called = (min(user_s(name, given) for _ in range(calls)) for given in both)
            print(f"{name:10} {shown:8.2f} {called:8.2f}")
    return 0


if __name__ == "__main__":
    run_command(main)
