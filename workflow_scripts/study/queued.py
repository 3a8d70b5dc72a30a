"""Jobs of Snakemake that wait in Slurm's queue, and why."""

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

# What a reason of squeue means; by its beginning.
_MEANING = {
    "PartitionTimeLimit": "never runs: longer than its partition allows; set max_minutes in the site file",
    "PartitionNodeLimit": "never runs: its partition has no such node",
    "ReqNodeNotAvail": "waits for nodes that are down or reserved",
    "QOSMax": "waits: the QOS allows no more at once, or never as much as one job asks for",
    "QOS": "waits for what the QOS allows",
    "Assoc": "waits for what the account allows",
    "Resources": "waits for free nodes",
    "Priority": "waits behind jobs of higher priority",
    "JobHeldUser": "held; scontrol release JOBID releases it",
    "launch failed": "held after its node failed; scontrol release JOBID releases it",
}
# Slurm's tools may hang while its controller is away.
_WAIT_S = 10


def queued_jobs(folder: Path) -> Iterator[str]:
    """One line per state and reason of the jobs that Snakemake submitted from this folder and that have not ended;
    nothing without Slurm, or if it does not answer."""
    if not shutil.which("squeue"):
        return
    command = ["squeue", "--me", "--noheader", "--format=%Z|%T|%r|%P|%l|%k|%i"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return
    yield from in_words(said, folder)


def in_words(said: str, folder: Path) -> Iterator[str]:
    """The lines for what squeue said.

    >>> said = "/w|PENDING|PartitionTimeLimit|short|4:15:00|rule_measure_h200|7\\n/other|RUNNING|None|a|1|rule_x|8"
    >>> [line.partition(" with")[0] for line in in_words(said, Path("/w"))]
    ['Slurm: 1 x PENDING (PartitionTimeLimit) in short']
    """
    rows = [line.split("|") for line in said.splitlines() if line.count("|") == 6]
    own = [row for row in rows if Path(row[0]) == folder.resolve() and "rule_" in row[5]]
    for (state, reason, partition, limit), count in Counter((*row[1:5],) for row in own).items():
        why = next((words for name, words in _MEANING.items() if reason.startswith(name)), "")
        jobs = ", ".join(row[6] for row in own if (*row[1:5],) == (state, reason, partition, limit))
        what = f"{state} ({reason})" if reason not in ("None", "") else state
        yield f"Slurm: {count} x {what} in {partition} with {limit}{why and f': {why}'}; job {jobs}"
