from pathlib import Path

import pandas as pd
import pytest

from tests.unit.predict.planned import sweep, write_study
from workflow_scripts.catalog.gpus_and_models import CONFIG
from workflow_scripts.predict import forecast
from workflow_scripts.predict.step_work import main

SWEEPS = CONFIG / "published" / "concurrency_sweeps.csv"


@pytest.fixture(autouse=True)
def _host_without_native_halves(monkeypatch):
    monkeypatch.setattr(forecast, "cpu_here", lambda gpu: {})


def test_the_work_of_a_studys_cells_by_hand(tmp_path):
    workload = {"even": {"kind": "fixed", "num_prompts": 2, "prompt_tokens": 3, "output_tokens": 2}}
    cpu = sweep(gpu="cpu-all", model="tiny-llama-57m", knobs={"max_num_seqs": 1, "cpu_kv_cache_gib": 1})
    refused = sweep(name="two", gpu="cpu-all", model="tiny-llama-57m", knobs={"block_size": 8, "cpu_kv_cache_gib": 1})
    study = write_study(tmp_path, sweeps=[cpu, refused], workloads=workload, engine_defaults={})
    out = tmp_path / "work.parquet"
    assert main(["--study", str(study), "--out", str(out)]) == 0
    rows = pd.read_parquet(out)
    # A prompt, a step for the second token, and both again; only the second looks back, at 3 tokens of 16,384 bytes.
    assert rows["steps"].tolist() == [1, 1, 1, 1]
    assert (rows["read_bytes"] - 213_961_728).tolist() == [0, 3 * 16_384, 0, 3 * 16_384]
    assert set(rows["cell_id"]) == {"cpu-all/vllm/tiny-llama-57m/even/seqs1-cpukv1"}
    assert rows[["gpu", "engine", "model", "dtype"]].drop_duplicates().to_numpy().tolist() == [
        ["cpu-all", "vllm", "tiny-llama-57m", "float32"]
    ]
    assert rows["output_tokens"].iloc[0] == 4


@pytest.mark.parametrize(("gpu", "element_bytes", "copied"), [("cpu-all", 4, 213_909_504), ("h200", 2, 0)])
def test_the_work_of_static_batches_by_hand(tmp_path, gpu, element_bytes, copied):
    workload = {"even": {"kind": "fixed", "num_prompts": 2, "prompt_tokens": 3, "output_tokens": 2}}
    batches = {"engine": "hf-static", "gpu": gpu, "model": "tiny-llama-57m"}
    caches = {"batch_size": 2, "cache_implementation": ["dynamic", "static"]}
    study = write_study(tmp_path, sweeps=[sweep(**batches, knobs=caches)], workloads=workload, engine_defaults={})
    out = tmp_path / "work.parquet"
    assert main(["--study", str(study), "--out", str(out)]) == 0
    work = pd.read_parquet(out).assign(kv=lambda rows: rows["read_bytes"] - 53_490_432 * element_bytes - copied)
    kv_slots = {
        cell.rsplit("-cache", 1)[1]: (rows["kv"] / (4096 * element_bytes)).tolist()
        for cell, rows in work.groupby("cell_id")
    }
    # Two rows without padding. A cache that grows is read, written and looked over: 3 times 3, then 4 slots. One of 5
    # slots is made, gets 3 tokens (read, written) and they are looked over; then a token, and 5 slots under a mask.
    assert kv_slots == {"dynamic": [2 * 9, 2 * 12], "static": [2 * (5 + 6 + 3), 2 * (2 + 7 * 5)]}


def test_the_work_of_published_sweeps(tmp_path):
    out = tmp_path / "work.parquet"
    assert main(["--published", str(SWEEPS), "--out", str(out)]) == 0
    rows = pd.read_parquet(out)
    points = rows.groupby("cell_id", sort=False).agg(gpu=("gpu", "first"), tokens=("output_tokens", "first"))
    assert points["gpu"].value_counts().to_dict() == {"l4": 6, "rtx4090": 5}
    assert points["tokens"].iloc[0] == 20 * 128  # of the first, the number of prompts is not said: 20 a client
    assert points["tokens"].iloc[-1] == 300 * 100
    # One client alone: 20 prompts, and 127 further steps for each.
    assert rows.loc[rows["cell_id"] == "published/concurrency_sweeps/1", "steps"].sum() == 20 * 128


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("gke-l4,L4", "gke-l4,A100 PCIe", "row 1: A100 PCIe may be a100-pcie-40gb or a100-pcie-80gb"),
        (
            "Qwen/Qwen2.5-0.5B-Instruct,0.23.0,256,128,,1,",
            "nobody/nothing,0.23.0,256,128,,1,",
            "row 1: no column or model",
        ),
        ("256,128,,1,", "256,many,,1,", "row 1: invalid literal"),
    ],
)
def test_a_sweep_that_cannot_be_read_is_one_message(tmp_path, capsys, old, new, said):
    path = tmp_path / "sweeps.csv"
    path.write_text(Path(SWEEPS).read_text().replace(old, new, 1))
    assert main(["--published", str(path), "--out", str(tmp_path / "x")]) == 2
    assert said in capsys.readouterr().err


def test_a_study_without_a_schedule_is_one_message(tmp_path, capsys):
    study = write_study(tmp_path, sweeps=[sweep(knobs={"block_size": 8})])
    assert main(["--study", str(study), "--out", str(tmp_path / "x")]) == 2
    assert "no cell has a schedule" in capsys.readouterr().err
