"""Studies reduced to what a CPU can run, really run from the study file to the report."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from tests.integration.conftest import CHECKOUT
from tests.integration.served_study import Listeners
from workflow_scripts.catalog.gpus_and_models import get_model
from workflow_scripts.common.files import read_json
from workflow_scripts.statistics.highest_load import MOST_PASSES
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.measurements import read_measurements
from workflow_scripts.workloads.byte_tokens import vocabulary_of_bytes
from workflow_scripts.workloads.workload_kinds import MultiTurnWorkload

pytestmark = [pytest.mark.studies, pytest.mark.timeout(2000)]
Snakemake = Callable[..., "subprocess.CompletedProcess[str]"]
Results = Callable[[str], pd.DataFrame]

CUTS = sorted(path.stem for path in (CHECKOUT / "config" / "studies" / "tiny").glob("*.yaml"))
# Cells that the cuts' comments and docs/environments.md expect to be refused, some of them by some processors only.
REFUSED = {
    "architectures": "/hf-continuous/tiny-(?:latent|states)-|/vllm/tiny-(?:experts|windows|latent|states)-",
    "kv_capacity": "-kvfp8-",
    "paged_attention": "/bs16-",
    "published_claims": "/bs4-",
    "quantization": "-(?:kv|quant)fp8-|-awq/",
    "vllm_versions": "/bs16-",
}
PREFIX = "cpu-all/vllm/tiny-llama-57m/{}/bs{}-seqs8-len512-pc1-eager1-cpukv1"


def run_cut(name: str, folder: Path, snakemake: Snakemake) -> Results:
    """Run a study's cut; gives its tables by name. Every cell must be there, and ok or refused for a reason."""
    study = CHECKOUT / "config" / "studies" / "tiny" / f"{name}.yaml"
    done = snakemake(study, folder)
    assert done.returncode == 0, done.stderr
    root = folder / f"tiny_{name}"
    assert (root / "report.html").stat().st_size > 100_000

    def table(table_name: str) -> pd.DataFrame:
        if table_name == "measured":
            return read_measurements(root / "tables")
        if table_name == "requests":
            return pd.read_parquet(root / "parsed/cpu-all/requests.parquet")
        return pd.read_parquet(root / "tables" / f"{table_name}.parquet")

    cells = table("cells")
    assert set(cells["cell_id"]) == {cell.id for cell in expand(load_study(study))}
    refused = cells["outcome"].eq("infeasible") & cells["cell_id"].str.contains(REFUSED.get(name, "^$"))
    assert (cells["outcome"].eq("ok") | refused).all(), cells[["cell_id", "outcome", "reason"]].to_string()
    assert cells.loc[refused, "reason"].str.len().gt(0).all()
    return table


# --- prefix caching ----------------------------------------------------------------------------------------------


