"""How long the commands that need no engine take to start: user CPU seconds of the help and of a small call.

    make bench-start

The goal is 0.5 s for each. The first call of a command compiles its modules, so the best of several calls counts.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.command import run_command

GOAL_S = 0.5
CALLS = {
    "audit": "config/published/paged_attention_lab_max_num_seqs.csv --model llama-3.1-8b-instruct"
    " --tokens-per-request 200,200",
    "capacity": "--model llama-3.1-8b-instruct --gpu h200 --block-size 16 --gpu-memory-utilization 0.9"
    " --max-model-len 4096",
    "log": "tests/fixtures/logs/vllm-0.32-cpu-ok.log",
    "trace": "{trace}",
    "predict": "--model llama-3.1-8b-instruct --gpu h200 --prompt-tokens 100 --output-tokens 50 --num-prompts 16",
}


def user_s(name: str, words: str) -> float:
    """User CPU seconds of one call of a command; if it fails, exit with its messages."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command = [sys.executable, "-m", "workflow_scripts", name, *words.split()]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"kvsweep {name} {words}: exit code {done.returncode}\n{done.stderr}")
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def main() -> int:
    """Print the seconds of each command."""
    parser = argparse.ArgumentParser(description="User CPU seconds of the commands that need no engine.")
    parser.add_argument("--calls", type=int, default=5, help="calls of which the best counts (%(default)s)")
    calls = parser.parse_args().calls
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as trace:
        trace.write("timestamp, power.draw [W]\n2026/01/01 00:00:00.000, 70.00 W\n")
        trace.flush()
        _print({name: words.format(trace=trace.name) for name, words in CALLS.items()}, calls)
    return 0


def _print(commands: Mapping[str, str], calls: int) -> None:
    print(f"{'command':10} {'--help':>8} {'a call':>8}   goal: {GOAL_S} s")
    for name, words in commands.items():
        shown, called = (min(user_s(name, given) for _ in range(calls)) for given in ("--help", words))
        print(f"{name:10} {shown:8.2f} {called:8.2f}")


if __name__ == "__main__":
    run_command(main)
