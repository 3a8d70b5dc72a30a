"""The claims table: every published claim with a verdict from its check, on real and on made-up evidence."""

import re

import pytest
import yaml

from tests.recipes import blocks, recipe
from tests.unit.questions.claims.claim_evidence import LLAMA, PUBLISHED, STUDY, republished, tables
from tests.unit.questions.synthetic_cells import cell
from workflow_scripts.catalog.published import Claim, Published, PublishedError, Stated
from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.questions.claims import on_memory
from workflow_scripts.questions.claims.claims import CHECKS, claims_table
from workflow_scripts.questions.claims.evidence import (
    COMPUTED,
    CONTRADICTED,
    MEASURED_HERE,
    NOT_TESTABLE,
    SUPPORTED,
    Evidence,
    measured,
    verdict,
    within,
)
from workflow_scripts.questions.claims.study_tables import Estimate
from workflow_scripts.statistics.comparisons import NOT_DECIDED
from workflow_scripts.study.study_file import load_study

STUDY_FILE = CHECKOUT / "config" / "studies" / "published_claims.yaml"
ONE = {"id": "one", "source": "lab", "text": "It is so.", "section": "devices", "tested_by": "a: sweep b"}
ONE["quantities"] = [
    {"name": "rate", "unit": "tokens/s", "value": 5},
    {"name": "waste", "unit": "percent", "min": 60, "max": 80},
]


def verdicts(of):
    found = claims_table(STUDY, of)
    return dict(zip(found["claim_id"], found["verdict"], strict=True))


# --- the published claims --------------------------------------------------------------------------------------------


def test_verdicts_that_formulas_and_published_numbers_alone_come_to():
    """With no study at all: what cannot be true, and what is arithmetic; only a GPU can tell the rest."""
    found = verdicts(tables())
    assert set(CHECKS) == {claim.id for claim in PUBLISHED.claims if not claim.unstated}
    assert list(found) == [claim.id for claim in PUBLISHED.claims]
    assert {claim_id: said for claim_id, said in found.items() if said != NOT_TESTABLE} == {
        "h200-over-l40s": CONTRADICTED,
        "hf-generate-on-a100": CONTRADICTED,
        "vllm-over-hf-on-a100": CONTRADICTED,
        "empty-slots-per-sequence": SUPPORTED,
        "block-size-by-length": CONTRADICTED,
    }


def test_nothing_that_was_measured_on_a_cpu_decides():
    place = {"gpu": "cpu-all", "model": LLAMA}
    cells = [
        cell({"batch_size": 1}, (293.0, 293.0), engine="hf-static", **place),
        cell({"block_size": 32}, (99.0,), prefix_cache_hits=800.0, max_model_len_effective=512, **place),
    ]
    of_cpu = place | {"cell_id": cells[1][0]["cell_id"], "engine": "vllm"}
    compared = place | {"engine": "vllm", "metric": "output_tokens_per_s", "verdict": "flat", "a": "first"}
    effect = {"name": "max_num_seqs", "values": "1, 256", "value_a": "1", "value_b": "256", "ratio": 1.01, "group": 0}
    ratio = {"kind": "device", "value_b": "cpu-all", "value_a": "cpu-1core", "ratio": 2.95, "b": "fast"}
    of = tables(
        cells=cells,
        comparisons=[compared | effect | {"b": of_cpu["cell_id"]}, compared | ratio],
        devices=[{"a": "first", "b": "fast"}],
        fragmentation=[{"cell_id": of_cpu["cell_id"], "layout": "contiguous_max_model_len", "waste_pct": 80.0}],
    )
    assert claims_table(STUDY, of).equals(claims_table(STUDY, tables()))