def check_prefix_caching(table: Results) -> None:
    """Tokens found are those that the workloads imply, and what they save has its interval and its place in claims."""
    cells = table("measured")
    on, off = (cells[cells["knob_enable_prefix_caching"].eq(is_on)] for is_on in (True, False))
    assert len(on) == 3 * 6
    measured, predicted = (on[f"prefix_cache_hit_rate{of}"].astype(float) for of in ("", "_predicted"))
    assert measured.tolist() == pytest.approx(predicted.tolist(), abs=1e-9)
    assert (on.loc[on["workload"] != "nothing-shared", "prefix_cache_hit_rate"] > 0.5).all()
    assert (on.loc[on["workload"] == "nothing-shared", "prefix_cache_hits"] == 0).all()
    assert (off["requests_with_prefix_hits"] == 0).all()
    identical = cells.set_index("cell_id").loc[[PREFIX.format("identical", 32)]]
    assert (100 * identical["requests_with_prefix_hits"] / identical["num_requests"] == 87.5).all()
    # Of 257 tokens eight blocks of 32 are found; the last token is never looked up, and each counts as asked for.
    assert (identical[["num_requests", "prefix_cache_queries", "prefix_cache_hits"]] == [8, 8 * 257, 7 * 256]).all(None)
    # The first request of each user finds nothing.
    found = {
        name: set(on.set_index("cell_id").loc[PREFIX.format(name, 32), "requests_with_prefix_hits"])
        for name in ("prefix-256", "users-4")
    }
    assert found == {"prefix-256": {11}, "users-4": {8}}

    effects = table("comparisons").dropna(subset="verdict")
    gains = effects[effects["name"] == "enable_prefix_caching"]
    by_workload = gains[gains["held"].str.contains("block_size=32")].set_index("workload")
    shared = by_workload.loc[["prefix-256", "identical"]]
    assert by_workload.loc["identical", "ratio"] > 1  # eightfold where nothing else uses the cores
    assert ((shared["low"] < shared["ratio"]) & (shared["ratio"] < shared["high"])).all()
    assert shared["took_effect"].all()
    assert not by_workload.loc["nothing-shared", "took_effect"]

    claims = table("claims").set_index("claim_id")
    hit_rate = claims.loc["prefix-hit-rate-of-identical-prompts"]
    assert hit_rate["verdict"] == "contradicted"  # prompts of 6 tokens have no full block
    seen = "[measured here] cpu-all, tiny-llama-57m, prefix-256: "
    assert f"{seen}86.3 % for 12 prompts in blocks of 32; 86.3% by the formula." in hit_rate["seen_here"]
    # What a CPU does decides nothing; it stands beside.
    for claim in ("speedup-of-a-shared-system-prompt", "computation-saved-by-prefix-caching"):
        assert claims.loc[claim, "verdict"] == "not testable here"
        assert seen in claims.loc[claim, "seen_here"]
        assert "config/studies/prefix_caching.yaml" in claims.loc[claim, "would_test"]


# --- traces ------------------------------------------------------------------------------------------------------


def check_traces(table: Results) -> None:
    """The engine counts exactly the hits of the schedule, with blocks that are evicted and with enough blocks."""
    rows = table("predictions").set_index("cell_id")
    hits = rows[(rows["quantity"] == "prefix_cache_hit_rate") & (rows["engine"] == "vllm")]
    assert len(hits) == 6
    assert hits["measured"].tolist() == pytest.approx(hits["predicted"].tolist(), abs=1e-12)
    assert (hits["measured"] > 0.1).all()
    evicted = hits["evicted_blocks_predicted"]
    assert (evicted[evicted.index.str.contains("pool17")] > 0).all()
    assert (evicted[evicted.index.str.contains("pool257")] == 0).all()
    # A server at the recorded times computes what requests have in common at most once more.
    served = table("measured")
    served = served[served["engine"] == "vllm-serve"].groupby("knob_enable_prefix_caching")["prefix_cache_hits"]
    assert served.min()[True] > 0
    assert served.max()[False] == 0


# --- servers -----------------------------------------------------------------------------------------------------


def check_latencies(summary: pd.DataFrame) -> None:
    """Every server answered, and no time is missing or out of order."""
    times = summary[["ttft_s_p50", "itl_s_p50", "e2e_s_p50"]].astype(float)
    assert times.notna().all(axis=None), summary.to_string()
    assert (times > 0).all(axis=None)
    assert (times["ttft_s_p50"] <= times["e2e_s_p50"]).all()
    assert summary[["ttft_s_p99", "e2e_s_p99"]].isna().all(axis=None)  # a bound of it needs 368 requests
    assert (summary["requests_per_s"] > 0).all()


def check_serving(table: Results) -> None:
    """Servers are compared over rates, bursts and a ramp."""
    summary = table("serving_summary")
    assert len(summary) == len(table("cells")) == 9
    check_latencies(summary)
    assert set(summary["endpoint"].dropna()) == {"transformers-serve", "transformers-serve-continuous"}
    rates = table("serving").set_index("cell_id")
    steady = rates[rates["burstiness"].isna() & rates["ramp_to_per_s"].isna()]
    assert steady["arrivals_per_s"].tolist() == pytest.approx(steady["request_rate_per_s"].tolist(), rel=0.1)
    # Sixteen requests within half a second pile up before a server that answers one after the other.
    one_by_one = rates[(rates["endpoint"] == "transformers-serve") & (rates["request_rate_per_s"] == 32)]
    assert (one_by_one["in_flight_peak"] >= 8).all()


