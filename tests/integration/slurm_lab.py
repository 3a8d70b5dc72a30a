"""A real Slurm on this machine for tests: one controller and four nodes on loopback, in a scratch folder.

Debian's build can run several slurmd on one host (`slurmd -N name`), and nothing here needs systemd. Each node has one
GPU of its own type: a character device with NVIDIA's major number that nothing opens, so that jobs get typed GRES and
CUDA_VISIBLE_DEVICES as on a real cluster. Jobs of the partition `urgent`, which has all nodes, requeue those of the
other partitions. There is an accounting database.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from tests.processes import wait_for

GPU_TYPES = ("h200", "h100", "a100", "l40s")
GRES_TYPES = {gpu: gpu for gpu in GPU_TYPES} | {"l40s": "nvidia_l40s-48gb"}  # many sites have such a hyphen

# With places that `str.format` fills.
_CONF = Path(__file__).with_name("slurm_conf")
_NODE = (
    "NodeName=n-{gpu} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=16 Sockets=1 CoresPerSocket=16"
    " ThreadsPerCore=1 RealMemory=500000 Gres=gpu:{gres}:1 Feature={gpu}\n"
    "PartitionName=gpu-{gpu} Nodes=n-{gpu} MaxTime=1-0 DefaultTime=10 State=UP\n"
)


class SlurmLab:
    """The cluster; `environment` is what its clients (sbatch, squeue, snakemake) are to be started with."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.conf = root / "etc" / "slurm.conf"
        self._controller: subprocess.Popen[bytes] | None = None
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLURM_")},
            "SLURM_CONF": str(self.conf),
            "PATH": f"{root}/bin:{os.environ['PATH']}:/usr/sbin:/sbin",
        }

    def start(self) -> None:
        """Write the configuration, start all daemons and wait for four idle nodes."""
        for folder in ("etc", "run", "state", "log", "dev", "bin", *(f"spool/n-{gpu}" for gpu in GPU_TYPES)):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        self._configure()
        munge = self.root / "run"
        self._daemon(
            *("munged", "--foreground", "--force", f"--key-file={self.root}/etc/munge.key"),
            *(f"--socket={munge}/munge.sock", f"--pid-file={munge}/munge.pid"),
            *(f"--log-file={self.root}/log/munged.log", f"--seed-file={munge}/munge.seed"),
        )
        self._start_mariadb()
        self._daemon("slurmdbd", "-D")
        known = ("sacctmgr", "show", "user")
        wait_for(lambda: bool(self.client(*known, check=False)), 60, "the accounting database")
        self.start_controller()
        for gpu in GPU_TYPES:
            self._nodes[gpu] = self._daemon("slurmd", "-D", "-N", f"n-{gpu}")
        wait_for(lambda: self._idle_nodes() == len(GPU_TYPES), 60, "four idle nodes")

    def _configure(self) -> None:
        host = socket.gethostname().split(".")[0]
        controller_port, node_port, database_port, *ports = _free_ports(3 + len(GPU_TYPES))
        facts = {"host": host, "root": self.root, "controller_port": controller_port, "node_port": node_port}
        facts["database_port"] = database_port
        for file in _CONF.iterdir():
            self.conf.with_name(file.name).write_text(file.read_text().format(**facts))
        nodes = gres = ""
        for number, (gpu, port) in enumerate(zip(GPU_TYPES, ports, strict=True)):
            nodes += _NODE.format(gpu=gpu, gres=GRES_TYPES[gpu], host=host, port=port)
            # With a regular file in place of the device, CUDA_VISIBLE_DEVICES is not set.
            device = self.root / "dev" / f"nvidia{number}"
            os.mknod(device, 0o20666, os.makedev(195, number))
            gres += f"NodeName=n-{gpu} Name=gpu Type={GRES_TYPES[gpu]} File={device}\n"
        self.conf.write_text(self.conf.read_text() + nodes)
        self.conf.with_name("gres.conf").write_text(gres)
        self.conf.with_name("cgroup.conf").write_text("")
        self.conf.with_name("slurmdbd.conf").chmod(0o600)  # slurmdbd refuses another mode
        key = self.root / "etc" / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        # A job step starts its inner srun without any SLURM_ variable, so also without the place of the configuration.
        srun = self.root / "bin" / "srun"
        srun.write_text(f'#!/bin/sh\nSLURM_CONF={self.conf} exec {shutil.which("srun")} "$@"\n')
        srun.chmod(0o755)

    def _daemon(self, *command: str) -> "subprocess.Popen[bytes]":
        # The kernel ends them should this process be killed before it can stop them.
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._daemons.append(process)
        return process

    def _start_mariadb(self) -> None:
        options = f"--defaults-file={self.conf.with_name('mariadb.conf')}"
        socket_file = self.root / "run" / "mariadb.sock"
        made = subprocess.run(["mariadb-install-db", options, "--skip-test-db"], capture_output=True, text=True)
        log = self.root / "log" / "mariadb.log"
        assert made.returncode == 0, made.stdout + made.stderr + (log.read_text() if log.exists() else "")
        self._daemon("mariadbd", options)
        wait_for(socket_file.exists, 60, "MariaDB")
        self.environment["MYSQL_UNIX_PORT"] = str(socket_file)

    def start_controller(self) -> None:
        """Start slurmctld with the state that it has saved, if any."""
        self._controller = self._daemon("slurmctld", "-D")
        wait_for(lambda: "UP" in self.client("scontrol", "ping", check=False), 30, "the controller")

    def restart_controller(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End slurmctld by a signal and start it again; jobs go on meanwhile."""
        assert self._controller is not None
        self._controller.send_signal(number)
        self._controller.wait(timeout=30)
        self.start_controller()

    def restart_node(self, gpu: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End a node's slurmd by a signal and start it again; its job steps are other processes, which go on."""
        self._nodes[gpu].send_signal(number)
        self._nodes[gpu].wait(timeout=30)
        self._nodes[gpu] = self._daemon("slurmd", "-D", "-N", f"n-{gpu}")

    def client(self, *command: str, check: bool = True) -> str:
        """Run a Slurm command and return what it prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        assert not check or done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def _idle_nodes(self) -> int:
        nodes = ("sinfo", "--noheader", "--Node", "--partition=urgent", "--format=%T")
        return self.client(*nodes, check=False).split().count("idle")

    def jobs(self) -> list[dict[str, str]]:
        """Every job that the controller knows, ended ones too, as `scontrol show job` tells it, each with a comment."""
        lines = self.client("scontrol", "--oneliner", "--details", "show", "job").splitlines()
        jobs = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines if "JobId=" in line]
        return [{"Comment": ""} | job for job in jobs]

    def processes(self) -> list[psutil.Process]:
        """Every process of the lab and of its jobs: they carry its configuration's path in their environment."""
        return processes_with(f"SLURM_CONF={self.conf}")

    def has_steps(self, job: str) -> bool:
        """Whether a node still runs steps of a job; a node that is given the job again before is drained."""
        for process in self.processes():
            with suppress(psutil.Error):
                if f"slurmstepd: [{job}." in " ".join(process.cmdline()):
                    return True
        return False

    def stop(self) -> None:
        """End every daemon, job step and job."""
        with suppress(AssertionError, subprocess.TimeoutExpired, OSError):
            self.client("scancel", "--signal=KILL", "--full", "--user=root")
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait()


def _free_ports(count: int) -> list[int]:
    """Ports below those that the kernel gives to whoever asks for any, as other tests do meanwhile, and other ones than
    those of a lab that starts beside this one."""
    ports: list[int] = []
    first = 20_000 + 1000 * (os.getpid() % 12)
    for port in random.Random().sample(range(first, first + 1000), 1000):
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            break
    return ports


def processes_with(variable: str) -> list[psutil.Process]:
    """All other processes with NAME=VALUE in their environment."""
    # Not by psutil, which reads up to a gap: a slurmstepd writes its title over the start of its environment.
    found, own = [], f"{variable}\0".encode()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if own in Path(f"/proc/{process.pid}/environ").read_bytes() and process.pid != os.getpid():
                found.append(process)
    return found
