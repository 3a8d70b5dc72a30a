"""Studies on a real Slurm of four nodes, from the first call to the tables."""

import csv
import re
import shutil
import subprocess
import sys

import pytest

from tests.integration.served_study import SECRETS
from tests.integration.slurm.conftest import ON_SLURM
from tests.integration.slurm_lab import GPU_TYPES, GRES_TYPES
from tests.integration.slurm_study import cell, known_jobs, planned_cells
from workflow_scripts.device.device_record import DeviceRates

pytestmark = [*ON_SLURM, pytest.mark.usefixtures("nothing_left_running"), pytest.mark.timeout(900)]

RATES_KNOWN = ("h100", "a100", "l40s")

# Up to the tables: what lies behind them is the same on every machine, and drawn once, by the partial report.
TABLES = ("--until", "tables")
ON_NODES = {"partition": "gpu-l40s"}


def test_each_cell_runs_on_a_node_of_its_gpu_and_the_report_is_drawn(checkout, lab):
    checkout.write_site(prepare=ON_NODES)
    checkout.write_study([{"gpu": [f"lab-{gpu}" for gpu in GPU_TYPES]}])
    done = checkout.snakemake(*TABLES)
    assert done.returncode == 0, done.stderr
    jobs = {job["JobId"]: job for job in lab.jobs()}
    measured = [job for job in jobs.values() if "rule_measure_" in job["Comment"]]
    assert len(measured) == len(GPU_TYPES)
    # Parsing and tables are made where Snakemake runs.
    on_nodes = {re.sub("(^rule_|_wildcards_.*)", "", job["Comment"]) for job in jobs.values()}
    assert on_nodes == {"prepare_model", "prepare_workload", "prepare_device", "measure"}
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


def test_without_a_study_the_profile_stops_and_names_a_command_that_works(checkout):
    def typed(call):
        command = [sys.executable, "-m", *call.split()]
        return subprocess.run(command, cwd=checkout.root, env=checkout.lab.environment, capture_output=True, text=True)

    stopped = typed("snakemake --profile slurm")
    assert stopped.returncode == 1
    assert "h200, h100-sxm, a100-pcie-80gb, l40s" in stopped.stderr
    assert "Job stats" not in stopped.stdout + stopped.stderr
    (named,) = re.findall(r"Type: (snakemake --profile slurm --\S+ \S+)", stopped.stderr)
    assert "Traceback" not in stopped.stderr
    planned = typed(f"{named} --dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "rule measure:" in planned.stdout


def test_a_second_call_has_nothing_to_do_and_a_new_setting_is_all_that_a_third_would_measure(checkout):
    checkout.write_study([{"gpu": [f"lab-{gpu}" for gpu in GPU_TYPES]}])
    assert (checkout.study / "prepared/devices/lab-h200.json").exists()
    assert re.search(r"^total +0$", checkout.snakemake(*TABLES).stderr, re.MULTILINE)
    # Nor without the cluster's profile.
    here = [sys.executable, "-m", "snakemake", "--profile", "profiles/local", "--dry-run", *TABLES]
    call = [*here, "--config", *checkout.config]
    planned = subprocess.run(call, cwd=checkout.root, env=checkout.lab.environment, capture_output=True, text=True)
    assert re.search(r"^total +0$", planned.stdout + planned.stderr, re.MULTILINE), planned.stderr
    run = checkout.root / "workflow_scripts/measure/run.py"
    run.write_text(run.read_text() + "\n# A comment.\n")
    assert "rule measure:" not in checkout.snakemake("--dry-run").stdout
    checkout.write_study([{"gpu": [f"lab-{gpu}" for gpu in GPU_TYPES], "knobs": {"batch_size": [4, 3]}}])
    assert planned_cells(checkout) == {cell(f"lab-{gpu}", batch=3) for gpu in GPU_TYPES}


def test_cells_of_a_gpu_that_the_site_lacks_are_left_to_another_cluster(checkout):
    checkout.write_study([{"gpu": ["lab-h200", "l40s"], "knobs": {"batch_size": [4, 3]}}])
    assert planned_cells(checkout, "config/lab_site.yaml has no l40s") == {cell("lab-h200", batch=3)}


def test_each_gpu_type_is_calibrated_in_one_job_and_its_cells_are_predicted_with_it(checkout, lab):
    short = checkout.root / "workflow_scripts/study/calibrations.py"
    short.write_text(short.read_text().replace('CALIBRATION_S = {"cpu": 20.0', 'CALIBRATION_S = {"cpu": 2.0'))
    checkout.write_site()
    types = ("h200", "l40s")
    # Cores of one processor: the rates that the first test measured are those of both.
    measured, made_up = (checkout.study / f"prepared/devices/lab-{gpu}.json" for gpu in types)
    DeviceRates.read(measured).model_copy(update={"gpu": "lab-l40s"}).write(made_up)
    shutil.copystat(measured, made_up)
    checkout.write_study(
        [{"gpu": [f"lab-{gpu}" for gpu in types], "engine": "vllm", "knobs": {"max_num_seqs": [1, 2, 8, 16, 32]}}]
    )
    known = known_jobs(lab)
    done = checkout.snakemake("calibrate", timeout_s=800)
    assert done.returncode == 0, done.stderr
    jobs = {job["JobId"]: job for job in lab.jobs() if job["JobId"] not in known}
    calibrated = [(job["Partition"], job["JOB_GRES"]) for job in jobs.values() if "calibrate_devices" in job["Comment"]]
    assert sorted(calibrated) == [(f"gpu-{gpu}", f"gpu:{GRES_TYPES[gpu]}:1") for gpu in types]
    # The login node predicts with them.
    planned = checkout.snakemake("plan")
    assert planned.returncode == 0, planned.stderr
    with (checkout.study / "plan/plan.csv").open() as lines:
        assert [row["speed_source"] for row in csv.DictReader(lines)] == ["calibrated"] * 10


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
    done = checkout.snakemake("--until", "measure")
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
