"""What is left of studies on a real Slurm when cells, jobs, nodes, disks and Snakemake fail."""

import csv
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from tests.integration.served_study import SECRETS
from tests.integration.slurm.conftest import ON_SLURM
from tests.integration.slurm_lab import GPU_TYPES, SlurmLab
from tests.integration.slurm_study import LabCheckout, cell, known_jobs, planned_cells, vllm_cell
from tests.other_user import NOBODY
from tests.processes import wait_for
from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.files import write_text
from workflow_scripts.device.device_lock import device_lock

pytestmark = [*ON_SLURM, pytest.mark.usefixtures("nothing_left_running"), pytest.mark.timeout(900)]

RATES_KNOWN = GPU_TYPES


def measuring(checkout: LabCheckout, cell_id: str) -> bool:
    """Whether a cell is measured, or waits for the device."""
    waits = "waiting for the device" in said_by(checkout, cell_id)
    return waits or (checkout.folder(cell_id) / "raw.partial").exists()


def jobs_of(lab: SlurmLab, gpu: str, known: set[str]) -> list[dict[str, str]]:
    """Measuring jobs of a GPU that are not `known`, in the order of their submission; not those of another user."""
    own = [job for job in lab.jobs() if job["UserId"].startswith("root(")]
    jobs = [job for job in own if f"measure_wildcards_{gpu}_" in job["Comment"]]
    return sorted((job for job in jobs if job["JobId"] not in known), key=lambda job: int(job["JobId"]))


def engines(lab: SlurmLab) -> dict[str, psutil.Process]:
    """Processes that measure a cell, by GPU: those that a device trace watches."""
    found = {}
    for process in lab.processes():
        with suppress(psutil.NoSuchProcess):
            if "sample-device" in (command := process.cmdline()):
                gpu = next(gpu for gpu in GPU_TYPES if f"/lab-{gpu}/" in command[-1])
                found[gpu] = psutil.Process(int(command[command.index("--pid") + 1]))
    return found


@contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """A folder on a disk with room for a log, and for no evidence."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def kill_processes_of(lab: SlurmLab, job: str) -> None:
    """What a node does that runs out of memory, and some more: signal 9 to every process of a job."""
    for process in lab.processes():
        with suppress(psutil.Error):
            if process.environ().get("SLURM_JOB_ID") == job:
                process.kill()


# What a job of another user tries on the node of a cell: to read secrets, and to end, change or read its job.
ATTACK = """#!/bin/sh
cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' ' '
find {lab} -type f -readable -exec cat {{}} + 2>/dev/null
scontrol --oneliner --details show job
sacct --allusers --parsable --format=ALL
scontrol write batch_script {job} {tmp}/taken
for attempt in "scancel {job}" "scontrol update JobId={job} TimeLimit=1" "test -s {tmp}/taken" "ls {tmp}/kvsweep-0" \\
    "touch {tmp}/kvsweep-0/planted"; do $attempt && echo "succeeded: $attempt"; done
