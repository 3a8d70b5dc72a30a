"""What every command shares: its options, its help, its messages and its exit codes."""

import argparse
import errno
import functools
import math
import os
import signal
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from workflow_scripts.common.checkout import own_or_of_checkout
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.printable import PrintableStream, printable

BAD_INPUT = 2
# Why a file or folder that a user names cannot be opened.
_UNUSABLE = (
    *(errno.ENOENT, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG),
    *(errno.ELOOP, errno.ENXIO),
)

# A file cannot be written: no fault of the input.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)

# What was the standard error before `print_to`.
_terminal: TextIO | None = None

AddOption = Callable[[argparse._ActionsContainer], object]
Body = Callable[[Namespace], int | None]


def option(*names: str, **settings: Any) -> AddOption:
    return lambda parser: parser.add_argument(*names, **settings)


def print_to(log: Path) -> None:
    """Let this process and those that it starts print to a file from now on, except what `say` prints."""
    global _terminal
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    _terminal = _terminal or os.fdopen(os.dup(2), "w", encoding="utf-8")
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def say(line: str) -> None:
    """Print a line at once; to the terminal too, where what is printed goes to a file."""
    print(line, flush=True)
    if _terminal:
        print(line, file=_terminal, flush=True)


def out(what: str) -> AddOption:
    return option("--out", type=Path, required=True, help=what)


STUDY = option(
    "--study",
    type=own_or_of_checkout,
    required=True,
    help="the study's YAML file; as the first word without --study too",
)
RESULTS = option("--results", type=Path, default=Path("results"), help="folder of all studies (%(default)s)")
TABLES_OPTION = option("--tables", type=Path, required=True, help="folder with cells.parquet and the other tables")
LOG = option("--log", type=Path, help="print to this file; what is worth waiting for is printed to the terminal too")
PROCESSES = option("--processes", type=int, default=os.cpu_count() or 1, help="parallel processes (%(default)s)")


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


ATTEMPT = option("--attempt", type=positive, default=1, help="number of this attempt, from 1 (%(default)s)")
ATTEMPTS = option("--attempts", type=positive, default=1, help="maximum number of attempts (%(default)s)")


def above_zero(most: float) -> Callable[[str], float]:
    """The type of an option whose value is a number above 0 and up to `most`."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and up to {most:g}")
        return value

    return number


share = above_zero(1)


class _Parser(argparse.ArgumentParser):
    """A parser of a command that takes a study, which may be its first word."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        named = words and words[0][:1] not in ("", "-")
        return super().parse_known_args(["--study", *words] if named else words, namespace)


class DeclaredCommand:
    """One command of `kvsweep`: called with the words after its name, it returns its exit code. Its help is the
    docstring of its module. Bad input (an InputError, or a named file that cannot be opened) becomes one message on
    stderr and exit code 2. Another exception is raised, or ends it with the exit code `fault`."""

    def __init__(self, name: str, body: Body, options: Sequence[AddOption], fault: int | None) -> None:
        self.name, self.body, self.options, self.fault = name, body, options, fault
        functools.update_wrapper(self, body)

    def parser(self) -> argparse.ArgumentParser:
        parser = (_Parser if STUDY in self.options else argparse.ArgumentParser)(
            prog=f"kvsweep {self.name}",
            description=sys.modules[self.__module__].__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for add in self.options:
            add(parser)
        return parser

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        args, status = self.parser().parse_args(argv), BAD_INPUT
        if log := getattr(args, "log", None):
            print_to(log)
        try:
            return self.body(args) or 0
        except InputError as e:
            faults = str(e)
        except Exception as e:
            if isinstance(e, OSError) and e.errno in (*_UNUSABLE, *_FULL) and e.filename is not None:
                if e.errno in _FULL:
                    status = self.fault or 1
                faults = printable(f"{e.filename}: {e.strerror}")
            elif self.fault is None or isinstance(e, BrokenPipeError):
                raise
            else:
                traceback.print_exc()
                return self.fault
        for fault in faults.split("\n"):
            print(f"kvsweep {self.name}: {fault}", file=sys.stderr)
        return status


def command(name: str, *options: AddOption, fault: int | None = None) -> Callable[[Body], DeclaredCommand]:
    """Make a function the command `kvsweep NAME`; it gets the parsed options and may return an exit code. If 1, with
    which Python ends after an exception, is an answer of the command, `fault` is the exit code instead. If its module
    is itself run as a program, which would do nothing, that ends with a message and exit code 2."""

    def decorate(body: Body) -> DeclaredCommand:
        if body.__module__ == "__main__":
            print(f"{sys.argv[0]}: call this command as `kvsweep {name}`", file=sys.stderr)
            raise SystemExit(BAD_INPUT)
        return DeclaredCommand(name, body, options, fault)

    return decorate


def run_command(main: Callable[[], int]) -> NoReturn:
    """Call `main` and exit with what it returns; all that it prints is printable. If nobody reads the output any more,
    end as if killed by SIGPIPE. The signal itself stays ignored: on a socket, a broken connection is an error that must
    be handled."""
    for stream in ("stdout", "stderr"):
        setattr(sys, stream, PrintableStream(getattr(sys, stream)))
    try:
        try:
            status = main()
        finally:
            sys.stdout.flush()  # here, because the interpreter's clean-up would print the error
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None
    if "pyarrow" in sys.modules:
        # Arrow's threads sometimes abort the process while the interpreter cleans up (apache/arrow#34314). The work is
        # done by then, and Snakemake would delete it.
        sys.stderr.flush()
        os._exit(status)
    raise SystemExit(status)
