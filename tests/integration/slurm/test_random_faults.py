"""Ten faults in a random order on a real Slurm; `make bench-faults` draws hundreds of all kinds."""

import pytest

from tests.faults.campaign import Campaign, run
from tests.faults.kinds import drawn
from tests.integration.slurm.conftest import ON_SLURM

pytestmark = [*ON_SLURM, pytest.mark.needs_tool("gcc"), pytest.mark.timeout(3600)]

# What ends an engine, its job, its node, Slurm's controller and Snakemake itself.
KINDS = {
    *("SIGKILL to engine", "SIGKILL to job", "scancel", "requeue", "time limit", "node down", "slurmctld restarted"),
    *("SIGKILL to Snakemake", "Ctrl-C", "a second Snakemake without a lock"),
}


def test_ten_faults_lose_no_cell_and_leave_nothing():
    campaign = Campaign()
    try:
        run(campaign, drawn(1, len(KINDS), KINDS), per_episode=len(KINDS))
    finally:
        campaign.stop()
    assert campaign.findings == []
    assert campaign.hit.keys() == KINDS
    campaign.remove()
