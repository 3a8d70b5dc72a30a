"""Kinds of faults of Snakemake, processes, files and Slurm. Each is a function of the campaign and of a number from 0
to 1, which chooses its victim; it returns what it hit, or None if there is nothing to hit at the moment."""

import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import psutil

if TYPE_CHECKING:
    from tests.faults.campaign import Campaign

One = TypeVar("One")
FORK_SERVER = "workflow_scripts.measure.forkserver"
SIGNALS = (signal.SIGKILL, signal.SIGTERM)


@dataclass(frozen=True)
class Fault:
    """A fault, as it is drawn: on the victim that `choice` selects, `delay_s` before the next."""

    number: int
    kind: str
    choice: float
    delay_s: float


def drawn(seed: int, count: int, of_kinds: Iterable[str]) -> Iterator[Fault]:
    """Faults of these kinds in a random order, each kind as often as any other; they depend on the seed alone."""
    rng = random.Random(seed)
    bag: list[str] = []
    for number in range(count):
        if not bag:
            bag = sorted(of_kinds)
            rng.shuffle(bag)
        yield Fault(number, bag.pop(), rng.random(), rng.uniform(0, 3))


def one_of(found: Sequence[One], choice: float) -> One | None:
    return found[int(choice * len(found))] if found else None


def words(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def fork_servers(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that fork, without what they forked, which has the same command line."""
    alike = {process.pid: process for process in processes if FORK_SERVER in words(process)}
    found = []
    for process in alike.values():
        with suppress(psutil.Error):
            if process.ppid() not in alike:
                found.append(process)
    return found


def engines(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Processes that measure a cell, which a device trace watches, and those that they started for the engine."""
    found = []
    for process in processes:
        if "sample-device" in (said := words(process)) and "/raw.partial/" in said[-1]:
            with suppress(psutil.Error):
                engine = psutil.Process(process.ppid())
                found += [engine, *(one for one in engine.children() if "sample-device" not in words(one))]
    return found


def commands(processes: Sequence[psutil.Process], name: str) -> list[psutil.Process]:
    return [one for one in processes if name in (said := words(one)) and "python" in said[0]]


def sent(victims: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to those that are still there."""
    for victim in victims:
        with suppress(psutil.Error):
            victim.send_signal(number)


ROLES: dict[str, Callable[[Sequence[psutil.Process]], list[psutil.Process]]] = {
    "engine": engines,
    "fork server": fork_servers,
    "measuring command": partial(commands, name="measure-cell"),
    "batch command": partial(commands, name="measure-batch"),
}


def signal_to_role(campaign: "Campaign", choice: float, role: str, number: signal.Signals) -> str | None:
    if victim := one_of(ROLES[role](campaign.lab.processes()), choice):
        sent([victim], number)
    return victim and f"process {victim.pid}"


def signals_to_snakemake(campaign: "Campaign", choice: float, numbers: Sequence[signal.Signals]) -> str:
    for place, number in enumerate(numbers):
        time.sleep(2 * choice if place else 0)
        with suppress(ProcessLookupError):  # as from a terminal, to its children too; SIGKILL to it alone
            send = os.killpg if number == signal.SIGINT else os.kill
            send(campaign.call.pid, number)
    return f"process {campaign.call.pid}"


def fill_disk(campaign: "Campaign", choice: float) -> str | None:
    if not os.access(campaign.results, os.W_OK):  # while another fault makes it read-only
        return None
    filler = (campaign.results / "filler").open("wb", buffering=0)
    with suppress(OSError):
        while filler.write(bytes(1 << 16)):
            pass
    campaign.later(1 + 6 * choice, lambda: filler.truncate(0))
    return str(campaign.results)


def make_read_only(campaign: "Campaign", choice: float) -> str:
    """Whatever is opened from now on is read-only; files that are open stay as they are."""
    place = str(campaign.results)
    # It becomes read-only elsewhere first: where files are being written, the kernel refuses it.
    with tempfile.TemporaryDirectory() as elsewhere:
        subprocess.run(["mount", "--bind", place, elsewhere], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", elsewhere], check=True)
            subprocess.run(["mount", "--bind", elsewhere, place], check=True)
        finally:
            subprocess.run(["umount", elsewhere], check=True)
    campaign.later(1 + 6 * choice, lambda: subprocess.run(["umount", "--lazy", place], check=True))
    return place


def start_beside(campaign: "Campaign", choice: float, options: Sequence[str] = ()) -> str:
    campaign.beside.append(campaign.start(*options))
    return "on the same results"


def processes_of(campaign: "Campaign", job: str) -> Iterator[psutil.Process]:
    for process in campaign.lab.processes():
        with suppress(psutil.Error):
            if process.environ().get("SLURM_JOB_ID") == job:
                yield process


def signal_to_job(campaign: "Campaign", choice: float, number: signal.Signals) -> str | None:
    if (job := campaign.a_job(choice)) is None:
        return None
    sent(list(processes_of(campaign, job)), number)
    return f"every process of job {job}"


def to_job(campaign: "Campaign", choice: float, command: str) -> str | None:
    if (job := campaign.a_job(choice)) is None:
        return None
    campaign.lab.client(*command.format(job).split(), check=False)
    return f"job {job}"


def set_node(campaign: "Campaign", choice: float, state: str) -> str:
    node = f"nodename=n-{one_of(campaign.gpus, choice)}"
    campaign.lab.client("scontrol", "update", node, f"state={state}", "reason=fault", check=False)
    campaign.out_of_service.add(node)
    campaign.later(1 + 5 * choice, lambda: campaign.out_of_service.discard(node))
    return node


def restart_controller(campaign: "Campaign", choice: float) -> str:
    campaign.lab.restart_controller(SIGNALS[choice < 0.5])
    return "slurmctld"


def restart_node(campaign: "Campaign", choice: float) -> str:
    gpu = campaign.gpus[int(choice * len(campaign.gpus))]
    campaign.lab.restart_node(gpu, SIGNALS[int(choice * 8) % 2])
    return f"n-{gpu}"


KINDS: dict[str, Callable[["Campaign", float], str | None]] = {
    **{f"{of.name} to {role}": partial(signal_to_role, role=role, number=of) for of in SIGNALS for role in ROLES},
    **{f"{of.name} to job": partial(signal_to_job, number=of) for of in SIGNALS},
    **{f"{of.name} to Snakemake": partial(signals_to_snakemake, numbers=[of]) for of in SIGNALS},
    "Ctrl-C": partial(signals_to_snakemake, numbers=[signal.SIGINT]),
    "Ctrl-C twice": partial(signals_to_snakemake, numbers=[signal.SIGINT] * 2),
    "a second Snakemake": start_beside,
    "a second Snakemake without a lock": partial(start_beside, options=["--nolock"]),
    "full disk": fill_disk,
    "read-only results": make_read_only,
    "scancel": partial(to_job, command="scancel {}"),
    "requeue": partial(to_job, command="scontrol requeue {}"),
    "time limit": partial(to_job, command="scontrol update JobId={} TimeLimit=1"),
    "node drained": partial(set_node, state="drain"),
    "node down": partial(set_node, state="down"),
    "slurmctld restarted": restart_controller,
    "slurmd restarted": restart_node,
}
