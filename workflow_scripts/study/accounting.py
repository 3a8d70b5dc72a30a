"""Fetch what the cluster's accounting knows of the jobs that measured a study.

    kvsweep fetch-accounting --study config/studies/demo.yaml

asks `sacct` once about each job that wrote an outcome, and keeps what it says of a job that has ended in
`results/{study}/jobs/{cluster}/{job}.json`. It never fails: without accounting nothing is written, and if accounting
does not answer in 10 seconds, one line says so, and the next call asks again.
"""

import os
import subprocess
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from workflow_scripts.common.command import RESULTS, STUDY, command
from workflow_scripts.common.records import Record
from workflow_scripts.study.cell_status import CellStatus, status_of_starts
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study_file import load_study

LIMIT_S = 10.0
_FIELDS = ("JobIDRaw", "State", "Eligible", "Start", "End", "ElapsedRaw", "MaxRSS", "ConsumedEnergyRaw", "NodeList")
# Said by a cluster that has no accounting, where sacct fails too.
_NO_ACCOUNTING = "accounting storage is disabled"


class AccountedJob(Record):
    """What accounting says of a job that has ended; of a requeued one, of its last run.

    `queued_s`: how long it waited since it could have started. `memory_bytes`: the most resident memory of a task of
    any step (sacct's MaxRSS), null if the site does not gather it. `energy_j`: of its nodes, null if the site does not
    measure it.
    """

    job: str
    cluster: str
    state: str
    nodes: str
    queued_s: float
    elapsed_s: float
    memory_bytes: int | None
    energy_j: int | None


def jobs_in(printed: str, cluster: str) -> Iterator[AccountedJob]:
    """The jobs that have ended with all their steps, from what `sacct` printed for `_FIELDS`."""
    jobs: dict[str, list[dict[str, str]]] = defaultdict(list)
    for line in printed.splitlines():
        row = dict(zip(_FIELDS, line.split("|"), strict=True))
        jobs[row["JobIDRaw"].partition(".")[0]].append(row)
    for job, rows in jobs.items():
        whole = rows[0]
        if all(row["End"].isdecimal() for row in rows) and whole["Start"].isdecimal():
            start_s, eligible = int(whole["Start"]), whole["Eligible"]
            yield AccountedJob(
                job=job,
                cluster=cluster,
                state=whole["State"].split()[0],  # without the user who cancelled it
                nodes=whole["NodeList"],
                queued_s=start_s - int(eligible) if eligible.isdecimal() else 0,
                elapsed_s=int(whole["ElapsedRaw"]),
                memory_bytes=_most(rows, "MaxRSS"),
                # A step on a node counts all that the node uses meanwhile, so steps are not added.
                energy_j=_most(rows, "ConsumedEnergyRaw"),
            )


def _most(rows: Iterable[dict[str, str]], field: str) -> int | None:
    return max((int(row[field]) for row in rows if row[field].isdecimal()), default=0) or None


def fetch(paths: StudyPaths, statuses: Iterable[CellStatus]) -> str | None:
    """Write the records of ended jobs that have none; return why accounting did not answer, if it should have."""
    wanted: dict[str, set[str]] = defaultdict(set)
    for status in statuses:
        if status.job and not paths.job(*status.job).exists():
            wanted[status.job[0]].add(status.job[1])
    for cluster, jobs in wanted.items():
        sacct = ["sacct", f"--clusters={cluster}", f"--jobs={','.join(sorted(jobs))}", f"--format={','.join(_FIELDS)}"]
        try:
            done = subprocess.run(
                [*sacct, "--parsable2", "--noheader", "--noconvert"],
                env={**os.environ, "SLURM_TIME_FORMAT": "%s"},
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
        except FileNotFoundError:
            return None
        except subprocess.TimeoutExpired:
            return f"accounting is not available: sacct did not answer in {LIMIT_S:g} s"
        if done.returncode and _NO_ACCOUNTING not in done.stderr:
            messages = done.stderr.strip().splitlines() or ["sacct failed"]
            return f"accounting is not available: {messages[-1]}"
        try:
            for job in jobs_in(done.stdout, cluster):
                job.write(paths.job(cluster, job.job))
        except OSError as e:  # such as results that only another user may write
            return f"accounting cannot be kept: {e}"
    return None


def accounted_jobs(paths: StudyPaths) -> list[AccountedJob]:
    return [AccountedJob.read(path) for path in paths.jobs()]


NODE_HEADINGS = ("Node", "Jobs", "Wait (min)", "Run (min)", "Peak memory (GiB)", "Energy (kJ)")


def by_node(jobs: Sequence[AccountedJob]) -> Iterator[tuple[str, ...]]:
    """One row per node, under `NODE_HEADINGS`: the median time in the queue, and the total time of the jobs."""
    nodes: dict[str, list[AccountedJob]] = defaultdict(list)
    for job in jobs:
        nodes[job.nodes].append(job)
    for node, some in sorted(nodes.items()):
        memory = [job.memory_bytes for job in some if job.memory_bytes is not None]
        energy = [job.energy_j for job in some if job.energy_j is not None]
        yield (
            node,
            str(len(some)),
            f"{median(job.queued_s for job in some) / 60:.3g}",
            f"{sum(job.elapsed_s for job in some) / 60:.3g}",
            f"{max(memory) / 2**30:.3g}" if memory else "–",
            f"{sum(energy) / 1000:.3g}" if energy else "–",
        )


@command("fetch-accounting", STUDY, RESULTS)
def main(args: Namespace) -> None:
    study = load_study(args.study)
    paths = StudyPaths(args.results, study.name)
    if fault := fetch(paths, [status for starts in status_of_starts(study, paths).values() for status in starts]):
        print(fault)
