"""Kinds of faults that only a cluster has."""

import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.faults.kinds import KINDS, SIGNALS, Kind, engines, kind, measured_cells, one_of

if TYPE_CHECKING:
    from tests.faults.cluster import Cluster

CLUSTER_KINDS = dict(KINDS)
# Slurm sends SIGTSTP first, and SIGSTOP two seconds later.
SUSPENDED_AFTER_S = 3.0


def _processes_of(campaign: "Cluster", job: dict[str, str]) -> list[psutil.Process]:
    found = []
    for process in campaign.lab.processes():
        with suppress(psutil.Error):
            if process.environ().get("SLURM_JOB_ID") == job["JobId"]:
                found.append(process)
    return found


def _signal_to_job(number: signal.Signals) -> Kind:
    def hit(campaign: "Cluster", choice: float) -> str | None:
        job = campaign.a_job(choice)
        for process in _processes_of(campaign, job) if job else ():
            with suppress(psutil.Error):
                process.send_signal(number)
        return job and f"every process of job {job['JobId']}"

    return hit


CLUSTER_KINDS |= {f"{number.name} to job": _signal_to_job(number) for number in SIGNALS}


def _to_a_job(*command: str) -> Kind:
    def hit(campaign: "Cluster", choice: float) -> str | None:
        if (job := campaign.a_job(choice)) is None:
            return None
        campaign.lab.client(*(word.format(job["JobId"]) for word in command), check=False)
        return f"job {job['JobId']}"

    return hit


CLUSTER_KINDS["scancel"] = _to_a_job("scancel", "{}")
CLUSTER_KINDS["requeue"] = _to_a_job("scontrol", "requeue", "{}")
CLUSTER_KINDS["time limit"] = _to_a_job("scontrol", "update", "JobId={}", "TimeLimit=1")


@kind("preemption", CLUSTER_KINDS)
def preempt(campaign: "Cluster", choice: float) -> str | None:
    """Another job with a higher priority takes the node of a running one."""
    if (job := campaign.a_job(choice)) is None:
        return None
    node = job["NodeList"]
    gpu = f"--gres=gpu:{node.removeprefix('n-')}:1"
    options = ["--partition=urgent", f"--nodelist={node}", gpu, "--output=/dev/null", "--job-name=urgent"]
    campaign.lab.client("sbatch", *options, f"--wrap=sleep {1 + 4 * choice}", check=False)
    return f"job {job['JobId']} on {node}"


def _node_is(state: str) -> Kind:
    def hit(campaign: "Cluster", choice: float) -> str:
        node = f"nodename=n-{one_of(campaign.gpus, choice)}"
        campaign.lab.client("scontrol", "update", node, f"state={state}", "reason=fault", check=False)
        campaign.out_of_service.add(node)
        campaign.later(1 + 5 * choice, lambda: campaign.out_of_service.discard(node))
        return node

    return hit


CLUSTER_KINDS["node drained"] = _node_is("drain")
CLUSTER_KINDS["node down"] = _node_is("down")


@kind("slurmctld restarted", CLUSTER_KINDS)
def restart_controller(campaign: "Cluster", choice: float) -> str:
    campaign.lab.restart_controller(SIGNALS[choice < 0.5])
    return "slurmctld"


@kind("slurmd restarted", CLUSTER_KINDS)
def restart_node(campaign: "Cluster", choice: float) -> str:
    gpu = campaign.gpus[int(choice * len(campaign.gpus))]
    campaign.lab.restart_node(gpu, SIGNALS[int(choice * 8) % 2])
    return f"n-{gpu}"


@kind("out of memory", CLUSTER_KINDS)
def run_out_of_memory(campaign: "Cluster", choice: float) -> str | None:
    """The limit of a job step falls to what it uses, so that the kernel kills a process that needs more."""
    victim = one_of(engines(campaign.lab.processes()), choice)
    if victim is None:
        return None
    with suppress(OSError):  # it has ended meanwhile
        groups = Path(f"/proc/{victim.pid}/cgroup").read_text().splitlines()
        (of_memory,) = (line.rpartition(":")[2] for line in groups if ":memory:" in line)
        group = Path(f"/sys/fs/cgroup/memory{of_memory}")
        used = int((group / "memory.usage_in_bytes").read_text())
        (group / "memory.limit_in_bytes").write_text(str(used))
        return f"{of_memory} at {used >> 20} MiB"
    return None


@kind("job suspended", CLUSTER_KINDS)
def suspend_job(campaign: "Cluster", choice: float) -> str | None:
    """`scontrol suspend` and `resume`."""
    if (job := campaign.a_job(choice)) is None:
        return None
    cells = measured_cells(_processes_of(campaign, job)).values()
    stopped_s, seconds = time.monotonic() + SUSPENDED_AFTER_S, SUSPENDED_AFTER_S + 6 * choice
    campaign.lab.client("scontrol", "suspend", job["JobId"], check=False)

    def resume() -> None:
        campaign.suspended.extend((cell, stopped_s, time.monotonic()) for cell in cells)
        campaign.lab.client("scontrol", "resume", job["JobId"], check=False)

    campaign.later(seconds, resume)
    return f"job {job['JobId']} for {seconds:.0f} s"
