"""Studies on a real Slurm of four nodes, and what happens to them after a failure."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from tests.integration.served_study import SECRETS
from tests.integration.slurm_lab import GPU_TYPES, GRES_TYPES, SlurmLab, wait_for
from tests.integration.slurm_study import LabCheckout, cell, vllm_cell
from tests.other_user import NOBODY, shared_folder
from tests.unit.made_rates import made_rates
from tests.unit.made_studies import end_cell, fixed, write_study
from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.files import write_text
from workflow_scripts.device.device_lock import device_lock
from workflow_scripts.study.accounting import accounted_jobs
from workflow_scripts.study.definition import cell_definition, json_sha256, resolved_models
from workflow_scripts.study.grid import expand
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.rounds import RoundPlan, plans
from workflow_scripts.study.study_file import load_study

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.needs_tool("slurmctld", "slurmd", "munged", "sbatch", "slurmdbd", "mariadbd"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root, for its devices and for a full disk"),
    pytest.mark.timeout(900),
]


# Up to the first tables: what lies behind it is the same on every machine, and drawn once, by the partial report.
TABLE = ("--until", "cells")
# And to one that needs the rates of the devices, of which a first call knows some only when its jobs have ended.
RATES = ("--until", "devices")
ON_NODES = {"partition": "gpu-l40s"}


@pytest.fixture(scope="module")
def lab():
    with shared_folder() as shared:
        (root := shared / "lab").mkdir()
        lab = SlurmLab(root, accounting=True)
        try:
            lab.start()
            yield lab
        finally:
            lab.stop()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory, lab):
    place = tmp_path_factory.mktemp("checkout")
    lab.environment |= {"TMPDIR": str(lab.root.parent), "XDG_CACHE_HOME": str(lab.root / "cache"), **SECRETS}
    for gpu in ("lab-h100", "lab-a100"):  # rates above any real ones; those of the other nodes are measured
        made_rates(1e13, 1e16, gpu=gpu).write(place / f"my results/lab/prepared/devices/{gpu}.json")
    return LabCheckout(place, lab, results="my results")


@pytest.fixture(autouse=True)
def nothing_left_running(request):
    """A test that fails half-way leaves nothing to the next one."""
    yield
    lab, checkout = request.getfixturevalue("lab"), request.getfixturevalue("checkout")
    if lab.client("squeue", "--noheader"):
        lab.client("scancel", "--user=root")
        wait_for(lambda: not lab.client("squeue", "--noheader"), 30, "an empty queue")
    if any((checkout.root / ".snakemake/locks").glob("*")):
        checkout.snakemake("--unlock")


def test_each_cell_runs_on_a_node_of_its_gpu_and_the_report_is_drawn(checkout, lab):
    checkout.write_site(prepare=ON_NODES)
    checkout.write_study([{"gpu": [f"lab-{gpu}" for gpu in GPU_TYPES]}])
    done = checkout.snakemake(*RATES)
    assert done.returncode == 0, done.stderr
    jobs = {job["JobId"]: job for job in lab.jobs()}
    measured = [job for job in jobs.values() if "measure_batch" in job["Comment"]]
    assert len(measured) == len(GPU_TYPES)
    # Parsing and tables are made where Snakemake runs.
    on_nodes = {re.sub("(^rule_|_wildcards_.*)", "", job["Comment"]) for job in jobs.values()}
    assert on_nodes == {"prepare_model", "prepare_workload", "measure_batch"}
    for gpu in GPU_TYPES:
        outcome = checkout.outcome(cell(f"lab-{gpu}"))
        assert outcome.outcome == "ok", outcome.reason
        job = jobs[outcome.provenance["job"]["SLURM_JOB_ID"]]
        assert job["JobState"] == "COMPLETED"
        assert (job["Partition"], job["NodeList"]) == (f"gpu-{gpu}", f"n-{gpu}")
        assert outcome.provenance["job"]["SLURMD_NODENAME"] == f"n-{gpu}"
        assert job["JOB_GRES"] == f"gpu:{GRES_TYPES[gpu]}:1"
        assert outcome.provenance["job"]["CUDA_VISIBLE_DEVICES"] == "0"  # the first and only one of its node
    # The environment reaches a job through Slurm alone, which keeps it to itself.
    written = [path for place in ("my results", ".snakemake") for path in (checkout.root / place).rglob("*")]
    written += [path for path in lab.root.rglob("*") if path.parent != path and path.name != "environment"]
    assert any(path.name == "script" for path in written)
    held = {path: path.read_bytes() for path in written if path.is_file()}
    held |= {"jobs": str(lab.jobs()).encode(), "printed": (done.stdout + done.stderr).encode()}
    assert not [place for place, content in held.items() for secret in SECRETS.values() if secret.encode() in content]
    for path in lab.root.glob("state/hash.*/job.*/environment"):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.usefixtures("checkout")
def test_status_has_what_accounting_says_of_the_jobs_and_waits_for_no_answer(lab, tmp_path):
    """Of cells whose outcomes name jobs of the lab; the jobs only hold some memory."""
    sweep = {"gpu": "cpu-all", "model": "tiny-llama-57m", "knobs": {"max_num_seqs": [1, 2, 3, 4]}}
    file = write_study(tmp_path, sweep, workloads={"short": fixed()})
    study = load_study(file)
    paths = StudyPaths(tmp_path / "results", study.name)
    hold = f"{sys.executable} -c 'import time; held = bytearray(200 << 20); time.sleep(3)'"
    jobs = {}
    for gpu, target in zip(GPU_TYPES, expand(study), strict=True):
        where = (f"--partition=gpu-{gpu}", "--mem=500", "--output=/dev/null")
        jobs[f"n-{gpu}"] = job = lab.client("sbatch", "--parsable", *where, f"--wrap={hold}").strip()
        end_cell(study, paths, target, provenance={"job": {"SLURM_JOB_ID": job, "SLURM_CLUSTER_NAME": "lab"}})
    wait_for(lambda: not lab.client("squeue", "--noheader"), 60, "the end of the jobs")

    def status() -> str:
        command = [sys.executable, "-m", "workflow_scripts", "status", "--study", file, "--results", paths.results]
        return subprocess.run(
            command, env=lab.environment, check=True, capture_output=True, text=True, timeout=60
        ).stdout

    assert lab.database is not None
    lab.database.send_signal(signal.SIGSTOP)
    assert status().count("accounting is not available") == 1
    lab.database.send_signal(signal.SIGCONT)
    lab.stop_database()
    assert status().count("accounting is not available") == 1
    assert paths.jobs() == []
    lab.start_database()
    # The controller sends what the database missed when it has found it again.
    wait_for(lambda: status().count("\nn-") == len(jobs), 120, "the accounts of all nodes")
    told = {job.nodes: job for job in accounted_jobs(paths)}
    assert {node: (job.job, job.state) for node, job in told.items()} == {n: (j, "COMPLETED") for n, j in jobs.items()}
    for job in told.values():
        assert 3 <= job.elapsed_s < 60
        assert 0 <= job.queued_s < 60
        assert job.memory_bytes is not None
        assert 200 << 20 < job.memory_bytes < 500 << 20
        assert job.energy_j is None


def test_without_a_study_the_profile_stops_and_names_a_command_that_works(checkout):
    def typed(call):
        command = [sys.executable, "-m", *call.split()]
        return subprocess.run(command, cwd=checkout.root, env=checkout.lab.environment, capture_output=True, text=True)

    stopped = typed("snakemake --profile slurm")
    assert stopped.returncode == 1
    assert "h200, h100-sxm, a100-pcie-80gb, l40s" in stopped.stderr
    assert "Job stats" not in stopped.stdout + stopped.stderr
    (named,) = re.findall(r"Type: (snakemake --profile slurm --configfile \S+)", stopped.stderr)
    planned = typed(f"{named} --dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "measure_batch" in planned.stdout


def measuring(checkout: LabCheckout, cell_id: str) -> bool:
    """Whether a cell is measured, or waits for the device."""
    waits = "waiting for the device" in said_by(checkout, cell_id)
    return waits or (checkout.folder(cell_id) / "raw.partial").exists()


def jobs_of(lab: SlurmLab, gpu: str, known: set[str]) -> list[dict[str, str]]:
    """Measuring jobs of a GPU that are not `known`, in the order of their submission; not those of another user."""
    own = [job for job in lab.jobs() if job["UserId"].startswith("root(")]
    jobs = [job for job in own if f"measure_batch_wildcards_{gpu}_" in job["Comment"]]
    return sorted((job for job in jobs if job["JobId"] not in known), key=lambda job: int(job["JobId"]))


def known_jobs(lab: SlurmLab) -> set[str]:
    return {job["JobId"] for job in lab.jobs()}


def engines(lab: SlurmLab) -> dict[str, psutil.Process]:
    """Processes that measure a cell, by GPU: those that a device trace watches."""
    found = {}
    for process in lab.processes():
        with suppress(psutil.NoSuchProcess):
            if "sample-device" in (command := process.cmdline()):
                gpu = next(gpu for gpu in GPU_TYPES if f"/lab-{gpu}/" in command[-1])
                found[gpu] = psutil.Process(int(command[command.index("--pid") + 1]))
    return found


def test_a_second_call_has_nothing_to_do_and_a_new_setting_is_all_that_a_third_would_measure(checkout):
    checkout.write_study([{"gpu": [f"lab-{gpu}" for gpu in GPU_TYPES]}])
    assert (checkout.study / "prepared/devices/lab-h200.json").exists()
    assert re.search(r"^total +0$", checkout.snakemake(*RATES).stderr, re.MULTILINE)
    # Nor without the cluster's profile.
    here = [sys.executable, "-m", "snakemake", "--profile", "profiles/local", "--dry-run", *RATES]
    call = [*here, "--config", *checkout.config]
    planned = subprocess.run(call, cwd=checkout.root, env=checkout.lab.environment, capture_output=True, text=True)
    assert re.search(r"^total +0$", planned.stdout + planned.stderr, re.MULTILINE), planned.stderr
    run = checkout.root / "workflow_scripts/measure/run.py"
    run.write_text(run.read_text() + "\n# A comment.\n")
    assert "measure_batch" not in checkout.snakemake("--dry-run").stdout
    checkout.write_study([{"gpu": [f"lab-{gpu}" for gpu in GPU_TYPES], "knobs": {"batch_size": [4, 3]}}])
    assert planned_cells(checkout) == {cell(f"lab-{gpu}", batch=3) for gpu in GPU_TYPES}


def test_a_further_start_is_a_round_of_its_own_and_the_first_is_not_repeated(checkout):
    # With one cell there is nothing to decide, so the second round is the last.
    checkout.write_study([{"gpu": "lab-h200"}], starts={"at_least": 2, "at_most": 4})
    assert planned_cells(checkout) == {cell("lab-h200")}
    first = checkout.folder(cell("lab-h200")) / "outcome.json"
    before = first.read_bytes()
    done = checkout.snakemake(*TABLE)
    assert done.returncode == 0, done.stderr
    further = Outcome.read(first.parent / "start-2/outcome.json")
    assert further.outcome == "ok", further.reason
    assert (further.start.start, further.start.round, further.start.position) == (2, 2, 1)
    assert first.read_bytes() == before
    with (checkout.study / "tables/repeats.csv").open() as lines:
        assert [(row["start"], row["repeat"]) for row in csv.DictReader(lines)] == [
            (str(start), str(repeat)) for start in (1, 2) for repeat in (0, 1)
        ]
    assert RoundPlan.read(checkout.study / "rounds/round-3.json").ended == "every comparison is decided"
    assert planned_cells(checkout) == set()
    shutil.rmtree(first.parent / "start-2")  # other tests copy this cell


def planned_cells(checkout: LabCheckout, said: str = "") -> set[str]:
    """Cells of the batches that a dry run shows; it says this."""
    printed = checkout.snakemake("--dry-run").stdout
    assert said in printed
    return set(re.findall(r"^    (\S+), start \d+$", printed, re.MULTILINE))


def test_another_protocol_repeats_every_cell_and_says_so(checkout):
    checkout.write_study([{"gpu": [f"lab-{gpu}" for gpu in GPU_TYPES]}])
    protocol = checkout.root / "workflow_scripts/study/protocol.py"
    before = protocol.read_text()
    protocol.write_text(before + "\nPROTOCOL_VERSION += 1\n")
    try:
        assert planned_cells(checkout, "4 cells were measured") == {cell(f"lab-{gpu}") for gpu in GPU_TYPES}
    finally:
        protocol.write_text(before)
    assert planned_cells(checkout) == set()


def test_cells_of_a_gpu_that_the_site_lacks_are_left_to_another_cluster(checkout):
    checkout.write_study([{"gpu": ["lab-h200", "l40s"], "knobs": {"batch_size": [4, 3]}}])
    assert planned_cells(checkout, "config/lab_site.yaml has no l40s") == {cell("lab-h200", batch=3)}


def test_cells_of_another_cluster_are_merged_by_copying_and_another_protocol_is_kept_apart(checkout):
    """Cells of an l40s as another cluster would have written them; one was measured under an older protocol."""
    checkout.write_study([{"gpu": ["lab-h200", "l40s"], "knobs": {"batch_size": [4, 5]}}])
    study = load_study(checkout.root / "lab.yaml")
    evidence = checkout.folder(cell("lab-h200"))
    # This process has the catalogue of the repository, which does not know the lab's own devices.
    there_alone = [sweep.model_copy(update={"gpu": ["l40s"]}) for sweep in study.sweeps]
    for target in expand(study.model_copy(update={"sweeps": there_alone})):
        shutil.copytree(evidence, checkout.folder(target.id))
        definition = cell_definition(study, target, resolved_models(study)).as_json()
        if target.knobs.max_concurrency == 5:
            definition["protocol"] -= 1
        record = json.loads((evidence / "outcome.json").read_text())
        sha256 = json_sha256({name: value for name, value in definition.items() if name != "repeats"})
        record |= {"cell_id": target.id, "definition": definition, "definition_sha256": sha256}
        record["provenance"] |= {"host": "elsewhere", "lock_sha256": "f" * 64}
        (checkout.folder(target.id) / "outcome.json").write_text(json.dumps(record))
    done = checkout.snakemake("partial_report", *TABLE)
    assert done.returncode == 0, done.stderr
    with (checkout.study / "tables/starts.csv").open() as lines:
        rows = {row["cell_id"]: row for row in csv.DictReader(lines)}
    here, there, older = (cell(gpu, batch=batch) for gpu, batch in (("lab-h200", 4), ("l40s", 4), ("l40s", 5)))
    assert [rows[c]["outcome"] for c in (here, there, older)] == ["ok", "ok", "ok"]
    assert rows[there]["host"] == rows[older]["host"] == "elsewhere" != rows[here]["host"]
    assert [rows[c]["comparable"] for c in (here, there, older)] == ["true", "true", "false"]
    said = checkout.snakemake("status").stdout
    assert "outdated: measured by another definition, protocol" in said
    assert "ffffffffffff: 2 cells, l40s on elsewhere" in said


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
                snakemake = checkout.start("--until", "measure_batch")
                wait_for(lambda: "waiting: another" in said_by(checkout, held), 120, "a cell that waits")
                lab.client("scontrol", "update", f"JobId={job('h100')['JobId']}", "TimeLimit=1")
                wait_for(lambda: measuring(checkout, killed), 60, "the cell to be killed")
                kill_processes_of(lab, job("l40s")["JobId"])
            wait_for(lambda: "h200" in engines(lab), 120, "the engine of the cell that hangs")
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
    assert ended == {
        "h200": [("FAILED", "00:06:00"), ("COMPLETED", "00:07:00")],
        "h100": [("TIMEOUT", "00:01:00"), ("COMPLETED", "00:07:00")],
        "a100": [("FAILED", "00:07:00"), ("FAILED", "00:07:00")],
        "l40s": [("FAILED", "00:06:00"), ("COMPLETED", "00:07:00")],
    }
    assert checkout.outcome(hung).outcome == "timeout"
    assert "64 s" in str(checkout.outcome(hung).reason)
    for measured in (held, killed, fine):
        assert checkout.outcome(measured).outcome == "ok", checkout.outcome(measured).reason
        assert sorted(p.name for p in checkout.folder(measured).iterdir()) == ["measure.log", "outcome.json", "raw"]
    assert engines(lab) == {}
    assert planned_cells(checkout) == {full}
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
    done = checkout.snakemake("partial_report")
    assert done.returncode == 0, done.stderr
    assert "measure_batch" not in done.stderr
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
            *(sys.executable, "-m", "snakemake", "--profile", "profiles/local", "--config", "study=study.yaml"),
            *("--", "partial_report"),
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


def test_killed_jobs_lost_nodes_and_a_restarted_controller_lose_and_double_nothing(checkout, lab):
    checkout.write_site()
    checkout.write_study([{"gpu": [f"lab-{gpu}" for gpu in GPU_TYPES], "workload": "steady"}])
    cells = {gpu: cell(f"lab-{gpu}", "steady") for gpu in GPU_TYPES}
    known = known_jobs(lab)

    def job(gpu: str) -> dict[str, str]:
        return jobs_of(lab, f"lab-{gpu}", known)[0]

    try:
        # The test holds the device meanwhile, so that no cell is done too early.
        with device_lock(load_gpus()["cpu-all"]):
            snakemake = checkout.start("--until", "measure_batch")
            wait_for(lambda: all(measuring(checkout, c) for c in cells.values()), 180, "four running cells")
            lab.restart_controller()
        wait_for(lambda: bool(engines(lab)), 120, "an engine")
        killed, engine = next(iter(engines(lab).items()))
        engine.kill()
        cancelled, lost, requeued = (gpu for gpu in GPU_TYPES if gpu != killed)
        lab.client("scancel", job(cancelled)["JobId"])
        lab.client("scontrol", "update", f"nodename=n-{lost}", "state=down", "reason=test")
        lab.client("scontrol", "requeue", job(requeued)["JobId"])
        wait_for(lambda: job(lost)["JobState"] != "RUNNING", 30, "the end of the job on the lost node")
        # A node whose slurmd answers comes back by itself, sooner or later than this.
        lab.client("scontrol", "update", f"nodename=n-{lost}", "state=resume", check=False)
        for gpu in (lost, requeued):  # Slurm would let them wait for two minutes, which is time to end what ran
            wait_for(lambda gpu=gpu: job(gpu)["JobState"] == "PENDING", 30, "its place in the queue")
            wait_for(lambda gpu=gpu: not lab.has_steps(job(gpu)["JobId"]), 30, "the end of its steps")
            time.sleep(5)  # a node knows a job for a moment longer, and is drained if it is given it again
            lab.client("scontrol", "update", f"JobId={job(gpu)['JobId']}", "StartTime=now")
        snakemake.wait(timeout=600)
    finally:
        snakemake.kill()
    assert snakemake.returncode == 0, (checkout.root / "snakemake.log").read_text()
    for cell_id in cells.values():
        assert checkout.outcome(cell_id).outcome == "ok", checkout.outcome(cell_id).reason
        assert sorted(p.name for p in checkout.folder(cell_id).iterdir()) == ["measure.log", "outcome.json", "raw"]
    # Failed and cancelled jobs were submitted again; Slurm itself started the others again, under their own number.
    ended = {gpu: [(j["JobState"], j["Restarts"]) for j in jobs_of(lab, f"lab-{gpu}", known)] for gpu in GPU_TYPES}
    assert ended == {
        killed: [("FAILED", "0"), ("COMPLETED", "0")],
        cancelled: [("CANCELLED", "0"), ("COMPLETED", "0")],
        lost: [("COMPLETED", "1")],
        requeued: [("COMPLETED", "1")],
    }
    assert engines(lab) == {}


def test_what_runs_when_snakemake_is_killed_is_measured_once_and_taken_over(checkout, lab):
    checkout.write_site()
    checkout.write_study([{"gpu": "lab-l40s", "knobs": {"batch_size": 6}}])
    target = cell("lab-l40s", batch=6)
    known = known_jobs(lab)
    started = []
    try:
        # The test holds the device meanwhile, so that no cell is done too early.
        with device_lock(load_gpus()["cpu-all"]):
            started.append(first := checkout.start("--until", "measure_batch"))
            wait_for(lambda: measuring(checkout, target), 180, "the cell")
            beside = checkout.snakemake("--until", "measure_batch")
            assert beside.returncode != 0
            assert "cannot be locked" in beside.stderr + beside.stdout
            first.kill()
            first.wait()
            assert checkout.snakemake("--unlock").returncode == 0
            # The job of the first goes on; that of the second waits for the cell.
            started.append(second := checkout.start("--until", "measure_batch"))
            wait_for(lambda: len(jobs_of(lab, "lab-l40s", known)) == 2, 120, "a job of the second")
            second.terminate()
        second.wait(timeout=300)
    finally:
        for snakemake in started:
            snakemake.kill()
    one, two = jobs_of(lab, "lab-l40s", known)
    assert (one["JobState"], two["JobState"]) == ("COMPLETED", "COMPLETED")
    assert checkout.outcome(target).provenance["job"]["SLURM_JOB_ID"] == one["JobId"]
    assert planned_cells(checkout) == set()


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
    done = checkout.snakemake("--until", "measure_batch", "--slurm-array-jobs", "measure_batch")
    assert done.returncode == 0, done.stderr
    jobs = sorted((j for j in lab.jobs() if j["JobId"] not in known), key=lambda job: int(job["JobId"]))
    measured = [job for job in jobs if "measure_batch" in job["Comment"]]
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


def test_cells_that_matter_are_measured_on_two_gpu_types_after_one_calibration_job_of_each(checkout, lab):
    short = checkout.root / "workflow_scripts/study/calibrations.py"
    short.write_text(short.read_text().replace('CALIBRATION_S = {"cpu": 20.0', 'CALIBRATION_S = {"cpu": 2.0'))
    checkout.write_site()
    types = ("h200", "l40s")
    checkout.write_study(
        [{"gpu": [f"lab-{gpu}" for gpu in types], "engine": "vllm", "knobs": {"max_num_seqs": [1, 2, 8, 16, 32]}}],
        # So wide that the fastest cells of a machine under load are as good as each other.
        equivalence_margin_pct=50,
        measure={"decide": ["recommendation"]},
    )
    known = known_jobs(lab)
    done = checkout.snakemake(*TABLE, timeout_s=800)
    assert done.returncode == 0, done.stderr
    jobs = {job["JobId"]: job for job in lab.jobs() if job["JobId"] not in known}
    calibrated = [(job["Partition"], job["JOB_GRES"]) for job in jobs.values() if "calibrate_devices" in job["Comment"]]
    assert sorted(calibrated) == [(f"gpu-{gpu}", f"gpu:{GRES_TYPES[gpu]}:1") for gpu in types]
    # The login node predicts with them.
    with (checkout.study / "plan/plan.csv").open() as lines:
        assert [row["speed_source"] for row in csv.DictReader(lines)] == ["calibrated"] * 10
    of_rounds = plans(StudyPaths(checkout.study.parent, "lab"))
    assert of_rounds[-1].ended
    assert (of_rounds[-1].asked, of_rounds[-1].questions) == (2, ())
    started = [start.cell for plan in of_rounds for start in plan.starts]
    assert 5 <= len(started) == len(set(started)) < 10  # three check cells and a recommended one of each type at least
    for cell_id in started:
        outcome = checkout.outcome(cell_id)
        assert outcome.outcome == "ok", outcome.reason
        job = jobs[outcome.provenance["job"]["SLURM_JOB_ID"]]
        assert job["Partition"] == f"gpu-{cell_id.split('/')[0].removeprefix('lab-')}"
    assert "2 of 2 questions answered" in checkout.snakemake("status").stdout
    again = checkout.snakemake("--dry-run", *TABLE)
    # Snakemake says either where it plans no job.
    said = again.stdout + again.stderr
    assert re.search(r"Nothing to be done|^total +0$", said, re.MULTILINE), said


OLD, BROKEN = "transformers-5.23.0", "transformers-5.23.1"
# Notes each call; makes an environment of this Python, and none for the second lock.
SETUP = f"""#!/bin/sh
echo $SLURMD_NODENAME "$@" >> calls
case $2 in {BROKEN}*) echo no index; exit 2 ;; esac
mkdir -p "$3/bin"; printf '#!/bin/sh\nexec {sys.executable} "$@"\n' > "$3/bin/python"; chmod +x "$3/bin/python"
"""


def test_an_environment_is_installed_once_and_a_broken_one_ends_only_its_own_cells(checkout, lab):
    (checkout.root / "envs/setup.sh").write_text(SETUP)
    (checkout.root / f"envs/{BROKEN}-cpu.txt").touch()
    checkout.write_site(prepare=ON_NODES)
    gpus = ["lab-l40s", "lab-h100"]
    checkout.write_study([{"gpu": gpus, "environment": [OLD, BROKEN]}])
    known = known_jobs(lab)
    done = checkout.snakemake("--until", "measure_batch")
    assert done.returncode == 0, done.stderr
    installed = [job for job in lab.jobs() if job["JobId"] not in known and "install_environment" in job["Comment"]]
    assert [job["Partition"] for job in installed] == ["gpu-l40s"] * 2
    calls = sorted(line.split()[:3] for line in (checkout.root / "calls").read_text().splitlines())
    assert calls == [["n-l40s", "install", f"{name}-cpu"] for name in (OLD, BROKEN)]
    for gpu in gpus:
        places = (cell(gpu).replace("/hf-static/", f"/hf-static@{name}/") for name in (OLD, BROKEN))
        old, broken = map(checkout.outcome, places)
        assert (old.outcome, broken.outcome, broken.phases_s) == ("ok", "invalid", {})
        assert "no index" in (broken.reason or "")
        assert old.definition["environment"] == OLD