def test_every_row_names_who_said_it_and_evidence_has_a_label():
    found = claims_table(STUDY, tables())
    told = [("published", "try", claim.text, claim.source) for claim in PUBLISHED.claims]
    assert list(found[["source", "study", "claim", "published_by"]].itertuples(index=False, name=None)) == told
    for row in found.to_dict("records"):
        assert (row["evidence"] or "[").startswith("[")
        assert (row["would_test"] is not None) == (row["verdict"] == NOT_TESTABLE)
    # Only the claims that the study names have a row, in its order.
    named = ["block-size-by-length", "empty-slots-per-sequence"]
    some = claims_table(STUDY.model_copy(update={"claims": [*named, named[0]]}), tables())
    assert some["claim_id"].tolist() == named
    slots = some.iloc[1]
    assert slots["published_value"] == "16 tokens; at most 15 tokens"
    assert slots["verdict"] == SUPPORTED


def test_what_would_test_a_claim_names_a_study_and_a_sweep_that_exist():
    named = set()
    for claim in PUBLISHED.claims:
        for path in re.findall(r"config/studies/\S+\.yaml", claim.would_test):
            sweeps = {sweep.name for sweep in load_study(CHECKOUT / path).sweeps}
            for listed in re.findall(r"\(sweeps? ([\w -]+?)[;)]", claim.would_test):
                names = listed.split(" and ")
                assert set(names) <= sweeps
                named |= set(names)
    assert {"prefix-length", "users", "hf-baseline", "reserved-slots", "single-request"} <= named


# --- evidence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "tolerance", "low", "high", "says"),
    [
        # The whole interval must lie inside or outside the range.
        ({"min": 2, "max": 3}, {}, 2.0, 3.0, SUPPORTED),
        ({"min": 2, "max": 3}, {}, 1.9, 2.5, NOT_DECIDED),
        ({"min": 2, "max": 3}, {}, 2.5, 3.1, NOT_DECIDED),
        ({"min": 2, "max": 3}, {}, 1.0, 4.0, NOT_DECIDED),
        ({"min": 2, "max": 3}, {}, 3.1, 3.2, CONTRADICTED),
        ({"min": 2, "max": 3}, {}, 1.0, 1.9, CONTRADICTED),
        ({"min": 2, "max": 3}, {}, float("nan"), float("nan"), NOT_DECIDED),
        ({"value": 10}, {}, 10.1, 10.1, CONTRADICTED),
        ({"value": 10}, {"tolerance_pct": 10}, 10.9, 10.9, SUPPORTED),
        ({"value": 10}, {"tolerance_pct": 10}, 8.9, 8.9, CONTRADICTED),
        ({"value": 10}, {"tolerance": 2}, 12, 12, SUPPORTED),
        ({"max": 10}, {}, -99, -99, SUPPORTED),
        ({"min": 10}, {}, 9.9, 9.9, CONTRADICTED),
    ],
)
def test_what_an_interval_says_of_a_stated_range(stated, tolerance, low, high, says):
    assert within(Estimate(2.5, low, high), Stated(**stated), **tolerance) == says
    assert within(float("nan"), Stated(**stated)) is None


@pytest.mark.parametrize(
    ("about", "place", "conditions", "bears"),
    [
        ({}, {}, {}, True),
        ({}, {"gpu": "cpu-all"}, {}, False),
        ({"gpus": ["L4"]}, {}, {}, False),
        ({"gpus": ["A100 PCIe"]}, {"gpu": "a100-pcie-40gb", "source": "measured elsewhere"}, {}, True),
        ({"models": [LLAMA]}, {"model": "opt-125m"}, {}, False),
        ({}, {}, {"under": False}, False),
    ],
)
def test_a_measurement_decides_only_under_the_stated_conditions(about, place, conditions, bears):
    effect = {"name": "users", "metric": "output_tokens_per_s", "verdict": "flat", "from_first": True}
    [row] = tables(comparisons=[effect | {"a": "slow", "b": "fast"} | place]).effects("users")
    found = measured(Claim.model_validate(ONE | about), row, "It is.", CONTRADICTED, **conditions)
    assert (found is not None) == bears
    if found is None:
        return
    assert (found.says, found.label) == (CONTRADICTED, place.get("source", MEASURED_HERE))
    assert found.text == f"{row.gpu}, {row.model}, chat: It is."


