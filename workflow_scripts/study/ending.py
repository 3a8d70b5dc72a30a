"""What a call of snakemake says at its end, in three lines: what came out, where the report is, what to type next."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from workflow_scripts.common.files import last_line, read_text
from workflow_scripts.study.cell_status import status_of_cell, status_of_starts
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study import Study

# States that no further call changes.
_FINAL = {"ok", "infeasible"}
# More of Snakemake's own log is never read.
_MOST_BYTES = 50_000_000


def ending(study: Study, study_file: Path, paths: StudyPaths, log: Path | None = None) -> Iterator[str]:
    """The lines; `log` is Snakemake's, if the call failed."""
    starts = status_of_starts(study, paths).values()
    states = Counter(status_of_cell(of_cell, study.starts.at_least).state for of_cell in starts)
    yield f"{study.name}: {', '.join(f'{cells} {state}' for state, cells in states.most_common())}"
    for line in list(dict.fromkeys(_faults(read_text(log, _MOST_BYTES))))[:1] if log and log.exists() else ():
        yield f"failed: {line}"
    if paths.report.exists():
        yield f"report: {paths.report}"
    if log:
        yield f"next: the same call goes on; kvsweep status {study_file} says what failed, and what you do about it"
    elif states.keys() - _FINAL:
        yield f"next: kvsweep status {study_file} says why cells are missing, and what you do about it"
    else:
        yield f"next: open the report; another run: kvsweep compare {paths.root} OTHER/{study.name}"


def _faults(said: str) -> Iterator[str]:
    """What failed, by Snakemake's log: jobs that Slurm ended, or rules with the last line of their log.

    >>> list(_faults("SLURM-job '2' failed, SLURM status is: 'TIMEOUT'. For further error details ..."))
    ["Slurm's job 2: TIMEOUT; the next attempt asks for more time"]
    """
    for job, status in re.findall(r"SLURM-job '(\d+)' failed, SLURM status is: '(\w+)'", said):
        more = "; the next attempt asks for more time" if status == "TIMEOUT" else ""
        yield f"Slurm's job {job}: {status}{more}"
    for rule, log in re.findall(r"Error in rule (\w+):\n(?:    .*\n)*?    log: (\S+)", said):
        path = Path(log)
        yield f"rule {rule}: {last_line(path) if path.exists() else 'no log'} ({log})"
