"""What a call of Snakemake says on the terminal, by Snakemake's own records."""

import io
import logging
import signal
import subprocess
import sys

import pytest
from snakemake.logging import ColorizingTextHandler, DefaultFormatter
from snakemake_interface_logger_plugins.common import LogEvent

from workflow_scripts.cluster.terminal_lines import TerminalLines


@pytest.fixture
def say():
    """Log what Snakemake would; return what the terminal shows of it. Jobs 1 and 2 measure eight and two cells."""
    logger, terminal = logging.Logger("snakemake"), io.StringIO()
    handler = ColorizingTextHandler(nocolor=True, stream=terminal, formatter=DefaultFormatter())
    handler.name = "DefaultStreamHandler"
    logger.addHandler(handler)
    lines = TerminalLines(logger.handlers, lambda: {1: (8, [28, 40]), 2: (2, [28])}, is_brief=True)

    def log(message: str, event: LogEvent | None = None, **said: object) -> str:
        terminal.seek(0)
        terminal.truncate()
        logger.info(message, extra={"event": event} | said)
        return terminal.getvalue()

    log.lines = lines
    return log


def test_an_ended_job_is_one_line_with_the_cells_measured_and_the_time_left(say, monkeypatch):
    monkeypatch.setattr("time.monotonic", iter((100.0, 1300.0)).__next__)
    assert not say("", LogEvent.JOB_STARTED, jobs=[1, 2])
    assert not say("", LogEvent.JOB_INFO)
    assert not say("Select jobs to execute...")
    assert not say("Finished jobid: 1 (Rule: measure)", LogEvent.JOB_FINISHED, job_id=1)
    line = say("", LogEvent.PROGRESS, done=3, total=9)
    assert line.count("\n") == 1
    # Eight cells in twenty minutes, so the other two take five.
    assert all(part in line for part in ("measure", "3 of 9", "8 of 10", "5 min"))


def test_a_failed_job_shows_its_message_log_and_time_limits_and_no_files(say, tmp_path):
    (tmp_path / "rule.log").write_text("no space left\n")
    (tmp_path / "slurm.log").write_text("what Snakemake said in the job\n")
    files = {"input": ["in.json"], "output": ["out.json"], "shellcmd": "cmd"}
    files |= {"log": [str(tmp_path / "rule.log"), str(tmp_path / "slurm.log")]}
    failed = {"rule_name": "measure", "conda_env": None, "aux": {}, "rule_msg": "job 7: TIMEOUT", **files}
    shown = say("Error", LogEvent.JOB_ERROR, jobid=1, **failed)
    assert all(part in shown for part in ("TIMEOUT", "28 min", "40 min", "no space left", "slurm.log"))
    assert not any(part in shown for part in ("in.json", "out.json", "cmd", "what Snakemake said"))
    assert "TIMEOUT after 28 min; next attempt 40 min; no space left" in say.lines.failed
    assert "40 min" not in say("Error", LogEvent.JOB_ERROR, jobid=2, **failed)
    say("Error", LogEvent.JOB_ERROR, jobid=3, **failed | {"rule_msg": None})
    assert say.lines.failed.startswith("rule measure: no space left")
    assert not say("RuleException:\nCommand 'set -euo ...'", LogEvent.ERROR, exception="RuleException")


def test_an_error_in_a_function_of_a_rule_has_no_traceback(say):
    said = "in rule all:\nError:\n  WorkflowError:\n    no such device\nWildcards:\n\nTraceback:\n  x"
    assert say(said, LogEvent.ERROR, exception="InputFunctionException") == "no such device\n"
    said = 'WorkflowError in file "/f/common.smk", line 55:\nno such key\n  File "/f/common.smk", line 55, in <module>'
    assert say(said, LogEvent.ERROR, exception="WorkflowError") == "no such key\n"


def test_when_snakemake_is_told_to_end_its_measuring_processes_are_told_too(say):
    sleeper = "import time; time.sleep(60)"
    processes = [subprocess.Popen([sys.executable, "-c", sleeper, name]) for name in ("measure-batch", "tables")]
    try:
        say("Will exit after finishing currently running jobs (scheduler).")
        assert processes[0].wait(30) == -signal.SIGTERM
        assert processes[1].poll() is None
    finally:
        for process in processes:
            process.kill()
            process.wait()
