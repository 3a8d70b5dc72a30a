"""Kinds of faults of Snakemake, processes, files and Slurm. Each is a function of the campaign and of a number from 0
to 1, which chooses its victim; it returns what it hit, or None if there is nothing to hit at the moment."""

import os
import random
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

if TYPE_CHECKING:
    from tests.faults.campaign import Campaign

Kind = Callable[[Any, float], str | None]
KINDS: dict[str, Kind] = {}
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


def kind(name: str) -> Callable[[Kind], Kind]:
    def register(function: Kind) -> Kind:
        KINDS[name] = function
        return function

    return register


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


def measured_cells(processes: Sequence[psutil.Process]) -> dict[int, str]:
    """The cells that are measured, by the process that measures: a device trace watches it."""
    found = {}
    for process in processes:
        with suppress(psutil.Error):
            if "sample-device" in (said := words(process)) and (
                cell := re.search(r"/cells/(.+)/raw\.partial/", said[-1])
            ):
                found[process.ppid()] = cell[1]
    return found


def engines(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Processes that measure a cell, and those that they started for the engine."""
    found = []
    for pid in measured_cells(processes):
        with suppress(psutil.Error):
            engine = psutil.Process(pid)
            found += [engine, *(one for one in engine.children() if "sample-device" not in words(one))]
    return found


def commands(name: str) -> Callable[[Sequence[psutil.Process]], list[psutil.Process]]:
    return lambda processes: [one for one in processes if name in (said := words(one)) and "python" in said[0]]


ROLES = {
    "engine": engines,
    "fork server": fork_servers,
    "measuring command": commands("measure-cell"),
    "batch command": commands("measure-batch"),
}


def _signal_to(role: str, number: signal.Signals) -> Kind:
    def hit(campaign: "Campaign", choice: float) -> str | None:
        if victim := one_of(ROLES[role](campaign.lab.processes()), choice):
            with suppress(psutil.Error):
                victim.send_signal(number)
        return victim and f"process {victim.pid}"

    return hit


KINDS |= {f"{number.name} to {role}": _signal_to(role, number) for number in SIGNALS for role in ROLES}


def _signals_to_snakemake(*numbers: signal.Signals) -> Kind:
    def hit(campaign: "Campaign", choice: float) -> str | None:
        for place, number in enumerate(numbers):
            time.sleep(2 * choice if place else 0)
            with suppress(ProcessLookupError):  # as from a terminal, to its children too; SIGKILL to it alone
                send = os.killpg if number == signal.SIGINT else os.kill
                send(campaign.call.pid, number)
        return f"process {campaign.call.pid}"

    return hit


KINDS["SIGKILL to Snakemake"] = _signals_to_snakemake(signal.SIGKILL)
KINDS["SIGTERM to Snakemake"] = _signals_to_snakemake(signal.SIGTERM)
KINDS["Ctrl-C"] = _signals_to_snakemake(signal.SIGINT)
KINDS["Ctrl-C twice"] = _signals_to_snakemake(signal.SIGINT, signal.SIGINT)


@kind("full disk")
def fill_disk(campaign: "Campaign", choice: float) -> str | None:
    if not os.access(campaign.results, os.W_OK):  # while another fault makes it read-only
        return None
    filler = (campaign.results / "filler").open("wb", buffering=0)
    with suppress(OSError):
        while filler.write(bytes(1 << 16)):
            pass
    campaign.later(1 + 6 * choice, lambda: filler.truncate(0))
    return str(campaign.results)


@kind("read-only results")
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


def _beside(*arguments: str) -> Kind:
    def hit(campaign: "Campaign", choice: float) -> str:
        campaign.go_on_beside(campaign.start(*arguments))
        return "on the same results"

    return hit


KINDS["a second Snakemake"] = _beside()
KINDS["a second Snakemake without a lock"] = _beside("--nolock")


def suspend(campaign: "Campaign", victims: Sequence[psutil.Process], cells: Iterable[str], seconds: float) -> str:
    """Stop processes for some seconds; no repeat of these cells may span that time."""
    began_s = time.monotonic()
    for victim in victims:
        with suppress(psutil.Error):
            victim.suspend()

    def go_on() -> None:
        campaign.suspended.extend((cell, began_s, time.monotonic()) for cell in cells)
        for victim in victims:
            with suppress(psutil.Error):
                victim.resume()

    campaign.later(seconds, go_on)
    return f"{len(victims)} processes for {seconds:.0f} s"


@kind("engine suspended")
def suspend_engine(campaign: "Campaign", choice: float) -> str | None:
    """The process that measures, or one of the engine's."""
    processes = campaign.lab.processes()
    if (victim := one_of(engines(processes), choice)) is None:
        return None
    with suppress(psutil.Error):
        cells = measured_cells(processes)
        cell = cells.get(victim.pid) or cells[victim.ppid()]
        return f"{cell}: {suspend(campaign, [victim], [cell], 1 + 9 * choice)}"
    return None


def _processes_of(campaign: "Campaign", job: dict[str, str]) -> list[psutil.Process]:
    found = []
    for process in campaign.lab.processes():
        with suppress(psutil.Error):
            if process.environ().get("SLURM_JOB_ID") == job["JobId"]:
                found.append(process)
    return found


def _signal_to_job(number: signal.Signals) -> Kind:
    def hit(campaign: "Campaign", choice: float) -> str | None:
        job = campaign.a_job(choice)
        for process in _processes_of(campaign, job) if job else ():
            with suppress(psutil.Error):
                process.send_signal(number)
        return job and f"every process of job {job['JobId']}"

    return hit


KINDS |= {f"{number.name} to job": _signal_to_job(number) for number in SIGNALS}


def _to_a_job(*command: str) -> Kind:
    def hit(campaign: "Campaign", choice: float) -> str | None:
        if (job := campaign.a_job(choice)) is None:
            return None
        campaign.lab.client(*(word.format(job["JobId"]) for word in command), check=False)
        return f"job {job['JobId']}"

    return hit


KINDS["scancel"] = _to_a_job("scancel", "{}")
KINDS["requeue"] = _to_a_job("scontrol", "requeue", "{}")
KINDS["time limit"] = _to_a_job("scontrol", "update", "JobId={}", "TimeLimit=1")


def _node_is(state: str) -> Kind:
    def hit(campaign: "Campaign", choice: float) -> str:
        node = f"nodename=n-{one_of(campaign.gpus, choice)}"
        campaign.lab.client("scontrol", "update", node, f"state={state}", "reason=fault", check=False)
        campaign.out_of_service.add(node)
        campaign.later(1 + 5 * choice, lambda: campaign.out_of_service.discard(node))
        return node

    return hit


KINDS["node drained"] = _node_is("drain")
KINDS["node down"] = _node_is("down")


@kind("slurmctld restarted")
def restart_controller(campaign: "Campaign", choice: float) -> str:
    campaign.lab.restart_controller(SIGNALS[choice < 0.5])
    return "slurmctld"


@kind("slurmd restarted")
def restart_node(campaign: "Campaign", choice: float) -> str:
    gpu = campaign.gpus[int(choice * len(campaign.gpus))]
    campaign.lab.restart_node(gpu, SIGNALS[int(choice * 8) % 2])
    return f"n-{gpu}"
