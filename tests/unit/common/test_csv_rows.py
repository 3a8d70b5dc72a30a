"""CSV files are read as pandas reads them."""

import pandas as pd
import pytest

from workflow_scripts.catalog.published import PUBLISHED
from workflow_scripts.common.csv_rows import read_rows
from workflow_scripts.common.faults import InputError


@pytest.mark.parametrize("table", sorted(PUBLISHED.glob("*.csv")), ids=lambda path: path.stem)
def test_a_published_table_is_read_as_by_pandas(table):
    names, rows = read_rows(table)
    expected = pd.read_csv(table)
    assert names == list(expected)
    of_pandas = expected.astype(object).where(expected.notna(), None).to_dict("records")
    assert rows == of_pandas


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ("a,b\n", []),
        ("\ufeffa,b\r\n1,x\r\n\r\n2,\r\n", [{"a": 1, "b": "x"}, {"a": 2, "b": None}]),
        ("a,a\n1,2.5\n", [{"a": 1, "a.1": 2.5}]),
        ('a,b\n"1,200",n/a\n3\n', [{"a": "1,200", "b": None}, {"a": "3", "b": None}]),
        (",a\n0,5\n", [{"": 0, "a": 5}]),
    ],
)
def test_forms_of_a_table(tmp_path, content, rows):
    path = tmp_path / "a.csv"
    path.write_bytes(content.encode())
    assert read_rows(path)[1] == rows


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it has no columns"),
        (b"|a|\n|-|\n\n|b|\n|-|\n", "it has 2 tables .at lines 1, 4.: keep one"),
        (b"a\n" + b"1\n" * 10_001, "10001 rows, 1 columns; allowed: 10000 rows"),
        (b"a," * 1_000 + b"a\n", "0 rows, 1001 columns; allowed"),
        (b"a\n1,2\n", "row 1 has 2 fields, and 1 columns have a name"),
        (b"a\n\xff\n", "utf-8"),
        (b"a\n" + b"x" * 200_000 + b"\n", "field larger than"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, content, said):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"a.csv: not (a CSV table: .*{said}|UTF-8 text)"):
        read_rows(path)
