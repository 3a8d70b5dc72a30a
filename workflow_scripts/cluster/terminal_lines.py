"""What a call of Snakemake says on the terminal: a line for each job that ended, with the time left, and what failed.
Snakemake's own log file has the rest."""

import contextlib
import copy
import logging
import re
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from workflow_scripts.common.files import last_line

# Of the jobs that measure, by number: cells, and the time limits in minutes of this attempt and the next one, if any.
Measuring = Callable[[], Mapping[int, tuple[int, list[int]]]]
# Events, and beginnings of other messages, that say nothing to someone who waits for a result.
_LEFT_OUT = {"job_info", "job_started", "job_finished", "resources_info"}
_NOTES = ("Select jobs to execute", "Execute ", "Assuming unrestricted shared", "Using shell: ", "RuleException")
# An error in a function of a rule, or outside of one; its traceback says nothing about the study.
_TRACED = re.compile(r"(?ms)^(?:Error:\n  WorkflowError|WorkflowError in file [^\n]*):\n(.*?)\n *(?:Wildcards:|File )")


class TerminalLines(logging.Formatter):
    """Formatter of Snakemake's handler for the terminal. `failed`: the last failure in one line."""

    def __init__(self, handlers: list[logging.Handler], measuring: Measuring, is_brief: bool) -> None:
        """If not `is_brief`, all that Snakemake says is shown too. Logs of failed jobs are shown without a profile."""
        super().__init__()
        self._measuring, self._is_brief, self._ended, self._last = measuring, is_brief, set[int](), ""
        self._began_s, self.failed = 0.0, ""
        for handler in handlers:
            if handler.name == "DefaultStreamHandler" and handler.formatter:
                self._handler, self._plain = handler, handler.formatter
                self._plain.__dict__["show_failed_logs"] = True
                handler.setFormatter(self)

    def format(self, record: logging.LogRecord) -> str:
        """The text of a record; the handler writes nothing for an empty one."""
        event, said = getattr(record, "event", None), record.__dict__
        if event == "job_finished":
            self._last = record.getMessage()
            self._ended.add(said["job_id"])
        elif event == "job_started" and not self._began_s and self._measuring().keys() & {*said["jobs"]}:
            self._began_s = time.monotonic()
        elif str(record.msg).startswith("Will exit after finishing"):
            _end_after_the_cell()
        if self._is_brief:
            # The handler would write an empty line before a job that begins.
            self._handler.__dict__["last_msg_was_job_info"] = True
            if event in _LEFT_OUT or str(record.msg).startswith(_NOTES):
                return ""
        text = self._plain.format(record)
        if event == "error" and (found := _TRACED.search(text)):
            return textwrap.dedent(found[1])
        if event == "job_error":
            return self._plain.format(self._failure(copy.copy(record)))
        return f"{self._last}: {text}{self._left()}" if event == "progress" else text

    def _failure(self, record: logging.LogRecord) -> logging.LogRecord:
        said = record.__dict__
        log, others, message = said["log"][:1], said["log"][1:], said["rule_msg"]
        if "TIMEOUT" in str(message):
            limits = (f"{limit} min" for limit in self._measuring().get(said["jobid"], (0, []))[1])
            message = f"{message.split('. ')[0]} after {'; next attempt '.join(limits)}"
        last = last_line(Path(log[0])) if log and Path(log[0]).exists() else "no log"
        why = "; ".join(filter(None, ((message or "").split(". ")[0], last)))
        self.failed = f"rule {said['rule_name']}: {why} ({', '.join(said['log'])})"
        said.update(input=[], output=[], shellcmd=None, log=log, rule_msg=message)
        said["aux"] = said["aux"] | ({"further log": ", ".join(others)} if others else {})
        return record

    def _left(self) -> str:
        jobs = self._measuring()
        ended, total = (sum(jobs[number][0] for number in some & jobs.keys()) for some in (self._ended, {*jobs}))
        left = time_left(time.monotonic() - self._began_s, ended, total) if self._began_s else ""
        return f"; {ended} of {total} cells measured{left}" if total else ""


def time_left(since_s: float, ended: int, total: int) -> str:
    """The time for the rest, if it takes as long as what ended; nothing before the first and after the last."""
    if not 0 < ended < total:
        return ""
    left_min = since_s / 60 * (total - ended) / ended
    return f", about {left_min:.0f} min left" if left_min >= 1 else ", less than a minute left"


def _end_after_the_cell() -> None:
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "measure-batch" in process.cmdline():
                process.terminate()
