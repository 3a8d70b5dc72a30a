"""The comparison of public runs with the plan, on a folder with two runs."""

import pandas as pd
import pytest

from benchmarks.external import compared, in_words, version_of
from tests.unit.predict.planned import sweep, write_study


def test_runs_are_predicted_as_of_their_version_and_flagged_ones_left_out(tmp_path):
    knobs = {"block_size": 16, "max_num_seqs": 8, "max_model_len": 1024}
    sweeps = [sweep(name=f"run-{seqs}", gpu="h100-sxm", knobs=knobs | {"max_num_seqs": seqs}) for seqs in (4, 8)]
    (tmp_path / "studies").mkdir()
    write_study(tmp_path / "studies", sweeps=sweeps)
    runs = pd.DataFrame({"run_id": ["four", "eight"], "sweep": ["run-4", "run-8"], "flag": [None, "saturated"]})
    runs = runs.assign(source="S", gpu="h100-sxm", tp=1, vllm="~0.10 (2025)", notes=None)
    runs = runs.assign(tpot_ms=9.6, ttft_ms=20.0, output_tokens_per_s=None, total_tokens_per_s=1e9)
    runs.to_csv(tmp_path / "runs.csv", index=False)
    (run,) = compared(tmp_path).reset_index().to_dict("records")
    assert (run["run_id"], run["generation"], run["group"]) == ("four", "synchronous", "vLLM 0.8 to 0.13")
    assert run["error_tpot_ms"] == pytest.approx(0, abs=10)
    assert (run["held_tpot_ms"], run["held_rate"]) == (True, False)
    assert run["error_rate"] == pytest.approx(-100, abs=1)


def test_errors_in_words():
    assert in_words(pd.Series([1.0, -4.0, 2.0])) == "2.0 / 3.6 / -4"
    assert [version_of(text) for text in ("0.5.3-0.6.x (V0)", "~0.10 (2025-08)", "")] == ["0.5.3", "0.10", ""]
