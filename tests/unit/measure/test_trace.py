"""The samplers: what they count, and the cost of sampling a machine without a GPU."""

import subprocess
import sys

import psutil
import pytest

from workflow_scripts.measure.trace import SAMPLES_PER_SCAN, process_sampler

HOLD = "import time; block = bytearray(80_000_000); print('up', flush=True); time.sleep(60)"


def test_memory_is_that_of_the_process_and_its_children():
    sample = process_sampler(psutil.Process().pid)
    alone = sample()["process_memory_bytes"]
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with_child = max(sample()["process_memory_bytes"] for _ in range(SAMPLES_PER_SCAN))
        child.kill()
    assert with_child - alone > 70e6
    assert sample()["memory_total_bytes"] == psutil.virtual_memory().total


def test_a_child_that_is_gone_is_no_fault():
    # The sampler leaves itself out, and here it is the watched process too: what remains are children of other tests.
    others = process_sampler(psutil.Process().pid)()["process_memory_bytes"]
    child = subprocess.Popen([sys.executable, "-c", HOLD])
    sample = process_sampler(psutil.Process().pid)
    sample()
    child.kill()
    child.wait()
    assert sample()["process_memory_bytes"] == pytest.approx(others, abs=5e6)
