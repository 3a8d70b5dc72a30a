"""The comparison of public runs with the plan, on a folder with two runs."""

from dataclasses import replace

import pandas as pd
import pytest

from benchmarks.external import compared, in_words, version_of
from benchmarks.external_fit import Free, fitted, runs_of, with_values
from tests.unit.predict.planned import sweep, write_study
from workflow_scripts.predict.public_costs import public_costs

RATES = {"output_tokens_per_s": None, "total_tokens_per_s": None}


def folder_of_runs(folder, **columns):
    knobs = {"block_size": 16, "max_num_seqs": 8, "max_model_len": 1024}
    sweeps = [sweep(name=f"run-{seqs}", gpu="h100-sxm", knobs=knobs | {"max_num_seqs": seqs}) for seqs in (4, 8)]
    (folder / "studies").mkdir()
    write_study(folder / "studies", sweeps=sweeps)
    runs = pd.DataFrame({"run_id": ["four", "eight"], "sweep": ["run-4", "run-8"], **columns})
    runs = runs.assign(gpu="h100-sxm", tp=1, vllm="~0.10 (2025)", notes=None)
    runs.to_csv(folder / "runs.csv", index=False)
    return folder


def test_a_cost_is_found_from_the_runs_of_all_sources_but_one(tmp_path):
    columns = {"flag": None, "source": ["S", "T"], "tpot_ms": 9.0, "ttft_ms": None, **RATES}
    runs = list(runs_of(folder_of_runs(tmp_path, **columns)))
    path, true = "hosts.synchronous.steps", with_values(public_costs(), {"hosts.synchronous.steps": 5e-3})
    measured = [replace(run, row=run.row._replace(tpot_ms=9.0 * run.ratios(true)["tpot_ms"])) for run in runs]
    assert measured[0].ratios(true)["tpot_ms"] == pytest.approx(1)
    found = fitted(measured[:1], [Free(path, 2.4e-3, 100)], public_costs())
    assert found[path] == pytest.approx(5e-3, rel=0.02)
    assert fitted(measured[:1], [Free(path, 2.4e-3, 1.001)], public_costs())[path] == pytest.approx(2.4e-3, rel=0.02)
    links = with_values(public_costs(), {"links.nvlink[2-5].latency_s.2": 1.0}).links
    assert (links["nvlink4"].latency_s[2], links["nvlink4"].latency_s[4]) == (
        1.0,
        public_costs().links["nvlink4"].latency_s[4],
    )


def test_runs_are_predicted_as_of_their_version_and_flagged_ones_left_out(tmp_path):
    folder_of_runs(
        tmp_path,
        flag=[None, "saturated"],
        source="S",
        tpot_ms=9.6,
        ttft_ms=20.0,
        **{**RATES, "total_tokens_per_s": 1e9},
    )
    (run,) = compared(tmp_path).reset_index().to_dict("records")
    assert (run["run_id"], run["generation"], run["group"]) == ("four", "synchronous", "vLLM 0.8 to 0.13")
    assert run["error_tpot_ms"] == pytest.approx(0, abs=10)
    assert (run["held_tpot_ms"], run["held_rate"]) == (True, False)
    assert run["error_rate"] == pytest.approx(-100, abs=1)


def test_errors_in_words():
    assert in_words(pd.Series([1.0, -4.0, 2.0])) == "2.0 / 3.6 / -4"
    assert [version_of(text) for text in ("0.5.3-0.6.x (V0)", "~0.10 (2025-08)", "")] == ["0.5.3", "0.10", ""]
