"""What the tests of the fork server run in its children."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str]) -> int:
    what = argv[0]
    if what == "say":
        print("said", os.environ.get("WORD"), Path.cwd())
        return int(argv[1])
    if what == "variable":
        print(os.environ.get(argv[1]))
    if what == "raise":
        raise ValueError("the engine broke")
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang":
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(os.getpid(), helper.pid, flush=True)
        time.sleep(600)
    return 0