echo looked as $(id -u)
"""


def attack(lab: SlurmLab, gpu: str, victim: dict[str, str]) -> str:
    """What a job of another user sees and does on a node that measures, under the name and comment of its victim."""
    script, seen = lab.root.parent / "attack.sh", lab.root.parent / "seen"
    write_text(script, ATTACK.format(lab=lab.root, tmp=lab.root.parent, job=victim["JobId"]))
    named = (f"--job-name={victim['JobName']}", f"--comment={victim['Comment']}", f"--nodelist=n-{gpu}")
    kept = {name: lab.environment[name] for name in ("PATH", "SLURM_CONF")}
    subprocess.run(
        ["sbatch", "--wait", f"--partition=gpu-{gpu}", "--mem=100", "--export=ALL", f"--output={seen}", *named, script],
        **{"cwd": "/", "env": kept, "user": NOBODY, "group": NOBODY, "extra_groups": []},
        check=True,
        timeout=120,
    )
    return seen.read_text(errors="replace")


def test_a_hang_slurms_time_limit_a_full_disk_and_killed_processes_cost_no_other_cell(checkout, lab):
    checkout.write_site()
    checkout.write_study(
        [
            {"gpu": "lab-h200", "workload": "endless"},
            {"gpu": ["lab-h100", "lab-l40s"], "knobs": {"batch_size": 2}},
            {"gpu": "lab-a100", "engine": "vllm"},
            {"gpu": "lab-a100", "knobs": {"batch_size": 1}},
        ],
        cell_time_limit_s=64,
    )
    hung = cell("lab-h200", "endless")
    held, killed = (cell(f"lab-{gpu}", batch=2) for gpu in ("h100", "l40s"))
    full, fine = vllm_cell("lab-a100"), cell("lab-a100", batch=1)
    known = known_jobs(lab)

    def job(gpu: str) -> dict[str, str]:
        return jobs_of(lab, f"lab-{gpu}", known)[0]

    lock = checkout.study / "locks" / f"{held.replace('/', '--')}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with full_disk(checkout.folder(full)):
        # A process of another checkout measures the cell, so to say, until Slurm ends the job that waits for it.
        with FileLock(lock, mode=0o666):
            # The test holds the device meanwhile, so that no cell is done too early.
            with device_lock(load_gpus()["cpu-all"]):
                snakemake = checkout.start("--until", "measure")
                wait_for(lambda: "waiting: another" in said_by(checkout, held), 300, "a cell that waits")
                beside = checkout.snakemake("--until", "measure")
                assert (beside.returncode == 0, "cannot be locked" in beside.stderr + beside.stdout) == (False, True)
                lab.client("scontrol", "update", f"JobId={job('h100')['JobId']}", "TimeLimit=1")
                wait_for(lambda: measuring(checkout, killed), 300, "the cell to be killed")
                kill_processes_of(lab, job("l40s")["JobId"])
            wait_for(lambda: "h200" in engines(lab), 300, "the engine of the cell that hangs")
            seen = attack(lab, "h200", job("h200"))
            # Processes and jobs can be seen, so their arguments must hold no secret.
            assert [w for w in ("sample-device", job("h200")["Comment"], f"looked as {NOBODY}") if w not in seen] == []
            assert [name for name, secret in SECRETS.items() if secret in seen] == []
            assert re.findall("^succeeded: .*", seen, re.MULTILINE) == []
            wait_for(lambda: job("h100")["JobState"] == "TIMEOUT", 150, "the end of the job's time")
        try:
            snakemake.wait(timeout=400)
        finally:
            snakemake.kill()
        status = checkout.snakemake("status").stdout
        assert list(checkout.folder(full).iterdir()) == [checkout.folder(full) / "measure.log"]

    assert snakemake.returncode != 0  # of the cell on the full disk alone
    ended = {gpu: [(j["JobState"], j["TimeLimit"]) for j in jobs_of(lab, f"lab-{gpu}", known)] for gpu in GPU_TYPES}
    # On a slow machine, the other cell of this device may also be left to the second job, which then has more time.
    first, second = ended.pop("a100")
    assert (first, second[0], second[1] in ("00:07:00", "00:08:00")) == (("FAILED", "00:07:00"), "FAILED", True)
    assert ended == {
        "h200": [("FAILED", "00:06:00"), ("COMPLETED", "00:07:00")],
        "h100": [("TIMEOUT", "00:01:00"), ("COMPLETED", "00:07:00")],
        "l40s": [("FAILED", "00:06:00"), ("COMPLETED", "00:07:00")],
    }
    assert checkout.outcome(hung).outcome == "timeout"
    assert "64 s" in str(checkout.outcome(hung).reason)
    for measured in (held, killed, fine):
        assert checkout.outcome(measured).outcome == "ok", checkout.outcome(measured).reason
        assert sorted(p.name for p in checkout.folder(measured).iterdir()) == ["measure.log", "outcome.json", "raw"]
    assert engines(lab) == {}
    assert planned_cells(checkout) == {full, hung}
    # Each cell that has no values is named, with its reason in one line and its log.
    lines = [line.strip() for line in status.splitlines()]
    for state, reason, log in (
        ("timeout", checkout.outcome(hung).reason, f"{hung}/raw/engine.log"),
        ("missing", "kvsweep measure-cell: [Errno 28] No space left on device", f"{full}/measure.log"),
    ):
        (place,) = (n for n, line in enumerate(lines) if line.startswith(f"{state}: {reason}"))
        assert lines[place + 1].endswith(f"my results/lab/cells/{log}")
    assert ["lab-a100", "vllm", "tiny-llama-57m", "short", "·", "·", "1"] in [line.split() for line in lines]


def said_by(checkout: LabCheckout, cell_id: str) -> str:
    log = checkout.folder(cell_id) / "measure.log"
    return log.read_text() if log.exists() else ""


def test_a_partial_report_is_drawn_from_what_there_is_and_again_from_its_archive(checkout, tmp_path):
    """As the test before left it: three cells measured, one that hung, one missing."""
    done = checkout.snakemake(partial=True)
    assert done.returncode == 0, done.stderr
    assert "measure" not in done.stderr
    with (checkout.study / "tables/cells.csv").open() as lines:
        outcomes = {row["cell_id"]: row["outcome"] for row in csv.DictReader(lines)}
    assert outcomes == {
        cell("lab-h200", "endless"): "timeout",
        cell("lab-h100", batch=2): "ok",
        cell("lab-l40s", batch=2): "ok",
        vllm_cell("lab-a100"): "missing",
        cell("lab-a100", batch=1): "ok",
    }
    report = (checkout.study / "report.html").read_text()
    assert "missing" in report
    assert "not done after 64 s" in report

    archive = ["--study", "lab.yaml", "--results", "my results", "--out", str(tmp_path / "lab.zip")]
    subprocess.run([sys.executable, "-m", "workflow_scripts", "archive", *archive], cwd=checkout.root, check=True)
    again = tmp_path / "again"
    zipfile.ZipFile(tmp_path / "lab.zip").extractall(again)
    subprocess.run(["sha256sum", "--check", "--quiet", "manifest-sha256.txt"], cwd=again, check=True)
    report, tables = again / "results/lab/report.html", again / "results/lab/tables"
    before = {path.relative_to(tables): path.read_bytes() for path in tables.rglob("*.*")}
    report.unlink()
    shutil.rmtree(again / "results/lab/figures")
    shutil.rmtree(tables)
    subprocess.run(
        [
            *(sys.executable, "-m", "snakemake", "--profile", "profiles/local"),
            *("--config", "study=study.yaml", "partial=1"),
        ],
        cwd=again,
        env=checkout.lab.environment,
        check=True,
        capture_output=True,
    )
    after = {path.relative_to(tables): path.read_bytes() for path in tables.rglob("*.*")}
    assert Path("predictions.parquet") in before
    assert after == before
    assert report.exists()


FAKE_NVML = """
import os
NAMES = {"n-h200": ("NVIDIA H200", 150_110_994_432), "n-h100": ("NVIDIA H100 80GB HBM3", 85_028_503_552)}
class NVMLError(Exception): pass
class Memory: used = 0
def nvmlInit():
    import torch
    torch.cuda.device_count = lambda: 1
