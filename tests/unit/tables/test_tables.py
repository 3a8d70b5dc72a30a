import csv
from pathlib import Path

import pandas as pd
import pytest

from workflow_scripts.common.csv_rows import read_rows
from workflow_scripts.questions.table_docs import index, schemas
from workflow_scripts.questions.table_docs import main as columns
from workflow_scripts.tables import typed_tables as tables
from workflow_scripts.tables.typed_tables import (
    FLAG,
    INTEGER,
    NUMBER,
    OBJECT,
    TEXT,
    TableError,
    read_table,
    table_schema,
    write_table,
)

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "tables.md"
SCHEMAS = schemas()  # imports every module that makes a table, before the tests change the registry


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(tables, "TABLE_SCHEMAS", dict(tables.TABLE_SCHEMAS))
    table_schema("try", "", TEXT("name", ""), INTEGER("count", ""), NUMBER("rate", ""), FLAG("good", ""))


def frame(**columns):
    return pd.DataFrame(
        {"name": ["a", None], "count": [1, None], "rate": [0.5, None], "good": [True, None]} | columns, index=[7, 9]
    )


def test_types_and_nulls_survive_in_both_formats(tmp_path):
    path = tmp_path / "tables" / "try.parquet"
    write_table(frame(), path)
    back = read_table(path)
    assert back.dtypes.astype(str).tolist() == ["string", "Int64", "float64", "boolean"]
    assert back.index.tolist() == [0, 1]
    assert back.iloc[0].tolist() == ["a", 1, 0.5, True]
    assert back.iloc[1].isna().all()
    assert path.with_suffix(".csv").read_text() == '"name","count","rate","good"\n"a",1,0.5,true\n,,,\n'


@pytest.mark.parametrize("text", ["=1+1", "+a", "-bs32", "@a", "\ta", "\ra", "'=1", "-0.5 to 1"])
def test_a_spreadsheet_reads_no_text_as_a_formula_and_a_number_as_a_number(tmp_path, text):
    write_table(frame(name=[text, "-2"], rate=[-0.5, None]), tmp_path / "try.parquet")
    assert read_table(tmp_path / "try.parquet")["name"].tolist() == [text, "-2"]
    with (tmp_path / "try.csv").open(newline="") as lines:
        assert [row["name"] for row in csv.DictReader(lines)] == [f"'{text}", "-2"]
    _, rows = read_rows(tmp_path / "try.csv")
    assert (rows[0]["name"].strip(), rows[0]["rate"]) == (text.strip(), -0.5)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (frame(extra=1), "column 'extra' is not allowed"),
        (frame().drop(columns="rate"), "column 'rate' is missing"),
        (frame(count=[1, 2.5]), "column 'count' is not of dtype('Int64')"),
        (
            frame(rate=["fast"] * 2).drop(columns="good"),
            "column 'good' is missing; column 'rate' is not of dtype('float64')",
        ),
    ],
)
def test_what_the_schema_does_not_say_is_not_written(tmp_path, wrong, why):
    path = tmp_path / "try.parquet"
    with pytest.raises(TableError) as e:
        write_table(wrong, path)
    assert str(e.value) == f"{path}: not a table 'try': {why}"
    assert list(tmp_path.iterdir()) == []


def test_two_rows_with_one_key_and_text_that_is_no_json_object_are_refused(tmp_path):
    table_schema("keyed", "", TEXT("name", ""), OBJECT("settings", ""), key=["name"])
    rows = pd.DataFrame({"name": ["a", "b"], "settings": ["{}", None]})
    write_table(rows, tmp_path / "keyed.parquet")
    twice = (rows.assign(name="a"), "column 'name' has 'a' in two rows")
    for wrong, why in (
        twice,
        *((rows.assign(settings=text), "'settings' is not a JSON object") for text in ("[]", "x")),
    ):
        with pytest.raises(TableError, match=f"not a table 'keyed': .*{why}"):
            write_table(wrong, tmp_path / "keyed.parquet")


def test_knob_columns_of_any_type_follow_where_the_schema_lets_them(tmp_path):
    table_schema("swept", "", TEXT("name", ""), knobs=True)
    rows = pd.DataFrame({"name": ["a"], "knob_block_size": [16], "knob_kv_cache_dtype": ["fp8"]})
    write_table(rows, tmp_path / "swept.parquet")
    assert read_table(tmp_path / "swept.parquet").iloc[0].tolist() == ["a", 16, "fp8"]
    write_table(rows.assign(knob_kv_cache_dtype=None), tmp_path / "swept.parquet")
    assert read_table(tmp_path / "swept.parquet")["knob_kv_cache_dtype"].isna().tolist() == [True]
    write_table(rows[["name"]], tmp_path / "swept.parquet")
    with pytest.raises(TableError, match="not a table 'swept'"):
        write_table(rows.rename(columns={"knob_block_size": "knob_"}), tmp_path / "swept.parquet")


def test_a_file_that_is_no_table_is_named(tmp_path):
    with pytest.raises(TableError, match=r"^.*/try\.parquet: there is no such table$"):
        read_table(tmp_path / "try.parquet")
    (tmp_path / "try.parquet").write_text("name,count\n")
    with pytest.raises(TableError, match=r"try\.parquet: not readable as Parquet: "):
        read_table(tmp_path / "try.parquet")
    frame(extra=1).to_parquet(tmp_path / "try.parquet")
    with pytest.raises(TableError, match=r"not a table 'try': column 'extra' is"):
        read_table(tmp_path / "try.parquet")


def test_every_table_and_column_is_documented_with_what_its_schema_says():
    assert DOCUMENTATION.read_text(encoding="utf-8") == index(), "run: kvsweep columns --write-index"
    columns_of = {schema.name: schema.columns for schema in SCHEMAS}
    assert len(columns_of) == len(SCHEMAS)
    assert set(columns_of) == set(tables.TABLE_SCHEMAS) - {"try"}
    assert [name for found in columns_of.values() for name, of in found.items() if not of.description] == []


def test_columns_of_a_table_are_printed_and_an_unknown_table_is_refused(capsys):
    assert columns(["searches"]) == 0
    said = capsys.readouterr().out
    assert all(f"`{name}`" in said for name in ("cell_id", "gpu"))
    assert columns(["searche"]) == 2
    assert "did you mean 'searches'" in capsys.readouterr().err
