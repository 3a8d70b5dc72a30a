"""Files are written completely or not at all."""

import hashlib
import os
from unittest.mock import Mock

import pytest

from workflow_scripts.common.files import read_json, read_jsonl, sha256_of, write_bytes, write_json, write_jsonl


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
