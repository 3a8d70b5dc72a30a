"""Files that are written whole or not at all, and the two record formats of the pipeline."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` beside `path` and rename it into place, so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with beside.open("xb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, record: Any) -> None:
    write_text(path, json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_jsonl(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(r, separators=(",", ":"), allow_nan=False) + "\n" for r in records))


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Read JSON Lines; empty lines are skipped."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def last_line(path: Path) -> str:
    """The last line of a log that is not blank, with single spaces; empty if there is none."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "")


def sha256_of(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
