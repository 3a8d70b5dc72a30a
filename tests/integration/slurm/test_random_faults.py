"""Ten random faults on a real Slurm; `make bench-faults` draws hundreds."""

import pytest

from tests.faults.campaign import Campaign, run
from tests.faults.kinds import KINDS, drawn
from tests.integration.slurm.conftest import ON_SLURM

pytestmark = [*ON_SLURM, pytest.mark.needs_tool("gcc"), pytest.mark.timeout(3600)]


def test_ten_faults_lose_no_cell_and_leave_nothing():
    campaign = Campaign()
    try:
        run(campaign, drawn(1, 10, KINDS), per_episode=10)
    finally:
        campaign.stop()
    assert campaign.findings == []
    assert campaign.hit.total() == 10
    campaign.remove()
