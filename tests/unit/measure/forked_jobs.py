"""What the tests of the fork server run in its children."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from workflow_scripts.device.host_load import load_by_others


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
    if what == "time":
        with load_by_others():
            print(os.getpid(), flush=True)
            while not Path(argv[1]).exists():
                time.sleep(0.05)
    return 0
