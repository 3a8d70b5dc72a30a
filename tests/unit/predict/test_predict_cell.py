"""One cell, as JSON: what the plan says of it, and what it does without a study."""

import json

import pytest

from tests.unit.predict.planned import study, write_study
from workflow_scripts.predict.plan import plan
from workflow_scripts.predict.predict_cell import main
from workflow_scripts.study.grid import expand

MODEL = ["--model", "llama-3.1-8b-instruct"]


def test_one_cell_of_a_studys_workload_is_what_the_plan_says(tmp_path, capsys):
    of_study = ["--study", str(write_study(tmp_path)), "--results", str(tmp_path)]
    settings = ["--gpu", "L40S", "--block-size", "16", "--max-num-seqs", "16"]
    planned = plan(study(tmp_path), expand(study(tmp_path)), None)
    assert main([*MODEL, *settings, *of_study, "--workload", "even"]) == 0
    told = json.loads(capsys.readouterr().out)
    row = planned.set_index("cell_id").loc[told["cell_id"]].dropna().to_dict()
    assert {name: row[name] for name in told if name in row} == pytest.approx(
        {name: told[name] for name in told if name in row}
    )
    assert (told["bound_by"], told["source"]) == ("sequences", "predicted")
    # Nothing was calibrated: the band is that of public runs on GPUs by their data sheet.
    assert told["band_group"] == "GPU by its data sheet"
    assert told["output_tokens_per_s_low"] < told["output_tokens_per_s"] < told["output_tokens_per_s_high"]
    assert main([*of_study, "--cell", told["cell_id"]]) == 0
    assert json.loads(capsys.readouterr().out) == told


def test_one_cell_without_a_study(capsys):
    options = ["--gpu", "l40s", "--max-num-seqs", "256", "--prompt-tokens", "900", "--output-tokens", "900"]
    assert main([*MODEL, *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["bound_by"], told["num_requests"]) == ("kv_blocks", 300)


@pytest.mark.parametrize(
    "options", [["--gpu=A100 PCIe"], ["--gpu=h200", "--workload=even"], ["--gpu=h200", "--study=a"], []]
)
def test_bad_input_is_one_message(capsys, options):
    assert main([*MODEL, "--prompt-tokens=9", "--output-tokens=9", *options]) == 2
    assert capsys.readouterr().err.count("\n") == 1
