"""The claims table: every published claim with a verdict from a rule, on real and on made-up evidence."""

import re

import pandas as pd
import pytest
import yaml

from tests.recipes import blocks, recipe
from tests.unit.analyse.claim_evidence import LLAMA, PUBLISHED, STUDY, evidence, republished
from tests.unit.analyse.synthetic_cells import cell, table
from workflow_scripts.analyse.claims import claims as claims_module
from workflow_scripts.analyse.claims.claim_checks import (
    COMPUTED,
    CONTRADICTED,
    MEASURED,
    NOT_TESTABLE,
    SUPPORTED,
    Finding,
)
from workflow_scripts.analyse.claims.claims import MOST_IDS, MOST_SEEN_HERE, MOST_WRITTEN, claims_table, main
from workflow_scripts.analyse.tables import TABLE_SCHEMAS, read_table, write_table
from workflow_scripts.catalog.published import Published
from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.study.study_file import load_study

STUDY_FILE = CHECKOUT / "config" / "studies" / "published_claims.yaml"
ONE = {"id": "one", "source": "lab", "label": "published", "text": "It is so."}
ONE["quantities"] = [
    {"name": "rate", "unit": "tokens/s", "value": 5},
    {"name": "waste", "unit": "percent", "min": 60, "max": 80},
]


def verdicts(of):
    found = claims_table(of)
    return dict(zip(found["claim_id"], found["verdict"], strict=True))


# --- the published claims --------------------------------------------------------------------------------------------


def test_verdicts_that_formulas_and_published_numbers_alone_come_to():
    """With no study at all: what cannot be true, and what is arithmetic; only a GPU can tell the rest."""
    found = verdicts(evidence())
    assert list(found) == [claim.id for claim in PUBLISHED.claims]
    assert {claim_id: said for claim_id, said in found.items() if said != NOT_TESTABLE} == {
        "throughput-flat-over-max-num-seqs": CONTRADICTED,
        "h200-over-l40s": CONTRADICTED,
        "hf-generate-on-a100": CONTRADICTED,
        "vllm-over-hf-on-a100": CONTRADICTED,
        "empty-slots-per-sequence": SUPPORTED,
        "contiguous-allocation-example": SUPPORTED,
        "kv-of-llama-3-70b": CONTRADICTED,
        "prefix-hit-rate-of-identical-prompts": CONTRADICTED,
        "block-size-by-length": CONTRADICTED,
        "kv-of-a-batch-of-llama-3-70b": CONTRADICTED,
        "llama-70b-on-a100s": SUPPORTED,
        "waste-of-512-slots": SUPPORTED,
        "utilization-is-for-the-kv-cache": CONTRADICTED,
        "pages-of-4-kib": CONTRADICTED,
        "capacity-of-32k-for-4k-chats": SUPPORTED,
    }


def test_nothing_that_was_measured_on_a_cpu_decides():
    place = {"gpu": "cpu-all", "model": LLAMA}
    cells = [
        cell({"batch_size": 1}, (293.0, 293.0), engine="hf-static", **place),
        cell({"block_size": 32}, (99.0,), prefix_cache_hits=800.0, max_model_len_effective=512, **place),
    ]
    of_cpu = place | {"cell_id": cells[1][0]["cell_id"], "engine": "vllm"}
    effect = of_cpu | {"knob": "max_num_seqs", "comparison": "overall", "values": "1, 256", "value": "256"}
    ratio = of_cpu | {"gpu_a": "cpu-all", "gpu_b": "cpu-1core", "metric": "output_tokens_per_s", "ratio": 2.95}
    of = evidence(
        cells=cells,
        effects=[effect | {"baseline": "1", "verdict": "flat"}],
        ratios=[ratio | {"knobs": "bs32"}],
        waste=[{"cell_id": of_cpu["cell_id"], "layout": "contiguous_max_model_len", "waste_pct": 80.0}],
    )
    found = claims_table(of).set_index("claim_id")
    assert found["verdict"].to_dict() == verdicts(evidence())
    seen = found.index[found["seen_here"].fillna("").str.contains("cpu-all")]
    assert set(seen) >= {
        *("throughput-flat-over-max-num-seqs", "h200-over-l40s", "hf-generate-on-a100"),
        *("contiguous-allocation-waste", "computation-saved-by-prefix-caching"),
    }