def nvmlShutdown(): pass
def nvmlDeviceGetHandleByIndex(index): return NAMES[os.environ["SLURMD_NODENAME"]]
def nvmlDeviceGetName(handle): return handle[0]
def nvmlDeviceGetUUID(handle): return "GPU-" + os.environ["SLURMD_NODENAME"]
def nvmlSystemGetDriverVersion(): return "0"
def nvmlDeviceGetMemoryInfo(handle):
    memory = Memory()
    memory.total = handle[1]
    return memory
def nvmlDeviceGetComputeRunningProcesses(handle): return []
def __getattr__(name):
    if name.startswith("nvmlDeviceGet"):
        def unsupported(*arguments): raise NVMLError("not supported")
        return unsupported
    raise AttributeError(name)
NVML_CLOCK_SM = NVML_CLOCK_MEM = NVML_TEMPERATURE_GPU = 0
"""


def test_a_cell_on_the_wrong_gpu_counts_nothing_and_is_sent_to_another_node(checkout, lab, tmp_path):
    """An array of jobs takes the resources of its first: the second cell comes to the first one's node.

    A stand-in for NVML tells each node's GPU, and torch counts it; the engine itself runs on the CPU, where its build
    belongs.
    """
    (tmp_path / "pynvml.py").write_text(FAKE_NVML)
    gpus = {"h200": {"partition": "gpu-h200"}, "h100-sxm": {"partition": "gpu-h100"}}
    setup = [f"export PYTHONPATH={tmp_path}:$PYTHONPATH", "export VLLM_ENABLE_V1_MULTIPROCESSING=0"]
    checkout.write_site(setup=setup, gpus=gpus)
    checkout.write_study([{"gpu": ["h200", "h100-sxm"], "engine": "vllm"}])
    for gpu in ("h200", "h100-sxm"):  # as another user might name a node
        write_text(checkout.study / f"wrong_nodes/{gpu}/$(touch executed)", "")
    known = known_jobs(lab)
    done = checkout.snakemake("--until", "measure", "--slurm-array-jobs", "measure")
    assert done.returncode == 0, done.stderr
    jobs = sorted((j for j in lab.jobs() if j["JobId"] not in known), key=lambda job: int(job["JobId"]))
    measured = [job for job in jobs if "rule_measure_" in job["Comment"]]
    *trapped, alone = measured
    assert len({job["NodeList"] for job in trapped}) == 1
    (node,) = {job["NodeList"] for job in trapped}
    moved, wrong = ("h200", "n-h100") if node == "n-h100" else ("h100-sxm", "n-h200")
    assert alone["NodeList"] != node
    assert alone["ExcNodeList"] == wrong
    assert not (checkout.root / "executed").exists()
    noted = (checkout.study / f"wrong_nodes/{moved}/{wrong}").read_text()
    assert noted.startswith(f"{moved} was requested, but the GPU here is 'NVIDIA H")
    for gpu in ("h200", "h100-sxm"):
        outcome = checkout.outcome(vllm_cell(gpu))
        assert outcome.outcome != "invalid", outcome.reason
        assert outcome.provenance["job"]["SLURMD_NODENAME"] == f"n-{gpu.removesuffix('-sxm')}"