def check_conversations(table: Results) -> None:
    """A turn begins after the answers in its prompt have ended, and finds them in the cache if it is on."""
    study = load_study(CHECKOUT / "config/studies/tiny/conversations.yaml")
    requests = table("requests")
    for (cell_id, _), of_repeat in requests.groupby(["cell_id", "repeat"]):
        spec = study.workloads[cell_id.split("/")[3]]
        assert isinstance(spec, MultiTurnWorkload)
        rows = of_repeat.assign(index=of_repeat["request_id"].astype(int)).set_index("index")
        for index, sent_s in rows["sent_s"].items():
            assert rows.loc[index, "prompt_tokens"] == spec.tokens_of_prompt(index)
            assert all(sent_s >= rows.loc[earlier, "last_token_s"] for earlier, _ in spec.answers_in(index))
    turns = table("conversations")
    assert len(turns) == 4 * (1 + 3) + 4 * (1 + 3 + 1)
    whole = turns[turns["agent"] == "conversation"].set_index("cell_id")
    last = turns[(turns["agent"] == "user") & (turns["turn"] == 3)].set_index("cell_id")
    assert (whole["e2e_s_p50"] > last["e2e_s_p50"]).all()
    cells = table("measured").set_index("cell_id").loc[whole.index]
    rates = cells[["prefix_cache_hit_rate", "prefix_cache_hit_rate_predicted"]].dropna().astype(float)
    assert len(rates) == 6
    assert rates.iloc[:, 0].tolist() == pytest.approx(rates.iloc[:, 1].tolist(), abs=1e-12)
    counted = cells["prefix_cache_hits"] / cells["prompt_tokens"]
    assert whole["prefix_cache_hit_rate"].tolist() == pytest.approx(counted.tolist(), abs=1e-12)
    # Blocks of 32 tokens: all of what was said and heard before, by one user and by two.
    alone = [name for name in whole.index if "/chats/" in name and "-pc0-" not in name]
    assert whole.loc[alone, "prefix_cache_hit_rate"].tolist() == pytest.approx([(32 + 64) / (40 + 88 + 136)] * 3)
    assert (whole.loc[whole.index.str.contains("-pc0-"), "prefix_cache_hit_rate"] == 0).all()


def check_reasoning(table: Results) -> None:
    """vLLM's server tells reasoning from the answer, which comes the later the more the model may reason."""
    requests = table("requests")
    assert len(requests) == 4 * 4
    assert requests[["reasoning", "text"]].notna().all(axis=None)
    assert not requests["reasoning"].str.contains("think>").any()
    told = requests["first_answer_s"]
    assert ((requests["first_token_s"] < told) & (told <= requests["last_token_s"])).all()
    summary = table("serving_summary").set_index("workload")
    assert (summary["ttfa_s_p50"] > summary["ttft_s_p50"]).all()
    ends = int(vocabulary_of_bytes(read_json(get_model("tiny-llama-57m").config)).text_ids[-1])
    reasoned = (
        requests["token_ids"].map(lambda ids: list(ids).index(ends)).groupby(requests["cell_id"].str.split("/").str[3])
    )
    # The budget holds the twelve tokens of the template after the mark.
    assert reasoned.agg(["min", "max"]).loc[["budget-16", "budget-32"]].to_numpy().tolist() == [[4, 4], [20, 20]]


def check_highest_load(table: Results) -> None:
    """Each cell searched its load, and the plan told it; the cells have no other results."""
    found = table("searches")
    assert sorted(found["find"]) == ["highest_rate", "highest_rate", "highest_users"]
    low, load, high = (found[f"highest_load{end}"] for end in ("_low", "", "_high"))
    # Where the machine is as busy as it likes, a load may lie beyond all that were tried; one end of it is known then.
    assert ((low <= load) & (load <= high) | (load.isna() & (low.isna() != high.isna()))).all(), found.to_string()
    assert found["search_passes"].between(1, MOST_PASSES).all()
    assert (found["search_requests"] <= 24 * found["search_passes"]).all()
    assert found["highest_load_predicted"].notna().any()
    cells = table("measured")
    assert cells["repeat"].isna().all()
    assert table("serving_summary").empty


