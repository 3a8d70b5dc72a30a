"""The campaign on a workstation: the same machine without Slurm."""

import os
import sys
from contextlib import suppress

import psutil

from tests.faults.campaign import Campaign
from tests.faults.kinds import KINDS, engines, kind, measured_cells, suspend
from tests.integration.slurm_lab import processes_with
from tests.integration.slurm_study import LabCheckout

WORKSTATION_KINDS = dict(KINDS)


class Host:
    """Processes that carry `mark` in their environment."""

    def __init__(self, mark: str) -> None:
        self.environment = dict(os.environ) | {"KVSWEEP_FAULTS": mark}
        self._mark = f"KVSWEEP_FAULTS={mark}"

    def start(self) -> None:
        """The machine runs."""

    def processes(self) -> list[psutil.Process]:
        return processes_with(self._mark)

    def stop(self) -> None:
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()


class LocalCheckout(LabCheckout):
    """Its calls measure on this machine."""

    def command(self, *arguments: str) -> list[str]:
        where = ("--cores", "all", "--config", *self.config)
        return [sys.executable, "-m", "snakemake", *where, *arguments]


class Workstation(Campaign):
    """The study's devices take turns, because they are the same processor."""

    kinds = WORKSTATION_KINDS
    checkout_type = LocalCheckout

    def make_lab(self) -> Host:
        return Host(str(self.root))

    def is_busy(self) -> bool:
        return bool(engines(self.lab.processes()))


@kind("all suspended", WORKSTATION_KINDS)
def suspend_all(campaign: Workstation, choice: float) -> str:
    """Every process for up to a minute, as by Ctrl-Z."""
    processes = campaign.lab.processes()
    return suspend(campaign, processes, list(measured_cells(processes).values()), 2 + 58 * choice)
