import json
import subprocess
import sys
from pathlib import Path

import psutil
import torch

from workflow_scripts.catalog.gpus_and_models import get_gpu
from workflow_scripts.device.device_record import DeviceRates
from workflow_scripts.measure import device_speed as d
from workflow_scripts.measure.trace import SAMPLES_PER_SCAN, process_sampler
from workflow_scripts.study.study_file import load_study


def test_how_often_and_in_which_order_operations_are_called():
    # A slow operation is called once a run, and its first two calls do not count.
    clock = Clock()
    slow = clock.operation("slow", 10, [50.0, 1.0, 2.0, 4.0, 5.0])
    assert clock.time({"slow": slow}, runs=3, run_min_s=0.5)["slow"] == [2.0, 4.0, 5.0]
    assert clock.log.count("slow") == 2 + 3
    clock = Clock()
    taken_s = clock.time({"fast": clock.operation("fast", 1, 0.0625)}, runs=2, run_min_s=0.2)["fast"]
    assert taken_s == [0.0625, 0.0625]
    assert clock.log.count("fast") == 2 + 2 * 4
    # Operations take turns, and every run is synchronized at both ends.
    clock = Clock()
    timed = {"a": clock.operation("a", 1, 1.0), "b": clock.operation("b", 1, 0.5)}
    clock.time(timed, runs=2, run_min_s=1.0)
    first, run = ["a", "sync", "a", "sync", "b", "sync", "b", "sync"], ["sync", "a", "sync", "sync", "b", "b", "sync"]
    assert clock.log == first + 2 * run


class Clock:
    """A clock that only calls of operations move."""

    def __init__(self):
        self.now_s = 100.0
        self.log = []

    def operation(self, name, amount, call_s):
        times = iter(call_s) if isinstance(call_s, list) else None

        def run():
            self.log.append(name)
            self.now_s += next(times) if times else call_s

        return d.Operation(amount, run)

    def time(self, operations, **options):
        return d.time_runs(operations, lambda: self.log.append("sync"), clock=lambda: self.now_s, **options)


def test_what_is_timed_moves_and_computes_what_it_says():
    timed = d.operations("cpu", 8 * d.ROW_BYTES, 16, d.ARITHMETIC)
    moved = {"copy": 2 * 8 * d.ROW_BYTES, "read": 8 * d.ROW_BYTES}
    assert {name: o.amount for name, o in timed.items()} == moved | dict.fromkeys(d.ARITHMETIC, 2 * 16**3)
    copied = timed["copy"].run()
    assert copied.nbytes == 8 * d.ROW_BYTES
    assert bool((copied == 1).all())
    assert timed["read"].run().tolist() == [4096.0] * 8
    for name, dtype in zip(d.ARITHMETIC, ("float32", "float32", "bfloat16", "float16"), strict=True):
        timed[name].run()
        assert {str(matrix.dtype) for matrix in timed[name].run.args[:2]} == {f"torch.{dtype}"}
        assert torch.get_float32_matmul_precision() == ("high" if name == "tf32" else "highest")


def test_the_sets_that_are_read_are_those_of_the_models_and_each_twice_the_last():
    sizes = d.sets_to_read(2**28, [106_980_864, 213_961_728, 2**30, 1000])
    assert [size for size in sizes if size & (size - 1)] == [106_971_136, 213_958_656]  # whole rows
    assert [size // 2**20 for size in sizes if not size & (size - 1)] == [4, 8, 16, 32, 64, 128]
    timed = d.operations("cpu", 8 * d.ROW_BYTES, 16, (), [2 * d.ROW_BYTES, 4 * d.ROW_BYTES])
    assert [(name, o.amount) for name, o in timed.items()][2:] == [("read-32768", 32768), ("read-65536", 65536)]
    assert [len(timed[name].run()) for name in ("read-32768", "read-65536")] == [2, 4]
    # The bytes of a step are those of each model in the type of the device.
    study = load_study(Path("config/studies/demo.yaml"))
    gpu = get_gpu("cpu-all")
    assert d.step_bytes(study, gpu, {"native_dtypes": ["float32"]}) == [213_961_728]
    assert d.step_bytes(study, gpu, {"native_dtypes": ["float32", "bfloat16"]}) == [106_980_864]


STUDY = ["--study", "config/studies/demo.yaml"]
# The command with three runs of each operation instead of 20, once even under load.
MEASURE = """
from functools import partial
from workflow_scripts.__main__ import console
from workflow_scripts.measure import device_speed
device_speed._ATTEMPTS, device_speed.time_runs = 1, partial(device_speed.time_runs, runs=3)
console()
"""


def test_the_command_measures_one_core(tmp_path):
    out = tmp_path / "devices" / "cpu-1core.json"
    command = [sys.executable, "-c", MEASURE, "measure-device", "--gpu", "cpu-1core", *STUDY]
    ended = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    rates = DeviceRates.read(out)
    assert (rates.gpu, rates.threads, len(rates.device["cores"])) == ("cpu-1core", 1, 1)
    native = {d.ON_CPU[dtype] for dtype in rates.device["native_dtypes"]}
    assert set(rates.matmul_flop_per_s) == native
    (of_step,) = d.step_bytes(load_study(Path(STUDY[1])), get_gpu("cpu-1core"), rates.device)
    assert {2**22, 2**27, of_step // d.ROW_BYTES * d.ROW_BYTES} <= rates.read_bytes_per_s_by_size.keys()
    assert 1e8 < rates.rereading_bytes_per_s(of_step) < 1e13
    # Slower than a 1990s machine or faster than any core: a unit would be wrong.
    assert 1e8 < rates.read_bytes_per_s < 1e12
    assert 1e8 < rates.copy_bytes_per_s < 1e12
    assert 1e8 < rates.matmul_flop_per_s["fp32"] < 1e13
    assert rates.memory_bytes_per_s == max(rates.read_bytes_per_s, rates.copy_bytes_per_s)
    assert json.loads(out.read_text())["schema_version"] == 1


def test_a_device_under_load_is_measured_again_and_the_quietest_measurement_counts(monkeypatch):
    loads = [48.0, 20.0, 30.0, 25.0, 0.0]

    def measured(*_):
        return DeviceRates.model_construct(threads=1, host_load={"cpu_steal_pct": loads.pop(0)})

    monkeypatch.setattr(d, "measure_device", measured)
    assert d.measure_undisturbed(get_gpu("cpu-1core")).load_pct == 20.0
    assert loads == [0.0]
    assert d.measure_undisturbed(get_gpu("cpu-1core")).load_pct == 0.0


HOLD = "import time; block = bytearray(300_000_000); print('up', flush=True); time.sleep(60)"


def test_memory_is_that_of_the_process_and_its_children():
    sample = process_sampler(psutil.Process().pid)
    alone = sample()["process_memory_bytes"]
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with_child = max(sample()["process_memory_bytes"] for _ in range(SAMPLES_PER_SCAN))
        child.kill()
    assert with_child - alone > 200e6  # this process may give some back meanwhile
    assert sample()["memory_total_bytes"] == psutil.virtual_memory().total
