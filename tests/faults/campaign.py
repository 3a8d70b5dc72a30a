"""A study of short real cells on a real Slurm of four nodes, while faults hit it."""

import itertools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.faults import checker, kinds
from tests.faults.checker import OUTPUT_TOKENS, REPEATS, REQUESTS, Watch
from tests.faults.kinds import KINDS, Fault, one_of
from tests.integration.slurm_lab import GPU_TYPES, SlurmLab
from tests.integration.slurm_study import LabCheckout
from tests.unit.made_studies import fixed, write_study

# Generous: only what hangs reaches them.
CALL_S, FAULT_S, PROCESSES_S, IDLE_S = 1500, 120, 60, 300
QUEUE_S = 300
# A call whose jobs are all gone learns so within three minutes, unless a killed slurmctld had not yet saved them.
FORGOTTEN_S = 240
READ_AGAIN_S = 60
# Calls without faults that may be needed to complete what faults interrupted.
CALLS_TO_COMPLETE = 4
# Of Slurm; they are no processes of jobs.
DAEMONS = {"slurmctld", "slurmd", "slurmscriptd", "slurmdbd", "mariadbd", "munged", "setpriv"}
# By GPU: engine, the knobs that its cells share, the knob that differs with its values, the end of the cells' names.
GRID: dict[str, tuple[str, dict[str, Any], str, list[int], str]] = {
    "h200": ("vllm", {"max_num_seqs": 4}, "block_size", [32, 64], "bs{}-seqs4-len512-eager1-cpukv1"),
    "a100": ("hf-static", {"cache_implementation": "static"}, "batch_size", [2, 4], "static-batch{}-cachestatic"),
    "h100": ("hf-static", {"cache_implementation": "dynamic"}, "batch_size", [2, 4], "static-batch{}-cachedynamic"),
    "l40s": (
        *("hf-continuous", {"page_size": 32, "num_blocks": 64}, "max_batch_tokens", [128, 256]),
        "continuous-page32-blocks64-tokens{}",
    ),
}
# What episodes measure in turn, on two nodes: vLLM in every third one, because its start takes the longest.
EPISODES = (("a100", "l40s"), ("h100", "l40s"), ("h200", "h100"))


