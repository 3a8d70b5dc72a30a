"""The tables to print, from made-up results."""

import pytest

from tests.unit.present.conftest import changed, in_table, report_of
from tests.unit.questions.synthetic_cells import write_measurements
from workflow_scripts.page.blocks import Table, shown
from workflow_scripts.present import figures
from workflow_scripts.questions.knobs import central_tables as module
from workflow_scripts.questions.knobs.central_tables import central_tables, four_metrics, knob_tables
from workflow_scripts.tables.results import STEADY, MissingError

SEQUENCES, SIZES, BATCHES = (f"Device / {words}" for words in ("max-num-seqs", "block size", "batch size"))
OF_16 = {"Other settings": "block size 16"}


def tables_of(report, *changes, **tables):
    return dict(knob_tables((changed(report, *changes, **tables) if changes else report).tables))


def rows(table: Table, **names: str) -> list[dict[str, str]]:
    """The rows with these names."""
    found = [dict(zip(table.headings, map(str, row), strict=True)) for row in table.rows]
    return [row for row in found if all(row[name] == value for name, value in names.items())]


def test_each_device_has_a_row_with_a_rate_and_its_interval_at_each_value(report):
    tables = tables_of(report)
    found = [row for row in rows(tables["max_num_seqs"], **OF_16) if module.PUBLISHED not in row["Rate"]]
    assert [row[SEQUENCES] for row in found] == ["h200", "a100-sxm-80gb", "l40s"]
    assert all("\u00a0to " in row[value] for row in found for value in ("1", "4", "16", "64", "256"))
    # HuggingFace has its batches instead; it was not run on the A100.
    assert [row[BATCHES] for row in rows(tables["batch_size"])] == ["h200", "l40s"]


def test_the_metrics_of_the_sources_stand_in_one_table_for_each_device_and_value(report):
    [fold] = four_metrics("block_size")(report)
    [table] = fold.blocks
    words = ("tok/s", "GPU blocks", "Memory waste", "GPU memory")
    metrics = [next(heading for heading in table.headings if heading.startswith(word)) for word in words]
    [row] = [row for row in rows(table, Device="h200", **{"block size": "16"}) if "64 sequences" in row["Settings"]]
    assert row["GPU blocks"] == "144,000"
    assert all(row[heading] for heading in metrics)
    assert {row["Outcome"] for row in rows(table, Device="a100-sxm-80gb", **{"block size": "8"})} == {"infeasible"}


def test_what_has_no_rate_says_how_it_ended_and_what_is_missing_is_predicted(report, tmp_path):
    predictions = in_table(report, "predictions")
    lost = predictions["cell_id"].str.contains("a100") & predictions["cell_id"].str.contains("bs64-seqs256")
    predictions["predicted"] = predictions["predicted"].mask(lost, 1234.0)
    table = tables_of(report, tmp_path, predictions=predictions)["block_size"]
    all_sequences = {"Other settings": "at most 256 sequences"}
    [of_a100] = rows(table, **{SIZES: "a100-sxm-80gb"}, **all_sequences)
    [of_l40s] = rows(table, **{SIZES: "l40s"}, **all_sequences)
    assert (of_a100["8"], of_a100["64"], of_l40s["64"]) == ("infeasible", "1,234 predicted", "timeout")


def test_published_rates_have_rows_of_their_own_and_imported_ones_are_labelled(report, tmp_path, cells):
    def published(table):
        [row] = rows(table, Workload="the source's own", **OF_16)
        return row["4"]

    text = published(tables_of(report)["max_num_seqs"])
    low, high = (float(end.replace(",", "")) for end in text.split("\u00a0to "))
    assert high == 2 * low  # 75 to 50 % are prompt tokens
    impossible = in_table(report, "predictions").assign(published_prompt_share=0.9)
    text = published(tables_of(report, tmp_path / "share", predictions=impossible)["max_num_seqs"])
    assert text == f"at most {shown(0.2 * high)} (at least 90 %)"
    imported = tables_of(report, tmp_path, cells=cells.assign(source="imported"))
    assert {row[BATCHES] for row in rows(imported["batch_size"])} == {"h200 (imported)", "l40s (imported)"}


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
    row = rows(tables_of(report, tmp_path, comparisons=compared)["max_num_seqs"], **{SEQUENCES: "h200"}, **OF_16)[0]
    marks = (module.BEST, module.PERHAPS_BEST)
    marked = {value: mark for value, text in row.items() for mark in marks if f"\u00a0{mark} (" in text}
    assert marked == dict.fromkeys(fastest.split(", "), mark)


def test_a_row_has_the_rate_by_which_its_cells_are_compared(report, tmp_path):
    rows_of = in_table(report, "comparisons")
    rows_of["metric"] = rows_of["metric"].mask(rows_of["gpu"].eq("h200") & rows_of["verdict"].notna(), STEADY)
    found = rows(tables_of(report, tmp_path, comparisons=rows_of)["max_num_seqs"], **OF_16)
    full = {row[SEQUENCES] for row in found if "while full" in row["Rate"]}
    assert full == {"h200"}


def test_they_are_shown_and_written_as_markdown_and_some_rows_of_a_large_study(report, tmp_path, monkeypatch):
    assert [type(block) for block in central_tables(report)] == [Table, Table, Table]
    figures.write_tables(report.tables, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"by_{knob}.md" for knob in module.KNOBS}
    assert "\n| h200 | " in (tmp_path / "by_max_num_seqs.md").read_text(encoding="utf-8")
    monkeypatch.setattr(module, "MOST_ROWS", 2)
    table = tables_of(report)["max_num_seqs"]
    assert (len(table.rows), " rows; the list of cells" in table.note) == (2, True)


def test_a_study_that_varies_no_such_knob_has_no_such_table(cells, tmp_path):
    write_measurements(cells[cells["cell_id"] == cells["cell_id"].iloc[0]], tmp_path)
    with pytest.raises(MissingError, match=r"no two cells .* max-num-seqs, block size, batch"):
        list(central_tables(report_of(tmp_path)))
