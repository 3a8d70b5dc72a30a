"""Tables come back as they were written, and damaged or hostile ones are one fault of their file."""

import random
from contextlib import suppress

import numpy as np
import pandas as pd
import pyarrow as arrow
import pytest
from pyarrow import parquet

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.parquet import read_parquet, to_parquet

TABLE = pd.DataFrame(
    {
        "text": pd.array(["a", None, "b"], dtype="string"),
        "other": ["x", None, "y"],
        "number": [1.5, np.nan, 2],
        "list": [[1.0], None, []],
    }
)


def test_a_table_comes_back_with_its_types_and_nulls(tmp_path):
    (tmp_path / "a.parquet").write_bytes(to_parquet(TABLE))
    found = read_parquet(tmp_path / "a.parquet")
    assert found.dtypes.to_dict() == TABLE.dtypes.to_dict()
    assert found["other"].tolist() == ["x", None, "y"]
    pd.testing.assert_frame_equal(found.drop(columns="list"), TABLE.drop(columns="list"))
    with pytest.raises(FileNotFoundError):
        read_parquet(tmp_path / "b.parquet")


def test_a_changed_byte_is_found(tmp_path):
    rows = pd.concat([TABLE] * 100, ignore_index=True)
    content, path = to_parquet(rows), tmp_path / "a.parquet"
    for seed in range(60):
        place = random.Random(seed).randrange(len(content))
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with suppress(InputError):  # unless it was in what says who wrote the file
            pd.testing.assert_series_equal(read_parquet(path)["number"], rows["number"])


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\xff" * 99 + b"PAR1", b"text,number\n"])
def test_what_is_no_table_is_refused(tmp_path, content):
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.parquet: not readable as Parquet"):
        read_parquet(tmp_path / "a.parquet")


def test_a_small_file_with_billions_of_values_is_refused(tmp_path):
    same = arrow.array(np.zeros(10**6))
    parquet.write_table(arrow.table({f"{i}": same for i in range(50)}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="50,000,000 values and "):
        read_parquet(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("column", "fault"),
    [
        (["x" * 2**20 + str(i) for i in range(70)], "bytes of text"),
        (np.zeros(5 * 10**6), "5,000,000 values"),
        ([1.0, -1e101], "beyond 1e"),
        (arrow.array([b"x" * 500_000] * 4, arrow.large_binary()), "type large_binary"),
        (arrow.array([b"x" * 2**20] * 4, arrow.binary(2**20)), "type fixed_size_binary"),
        (arrow.array([["x" * 10**5] * 4] * 4, arrow.list_(arrow.string())), "type list"),
    ],
    ids=["texts", "equal rows", "a number", "equal bytes", "bytes of one size", "lists of equal texts"],
)
def test_a_small_file_that_needs_much_memory_or_overflows_is_refused(tmp_path, column, fault):
    parquet.write_table(arrow.table({"a": column}), tmp_path / "a.parquet", compression="zstd")
    assert (tmp_path / "a.parquet").stat().st_size < 10**5
    with pytest.raises(InputError, match=fault):
        read_parquet(tmp_path / "a.parquet")


def test_infinity_is_a_number_of_tables(tmp_path):
    (tmp_path / "a.parquet").write_bytes(to_parquet(pd.DataFrame({"a": [1.0, -np.inf, np.nan]})))
    assert read_parquet(tmp_path / "a.parquet")["a"].tolist()[:2] == [1.0, -np.inf]
