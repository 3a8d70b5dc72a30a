"""The cluster and the checkout that the tests of a module share."""

import os

import pytest

from tests.integration.served_study import SECRETS
from tests.integration.slurm_lab import SlurmLab
from tests.integration.slurm_study import LabCheckout
from tests.other_user import shared_folder
from tests.processes import wait_for
from tests.unit.made_rates import made_rates

ON_SLURM = [
    pytest.mark.needs_tool("slurmctld", "slurmd", "munged", "sbatch", "slurmdbd", "mariadbd"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root, for its devices and for a full disk"),
]


@pytest.fixture(scope="module")
def lab():
    with shared_folder() as shared:
        (root := shared / "lab").mkdir()
        lab = SlurmLab(root)
        try:
            lab.start()
            yield lab
        finally:
            lab.stop()


@pytest.fixture(scope="module")
def checkout(request, tmp_path_factory, lab):
    place = tmp_path_factory.mktemp("checkout")
    lab.environment |= {"TMPDIR": str(lab.root.parent), "XDG_CACHE_HOME": str(lab.root / "cache"), **SECRETS}
    for gpu in request.module.RATES_KNOWN:  # above any real ones
        made_rates(1e13, 1e16, gpu=f"lab-{gpu}").write(place / f"my results/lab/prepared/devices/lab-{gpu}.json")
    return LabCheckout(place, lab, results="my results")


@pytest.fixture
def nothing_left_running(request):
    """A test that fails half-way leaves nothing to the next one."""
    yield
    lab, checkout = request.getfixturevalue("lab"), request.getfixturevalue("checkout")
    if lab.client("squeue", "--noheader"):
        lab.client("scancel", "--user=root")
        wait_for(lambda: not lab.client("squeue", "--noheader"), 30, "an empty queue")
    if any((checkout.root / ".snakemake/locks").glob("*")):
        checkout.snakemake("--unlock")