def test_every_row_names_who_said_it_and_evidence_has_a_label():
    found = claims_table(evidence())
    told = [("published", "try", claim.text, claim.source) for claim in PUBLISHED.claims]
    assert list(found[["source", "study", "claim", "published_by"]].itertuples(index=False, name=None)) == told
    for row in found.to_dict("records"):
        assert (row["evidence"] or "[").startswith("[")
        assert (row["would_test"] is not None) == (row["verdict"] == NOT_TESTABLE)
        assert (row["scope"] is None) == (row["verdict"] == NOT_TESTABLE)
        assert set((row["evidence_sources"] or COMPUTED).split("; ")) <= {COMPUTED, MEASURED, "published"}
        assert (row["evidence_ids"] is None) == (row["evidence"] is None)
    # Only the claims that the study names have a row, in its order.
    named = ["kv-of-llama-3-70b", "empty-slots-per-sequence"]
    some = claims_table(evidence(study=STUDY.model_copy(update={"claims": [*named, named[0]]})))
    assert some["claim_id"].tolist() == named
    seventy = some.iloc[0]
    assert (seventy["quantity"], seventy["published_value"]) == ("tokens; kv_cache", "4,096 tokens; about 5.2 GB")
    assert (seventy["verdict"], seventy["evidence_ids"]) == (CONTRADICTED, "claims.yaml; numbers")


def test_what_would_test_a_claim_names_a_study_and_a_sweep_that_exist():
    named = set()
    for claim in PUBLISHED.claims:
        for path in re.findall(r"config/studies/\S+\.yaml", claim.would_test):
            sweeps = {sweep.name for sweep in load_study(CHECKOUT / path).sweeps}
            for listed in re.findall(r"\(sweeps? ([\w -]+?)[;)]", claim.would_test):
                names = listed.split(" and ")
                assert set(names) <= sweeps
                named |= set(names)
    assert {"prefix-length", "users", "utilization", "hf-baseline", "reserved-slots", "single-request"} <= named


# --- any claims ------------------------------------------------------------------------------------------------------


def made(tmp_path, monkeypatch, *found, claims=(ONE,), test="a study"):
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump([claims[0] | {"would_test": test}, *claims[1:]]))
    monkeypatch.setattr(claims_module, "findings", lambda claim, evidence: iter(found))
    monkeypatch.setattr(claims_module, "parts", lambda claim: ())
    study = STUDY.model_copy(update={"claims": [claim["id"] for claim in claims]})
    return claims_table(evidence(Published(tmp_path), study))


def finding(text, says=None, bears=True, label=MEASURED, scope="h200", ids=("a",)):
    return Finding(text, label, scope, tuple(ids), says, bears)


def test_what_decides_comes_first_and_what_does_not_bear_is_apart(tmp_path, monkeypatch):
    found = (
        finding("A note.", label=COMPUTED),
        finding("It fits.", SUPPORTED, scope="l4", ids=("b",)),
        finding("Elsewhere.", CONTRADICTED, bears=False, scope="cpu-all", ids=("c",)),
        finding("It fits too.", SUPPORTED, label=COMPUTED, scope="l4", ids=("a", "b")),
    )
    (row,) = made(tmp_path, monkeypatch, *found).to_dict("records")
    assert (row["verdict"], row["scope"], row["would_test"]) == (SUPPORTED, "l4", None)
    assert row["evidence"] == f"[{MEASURED}] It fits. [{COMPUTED}] It fits too. [{COMPUTED}] A note."
    assert (row["evidence_sources"], row["evidence_ids"]) == (f"{COMPUTED}; {MEASURED}", "b; a; c")
    assert row["seen_here"] == f"[{MEASURED}] Elsewhere."
    assert (row["quantity"], row["published_value"]) == ("rate; waste", "5 tokens/s; 60 to 80 %")


