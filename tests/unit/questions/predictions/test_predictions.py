import numpy as np
import pandas as pd
import pytest
import yaml

from tests.unit.predict.planned import write_study
from tests.unit.questions.made import made
from tests.unit.questions.synthetic_cells import cell, plan_of, table, write_measurements
from workflow_scripts.catalog.gpus_and_models import CONFIG
from workflow_scripts.catalog.published import Published
from workflow_scripts.questions.predictions.table import predictions_table, published_rates
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.cell_intervals import cell_intervals
from workflow_scripts.tables.summary import Summaries
from workflow_scripts.tables.typed_tables import TableError

PREDICTED = {"output_tokens_per_s": 100, "total_tokens_per_s": 400, "ttft_s_p50": 2, "tpot_s_p50": 0.1}
BANDS = {"error_pct": 25.0, "ttft_error_pct": 50.0}
BANDS |= {f"{name}_low": 0.8 * value for name, value in PREDICTED.items()}
BANDS |= {f"{name}_high": 1.25 * value for name, value in PREDICTED.items()}


def table_of(*cells, published=None, **columns):
    """The table of a plan that predicts 100 output tokens/s for every cell, 80 to 125."""
    measured = table(*cells)
    plan = plan_of(measured, **(PREDICTED | BANDS | columns))
    return predictions_table(measured, cell_intervals(Summaries(measured)), plan, published)


def predictions(*cells, **options):
    rows = table_of(*cells, **options)
    return rows[rows["quantity"] == "output_tokens_per_s"].set_index("knobs")


def test_error_and_flag():
    rows = predictions(
        cell({"max_num_seqs": 1}, [81, 81, 81], running_peak=1),
        cell({"max_num_seqs": 4}, [125, 126, 126 * 126 / 125]),
        cell({"max_num_seqs": 16}, [70]),
    )
    assert rows["measured"].tolist() == pytest.approx([81, 126, 70])
    assert rows["error_pct"].tolist() == pytest.approx(
        [100 * (100 / 81 - 1), 100 * (100 / 126 - 1), 100 * (100 / 70 - 1)]
    )
    assert rows["flagged"].tolist() == [False, True, True]
    assert rows["why"].tolist()[1:] == ["outside the band"] * 2
    assert rows["in_band"].tolist() == [True, False, False]
    assert (rows["running_peak_predicted"].iloc[0], rows["running_peak_measured"].iloc[0]) == (16, 1)


def test_only_output_rates_are_flagged_and_only_of_cells_that_ran():
    wider = {"ttft_s_p50_high": 1.5 * PREDICTED["ttft_s_p50"]}
    rows = table_of(cell({"max_num_seqs": 1}, [100], ttft_s_p50=20.0), **wider).set_index("quantity")
    assert rows.loc["ttft_s_p50", "error_pct"] == pytest.approx(-90)
    assert rows.loc[["ttft_s_p50", "tpot_s_p50"], "in_band"].tolist() == [False, pd.NA]
    assert rows.loc[["ttft_s_p50", "tpot_s_p50"], "band_pct"].tolist() == pytest.approx([50, 25])
    assert not rows["flagged"].any()
    assert rows.loc["total_tokens_per_s", "measured"] == pytest.approx(400)
    changes = ({"outcome": "invalid"}, {"comparable": False}, {"outcome": "missing"})
    rows = predictions(*(cell({"max_num_seqs": 4**i}, [9], **of) for i, of in enumerate(changes)))
    assert rows["measured"].isna().tolist() == [True] * 3
    assert not rows["flagged"].any()


def test_what_follows_from_the_schedule_is_compared_too():
    cells = cell({"max_num_seqs": 1}, [100, 100], preemptions=4, recomputed_tokens=90, prefix_cache_hit_rate=0.25)
    counts = {"preemptions": 4, "recomputed_tokens": 100, "cached_tokens": 30, "prompt_tokens": 100}
    rows = table_of(cells, **counts).set_index("quantity")
    assert rows.loc["preemptions", ["predicted", "measured", "error_pct"]].tolist() == [4, 4, 0]
    assert rows.loc["recomputed_tokens", ["predicted", "measured"]].tolist() == [100, 90]
    assert rows.loc["prefix_cache_hit_rate", ["predicted", "measured"]].tolist() == [0.3, 0.25]
    assert rows.loc["preemptions", ["low", "high", "band_pct"]].isna().all()


def test_one_says_infeasible_and_the_other_not():
    ran = predictions(cell({"max_num_seqs": 1}, [100]), infeasible="too many", output_tokens_per_s=np.nan)
    assert set(ran["why"]) == {"ran, predicted infeasible"}
    refused = cell({"max_num_seqs": 1}, [np.nan], outcome="infeasible", reason="no room")
    assert set(predictions(refused)["why"]) == {"infeasible, not predicted"}
    assert not predictions(refused, infeasible="no")["flagged"].any()
    # A cell of which one start ran is feasible.
    rows = predictions(refused, cell({"max_num_seqs": 1}, [100], start=2))
    assert (rows["flagged"].tolist(), rows["measured"].tolist()) == ([False], [pytest.approx(100)])


def test_a_prediction_without_a_band_is_flagged_only_beyond_the_data_sheet():
    ends = {"output_tokens_per_s_low": None, "error_pct": None}
    rows = predictions(cell({"max_num_seqs": 1}, [5]), cell({"max_num_seqs": 4}, [126]), **ends)
    assert rows["flagged"].tolist() == [pd.NA, True]
    assert rows["band_pct"].isna().all()


def published_sweep(folder, rates):
    quantities = [{"name": "max_num_seqs", "unit": "sequences", "min": 1, "max": 256}]
    one = {"source": "lab", "text": "It is so.", "section": "devices", "tested_by": "demo: a", "quantities": quantities}
    sweep = {"id": "one", "table": "sweep.csv", "model": "llama-3.1-8b-instruct"}
    (folder / "claims.yaml").write_text(yaml.safe_dump([one | sweep, one | {"id": "two"}]))
    (folder / "sweep.csv").write_text(rates)
    return Published(folder)


def naming(*claims):
    study = load_study(CONFIG / "studies/what_if.yaml")
    return study.model_copy(update={"claims": list(claims)})


def test_what_was_published_stands_beside_its_cells(tmp_path):
    published = published_sweep(
        tmp_path, "gpu,max_num_seqs,throughput_tok_s\nH200,4,11977\nA100 PCIe,1,5241\nH100,1,11200\n"
    )
    found = published_rates(naming("one"), published)
    assert found["vllm", "llama-3.1-8b-instruct", "a100-pcie-40gb", 1] == 5241
    of_cards = {found["vllm", "llama-3.1-8b-instruct", card, 1] for card in ("h100-sxm", "h100-pcie", "h100-nvl")}
    assert of_cards == {11200}
    rows = predictions(cell({"max_num_seqs": 1}), cell({"max_num_seqs": 4}), published=found)
    assert np.isnan(rows["published"].iloc[0])
    assert rows["published"].iloc[1] == 11977
    assert published_rates(naming("two"), published) == published_rates(naming(), published) == {}


def test_what_is_no_plan_and_no_published_sweep_is_told(tmp_path):
    cells = table(cell({"max_num_seqs": 4}))
    write_measurements(cells, tmp_path)
    with pytest.raises(TableError, match=r"plan\.parquet: not a plan"):
        made(write_study(tmp_path), tmp_path, "predictions")
    published = published_sweep(tmp_path, "gpu\nnothing\n")
    with pytest.raises(TableError, match=r"sweep\.csv: .*: 'max_num_seqs'"):
        published_rates(naming("one"), published)
