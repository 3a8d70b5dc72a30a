"""Which measurements bear on a claim, and the tables of a study that has not made all of them."""

import pandas as pd

from tests.pretended_gpu import CATALOGUE
from tests.unit.analyse.claim_evidence import LLAMA
from workflow_scripts.analyse.claims.claim_tables import read_tables
from workflow_scripts.analyse.claims.evidence import Setting
from workflow_scripts.analyse.settings.effects import SCHEMA as EFFECTS
from workflow_scripts.analyse.tables import write_table


def test_a_published_name_covers_every_card_that_it_may_mean_and_no_name_every_gpu(monkeypatch):
    lab = Setting(("H200", "A100 PCIe"), models=(LLAMA,))
    assert lab.gpus == {"h200", "a100-pcie-40gb", "a100-pcie-80gb"}
    assert lab.covers("a100-pcie-80gb", LLAMA)
    assert not lab.covers("a100-sxm-80gb", LLAMA)
    assert not lab.covers("h200", "opt-125m")
    of_any = [gpu for gpu in ("mi300x", "l4", "cpu-all", "cpu-1core") if Setting().covers(gpu, "opt-125m")]
    assert of_any == ["mi300x", "l4"]
    monkeypatch.setenv("KVSWEEP_GPUS", str(CATALOGUE))
    assert not Setting().covers("pretended-gpu", LLAMA)


def test_a_table_that_was_not_made_has_columns_and_no_rows(tmp_path):
    effects = pd.DataFrame([{"knob": "block_size"}]).reindex(columns=list(EFFECTS.columns))
    write_table(effects, tmp_path / "effects.parquet")
    tables = read_tables(tmp_path)
    assert tables.pop("effects")["knob"].tolist() == ["block_size"]
    assert set(tables) == {"cells", "ratios", "engines", "capacity", "predictions", "waste"}
    assert all(table.empty for table in tables.values())
    assert tables["cells"]["prefix_cache_hits"].dtype == float
    assert list(tables["waste"].columns)[:4] == ["cell_id", "start", "repeat", "layout"]
