"""The unattended run on a lent host, with a measuring command that writes outcomes at once, and its evidence."""

import os
import subprocess
import sys
import tarfile
from types import SimpleNamespace

from benchmarks.gpu_host import run
from benchmarks.gpu_host.evidence import pack
from tests.unit.made_studies import end_cell, fixed, write_study
from workflow_scripts.common.files import write_text
from workflow_scripts.study.grid import expand
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.rounds import CellStart
from workflow_scripts.study.study_file import load_study

STUDY = run.CHECKOUT / "config/studies/two_gpus.yaml"
CALIBRATIONS = (
    "vllm/opt-125m/default",
    "vllm/llama-3.1-8b-instruct/default",
    "hf-static/llama-3.1-8b-instruct/cachedynamic",
)


def test_evidence_is_packed_in_small_archives_with_no_cell_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(run.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="NVIDIA H200"))
    study, paths = load_study(STUDY), StudyPaths(tmp_path / "results", "two_gpus")
    cells = [cell for cell in expand(study) if cell.gpu == "h200"]
    for cell, start in [*((cell, 1) for cell in cells), (cells[1], 2)]:
        end_cell(study, paths, cell, start)
        paths.log(cell, start).write_text("measured\n", encoding="utf-8")
    paths.outcome(cells[0]).unlink()
    for name in CALIBRATIONS:
        write_text(paths.calibration(f"h200/{name}"), "{}")
    names: list[list[str]] = []
    for archive in pack(paths, "h200", tmp_path / "out", full_bytes=1):
        with tarfile.open(archive) as tar:
            names.append(tar.getnames())
    assert names[0] == ["two_gpus/host-h200.json"]
    assert "NVIDIA H200" in (paths.root / "host-h200.json").read_text(encoding="utf-8")
    assert f"two_gpus/cells/{cells[0].id}/measure.log" in names[-1]  # it has no outcome, so it comes last
    packed = [name for of_archive in names for name in of_archive]
    assert len(packed) == len(set(packed))
    assert sum(name.endswith("/outcome.json") for name in packed) == len(cells) - 1 + 1
    assert sum("/calibrations/" in name for name in packed) == len(CALIBRATIONS)
    assert len(pack(paths, "h200", tmp_path / "one")) == 1


def test_the_host_needs_few_packages():
    modules = ["benchmarks.gpu_host.run", "benchmarks.gpu_host.compare"]
    names = ("device_speed", "calibration_run", "run", "trace")
    modules += [f"workflow_scripts.measure.{name}" for name in names]
    loaded = f"import sys, {', '.join(modules)}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    names = subprocess.run([sys.executable, "-c", loaded], check=True, capture_output=True, text=True).stdout.split()
    carried = {"pydantic", "yaml", "filelock", "psutil"}  # benchmarks/gpu_host/README.md names them
    with_them = {"cython_runtime", "pydantic_core", "typing_extensions", "typing_inspection", "annotated_types"}
    ours = {"benchmarks", "workflow_scripts"}
    # A host may load a sitecustomize of its own at every start of Python.
    foreign = {name for name in names if not name.startswith("_")} - set(sys.stdlib_module_names) - {"sitecustomize"}
    assert carried <= foreign
    assert foreign - ours - carried - with_them - {"numpy"} == set()  # which the engines bring


# In place of Python: measures a cell at once, as the runner's own commands do, but for one that hangs in its first try.
MEASURES = f"""#!{sys.executable}
import sys, time
from pathlib import Path

if "--cell" not in sys.argv:
    sys.exit()
option = lambda name: sys.argv[sys.argv.index(name) + 1]
study = Path(option("--results")) / "rehearsal"
if option("--cell").endswith("seqs1") and not (study / "tried").exists():
    (study / "tried").touch()
    log = study / "cells" / option("--cell") / "raw.partial/engine.log"
    log.parent.mkdir()
    log.write_text("compiling\\n")
    time.sleep(600)

from tests.unit.made_studies import end_cell
from workflow_scripts.study.grid import find_cell
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study_file import load_study

asked = load_study(Path(option("--study")))
end_cell(asked, StudyPaths(Path(option("--results")), "rehearsal"), find_cell(asked, option("--cell")))
"""
REHEARSAL = {"gpu": "cpu-all", "model": "tiny-llama-57m", "knobs": {"max_num_seqs": [4, 1, 2]}}


def test_a_call_goes_on_from_the_evidence_of_the_one_before(tmp_path, monkeypatch, capsys):
    """A cell that hangs is killed; on another host, with nothing but what came back, it alone is measured."""
    python = tmp_path / "python"
    python.write_text(MEASURES, encoding="utf-8")
    python.chmod(0o755)
    study = write_study(tmp_path, REHEARSAL, name="rehearsal", workloads={"short": fixed(4, 8, 4)})
    monkeypatch.setattr(run.sys, "executable", str(python))
    for name in (*run.ENVIRONMENT, "PYTHONPATH"):  # what the runner sets for its commands is taken back
        monkeypatch.setenv(name, os.environ.get(name, ""))
    measure_one = run._measure

    def in_time(visit: run.Visit, one: CellStart, left_s: float) -> int | None:
        hangs = one.cell.endswith("seqs1") and not (visit.paths.root / "tried").exists()
        return measure_one(visit, one, 4.0 if hangs else 300.0)

    monkeypatch.setattr(run, "_measure", in_time)

    def call(results: str, budget_s: float) -> tuple[int, list[str]]:
        options = {"--study": study, "--results": tmp_path / results, "--evidence": tmp_path / "out"}
        words = [str(word) for pair in options.items() for word in pair]
        status = run.main([*words, "--budget-s", str(budget_s), "--cell-s", "1"])
        return status, [line for line in capsys.readouterr().out.splitlines() if "cpu-all/vllm" in line or "|" in line]

    status, told = call("one", 500)
    assert status == 1
    assert [line.split()[-1].rsplit("/", 1)[-1] for line in told] == ["seqs4", "seqs1", "compiling", "seqs2"]
    assert "no outcome" in told[1]
    with tarfile.open(tmp_path / "out" / "evidence-00.tar.gz") as archive:
        archive.extractall(tmp_path / "two", filter="data")
    (tmp_path / "two/rehearsal/tried").touch()
    status, told = call("two", 500)
    assert (status, [line.rsplit("/", 1)[-1] for line in told]) == (0, ["seqs1"])
    assert "[1/1]" in told[0]
