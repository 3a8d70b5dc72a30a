"""A cell on a simulated GPU, from calibration to page: a real engine on a CPU, NVML's bindings and a trace."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from tests.integration.conftest import CHECKOUT, snakemake_command
from tests.pretended_gpu import CATALOGUE, IDLE, POWER_CAP, Pretended
from tests.unit.made_studies import fixed, study_content
from workflow_scripts.common.files import read_jsonl
from workflow_scripts.parse import cell_tables as parse_cells
from workflow_scripts.present import page
from workflow_scripts.questions.make_tables import main as make_tables
from workflow_scripts.study.calibrations import CalibrationRecord
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.tables.measurements import read_measurements

CELL = "pretended-gpu/hf-static/tiny-llama-57m/steady/static-batch4-cachestatic"
STUDY = study_content(
    {
        "name": "one",
        "gpu": "pretended-gpu",
        "engine": "hf-static",
        "model": "tiny-llama-57m",
        "knobs": {"batch_size": 4, "cache_implementation": ["dynamic", "static"]},
    },
    name="pretended",
    question="does what NVML tells reach the page?",
    repeats=1,
    workloads={"steady": fixed(8, 16, 96)},
)
WATTS, MEMORY_USED_BYTES = 250, 30_000_000_000


@pytest.mark.needs_tool("gcc")
def test_what_nvml_tells_of_a_cell_reaches_the_page(tmp_path, environment, monkeypatch):
    shown, study, root = tmp_path / "gpus.txt", tmp_path / "pretended.yaml", tmp_path / "results" / "pretended"
    study.write_text(yaml.safe_dump(STUDY, sort_keys=False), encoding="utf-8")
    Pretended(shown).show(
        power_w=WATTS,
        energy_counter_w=WATTS,
        memory_used_bytes=MEMORY_USED_BYTES,
        utilization_pct=87,
        throttle_bits=IDLE | POWER_CAP,
    )
    outcome_file = root / "cells" / CELL / "outcome.json"
    kvsweep, of_study = [sys.executable, "-m", "workflow_scripts"], ["--study", study, "--results", root.parent]
    for command in (
        snakemake_command(study, root.parent, "prepare"),
        [*kvsweep, "calibrate", *of_study, "--gpu", "pretended-gpu", "--seconds", "1"],
        [*kvsweep, "measure-cell", *of_study, "--cell", CELL],
    ):
        done = subprocess.run(
            command,
            cwd=CHECKOUT,
            env={**environment, "PRETENDED_GPUS": str(shown), "KVSWEEP_GPUS": str(CATALOGUE)},
            capture_output=True,
            text=True,
            timeout=900,  # two threads on cores that others use may take ten times as long
        )
        assert done.returncode == 0, done.stderr
    records = {path.stem: CalibrationRecord.read(path) for path in root.glob("prepared/calibrations/*/*/*/*.json")}
    starts = {name: [(start.layers, len(start.passes) > 0) for start in of.starts] for name, of in records.items()}
    assert starts == {"cachedynamic": [(8, True)], "cachestatic": [(8, True)]}

    outcome = Outcome.read(outcome_file)
    assert outcome.outcome == "ok", outcome.reason
    assert (outcome.device["name"], outcome.device["simulated"]) == ("Pretended GPU", True)
    _, *samples = read_jsonl(outcome_file.parent / "raw" / "device_trace.jsonl")
    assert {s["power_w"] for s in samples} == {WATTS}

    monkeypatch.setenv("KVSWEEP_GPUS", str(CATALOGUE))
    row = table_of(study, root).groupby("cell_id").first().loc[CELL]
    assert row["source"] == "simulated"
    assert (row["device_name"], row["device_uuid"]) == ("Pretended GPU", "GPU-pretended-0")
    assert (row["memory_used_bytes_max"], row["utilization_pct_mean"]) == (MEMORY_USED_BYTES, 87)
    assert row["power_w_mean"] == pytest.approx(WATTS, rel=0.01)  # the energy counter over the wall time
    assert row["throttle_reasons"] == "GpuIdle,SwPowerCap"
    assert row["energy_j"] == pytest.approx(WATTS * row["wall_s"], rel=0.3)
    assert row["energy_j_per_output_token"] == pytest.approx(row["energy_j"] / (8 * 96))

    html = page_of(study, root)
    assert "pretended-gpu (simulated)" in html.partition('id="summary"')[2].partition("<section")[0]
    assert "slowed GPU" not in html  # a power cap is no fault


def table_of(study: Path, root: Path) -> pd.DataFrame:
    of_gpu = ["--gpu", "pretended-gpu", "--out", str(root / "parsed/pretended-gpu"), "--processes", "1"]
    assert parse_cells.main(["--cells", str(root / "cells"), *of_gpu]) == 0
    assert make_tables(["--study", str(study), "--results", str(root.parent), "--only", "cells"]) == 0
    return read_measurements(root / "tables")


def page_of(study: Path, root: Path) -> str:
    folders = ["--tables", str(root / "tables"), "--figures", str(root / "figures"), "--cells", str(root / "cells")]
    assert page.main(["--study", str(study), *folders, "--out", str(root / "report.html")]) == 0
    return (root / "report.html").read_text(encoding="utf-8")
