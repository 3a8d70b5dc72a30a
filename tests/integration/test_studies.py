"""Studies reduced to what a CPU can run, really run from the study file to the report."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from tests.integration.conftest import CHECKOUT
from tests.integration.served_study import Listeners
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.measurements import read_measurements
from workflow_scripts.workloads.highest_load import MOST_PASSES

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


def check_highest_load(table: Results) -> None:
    """Each cell searched its load; the cells have no other results."""
    found = table("searches")
    assert sorted(found["find"]) == ["highest_rate", "highest_rate"]
    low, load, high = (found[f"highest_load{end}"] for end in ("_low", "", "_high"))
    # Where the machine is as busy as it likes, a load may lie beyond all that were tried; one end of it is known then.
    assert ((low <= load) & (load <= high) | (load.isna() & (low.isna() != high.isna()))).all(), found.to_string()
    assert found["search_passes"].between(1, MOST_PASSES).all()
    assert (found["search_requests"] <= 16 * found["search_passes"]).all()
    cells = table("measured")
    assert cells["repeat"].isna().all()
    assert table("serving_summary").empty


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


CHECKS = {"highest_load": check_highest_load, "vllm_versions": check_vllm_versions, "engines": check_engines}


@pytest.mark.parametrize("name", CUTS)
def test_every_cut_runs_from_the_study_to_the_report(name, tmp_path, monkeypatch, environment, snakemake):
    if name == "engines":
        monkeypatch.setitem(environment, "PYTHONPATH", str(CHECKOUT / "tests/fixtures/sglang"))
    with Listeners(environment["TMPDIR"]) as listeners:
        table = run_cut(name, tmp_path, snakemake)
    assert {ip for ip, _ in listeners.seen} <= {"127.0.0.1"}, listeners.seen
    if name in CHECKS:
        CHECKS[name](table)
