"""What the accounting of a cluster says of jobs: recorded output of a real sacct, and a sacct that fails or hangs."""

import pytest

from tests.unit.made_studies import MadeStudy
from workflow_scripts.study import accounting, status
from workflow_scripts.study.accounting import AccountedJob, accounted_jobs, by_node, jobs_in

# Slurm 22.05.8 with limits of memory: one job had to wait for the other's GPU, one ran out of memory in a step and was
# not ended by that, one was cancelled, and two were running.
RECORDED = """\
5622302|FAILED|1795637866|1795637866|1795637868|2||0|n-h100
5622302.batch|FAILED|1795637866|1795637866|1795637868|2|1130496|0|n-h100
5622302.0|COMPLETED|1795637866|1795637866|1795637870|4|2940928|0|n-h100
5622302.1|OUT_OF_MEMORY|1795637866|1795637866|1795637867|1|2813952|0|n-h100
5622303|CANCELLED by 0|1795637866|1795637866|1795637871|5|||n-a100
5622303.batch|CANCELLED|1795637866|1795637866|1795637872|6|326717440|0|n-a100
5622304|COMPLETED|1795637902|1795637902|1795637909|7||0|n-h200
5622304.batch|COMPLETED|1795637902|1795637902|1795637909|7|12447744|0|n-h200
5622304.0|COMPLETED|1795637903|1795637903|1795637904|1|2822144|0|n-h200
5622304.1|COMPLETED|1795637903|1795637903|1795637909|6|218693632|0|n-h200
5622305|RUNNING|1795637902|1795637909|Unknown|5|||n-h200
5622305.batch|RUNNING|1795637909|1795637909|Unknown|5||0|n-h200
5622305.0|COMPLETED|1795637909|1795637909|1795637910|1|839680|0|n-h200
5622306|RUNNING|1795637902|1795637902|Unknown|12|||n-h100
5622306.batch|RUNNING|1795637902|1795637902|Unknown|12||0|n-h100
"""
# The same job as the site would say it that measures energy, after the first had ended.
ENERGY = """\
5622305|COMPLETED|1795637902|1795637909|1795637916|7||5200|n-h200
5622305.batch|COMPLETED|1795637909|1795637909|1795637916|7|12447744|5200|n-h200
5622305.1|COMPLETED|1795637909|1795637909|1795637916|7|3221225472|5100|n-h200
"""


def test_jobs_that_have_ended_have_the_highest_memory_of_their_steps_and_their_time_in_the_queue():
    jobs = {job.job: job for job in jobs_in(RECORDED, "lab")}
    assert list(jobs) == ["5622302", "5622303", "5622304"]
    assert [(job.state, job.queued_s, job.elapsed_s, job.memory_bytes) for job in jobs.values()] == [
        ("FAILED", 0, 2, 2_940_928),
        ("CANCELLED", 0, 5, 326_717_440),
        ("COMPLETED", 0, 7, 218_693_632),
    ]
    assert {job.energy_j for job in jobs.values()} == {None}  # 0 where nothing measures it
    (waited,) = jobs_in(ENERGY, "lab")
    assert (waited.queued_s, waited.elapsed_s, waited.energy_j) == (7, 7, 5200)
    rows = {row[0]: row[1:] for row in by_node([*jobs.values(), waited])}
    assert rows["n-h200"] == ("2", "0.0583", "0.233", "3", "5.2")
    assert rows["n-h100"] == ("1", "0", "0.0333", "0.00274", "–")


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """The call of status on a study with a cell measured in job 5622304, one without a job, and one whose record would
    lead out of the folder of jobs; `folder` is on PATH."""
    made = MadeStudy(tmp_path, {"knobs": {"max_num_seqs": [1, 2, 3]}})
    job = {"SLURM_JOB_ID": "5622304", "SLURM_CLUSTER_NAME": "lab"}
    hostile = job | {"SLURM_CLUSTER_NAME": "../../lab"}
    for cell, of_cell in zip(made.cells.values(), (job, {}, hostile), strict=True):
        made.end(cell, provenance={"job": of_cell})
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path, made.paths, made.options


def says(folder, script):
    sacct = folder / "sacct"
    sacct.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n{script}\n')
    sacct.chmod(0o755)


def test_a_job_that_has_ended_is_asked_for_once(measured, capsys):
    folder, paths, call = measured
    says(folder, f"grep ^5622304 <<'EOF'\n{RECORDED}EOF")
    for _ in range(2):
        assert status.main(call) == 0
        *_, headings, row = capsys.readouterr().out.splitlines()
        assert headings.startswith("Node")
        assert row.split() == ["n-h200", "1", "0", "0.117", "0.204", "–"]
    assert len((folder / "asked").read_text().splitlines()) == 1
    assert "--clusters=lab --jobs=5622304 " in (folder / "asked").read_text()
    assert AccountedJob.model_validate_json(paths.job("lab", "5622304").read_text()).elapsed_s == 7


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("sleep 60", True),
        ("echo 'sacct: error: Connection refused' >&2; exit 1", True),
        ("echo 'Slurm accounting storage is disabled' >&2; exit 1", False),
        ("exit 0", False),  # it does not know the job
        (None, False),  # it is not installed
    ],
)
def test_accounting_that_does_not_answer_costs_one_line(measured, monkeypatch, capsys, script, told):
    folder, paths, call = measured
    monkeypatch.setattr(accounting, "LIMIT_S", 0.5)
    if script is None:
        monkeypatch.setenv("PATH", str(folder))
    else:
        says(folder, script)
    assert status.main(call) == 0
    printed = capsys.readouterr().out
    assert printed.count("accounting is not available") == told
    assert "Node" not in printed
    assert accounted_jobs(paths) == []