def wanted_of(gpus: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The knobs of each cell, by the cell's id."""
    return {
        f"lab-{gpu}/{engine}/tiny-llama-57m/short/{name.format(value)}": {**shared, knob: value}
        for gpu in gpus
        for engine, shared, knob, values, name in [GRID[gpu]]
        for value in values
    }


class Campaign:
    """A checkout, its results, and what has been found; `stop` and `remove` end it.

    An episode begins without results, has some faults, and ends when calls without faults have completed the study.
    `findings` has what must not be; `hit` counts the faults by kind; `out_of_service` has the nodes that are not to be
    resumed yet."""

    call: "subprocess.Popen[str]"

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="kvsweep-faults-"))
        self.root.chmod(0o755)
        self._umask = os.umask(0o022)
        self._say, self._began_s = say, time.monotonic()
        self.findings: list[str] = []
        self.hit: Counter[str] = Counter()
        self.out_of_service: set[str] = set()
        self._nursed_s = self._busy_s = 0.0
        self._read_s = time.monotonic()
        self._waits: dict[str, float] = {}
        self._calls = itertools.count(1)
        self._checks = 0
        self._later: list[tuple[float, Callable[[], Any]]] = []
        self.beside: list[subprocess.Popen[str]] = []
        self._episode = -1
        self._wanted: dict[str, dict[str, Any]] = {}
        self.gpus: Sequence[str] = ()
        self.lab = SlurmLab(self.root / "lab")
        self.lab.environment |= {"TMPDIR": str(self.root / "tmp"), "XDG_CACHE_HOME": str(self.root / "cache")}
        self.lab.environment["KVSWEEP_LOCK_SCOPE"] = str(self.root)
        for name in ("tmp", "checkout", "calls"):
            (self.root / name).mkdir()
        (self.root / "tmp").chmod(0o1777)
        self.checkout = LabCheckout(self.root / "checkout", self.lab)
        self.checkout.config.append("rerun=none")  # the checker holds that an outcome never changes
        self.results = self.checkout.root / "results"
        self.study = self.results / "lab"
        self.results.mkdir(exist_ok=True)
        # Each node has its own folder for temporary files and its own locks of devices.
        temporary = f"{self.root}/tmp/$SLURMD_NODENAME"
        setup = [f"export TMPDIR={temporary}", f"mkdir -p {temporary}"]
        setup.append(f"export KVSWEEP_LOCK_SCOPE={self.root}/$SLURMD_NODENAME")
        self.lock_scopes = [f"{self.root}/n-{gpu}" for gpu in GPU_TYPES]
        self.checkout.write_site(prepare="login", attempts=4, setup=setup)

    # --- the cluster

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

    def a_job(self, choice: float) -> str | None:
        """The number of one of the jobs that measure and run now."""
        return one_of([job["JobId"] for job in self._jobs_in("RUNNING")], choice)

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

    def begin(self) -> None:
        """Start the lab; its results have a small disk of their own."""
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m,mode=777", "tmpfs", str(self.results)], check=True)
        self.lab.start()
        os.umask(0)  # results are shared from now on; MariaDB reads no configuration that all may write

    def say(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began_s:7.1f} s  {text}")

    def _write_study(self) -> None:
        sweeps = [
            {"name": gpu, "gpu": f"lab-{gpu}", "model": "tiny-llama-57m", "engine": engine}
            | {"knobs": {**shared, knob: values}}
            for gpu in self.gpus
            for engine, shared, knob, values, _ in [GRID[gpu]]
        ]
        vllm = {"max_model_len": 512, "enforce_eager": True, "cpu_kv_cache_gib": 1}
        known = {"workloads": {"short": fixed(REQUESTS, 16, OUTPUT_TOKENS)}, "engine_defaults": {"vllm": vllm}}
        # The time of a cell doubles in each of four attempts; in the first it has ten minutes.
        write_study(self.checkout.root, *sweeps, name="lab", repeats=REPEATS, cell_time_limit_s=4800, **known)

    # --- what the kinds of faults use

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start a call of Snakemake that measures, in a session of its own."""
        self._busy_s = time.monotonic()
        own = {"HOME": str(self.checkout.root), "XDG_CACHE_HOME": str(self.checkout.root / "cache")}
        with (self.root / "calls" / f"{next(self._calls)}.log").open("w") as log:
            return subprocess.Popen(
                self.checkout.command("--until", "parse", "--directory", str(self.checkout.root), *arguments),
                cwd=self.checkout.root,
                env=self.lab.environment | own,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def later(self, delay_s: float, undo: Callable[[], Any]) -> None:
        """End a fault after some seconds."""
        self._later.append((time.monotonic() + delay_s, undo))

    # --- one episode

    def episode(self, faults: "deque[Fault]") -> None:
        """Let `faults` hit a study that begins anew, complete it, and check what is left."""
        shutil.rmtree(self.study / "cells", ignore_errors=True)
        self._episode += 1
        self.gpus = EPISODES[self._episode % len(EPISODES)]
        self._wanted = wanted_of(self.gpus)
        self._write_study()
        self._checks = 0
        watch = Watch(self.study / "cells", list(self._wanted))
        self.call = self.start()
        try:
            # In their order, but one that finds no victim lets others go first.
            while faults and self._go_on():
                for fault in [*faults] if self._jobs_in("RUNNING") else []:
                    if said := KINDS[fault.kind](self, fault.choice):
                        self.say(f"fault {fault.number}: {fault.kind}: {said}")
                        self.hit[fault.kind] += 1
                        faults.remove(fault)
                        self._sleep(fault.delay_s)
                        break
                else:
                    self._sleep(0.3)
            self._recover()
        finally:
            self._end_all()
            watch.stop()
        self._find(watch.faults)
        self._check_end()

    def _go_on(self) -> bool:
        """If the present call has ended, check what it says and start another; False if all cells have ended."""
        if self.call.poll() is None:
            return True
        if len(self._ended()) == len(self._wanted):
            return False
        self._check_between()
        self._start_again()
        return True

    def _start_again(self) -> None:
        # One that was started beside it without options may hold the lock: it goes on with the work.
        for one in self.beside:
            if one.args == self.call.args and one.poll() is None:
                self.call = one
                self.beside.remove(one)
                return
        if any((self.checkout.root / ".snakemake/locks").glob("*")):
            self.checkout.snakemake("--unlock")
        self.call = self.start()

    def _recover(self) -> None:
        """Calls without faults until everything is complete."""
        self.wait(lambda: not self._later, FAULT_S, "the end of faults")
        self.end_faults()
        for number in range(CALLS_TO_COMPLETE + 1):
            self.wait(self.has_ended, CALL_S, "the end of a call")
            self.wait(lambda: all(one.poll() is not None for one in self.beside), CALL_S, "calls beside")
            if self.call.returncode == 0 and len(self._ended()) == len(self._wanted):
                self.say(f"complete after {number} further calls")
                break
            self._check_between()
            self._start_again()
        else:
            self._find([f"not complete after {CALLS_TO_COMPLETE} calls without faults"])
        self.wait(lambda: not self.lab.client("squeue", "--noheader", check=False), QUEUE_S, "an empty queue")

    def end_faults(self) -> None:
        self._busy_s = time.monotonic()
        for _, undo in self._later:
            undo()
        self._later.clear()

    def _end_all(self) -> None:
        self.end_faults()
        for one in (self.call, *self.beside):
            if one.poll() is None:
                one.kill()
                one.wait()
        self.beside.clear()

    def _sleep(self, seconds: float) -> None:
        """Wait, and meanwhile do what is due and what an administrator does."""
        end_s = time.monotonic() + seconds
        while True:
            for due in [one for one in self._later if one[0] < time.monotonic()]:
                self._later.remove(due)
                due[1]()
            self.nurse()
            if time.monotonic() >= end_s:
                return
            time.sleep(0.1)

    def wait(self, done: Callable[[], bool], limit_s: float, what: str) -> None:
        end_s = time.monotonic() + limit_s
        while not done():
            if time.monotonic() > end_s:
                self._find([f"waited {limit_s} s in vain for {what}"])
                return
            self._sleep(0.5)

    # --- what must hold

    def _find(self, findings: Iterable[str]) -> None:
        for one in findings:
            self.say(f"FINDING: {one}")
            self.findings.append(one)

    def _ended(self) -> set[str]:
        return {cell for cell in self._wanted if (self.study / "cells" / cell / "outcome.json").exists()}

    def _planned(self) -> set[str]:
        said = self.checkout.snakemake("--nolock", "--dry-run")
        if said.returncode:
            self._find([f"a dry run fails: {said.stderr[-2000:]}"])
        return set(re.findall(r"^    (\S+), start \d+$", said.stdout + said.stderr, re.MULTILINE))

    def _check_between(self) -> None:
        """While cells are missing, a further call would measure these alone. Checked at most twice in an episode."""
        self._checks += 1
        if self._checks > 2:
            return
        self.end_faults()
        before, planned = self._ended(), self._planned()
        after, cells = self._ended(), set(self._wanted)
        if not cells - after <= planned <= cells - before:
            self._find([f"{sorted(planned)} would be measured, though {sorted(before)} had ended"])

    def _check_end(self) -> None:
        """After a complete study: its files, and that nothing else is left."""
        for cell, knobs in self._wanted.items():
            self._find(checker.faults_of_cell(self.study / "cells" / cell, cell, knobs))
        self._find(checker.faults_of_lists(self.study, self._wanted))
        self.wait(lambda: not self._left_over(), PROCESSES_S, "the end of processes")
        self._find(f"process {words} was left" for words in self._left_over())
        self._find(checker.faults_of_locks([self.study / "locks", self.root / "tmp"]))
        self._find(checker.faults_of_device_locks(self.lock_scopes))
        self._find(f"{path} was left" for path in (self.checkout.root / ".snakemake/locks").glob("*"))
        self._find(checker.faults_of_scratch([self.study]))
        if planned := self._planned():
            self._find([f"{sorted(planned)} would be measured again"])

    def _left_over(self, *, idle: bool = True) -> list[str]:
        """Command lines of processes of jobs; `idle`: without fork servers that have no job and end by themselves."""
        found = self.lab.processes()
        for process in found:
            # A Snakemake that gets SIGTERM while it holds its own lock waits for ever (9.x, `exit_gracefully`). Where
            # Slurm counts processes by cgroup it ends with its job; here a restarted slurmd loses it.
            with suppress(psutil.Error):
                if process.ppid() == 1 and "--target-jobs" in process.cmdline() and not process.children():
                    process.kill()
        servers = {one.pid for one in kinds.fork_servers(found)} if idle else set()
        left = []
        for process in found:
            with suppress(psutil.Error):
                is_idle = process.pid in servers and not process.children()
                if not (is_idle or process.name() in DAEMONS or process.status() == psutil.STATUS_ZOMBIE):
                    left.append(" ".join(process.cmdline())[:200] or process.name())
        return left

    def end(self) -> None:
        """After the last episode: the report of what has ended is drawn, and idle fork servers have ended."""
        # Its jobs lower their priority, by as much as it is raised here.
        command = ["nice", "-n", "-19", *self.checkout.command("--nolock", partial=True)]
        done = subprocess.run(command, cwd=self.checkout.root, env=self.lab.environment, capture_output=True, text=True)
        if done.returncode or not (self.study / "report.html").exists():
            self._find([f"no report: {done.stderr[-2000:]}"])
        self.wait(lambda: not self._left_over(idle=False), IDLE_S, "the end of idle processes")
        self._find(f"process {words} was left" for words in self._left_over(idle=False))

    def stop(self) -> None:
        """End the lab."""
        self.lab.stop()
        os.umask(self._umask)

    def remove(self) -> None:
        """Remove all files."""
        subprocess.run(["umount", "--lazy", str(self.results)], check=True)
        shutil.rmtree(self.root)


def run(campaign: Campaign, faults: Iterable[Fault], per_episode: int) -> None:
    """Let faults hit the campaign's study, some in each episode; report at the end."""
    campaign.begin()
    left = deque(faults)
    while left:
        some = deque(itertools.islice(left, per_episode))
        taken = len(some)
        campaign.episode(some)
        for _ in range(taken - len(some)):
            left.popleft()
    campaign.end()
