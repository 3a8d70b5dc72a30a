"""Benchmarks of the pipeline itself. Each compares values that are measured in one run."""

import subprocess
import sys
from collections.abc import Mapping, Sequence

from workflow_scripts.common.checkout import CHECKOUT


def checked(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """What a command prints that runs in the checkout; if it fails, exit with the end of that."""
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(
            f"{' '.join(command[:8])} ... ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    return done.stdout