def test_of_many_findings_or_cells_some_are_written_and_the_scope_is_that_of_what_decides(tmp_path, monkeypatch):
    many = [finding(f"{i}.", CONTRADICTED, ids=map(str, range(MOST_IDS + 1))) for i in range(MOST_WRITTEN + 3)]
    seen = [finding(f"Seen {i}.", bears=False) for i in range(MOST_SEEN_HERE + 1)]
    fits = finding("It fits.", SUPPORTED, scope="l4")
    (row,) = made(tmp_path, monkeypatch, *many, fits, *seen).to_dict("records")
    written = [*(f"{i}." for i in range(MOST_WRITTEN)), "3 more.", "It fits."]
    assert row["evidence"] == " ".join(f"[{MEASURED}] {text}" for text in written)
    assert row["seen_here"].endswith(f"Seen 1. [{MEASURED}] 1 more.")
    assert row["evidence_ids"] == "; ".join([*map(str, range(MOST_IDS)), "a"])
    assert (row["verdict"], row["scope"]) == (CONTRADICTED, "h200")


def test_a_claim_without_evidence_or_rule_is_not_testable(tmp_path, monkeypatch):
    table = made(tmp_path, monkeypatch, claims=[ONE, ONE | {"id": "two"}], test="another study")
    assert table["claim_id"].tolist() == ["one", "two"]
    assert table["verdict"].tolist() == [NOT_TESTABLE, NOT_TESTABLE]
    assert table["would_test"].tolist() == ["another study", "a check in claims.yaml"]
    assert table[["evidence", "evidence_ids"]].isna().all(axis=None)


# --- the recipe "a claim" of docs/extending.md, whose entry is in docs/claims.md --------------------------------------

(SECTION,) = re.findall(r"\(claims\.md#([\w-]+)\)", recipe("A claim"))
CLAIMS = (CHECKOUT / "docs" / "claims.md").read_text(encoding="utf-8")
(ENTRY,) = blocks(CLAIMS.partition(f"\n## {SECTION.replace('-', ' ').capitalize()}\n")[2], "yaml")


@pytest.mark.parametrize(
    ("gpu", "few", "verdict"),
    [("h100-sxm", 13_900, "supported"), ("h100-sxm", 20_000, "contradicted"), ("l40s", 13_900, "not testable here")],
)
def test_an_entry_is_a_claim(tmp_path, gpu, few, verdict):
    [claim] = yaml.safe_load(ENTRY)
    published = republished(tmp_path)
    with (published.folder / "claims.yaml").open("a", encoding="utf-8") as file:
        file.write(ENTRY)
    cells = [
        cell({"gpu_memory_utilization": share}, gpu=gpu, model=LLAMA, num_gpu_blocks=number)
        for share, number in ((0.5, few), (0.9, 27_800))
    ]
    study = STUDY.model_copy(update={"claims": (claim["id"],)})
    [row] = claims_table(evidence(published, study, cells=cells)).to_dict("records")
    assert (row["claim_id"], row["verdict"]) == (claim["id"], verdict)


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_the_table_from_what_tables_there_are(tmp_path):
    row = {"source": "published", "cell_id": "published/kv_blocks_l4_opt125m/1", "gpu": "L4"}
    row |= {"model": "facebook/opt-125m", "gpu_memory_utilization": 0.5, "kv_cache_tokens_error_pct": 110.0}
    row |= {"implied_overhead_bytes": 1.0e9, "predicted_overhead_bytes": 1.1e9}
    capacity = pd.DataFrame([row]).reindex(columns=list(TABLE_SCHEMAS["capacity"].columns))
    write_table(capacity, tmp_path / "capacity.parquet")
    write_table(table(cell({"max_num_seqs": 1})), tmp_path / "cells.parquet")
    claims = republished(tmp_path).folder / "claims.yaml"
    claims.write_text(claims.read_text().replace("value: 5.2,", "value: 1.34,"))
    files = {"study": STUDY_FILE, "tables": tmp_path, "published": claims.parent, "out": tmp_path / "claims.parquet"}
    assert main([word for name, path in files.items() for word in (f"--{name}", str(path))]) == 0
    found = read_table(tmp_path / "claims.parquet").set_index("claim_id")
    assert found.loc["blocks-linear-in-utilization", "verdict"] == SUPPORTED
    assert found.loc["capacity-of-an-l4", "verdict"] == CONTRADICTED
    assert found.loc["kv-of-llama-3-70b", "verdict"] == SUPPORTED
    assert set(found["study"]) == {"published_claims"}
    assert (tmp_path / "claims.csv").is_file()
