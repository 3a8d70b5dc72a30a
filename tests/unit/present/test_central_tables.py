"""The tables to print, from made-up results."""

import pytest

from tests.unit.present.conftest import changed, in_table, report_of
from workflow_scripts.page.blocks import Fold, Table, shown
from workflow_scripts.present import figures
from workflow_scripts.questions.knobs import central_tables as module
from workflow_scripts.questions.knobs.central_tables import central_tables, four_metrics, knob_tables
from workflow_scripts.tables.measurements import write_measurements
from workflow_scripts.tables.results import STEADY, MissingError

RATES, TOTAL = range(2)


@pytest.fixture
def tables(report):
    return dict(knob_tables(report.tables))


def rows(table: Table, **names: str) -> list[dict[str, str]]:
    """The rows with these names."""
    found = [dict(zip(table.headings, map(str, row), strict=True)) for row in table.rows]
    return [row for row in found if all(row[name] == value for name, value in names.items())]


def test_each_device_has_a_row_with_a_rate_and_its_interval_at_each_value(tables):
    table = tables["max_num_seqs"][RATES]
    assert table.headings == [
        *("Device / max-num-seqs", "Other settings", "1", "4", "16", "64", "256", "Why there is no rate")
    ]
    assert "vllm, llama-3.1-8b-instruct, chat" in table.note
    found = rows(table, **{"Other settings": "block size 16"})
    assert [row["Device / max-num-seqs"] for row in found] == ["h200", "a100-sxm-80gb", "l40s"]
    assert all("\u00a0to " in row["1"] for row in found)
    # HuggingFace has its batches instead; it was not run on the A100.
    batches = tables["batch_size"][RATES]
    assert [row["Device / batch size"] for row in rows(batches)] == ["h200", "l40s"]


def test_the_metrics_of_the_sources_stand_in_one_table_for_each_device_and_value(report):
    [fold] = four_metrics("block_size")(report)
    [table] = fold.blocks
    words = ("tok/s", "GPU blocks", "Memory waste", "GPU memory")
    metrics = [next(heading for heading in table.headings if heading.startswith(word)) for word in words]
    [row] = [row for row in rows(table, Device="h200", **{"block size": "16"}) if "64 sequences" in row["Settings"]]
    assert row["GPU blocks"] == "144,000"
    assert all(row[heading] for heading in metrics)
    assert {row["Outcome"] for row in rows(table, Device="a100-sxm-80gb", **{"block size": "8"})} == {"infeasible"}


def test_what_was_refused_stays_with_its_reason_and_what_is_missing_is_predicted(report, tables, tmp_path):
    all_sequences = {"Other settings": "at most 256 sequences"}
    [of_a100] = rows(tables["block_size"][RATES], **{"Device / block size": "a100-sxm-80gb"}, **all_sequences)
    assert (of_a100["8"], of_a100["64"]) == ("infeasible", "not run")
    assert of_a100["Why there is no rate"].startswith("8: ValueError: block size 8 is refused")
    [of_l40s] = rows(tables["block_size"][RATES], **{"Device / block size": "l40s"}, **all_sequences)
    assert of_l40s["64"] == "timeout"
    assert of_l40s["Why there is no rate"].endswith("64: not done after 1800 s")
    predictions = in_table(report, "predictions")
    lost = predictions["cell_id"].str.contains("a100") & predictions["cell_id"].str.contains("bs64-seqs256")
    predictions["predicted"] = predictions["predicted"].mask(lost, 1234.0)
    predicted = dict(knob_tables(changed(report, tmp_path, predictions=predictions).tables))["block_size"][RATES]
    [of_a100] = rows(predicted, **{"Device / block size": "a100-sxm-80gb"}, **all_sequences)
    assert of_a100["64"] == "1,234 predicted"


