"""Which findings bear on a claim, and which verdict follows from them."""

import pandas as pd
import pytest

from tests.pretended_gpu import CATALOGUE
from tests.unit.analyse.claim_evidence import LLAMA, PLACE
from workflow_scripts.analyse import evidence
from workflow_scripts.analyse.effects import SCHEMA as EFFECTS
from workflow_scripts.analyse.evidence import (
    COMPUTED,
    CONTRADICTED,
    MEASURED,
    NOT_TESTABLE,
    ON_GPUS,
    SUPPORTED,
    Finding,
    Rule,
    Setting,
    is_same,
    measured,
    read_tables,
    rule,
    verdict,
)
from workflow_scripts.analyse.tables import TableError, write_table


def finding(says, bears=True):
    return Finding("It is so.", COMPUTED, "anywhere", ("a",), says, bears)


@pytest.mark.parametrize(
    ("says", "found"),
    [
        ([], NOT_TESTABLE),
        ([None], NOT_TESTABLE),
        ([SUPPORTED, None], SUPPORTED),
        ([SUPPORTED, CONTRADICTED], CONTRADICTED),
        ([None, CONTRADICTED], CONTRADICTED),
    ],
)
def test_one_contradiction_is_enough_and_silence_decides_nothing(says, found):
    assert verdict([finding(s) for s in says]) == found


def test_what_does_not_bear_decides_nothing():
    assert verdict([finding(CONTRADICTED, bears=False), finding(SUPPORTED)]) == SUPPORTED
    assert verdict([finding(SUPPORTED, bears=False)]) == NOT_TESTABLE


def test_a_published_name_covers_every_card_that_it_may_mean():
    lab = Setting(("H200", "A100 PCIe"), model=LLAMA)
    assert lab.gpus == {"h200", "a100-pcie-40gb", "a100-pcie-80gb"}
    assert lab.covers("a100-pcie-80gb", LLAMA)
    assert not lab.covers("a100-sxm-80gb", LLAMA)
    assert not lab.covers("h200", "opt-125m")


def test_a_cpu_is_no_gpu_and_any_model_will_do_where_none_is_named():
    assert ON_GPUS.covers("mi300x", "opt-125m")
    assert ON_GPUS.covers("l4", LLAMA)
    assert not ON_GPUS.covers("cpu-all", LLAMA)
    assert not ON_GPUS.covers("cpu-1core", LLAMA)
    assert Setting().covers("cpu-all", "opt-125m")


def test_a_measured_finding_names_its_place_and_source():
    found = measured(True, PLACE, "It is so.", SUPPORTED, ["cell"])
    assert found == Finding(
        f"h200, {LLAMA}, chat: It is so.", MEASURED, f"h200, {LLAMA}, chat", ("cell",), SUPPORTED, True
    )
    elsewhere = measured(True, PLACE | {"source": "measured elsewhere", "workload": None}, "It is so.", None, [])
    assert (elsewhere.label, elsewhere.scope) == ("measured elsewhere", f"h200, {LLAMA}")


def test_a_measured_finding_that_does_not_bear_says_nothing():
    found = measured(False, PLACE, "It is so.", CONTRADICTED, [])
    assert (found.says, found.bears) == (None, False)


@pytest.mark.parametrize(("found", "same"), [(109.9, True), (110.1, False), (90.1, True), (89.9, False)])
def test_the_same_number_is_one_within_10_percent(found, same):
    assert is_same(found, 100) is same


def test_a_table_that_was_not_made_has_columns_and_no_rows(tmp_path):
    write_table(
        pd.DataFrame([{"knob": "block_size"}]).reindex(columns=list(EFFECTS.columns)), tmp_path / "effects.parquet"
    )
    tables = read_tables(tmp_path)
    assert set(tables) == {"cells", "effects", "ratios", "engines", "capacity", "predictions", "waste"}
    assert tables["effects"]["knob"].tolist() == ["block_size"]
    assert tables.pop("effects").empty is False
    assert all(table.empty for table in tables.values())
    assert tables["cells"]["prefix_cache_hits"].dtype == float
    assert list(tables["waste"].columns)[:4] == ["cell_id", "start", "repeat", "layout"]


def test_a_table_that_is_none_is_refused(tmp_path):
    (tmp_path / "waste.parquet").write_text("?")
    with pytest.raises(TableError, match=r"waste.parquet: not readable as Parquet"):
        read_tables(tmp_path)


@pytest.mark.parametrize(("found", "same"), [(109.95, True), (110.05, False), (90.05, True), (89.95, False)])
def test_what_is_within_10_percent_is_the_same(found, same):
    assert is_same(found, 100.0) is same


def test_a_rule_is_entered_for_each_claim_that_it_names(monkeypatch):
    monkeypatch.setattr(evidence, "RULES", {"old": None})

    def find(*_):
        return iter(())

    assert rule("one", "two", test="Measure it.")(find) is find
    entered = Rule(find, "Measure it.")
    assert list(evidence.RULES.items()) == [("old", None), ("one", entered), ("two", entered)]


def test_no_claim_is_about_a_pretended_gpu(monkeypatch):
    monkeypatch.setenv("KVSWEEP_GPUS", str(CATALOGUE))
    assert not Setting(kinds=("cuda",)).covers("pretended-gpu", LLAMA)
    assert Setting().covers("cpu-all", LLAMA)
