"""Files are written completely or not at all, and what others wrote is read within limits."""

import hashlib
import json
import os
import stat
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from workflow_scripts.common import files
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import (
    MIB,
    MOST_LINE_BYTES,
    MOST_VALUES,
    last_line,
    parse_json,
    read_json,
    read_jsonl,
    read_text,
    sha256_of,
    unpack_zip,
    write_bytes,
    write_json,
    write_jsonl,
)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    target = tmp_path / "a.json"
    write_json(target, {"old": 1})

    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        write_json(target, {"new": 2})
    assert read_json(target) == {"old": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_records_come_back_readable_and_not_a_number_is_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"rate": float("nan")})
    assert not list(tmp_path.iterdir())
    write_jsonl(tmp_path / "deep" / "a.jsonl", [{"a": 1}, {"b": "\u00e9"}])
    assert list(read_jsonl(tmp_path / "deep" / "a.jsonl")) == [{"a": 1}, {"b": "\u00e9"}]
    write_bytes(tmp_path / "a", b"x")
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode
    assert sha256_of(tmp_path / "a") == hashlib.sha256(b"x").hexdigest()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"{} {}",
        b"[" * 100_000,
        b"NaN",
        b"[-Infinity]",
        b"1e999",
        b"1e101",
        b"9223372036854775808",
        b"[-12345678901234567890123]",
        b'{"a": ' + b"9" * 400 + b"}",
        b"9" * 5000,
        b'"\xff"',
        b'"\\ud800"',
        "{}".encode("utf-16"),
        b"[" + b"1," * MOST_VALUES + b"1]",
    ],
)
def test_what_is_not_json_or_too_large_is_one_fault_of_its_file(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    for read in (read_json, lambda path: list(read_jsonl(path)) or read_json(path)):
        with pytest.raises(InputError, match=r"a\.json: ") as raised:
            read(tmp_path / "a.json")
        assert len(str(raised.value).splitlines()) == 1


def test_numbers_of_any_real_size_are_read():
    text = b'[1e100, -1.5E+2, -9223372036854775808, 0.1234567890123456789, 1764400000123456789, 1e-99, "1e999"]'
    assert parse_json(text, "") == json.loads(text)
    assert parse_json(b"[5e-324, 1e-999, 0." + b"0" * 400 + b"1]", "") == [0, 0, 0]


@pytest.mark.parametrize("read", [read_json, read_text, last_line, sha256_of])
def test_what_may_have_no_end_is_refused_at_once(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InputError, match=f"{path}: a pipe or a device"):
            read(path)
    with pytest.raises(IsADirectoryError):
        read(tmp_path)


@pytest.mark.parametrize("line", [b"[]", b"1", b"{", b" " * (MOST_LINE_BYTES + 1)])
def test_the_lines_before_a_bad_one_are_read(tmp_path, line):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n\n' + line + b'\n{"a": 2}\n')
    lines = read_jsonl(tmp_path / "a.jsonl")
    assert next(lines) == {"a": 1}
    with pytest.raises(InputError, match=r"a\.jsonl: line 3: "):
        next(lines)


def test_more_lines_than_any_file_has_are_refused(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\n" * (2**20 + 1))
    with pytest.raises(InputError, match=r"a\.jsonl: larger than 1,048,576 lines"):
        list(read_jsonl(tmp_path / "a.jsonl"))


def test_a_file_is_read_up_to_its_limit(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x" * 9)
    assert read_text(tmp_path / "a.txt", 9) == "x" * 9
    with pytest.raises(InputError, match=r"a\.txt: larger than "):
        read_text(tmp_path / "a.txt", 8)
    (tmp_path / "a.txt").write_bytes("x".encode("utf-16"))
    with pytest.raises(InputError, match=r"a\.txt: not UTF-8 text"):
        read_text(tmp_path / "a.txt")


def test_the_end_of_a_large_log_is_read_alone(tmp_path):
    (tmp_path / "a.log").write_bytes(b"\xff" * 10**7 + b"\n a  b\xff\n\n")
    assert last_line(tmp_path / "a.log") == "a b\ufffd"


def zipped(path, method=zipfile.ZIP_DEFLATED, content=b"x" * MIB):
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("results/a/b.json", content)
    return path


@pytest.mark.parametrize(
    ("change", "method"),
    [
        (lambda raw: raw[:60] + b"\x55" + raw[61:], zipfile.ZIP_DEFLATED),  # a byte of the content
        (lambda raw: raw[: len(raw) // 2], zipfile.ZIP_DEFLATED),
        (
            lambda raw: raw[:6] + b"\1" + raw[7:].replace(b"PK\1\2\x14\3\x14\0\0", b"PK\1\2\x14\3\x14\0\1"),
            zipfile.ZIP_DEFLATED,
        ),
        (lambda raw: raw, zipfile.ZIP_BZIP2),  # of which zipfile cannot expand a part
    ],
)
def test_an_archive_that_is_damaged_encrypted_or_packed_otherwise_is_refused(tmp_path, change, method):
    path = zipped(tmp_path / "a.zip", method)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError, match=r"a\.zip: "):
        unpack_zip(path, "results/.*", tmp_path / "out")


def test_only_the_asked_files_of_an_archive_are_unpacked_and_none_beside_their_folder(tmp_path, monkeypatch):
    link = zipfile.ZipInfo("results/a/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path := tmp_path / "a.zip", "w") as archive:
        for name in ("Snakefile", "results/a/", "results/a/b.json", "/results/a/c.json"):
            archive.writestr(name, b"1")
        archive.writestr(link, b"/etc/passwd")
    out = tmp_path / "out"
    assert unpack_zip(path, "results/.*[^/]", out) == 2
    contents = {file.relative_to(out).as_posix(): file.read_text() for file in out.rglob("*") if not file.is_dir()}
    assert contents == {"results/a/b.json": "1", "results/a/link": "/etc/passwd"}
    with pytest.raises(FileExistsError):
        unpack_zip(path, "results/.*[^/]", out)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("results/../../beside", b"1")
    unpack_zip(path, "results/.*[^/]", tmp_path / "more/out")
    assert (tmp_path / "more/out/results/beside").exists()
    monkeypatch.setattr(files, "MOST_UNPACKED_BYTES", 1)
    with pytest.raises(InputError, match="unpacked larger"):
        unpack_zip(path, "results/.*[^/]", tmp_path / "less")
    assert [(tmp_path / name).exists() for name in ("beside", "more/beside", "less")] == [False] * 3