def test_published_rates_have_rows_of_their_own_and_imported_ones_are_labelled(report, tables, tmp_path, cells):
    found = rows(tables["max_num_seqs"][TOTAL], **{"Other settings": "block size 16"})
    assert [row["Device / max-num-seqs"] for row in found] == [
        "h200",
        "NVIDIA H200 SXM (published by others, if up to 75 % are prompt tokens, or as many as it needs)",
    ]
    assert [row["Workload"] for row in found][1] == "the source's own"
    low, high = (float(end.replace(",", "")) for end in found[1]["4"].split("\u00a0to "))
    assert high == 2 * low  # 75 to 50 % are prompt tokens
    impossible = in_table(report, "predictions").assign(published_prompt_share=0.9)
    other = dict(knob_tables(changed(report, tmp_path / "share", predictions=impossible).tables))
    text = rows(other["max_num_seqs"][TOTAL], **{"Other settings": "block size 16"})[1]["4"]
    assert text == f"at most {shown(0.2 * high)} (at least 90 %)"
    imported = dict(knob_tables(changed(report, tmp_path, cells=cells.assign(source="imported")).tables))
    devices = {row["Device / batch size"] for row in rows(imported["batch_size"][RATES])}
    assert devices == {"h200 (imported)", "l40s (imported)"}


@pytest.mark.parametrize(
    ("fastest", "decided", "mark"), [("256", True, "★"), ("64, 256", True, "★"), ("16, 64, 256", False, "☆")]
)
def test_the_fastest_is_marked_as_the_analysis_decides(report, tmp_path, fastest, decided, mark):
    """Values that are all flat are equally fast; every other one is shown to be slower than those that remain."""
    compared, best = in_table(report, "comparisons"), fastest.split(", ")
    both = compared["value_a"].isin(best) & compared["value_b"].isin(best)
    compared["verdict"] = compared["verdict"].where(
        compared["verdict"].isna() | ~both, "flat" if decided else "not decided"
    )
    slower = compared["verdict"].notna() & ~both & (compared["value_a"].isin(best) | compared["value_b"].isin(best))
    compared["verdict"] = compared["verdict"].mask(slower, "changes")
    compared["ratio"] = compared["ratio"].mask(slower, compared["value_b"].isin(best).map({True: 2.0, False: 0.5}))
    tables = dict(knob_tables(changed(report, tmp_path, comparisons=compared).tables))
    names = {"Device / max-num-seqs": "h200", "Other settings": "block size 16"}
    [row] = rows(tables["max_num_seqs"][RATES], **names)
    marks = (module.BEST, module.PERHAPS_BEST)
    marked = {value: mark for value, text in row.items() for mark in marks if f"\u00a0{mark} (" in text}
    assert marked == dict.fromkeys(fastest.split(", "), mark)


def test_rows_that_are_compared_while_the_engine_is_full_have_a_table_of_their_own(report, tmp_path):
    rows_of = in_table(report, "comparisons")
    rows_of["metric"] = rows_of["metric"].mask(rows_of["gpu"].eq("h200") & rows_of["verdict"].notna(), STEADY)
    whole, full, *_ = dict(knob_tables(changed(report, tmp_path, comparisons=rows_of).tables))["max_num_seqs"]
    of_16 = [rows(table, **{"Other settings": "block size 16"}) for table in (whole, full)]
    devices = [[row["Device / max-num-seqs"] for row in of_table] for of_table in of_16]
    assert devices == [["a100-sxm-80gb", "l40s"], ["h200"]]


def test_they_are_shown_and_written_as_markdown_and_some_rows_of_a_large_study(report, tmp_path, monkeypatch):
    assert [type(block) for block in central_tables(report)] == [Table, Fold, Table, Table]
    figures.write_tables(report.tables, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"by_{knob}.md" for knob in module.KNOBS}
    heading, rule, *_, of_h200 = (tmp_path / "by_max_num_seqs.md").read_text(encoding="utf-8").splitlines()[4:10]
    assert heading.startswith("| Device / max-num-seqs | Other settings | 1 | 4 |")
    assert rule.startswith("| --- | --- | ---: | ---: |")
    assert of_h200.startswith("| h200 | block size 16 | ")
    monkeypatch.setattr(module, "MOST_ROWS", 2)
    table = dict(knob_tables(report.tables))["max_num_seqs"][RATES]
    assert (len(table.rows), "2 of 12 rows" in table.note) == (2, True)


def test_a_study_that_varies_no_such_knob_has_no_such_table(cells, tmp_path):
    write_measurements(cells[cells["cell_id"] == cells["cell_id"].iloc[0]], tmp_path)
    with pytest.raises(MissingError, match=r"no two cells .* max-num-seqs, block size, batch"):
        list(central_tables(report_of(tmp_path)))