def check_concurrency(table: Results) -> None:
    """As many requests are in flight as there are users."""
    summary = table("serving_summary")
    assert len(summary) == 8
    check_latencies(summary)
    assert summary["in_flight_peak"].tolist() == summary["users"].tolist()
    vllm = table("measured")
    vllm = vllm[vllm["engine"] == "vllm-serve"]
    assert set(vllm["max_model_len_effective"]) == {64, 512}
    # Of ten users no more than eight are served at once; the server's gauge is looked at now and then.
    assert (vllm["running_peak"] <= 8).all()
    assert vllm[["prompt_tokens", "output_tokens"]].drop_duplicates().shape == (1, 2)
    # Both settings of vLLM beside both servers of HuggingFace, for each number of users.
    assert table("server_ratios")["users"].tolist() == [1] * 4 + [10] * 4


def check_engines(table: Results) -> None:
    """Both servers did the same work with equally large KV caches, and SGLang's finds the shared prefix."""
    cells = table("measured")
    assert set(cells["kv_cache_tokens"]) == {8192}
    assert set(cells["block_size_effective"]) == {32}
    assert (cells["running_peak"] <= 4).all()
    chat = cells[cells["workload"] == "chat"]
    assert set(chat["engine"]) == {"vllm-serve", "sglang-serve@sglang-0.5.23"}
    assert chat[["prompt_tokens", "output_tokens"]].drop_duplicates().shape == (1, 2)
    hits = cells[cells["workload"] == "shared-prefix"].groupby("knob_enable_prefix_caching")["prefix_cache_hits"]
    # Fifteen of sixteen requests could find two blocks of the prefix; those of the first four start together.
    assert hits.min()[True] >= 11 * 64
    assert hits.max()[False] == 0
    check_latencies(table("serving_summary"))


def check_vllm_versions(table: Results) -> None:
    """All versions did the same work, and what changed by itself is seen."""
    cells = table("measured")
    ran = cells[cells["outcome"] == "ok"].groupby("workload")
    assert (ran[["prompt_tokens", "output_tokens"]].nunique() == 1).all(axis=None)
    assert set(cells["kv_cache_tokens"].dropna()) == {131072}
    changed = table("comparisons").query("kind == 'environment'")
    assert set(changed["value_b"]) == {
        *("vllm-0.25.1", "vllm-0.11.0.post2", "transformers-4.57.6", "transformers-5.23.0")
    }
    moved = changed["moved_with_it"].fillna("").str.contains("max_num_batched_tokens 512 -> 4,096", regex=False)
    assert set(changed.loc[moved & changed["engine"].str.startswith("vllm"), "value_b"]) == {"vllm-0.11.0.post2"}


CHECKS = {
    "conversations": check_conversations,
    "highest_load": check_highest_load,
    "reasoning": check_reasoning,
    "traces": check_traces,
    "vllm_versions": check_vllm_versions,
    "prefix_caching": check_prefix_caching,
    "serving": check_serving,
    "concurrency": check_concurrency,
    "engines": check_engines,
}


@pytest.mark.parametrize("name", CUTS)
def test_every_cut_runs_from_the_study_to_the_report(name, tmp_path, monkeypatch, environment, snakemake):
    if name == "engines":
        monkeypatch.setitem(environment, "PYTHONPATH", str(CHECKOUT / "tests/fixtures/sglang"))
    with Listeners(environment["TMPDIR"]) as listeners:
        table = run_cut(name, tmp_path, snakemake)
    assert {ip for ip, _ in listeners.seen} <= {"127.0.0.1"}, listeners.seen
    if name in CHECKS:
        CHECKS[name](table)
