"""The report of one H200 and one H100, drawn from their evidence."""

import pandas as pd
import pytest


def test_every_cell_has_its_outcome_and_nothing_is_measured(two_gpus, two_gpus_evidence):
    cells = pd.read_parquet(two_gpus / "tables/cells.parquet")
    assert cells["outcome"].value_counts().to_dict() == {"ok": 24, "infeasible": 1}
    recorded, drawn = (
        {path.relative_to(folder): path.read_bytes() for path in (folder / "cells").rglob("*") if path.is_file()}
        for folder in (two_gpus_evidence, two_gpus)
    )
    assert drawn == recorded
    assert (two_gpus / "report.html").stat().st_size > 100_000


def test_ratios_fall_from_the_bandwidths_to_the_operations(two_gpus):
    """Those of whole runs, and what is expected of them, are claims of docs/artifact.md."""
    tables = {
        name: pd.read_parquet(two_gpus / f"tables/{name}.parquet") for name in ("cells", "comparisons", "predictions")
    }
    sequences = tables["cells"].set_index("cell_id")["max_concurrency_allowed"]
    rows = tables["comparisons"].query("kind == 'device' and workload == 'chat'")
    rows = rows.assign(sequences=rows["b"].map(sequences)).set_index("sequences").sort_index()
    chat, full = (rows[rows["metric"] == of] for of in ("output_tokens_per_s", "steady_output_tokens_per_s"))
    assert full["ratio"].to_dict() == pytest.approx({1: 1.33, 4: 1.30, 16: 1.37, 64: 1.11, 256: 1.03}, abs=0.01)
    predicted = tables["predictions"].query("quantity == 'output_tokens_per_s'").set_index("cell_id")
    shares = predicted.loc[chat["a"], [f"{of}_share" for of in ("weights", "kv", "operations", "fixed", "launch")]]
    assert shares.sum(axis=1).tolist() == pytest.approx([1] * 5)
    assert shares["weights_share"].is_monotonic_decreasing
    assert shares["operations_share"].is_monotonic_increasing


def test_first_tokens_are_predicted_from_when_requests_reach_the_engine(two_gpus):
    table = pd.read_parquet(two_gpus / "tables/predictions.parquet").query("quantity == 'ttft_s_p50'")
    of_model = table["engine"].eq("vllm") & table["model"].eq("llama-3.1-8b-instruct")
    banded = table[of_model & table["predicted"].notna()]
    errors_pct = banded["error_pct"].abs()
    assert len(banded) == 20
    assert errors_pct.median() < 4
    assert errors_pct.max() < 13
    assert banded["measured"].between(banded["low"], banded["high"]).mean() >= 0.9
    assert banded["band_pct"].median() < 11


def test_claims_that_these_cells_decide(two_gpus):
    claims = pd.read_parquet(two_gpus / "tables/claims.parquet").set_index("claim_id")
    assert claims["verdict"].to_dict() == {
        "throughput-flat-over-max-num-seqs": "contradicted",
        "throughput-flat-over-block-size": "not decided",  # 32 is 1.03 times as fast as 16, 0.96 to 1.12
        "faster-for-a-single-request": "not testable here",  # the source's model has 135M parameters
        "thirty-to-a-hundred-times-faster": "supported",  # 51 over single requests, from 38 to 68
        "kv-blocks-control-throughput": "contradicted",
        "hf-reserves-max-new-tokens": "contradicted",
        "speedup-of-a-shared-system-prompt": "not testable here",  # the source states no lengths
        "computation-saved-by-prefix-caching": "not testable here",
    }


def test_blocks_are_predicted_within_one_per_cent(two_gpus):
    capacity = pd.read_parquet(two_gpus / "tables/memory.parquet").query("source == 'measured'")
    known = capacity.dropna(subset="num_blocks_error_pct").set_index("cell_id")
    errors_pct = known["num_blocks_error_pct"].abs()
    assert len(errors_pct) == 21
    assert errors_pct.max() < 1.25
    assert errors_pct.median() < 0.5
    assert set(known["engine_version"]) == {"vllm 0.25.1"}
