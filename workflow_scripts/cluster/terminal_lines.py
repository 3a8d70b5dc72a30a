"""What a call of Snakemake says on the terminal: a line for each job that ended, with the time left, and what failed.
Snakemake's own log file has the rest."""

import contextlib
import copy
import logging
import re
import textwrap
import time
from collections.abc import Callable, Mapping

import psutil

# Of the jobs that measure, by number: cells, and the time limits in minutes of this attempt and the next one, if any.
Measuring = Callable[[], Mapping[int, tuple[int, list[int]]]]
# Events, and beginnings of other messages, that say nothing to someone who waits for a result.
_LEFT_OUT = {"job_info", "job_started", "job_finished", "resources_info"}
_NOTES = ("Select jobs to execute", "Execute ", "Assuming unrestricted shared", "Using shell: ")
_ENDING = "Will exit after finishing"
# An error in a function of a rule, or outside of one; its traceback says nothing about the study.
_IN_RULE = r"^Error:\n  WorkflowError:\n(.*?)\n *Wildcards:|^WorkflowError in file .*, line \d+:\n(.*?)\n  File "
_TRACED = re.compile(_IN_RULE, re.DOTALL | re.MULTILINE)


class TerminalLines(logging.Formatter):
    """Filter and formatter of Snakemake's handler for the terminal; `plain` is the formatter that it had."""

    def __init__(self, plain: logging.Formatter, measuring: Measuring) -> None:
        super().__init__()
        self._plain, self._measuring = plain, measuring
        self._ended: set[int] = set()
        self._last, self._began_s = "", 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        event, said = getattr(record, "event", None), record.__dict__
        if event == "job_finished":
            self._last = record.getMessage()
            self._ended.add(said["job_id"])
        elif event == "job_started" and not self._began_s and self._measuring().keys() & {*said["jobs"]}:
            self._began_s = time.monotonic()
        elif event is None and str(record.msg).startswith(_ENDING):
            _end_after_the_cell()
        is_repeated = event == "error" and said["exception"] == "RuleException"  # the job's own error follows
        return event not in _LEFT_OUT and not is_repeated and not (event is None and str(record.msg).startswith(_NOTES))

    def format(self, record: logging.LogRecord) -> str:
        event = getattr(record, "event", None)
        if event == "job_error":
            record, said = copy.copy(record), record.__dict__
            (log, others), message = (said["log"][:1], said["log"][1:]), said["rule_msg"]
            if "TIMEOUT" in str(message):
                limits = (f"{limit} min" for limit in self._measuring().get(said["jobid"], (0, []))[1])
                message = f"TIMEOUT after {'; next attempt '.join(limits)}. {message}"
            short = {"input": [], "output": [], "shellcmd": None, "log": log, "rule_msg": message}
            record.__dict__.update(short, aux=said["aux"] | ({"further log": ", ".join(others)} if others else {}))
        text = self._plain.format(record)
        if event == "error" and (found := _TRACED.search(text)):
            return textwrap.dedent(found[1] or found[2])
        return f"{self._last}: {text}{self._left()}" if event == "progress" else text

    def _left(self) -> str:
        jobs = self._measuring()
        ended, total = (sum(jobs[number][0] for number in some & jobs.keys()) for some in (self._ended, {*jobs}))
        left = time_left(time.monotonic() - self._began_s, ended, total) if self._began_s else ""
        return f"; {ended} of {total} cells measured{left}" if total else ""


def show_lines(logger: logging.Logger, measuring: Measuring, is_dry: bool) -> None:
    """Let the terminal show these lines, and the logs of jobs that failed, also without a profile. A dry run lists all
    jobs."""
    for handler in logger.handlers:
        if handler.name == "DefaultStreamHandler" and handler.formatter:
            lines = TerminalLines(handler.formatter, measuring)
            handler.formatter.__dict__["show_failed_logs"] = True
            handler.setFormatter(lines)
            if not is_dry:
                handler.addFilter(lines.filter)


def time_left(since_s: float, ended: int, total: int) -> str:
    """The time for the rest, if it takes as long as what ended; nothing before the first and after the last.

    >>> time_left(60, 2, 8), time_left(7200, 1, 8), time_left(60, 0, 8)
    (', about 3 min left', ', about 14 h left', '')
    """
    left_min = since_s / 60 * (total - ended) / ended if ended else 0
    return (
        ""
        if not left_min
        else f", about {left_min:.0f} min left"
        if left_min < 100
        else f", about {left_min / 60:.0f} h left"
    )


def _end_after_the_cell() -> None:
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "measure-batch" in process.cmdline():
                process.terminate()
