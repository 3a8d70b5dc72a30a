"""`import kvsweep`: what the commands answer, as Python objects."""

import json
import re

import numpy as np
import pytest

import kvsweep
from benchmarks.start import CALLS
from workflow_scripts.__main__ import main

LOG = CALLS["log"]


def test_a_study_s_tables_are_there_with_the_meaning_of_every_column(synthetic):
    results = kvsweep.load(synthetic)
    assert {"cells", "starts", "repeats", "intervals"} <= {*dir(results)}
    assert {"ok", "failed"} & {*results.cells["outcome"]}
    for name in (path.stem for path in (synthetic / "tables").glob("*.parquet")):
        meanings = results.meanings(name)
        assert sorted(results.table(name)) == sorted(meanings)
        assert all(meanings.values())
        assert not any(re.fullmatch(r"as in `\w+`", meaning) for meaning in meanings.values())


def test_missing_tables_and_unknown_names_are_bad_input(tmp_path):
    with pytest.raises(kvsweep.InputError, match="no tables"):
        kvsweep.load(tmp_path)
    with pytest.raises(kvsweep.InputError, match="No such file"):
        kvsweep.read_log(tmp_path / "no.log")
    with pytest.raises(kvsweep.InputError, match="none"):
        kvsweep.capacity("opt-125m", "none", kvsweep.EngineSettings(max_model_len=2048))


@pytest.mark.parametrize(
    "setting", [{"gpu_memory_utilization": 90}, {"block_size": -16}, {"block_size": 0}, {"block_size": "16"}]
)
def test_a_setting_that_the_command_refuses_is_refused(setting):
    with pytest.raises(kvsweep.InputError, match=next(iter(setting))):
        kvsweep.capacity("opt-125m", "h200", kvsweep.EngineSettings(max_model_len=2048, **setting))


def test_an_unknown_table_is_named_with_those_there_are(synthetic):
    results = kvsweep.load(synthetic)
    with pytest.raises(kvsweep.InputError, match="intervals"):
        results.meanings("interval")
    assert not hasattr(results, "interval")
    assert "intervals" in repr(results)


def test_rates_has_one_row_per_cell_with_each_measure_and_its_interval(synthetic):
    results = kvsweep.load(synthetic)
    rates, intervals = results.rates, results.intervals
    assert rates["cell_id"].tolist() == results.cells["cell_id"].tolist()
    one = intervals[intervals["measure"] == "output_tokens_per_s"].iloc[0]
    row = rates.set_index("cell_id").loc[one["cell_id"]]
    for end, column in {"value": "", "low": "_low", "high": "_high"}.items():
        np.testing.assert_allclose(float(row[f"output_tokens_per_s{column}"]), float(one[end]))


@pytest.mark.parametrize("name", ["capacity", "audit", "log"])
def test_python_and_the_command_give_the_same_numbers(name, capsys):
    assert main([name, *CALLS[name].split(), *(["--json"] if name != "log" else [])]) == 0
    said = json.loads(capsys.readouterr().out)
    if name == "capacity":
        terms = kvsweep.capacity("llama-3.1-8b-instruct", "h200", kvsweep.EngineSettings(max_model_len=4096))
        assert {key: term.value for key, term in terms.items()} == {key: said[key]["value"] for key in terms}
    elif name == "audit":
        table, model = CALLS["audit"].split()[0], "llama-3.1-8b-instruct"
        rates = kvsweep.audit(table, model, tokens_per_request=(200, 200))
        assert rates["verdict"].tolist() == [row["verdict"] for row in said["rows"]]
        assert "impossible" in {*rates["verdict"]}
    else:
        assert kvsweep.read_log(LOG).model_dump(mode="json") == said
