"""Which cells find their GPUs on this machine; NVML is a stand-in, also for a whole workflow in its dry run."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.unit.made_studies import MadeStudy, fixed
from workflow_scripts.common.files import write_text
from workflow_scripts.engines.registry import load_engines
from workflow_scripts.study.gpus_here import cells_without_gpu, unmeasurable
from workflow_scripts.study.grid import Cell

CHECKOUT = Path(__file__).parents[3]
H200, L40S = "NVIDIA H200", "NVIDIA L40S"


def cell(gpu: str, engine: str = "vllm", **knobs: object) -> Cell:
    return Cell(gpu, engine, "opt-125m", "w", load_engines()[engine].knobs.model_validate(knobs), ("s",))


NO_DRIVER = "class NVMLError(Exception): pass\ndef nvmlInit(): raise NVMLError('no driver')\n"


class Mixed(MadeStudy):
    """A study of a CPU and a GPU, and what a call on it would do."""

    def __init__(self, folder: Path, gpu: Sequence[str] = ("cpu-1core", "h200"), **knobs: object) -> None:
        sweep = {"gpu": [*gpu], "model": "tiny-llama-57m", "knobs": {"max_num_seqs": [1, 2], **knobs}}
        endpoints = {"there": {"base_url": "http://there:8000", "served_model": "m"}}
        super().__init__(folder, sweep, name="mixed", workloads={"w": fixed()}, endpoints=endpoints)

    def on(self, gpu: str) -> Cell:
        return next(cell for cell in self.cells.values() if cell.gpu == gpu)

    def dry_run(self, *targets: str, nvml: str = NO_DRIVER, status: int = 0, partial: bool = False) -> str:
        """What a call would do on a machine without NVIDIA's driver, or with another `nvml`, and what it says."""
        results = self.paths.results
        write_text(results / "pynvml.py", nvml)
        command = [*(sys.executable, "-m", "snakemake", *targets, "--nolock", "--dry-run", "--printshellcmds")]
        command += ["--config", f"study={self.file}", f"results={results}", *["partial=1"] * partial]
        environment = os.environ | {"XDG_CACHE_HOME": str(results / "cache"), "PYTHONPATH": str(results)}
        done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr


def test_a_cell_needs_as_many_gpus_of_its_type_as_it_has_ranks(tmp_path):
    study = Mixed(tmp_path).study
    alone, pair, of_cpu = cell("l40s"), cell("l40s", tensor_parallel_size=2), cell("cpu-all")
    served = cell("h200", "openai", endpoint="there", users=1)
    cells = [alone, pair, of_cpu, served, cell("h200")]
    assert [*cells_without_gpu(study, cells, [L40S])] == [pair, cell("h200")]
    assert [*cells_without_gpu(study, cells, [L40S, L40S])] == [cell("h200")]
    # A cell takes the first GPUs that it sees.
    assert [*cells_without_gpu(study, cells, [H200, L40S])] == [alone, pair]


def measured_in(planned: str) -> list[set[str]]:
    """The cells of each round that a dry run would measure, as GPU and knobs."""
    keys = re.findall(r"rule measure:(?:\n.+)*?\n +wildcards: gpus=\S+, round=\d+, batch=(.+)", planned)
    told = re.findall(
        r"^Round (\d+), batch (\S+) of \S+:\n((?: {4}\S+, start \d+(?: \(.*\))?\n)+)", planned, re.MULTILINE
    )
    assert sorted(keys) == sorted(key for _, key, _ in told)
    cells = {int(number): re.findall(r"(\S+), start", lines) for number, _, lines in told}
    return [{f"{one.split('/')[0]} {one.split('/')[4]}" for one in cells[number]} for number in sorted(cells)]


def test_cells_without_their_gpu_are_named_and_left_missing_and_the_others_measured(tmp_path):
    mixed = Mixed(tmp_path)
    planned = mixed.dry_run()
    assert ": 2 for h200." in planned
    assert measured_in(planned) == [{"cpu-1core seqs1", "cpu-1core seqs2"}]
    assert "prepared/devices/cpu-1core.json" in planned
    assert "prepared/devices/h200.json" not in planned
    # The call ends with the same words, after the report.
    assert f"> {mixed.paths.root}/logs/left_out.log; exit 1" in planned
    # The plan's files are outputs of a job, so that Snakemake locks them; a plan alone measures no device.
    assert "rule predict_cells:" in planned
    for target in ("prepare", "plan"):
        planned = mixed.dry_run(target)
        assert measured_in(planned) == []
        assert ("rule predict_cells:" in planned) == (target == "plan")
        # Costs from public runs are an input: if they change, cells are predicted again.
        assert ("config/calibration/public_runs.yaml" in planned) == (target == "plan")
        assert "rule prepare_device:" not in planned


def test_a_study_with_a_gpu_that_no_machine_can_measure_is_planned_only(tmp_path):
    mixed = Mixed(tmp_path, gpu=("cpu-1core", "mi300x"))
    planned = mixed.dry_run("prepare", "all")
    assert ": 2 for mi300x. mi300x: its cells can be planned, but not measured;" in planned
    assert measured_in(planned) == [{"cpu-1core seqs1", "cpu-1core seqs2"}]
    assert f"> {mixed.paths.root}/logs/left_out.log; exit 1" in planned
    planned = mixed.dry_run(partial=True)
    assert "rule predict_cells:" in planned
    assert "rule measure:" not in planned
    # A server elsewhere may run on any device.
    assert unmeasurable(mixed.study, [cell("mi300x", "openai", endpoint="there", users=1)]) is None
