"""The samplers: what they count, and the cost of sampling a machine without a GPU."""

import subprocess
import sys
import time

import psutil
import pytest

from workflow_scripts.common.files import read_jsonl
from workflow_scripts.measure.trace import SAMPLES_PER_SCAN, process_sampler, sampled

HOLD = "import time; block = bytearray(80_000_000); print('up', flush=True); time.sleep(60)"


def test_memory_is_that_of_the_process_and_its_children():
    sample = process_sampler(psutil.Process().pid)
    alone = sample()["process_memory_bytes"]
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = max(sample()["process_memory_bytes"] for _ in range(SAMPLES_PER_SCAN))
        child.kill()
    assert found - alone > 70e6
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


def test_samples_come_ten_a_second_and_end_with_the_body(tmp_path):
    out = tmp_path / "device_trace.jsonl"
    with sampled("cpu", out):
        began_s = time.monotonic()
        time.sleep(1.0)
        ended_s = time.monotonic()
    header, *samples = read_jsonl(out)
    assert header == {"schema": "device_trace/1", "interval_s": 0.1}
    times = [s["time_monotonic_s"] for s in samples]
    assert times[0] <= began_s
    assert times[-1] >= ended_s
    assert 2 <= len(times) <= (times[-1] - times[0]) / 0.1 + 2
    assert not [p for p in psutil.Process().children() if "measure.trace" in " ".join(p.cmdline())]
