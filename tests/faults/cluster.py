"""The campaign on a real Slurm of four nodes."""

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from tests.faults.campaign import Campaign
from tests.faults.cluster_kinds import CLUSTER_KINDS
from tests.faults.kinds import one_of
from tests.integration.slurm_lab import GPU_TYPES, SlurmLab

QUEUE_S = 300
# A call whose jobs are all gone learns so within three minutes, unless a killed slurmctld had not yet saved them.
FORGOTTEN_S = 240
READ_AGAIN_S = 60


class Cluster(Campaign):
    """`out_of_service` has the nodes that are not to be resumed yet."""

    kinds = CLUSTER_KINDS
    lab: SlurmLab

    def __init__(self, say: Callable[[str], None] = print) -> None:
        super().__init__(say)
        self.out_of_service: set[str] = set()
        self._nursed_s = self._busy_s = 0.0
        self._read_s = time.monotonic()
        self._waits: dict[str, float] = {}

    def make_lab(self) -> SlurmLab:
        return SlurmLab(self.root / "lab", accounting=True, memory_limits=True)

    def prepare(self) -> None:
        """The site: each node has its own folder for temporary files and its own locks of devices."""
        temporary = f"{self.root}/tmp/$SLURMD_NODENAME"
        setup = [f"export TMPDIR={temporary}", f"mkdir -p {temporary}"]
        setup.append(f"export KVSWEEP_LOCK_SCOPE={self.root}/$SLURMD_NODENAME")
        self.lock_scopes = [f"{self.root}/n-{gpu}" for gpu in GPU_TYPES]
        self.checkout.write_site(prepare="login", attempts=4, setup=setup)

    def is_busy(self) -> bool:
        return bool(self._jobs_in("RUNNING"))

    def has_ended(self) -> bool:
        """Whether the present call has ended; one that waits for jobs which Slurm has forgotten gets a Ctrl-C."""
        if self.call.poll() is not None:
            return True
        with suppress(psutil.Error):
            works = psutil.Process(self.call.pid).children() or self._jobs_in("PENDING", "RUNNING", "COMPLETING")
            if works:
                self._busy_s = time.monotonic()
            elif time.monotonic() > self._busy_s + FORGOTTEN_S:
                self.say("Ctrl-C for a call that waits for jobs which Slurm has forgotten")
                self.call.send_signal(signal.SIGINT)
                self._busy_s = time.monotonic()
        return False

    def settle(self) -> None:
        self.wait(lambda: not self.lab.client("squeue", "--noheader", check=False), QUEUE_S, "an empty queue")

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        self._busy_s = time.monotonic()
        return super().start(*arguments)

    def end_faults(self) -> None:
        self._busy_s = time.monotonic()
        super().end_faults()
        self.lab.client("scancel", "--name=urgent", check=False)

    def a_job(self, choice: float) -> dict[str, str] | None:
        """One of the jobs that measure and run now."""
        return one_of(self._jobs_in("RUNNING"), choice)

    def _jobs_in(self, *states: str) -> list[dict[str, str]]:
        return [job for job in self._jobs() if job["JobState"] in states]

    def _jobs(self) -> list[dict[str, str]]:
        with suppress(AssertionError, subprocess.TimeoutExpired):
            return [job for job in self.lab.jobs() if "rule_measure_" in job["Comment"]]
        return []

    def nurse(self) -> None:
        """Let requeued jobs begin without Slurm's two minutes, release those that it holds, resume nodes."""
        if time.monotonic() < self._nursed_s + 2:
            return
        self._nursed_s = time.monotonic()
        for job in self._jobs():
            number = job["JobId"]
            if job["JobState"] != "PENDING" or job["Restarts"] == "0" or self.lab.has_steps(number):
                self._waits.pop(number, None)
            # A node knows a job for a moment longer, and is drained if it is given it again.
            elif time.monotonic() > self._waits.setdefault(number, time.monotonic()) + 5:
                self.lab.client("scontrol", "release", number, check=False)
                self.lab.client("scontrol", "update", f"JobId={number}", "StartTime=now", check=False)
                del self._waits[number]
        # Slurm 22.05 may not free the GPU of a job whose node went down, and may go on with a job that ended when
        # slurmctld was killed. It sees both when it reads its configuration again.
        if time.monotonic() > self._read_s + READ_AGAIN_S:
            self.lab.client("scontrol", "reconfigure", check=False)
            self._read_s = time.monotonic()
        for line in self.lab.client("sinfo", "--noheader", "--Node", "--format=%N %T", check=False).splitlines():
            node, state = line.split()
            out = state.startswith(("drain", "down"))
            if out and state != "draining" and f"nodename={node}" not in self.out_of_service:
                self.lab.client("scontrol", "update", f"nodename={node}", "state=resume", check=False)