def test_one_contradiction_is_enough_and_without_support_it_is_not_decided():
    said = [finding("", says) for says in (None, NOT_DECIDED, SUPPORTED, CONTRADICTED)]
    assert [verdict(said[:n]) for n in range(1, 5)] == [NOT_TESTABLE, NOT_DECIDED, SUPPORTED, CONTRADICTED]


# --- any claims ------------------------------------------------------------------------------------------------------


def made(tmp_path, monkeypatch, *found):
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump([ONE]))
    monkeypatch.setitem(CHECKS, "one", lambda claim, tables: iter(found))
    [row] = claims_table(STUDY.model_copy(update={"claims": ["one"]}), tables(Published(tmp_path))).to_dict("records")
    return row


def finding(text, says=None, label=MEASURED_HERE):
    return Evidence(text, label, says)


def test_what_decides_comes_first(tmp_path, monkeypatch):
    found = (
        finding("A note.", label=COMPUTED),
        finding("It fits.", SUPPORTED),
        None,
        finding("It fits too.", SUPPORTED, label=COMPUTED),
    )
    row = made(tmp_path, monkeypatch, *found)
    assert (row["verdict"], row["would_test"]) == (SUPPORTED, None)
    assert row["evidence"] == f"[{MEASURED_HERE}] It fits. [{COMPUTED}] It fits too. [{COMPUTED}] A note."
    assert row["published_value"] == "5 tokens/s; 60 to 80 %"


def test_a_claim_without_evidence_is_not_testable_and_one_without_a_check_is_refused(tmp_path, monkeypatch):
    row = made(tmp_path, monkeypatch)
    assert (row["verdict"], row["evidence"]) == (NOT_TESTABLE, None)
    assert row["would_test"].endswith("config/studies/a.yaml (sweep b)")
    monkeypatch.delitem(CHECKS, "one")
    with pytest.raises(PublishedError, match=r"claims\.yaml: one: no function .* checks it"):
        claims_table(STUDY.model_copy(update={"claims": ["one"]}), tables(Published(tmp_path)))


def test_a_published_table_without_what_a_check_reads_is_refused(tmp_path):
    published = republished(tmp_path, {"paged_attention_lab_max_num_seqs.csv": [{"gpu": "H200", "max_num_seqs": 1}]})
    with pytest.raises(PublishedError, match=r"claims\.yaml: throughput-flat-over-max-num-seqs: 'throughput_tok_s'"):
        claims_table(STUDY, tables(published))


# --- the recipe "a claim" of docs/extending.md, which is in docs/claims.md --------------------------------------------

(SECTION,) = re.findall(r"\(claims\.md#([\w-]+)\)", recipe("A claim"))
RECIPE = (CHECKOUT / "docs" / "claims.md").read_text(encoding="utf-8")
RECIPE = RECIPE.partition(f"\n## {SECTION.replace('-', ' ').capitalize()}\n")[2]
(ENTRY,), (CODE,) = blocks(RECIPE, "yaml"), blocks(RECIPE, "python")


@pytest.mark.parametrize(
    ("gpu", "few", "said"),
    [("h100-sxm", 13_900, SUPPORTED), ("h100-sxm", 20_000, CONTRADICTED), ("l40s", 13_900, NOT_TESTABLE)],
)
def test_an_entry_and_a_function_are_a_claim(tmp_path, monkeypatch, gpu, few, said):
    [entry] = yaml.safe_load(ENTRY)
    (tmp_path / "claims.yaml").write_text(ENTRY)
    monkeypatch.setitem(CHECKS, entry["id"], None)  # forgotten afterwards
    exec(CODE, {**vars(on_memory)})  # code of this repository
    blocks_of = ((0.5, few), (0.9, 27_800))
    cells = [cell({"gpu_memory_utilization": at}, gpu=gpu, model=LLAMA, num_gpu_blocks=n) for at, n in blocks_of]
    of = tables(Published(tmp_path), cells=cells)
    [row] = claims_table(STUDY.model_copy(update={"claims": (entry["id"],)}), of).to_dict("records")
    assert row["verdict"] == said
