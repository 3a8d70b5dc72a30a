"""Runs that were measured elsewhere, from their files to rows of the cells table."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from tests.unit.questions.synthetic_cells import cell, table, write_measurements
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import read_jsonl
from workflow_scripts.parse.imported_runs import main, read_runs
from workflow_scripts.study.runs_file import RUNS_FOLDER, files_of
from workflow_scripts.tables.imported_cells import imported_cells, with_imported

RUN = {"gpu": "h100-sxm", "engine": "vllm", "model": "llama-3.1-8b-instruct", "workload": "chat"}
FILES = {
    "serve.log": "INFO 05-30 16:23:28 [core.py:1] GPU KV cache size: 440,000 tokens\n",
    "hf.txt": "HF throughput: 293.1 tok/s\n",
    "fast.txt": "GPU KV cache size: 440,000 tokens\n"
    "Throughput: 15.20 requests/s, 6232.10 total tokens/s, 2888.00 output tokens/s\n",
    "flat.txt": "Throughput: 55.20 requests/s, 11939.10 total tokens/s, 10488.00 output tokens/s\n",
    "refused.txt": "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.\n",
    "smi.csv": "timestamp, memory.used [MiB], power.draw [W], utilization.gpu [%]\n"
    "2026/05/30 16:23:28.000, 71000 MiB, 640.00 W, 97 %\n2026/05/30 16:23:29.000, 72000 MiB, 660.00 W, 99 %\n",
}
RUNS: list[dict[str, Any]] = [
    RUN | {"knobs": {"max_num_seqs": 64}, "tokens_per_request": [220, 190], "results": "fast.txt", "trace": "smi.csv"},
    RUN | {"knobs": {"max_num_seqs": 1}, "tokens_per_request": [220, 190], "results": "flat.txt"},
    RUN | {"knobs": {"max_num_seqs": 1}, "results": "flat.txt"},
    RUN | {"knobs": {"block_size": 16}, "results": "refused.txt"},
    {name: value for name, value in RUN.items() if name != "workload"} | {"trace": "smi.csv"},
]


def write_runs(folder: Path, *runs: dict[str, Any]) -> Path:
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    path = folder / "runs.yaml"
    path.write_text(yaml.safe_dump({"schema_version": 1, "runs": list(runs)}), encoding="utf-8")
    return path


def test_what_the_files_say_becomes_a_record_and_the_rest_stays_empty(tmp_path):
    path = write_runs(tmp_path, *RUNS)
    fast, *_, traced = read_runs(path)
    assert fast["log"]["output_tokens_per_s"] == 2888
    assert fast["log"]["kv_cache_tokens"] == 440_000
    assert fast["log"]["num_gpu_blocks"] is None
    assert fast["trace"] == {
        "memory_used_bytes_max": 72000 * 2**20,
        "power_w_mean": 650,
        "utilization_pct_mean": 98,
    }
    assert (traced["log"], traced["workload"], traced["slug"]) == (None, "unknown", "default")
    assert [file.name for file in files_of(path)][:3] == ["fast.txt", "smi.csv", "flat.txt"]


def test_rates_of_the_mapping_and_of_a_script_are_kept(tmp_path):
    served = RUN | {"results": "serve.log", "rates": {"output_tokens_per_s": 650}}
    hf = RUN | {"engine": "hf-static", "knobs": {"batch_size": 1}, "results": "hf.txt"}
    runs = read_runs(write_runs(tmp_path, served, hf, RUN | {"rates": {"total_tokens_per_s": 900}}))
    cells = imported_cells(runs, "try")
    assert cells["output_tokens_per_s"].tolist()[:2] == [650, 293.1]
    assert cells.loc[2, "total_tokens_per_s"] == 900


def test_runs_are_rows_of_the_cells_table_beside_measured_ones(tmp_path):
    rows = imported_cells(read_runs(write_runs(tmp_path, *RUNS)), "try")
    place = "imported/h100-sxm/vllm/llama-3.1-8b-instruct"
    assert rows["cell_id"].tolist() == [
        *(f"{place}/chat/{knobs}" for knobs in ("seqs64", "seqs1", "seqs1", "bs16")),
        f"{place}/unknown/default",
    ]
    assert set(rows["source"]) == {"imported"}
    assert rows["outcome"].tolist() == ["ok", "invalid", "invalid", "infeasible", "ok"]
    assert "times the ceiling" in rows["reason"][1]
    assert rows["reason"][3].startswith("ValueError: No available memory for the cache blocks")
    # The same settings twice are two starts; one that did not run has no repeat.
    assert (rows["start"].tolist()[:3], rows["repeat"].tolist()[:3]) == ([1, 1, 2], [0, 0, 0])
    assert pd.isna(rows["repeat"][3])
    assert rows["output_tokens_per_s"].tolist()[:2] == [2888, 10488]
    measured = table(cell({"max_num_seqs": 4}, (99.0, 101.0)))
    whole = with_imported(measured, read_runs(write_runs(tmp_path, *RUNS)), "try")
    assert len(whole) == len(measured) + len(RUNS)
    write_measurements(whole.reindex(columns=[*measured.columns, "knob_block_size"]), tmp_path)
    assert whole["source"].value_counts().to_dict() == {"imported": 5, "measured": 2}


def test_a_rate_is_checked_against_the_ceiling_of_one_device(tmp_path):
    flat = RUN | {"tokens_per_request": [220, 190], "results": "flat.txt"}
    several = [{f"{kind}_parallel_size": 2} for kind in ("tensor", "pipeline", "data")]
    several.append({"num_speculative_tokens": 3})
    runs = [flat | {"knobs": {"max_num_seqs": 1, **knobs}} for knobs in ({"tensor_parallel_size": 1}, *several)]
    rows = imported_cells(read_runs(write_runs(tmp_path, *runs)), "try")
    assert rows["outcome"].tolist() == ["invalid", "ok", "ok", "ok", "ok"]
    # A smaller type of the cache raises the ceiling, and a model that does not fit is above any.
    run = RUN | {"tokens_per_request": [4000, 4000], "results": "flat.txt"}
    runs = [run | {"knobs": {"max_num_seqs": 256, **knobs}} for knobs in ({}, {"kv_cache_dtype": "fp8"})]
    rows = imported_cells(read_runs(write_runs(tmp_path, *runs, run | {"model": "llama-3-70b"})), "try")
    wide, narrow = (float(re.search(r"is ([\d.]+) times", reason)[1]) for reason in rows["reason"][:2])
    assert wide == pytest.approx(2 * narrow, rel=0.01)
    assert rows["outcome"][2] == "invalid"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engine": "tgi"}, "runs.0: engine 'tgi' is unknown; allowed: "),
        ({"knobs": {"seqs": 4}}, "runs.0.knobs: seqs: unknown key; allowed: engine_args, "),
        ({"knobs": {"block_size": "16"}}, "runs.0.knobs: block_size: Input should be a valid integer, not '16'"),
        ({"knobs": {"max_num_seqs": [1, 2]}}, "runs.0.knobs: max_num_seqs: "),
        ({"results": None, "trace": None}, "runs.0: name at least one file: results or trace"),
        ({"blocks": 4}, "runs.0.blocks: unknown key; allowed: gpu, engine, "),
        ({"tokens_per_request": [220]}, "runs.0.tokens_per_request: "),
    ],
)
def test_a_fault_names_its_place(tmp_path, capsys, change, message):
    path = write_runs(tmp_path, RUNS[0] | change)
    assert main(["--runs", str(path), "--out", str(tmp_path / "out.jsonl")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()


def test_settings_of_a_run_need_not_be_all_that_the_engine_needs(tmp_path):
    knobs = {"speculative_method": "ngram", "block_size": None, "max_num_seqs": 4}
    (run,) = read_runs(write_runs(tmp_path, RUN | {"results": "hf.txt", "knobs": knobs}))
    assert run["knobs"] == {"speculative_method": "ngram", "max_num_seqs": 4}
    assert run["slug"] == "seqs4-specngram"


def test_a_log_or_a_trace_that_says_nothing_is_named(tmp_path, capsys):
    path = write_runs(tmp_path, RUN | {"results": "other.txt"}, *RUNS, RUN | {"trace": "requests.csv"})
    (tmp_path / "other.txt").write_text("A poem.\n", encoding="utf-8")
    (tmp_path / "requests.csv").write_text("TIMESTAMP,ContextTokens\n2023-11-16 18:00:03.5,40\n", encoding="utf-8")
    assert main(["--runs", str(path), "--out", str(tmp_path / "out.jsonl")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed[:2]] == ["other.txt", "requests.csv"]
    assert not any(line.startswith("smi.csv") for line in printed)
    assert next(read_jsonl(tmp_path / "out.jsonl"))["log"]["output_tokens_per_s"] is None


@pytest.mark.parametrize("name", ["/etc/passwd", "../a.log", "link", "a\0b"])
@pytest.mark.parametrize("key", ["results", "trace"])
def test_a_mapping_reads_files_of_its_folder_alone_unless_the_user_allows_another(tmp_path, monkeypatch, name, key):
    (tmp_path / "a.log").write_text("Throughput: 1.5 requests/s, 300 total tokens/s, 100 output tokens/s\n")
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "link").symlink_to("../a.log")
    path = write_runs(folder, RUN | {"rates": {"requests_per_s": 2}, key: name})
    with pytest.raises(InputError, match="is not in"):
        read_runs(path)
    monkeypatch.setenv(RUNS_FOLDER, str(tmp_path))
    if name in ("../a.log", "link"):
        assert read_runs(path)[0]["files"][-1] == name
    else:
        with pytest.raises(InputError, match="is not in"):
            read_runs(path)
