"""Commands that read hostile files, each in a child process with limits, and what came of it."""

import importlib
import math
import os
import resource
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple, NoReturn

from tests.hostile.kinds import KINDS, Base, Call
from workflow_scripts.__main__ import COMMANDS
from workflow_scripts.common.command import BAD_INPUT, DeclaredCommand

MOST_CPU_S, MOST_BYTES, MOST_WALL_S = 5, 10**9, 120
# Address space that libraries and their threads reserve and do not use: about 2 GB for `tables`.
RESERVED_BYTES = 5 * 10**9
REFUSED, ACCEPTED, TRACEBACK, SLOW, LARGE = "refused", "accepted", "traceback", "too slow", "too large"


def _pages(column: int) -> int:
    """Bytes of this process, of a column of statm: 0 reserved, 1 resident."""
    return int(Path("/proc/self/statm").read_text().split()[column]) * resource.getpagesize()


class Ended(NamedTuple):
    """How a command ended; `words`: its traceback, or the end of what it printed."""

    how: str
    words: str
    cpu_s: float
    peak_bytes: int


def run(call: Call, folder: Path, most_cpu_s: int, taken_bytes: int = 0) -> Ended:
    """Run a command in a child with `folder` as its working folder, and end what it started. `taken_bytes`: memory that
    this process took to make earlier cases, with which the child begins."""
    name, words = call
    main = importlib.import_module(f"workflow_scripts.{COMMANDS[name]}").main
    child = os.fork()
    if child == 0:
        _become(main, words, folder, most_cpu_s)
    deadline = time.monotonic() + MOST_WALL_S
    while (ended := os.wait4(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    code, used = os.waitstatus_to_exitcode(ended[1]), ended[2]
    cpu_s, peak_bytes = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 - taken_bytes
    printed = (folder / "printed").read_text(errors="replace")
    # Of this one, 1 is an answer: something has changed.
    is_answer = code == 0 or (name == "compare" and code == 1)
    if peak_bytes > MOST_BYTES or "MemoryError" in printed:
        how = LARGE
    elif cpu_s > most_cpu_s or code in (-signal.SIGXCPU, -signal.SIGKILL):
        how = SLOW
    elif "Traceback (most" in printed or not (is_answer or code == BAD_INPUT):
        how = TRACEBACK
    else:
        how = ACCEPTED if is_answer else REFUSED
    return Ended(how, f"{name} ended with {code}: {printed[-3000:]}", cpu_s, peak_bytes)


def _become(main: DeclaredCommand, words: list[str], folder: Path, most_cpu_s: int) -> NoReturn:
    code = 70
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_AS, (_pages(0) + MOST_BYTES + RESERVED_BYTES,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (most_cpu_s + 1, most_cpu_s + 2))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open("printed", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        code = main(words)
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
        os._exit(code)


def made(folder: Path) -> Base:
    """The files from which cases are made; raises RuntimeError if a command fails on them."""
    base = Base(folder)
    base.lay_out()
    for call in base.calls().values():
        if (ended := run(call, folder, MOST_WALL_S)).how != ACCEPTED:
            raise RuntimeError(f"{call}: {ended}")
        base.cpu_s[call[0]] = max(ended.cpu_s, base.cpu_s.get(call[0], 0))
    base.resident_bytes = _pages(1)
    return base


def case(base: Base, kind: str, seed: int, number: int) -> Ended:
    """Make a case and run its commands one after another, up to the first that does not accept it."""
    beside = base.study.parent.parent
    with TemporaryDirectory(prefix=f"{kind}-{number}-", dir=beside, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for call in KINDS[kind](base, Random(f"{seed} {kind} {number}"), folder):
            # On other and loaded processors the same work takes longer.
            most_cpu_s = MOST_CPU_S + math.ceil(base.cpu_s.get(call[0], 0))
            ended = run(call, folder, most_cpu_s, max(0, _pages(1) - base.resident_bytes))
            if any(folder.rglob("hacked")):
                return ended._replace(how=TRACEBACK, words=f"{call[0]}: a shell ran a text")
            if ended.how != ACCEPTED:
                break
        return ended
