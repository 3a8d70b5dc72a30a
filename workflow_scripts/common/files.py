"""Files that are written whole or not at all, and the readers of files, which may come from others.

A reader raises OSError if a file cannot be opened, and InputError if it is larger than any real one, or is not what it
should be. The limits bound memory and time, whatever a file holds.
"""

import codecs
import hashlib
import json
import os
import re
import stat
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import from_json

from workflow_scripts.common.faults import InputError

MIB = 2**20
# A file that is read whole. The report of 10,000 cells has 16 MiB.
_MOST_BYTES = 64 * MIB
# Values in one JSON text, each of which takes up to 250 bytes in memory.
MOST_VALUES = 4_000_000
# JSON Lines are read one by one. Half an hour of steps of 2 ms has 900,000 lines of 210 bytes; a request of 100,000
# tokens that keeps its answer has a line of 3 MiB.
MOST_LINES, MOST_LINES_BYTES, MOST_LINE_BYTES = 2**20, 256 * MIB, 8 * MIB
# Of a log whose end is shown.
MOST_END_BYTES = 64 * 1024
MOST_UNPACKED_BYTES = 16 * 1024 * MIB
# A number that others write: sums, products and quotients of a few such numbers, and a column of such whole numbers, do
# not overflow. A smaller one than the inverse is 0.
MOST_NUMBER, MOST_INTEGER = 1e100, 2**63
# Numbers in JSON that may be larger, or smaller, have a long exponent or many digits.
_PERHAPS_EXTREME = re.compile(rb"[eE][+-]?\d{3}|(?<![.\d])-?\d{19}|0\.0{90}")
Number = TypeVar("Number", int, float)


def write_bytes(path: Path, data: bytes | Iterable[bytes | memoryview]) -> None:
    """Write `data`, or its parts, beside `path` and rename it into place, so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with beside.open("xb") as f:
            f.writelines([data] if isinstance(data, bytes) else data)
            f.flush()
            os.fsync(f.fileno())
        beside.replace(path)
    except BaseException as e:
        beside.unlink(missing_ok=True)
        if isinstance(e, OSError) and e.filename is None:  # such as a full disk
            e.filename = str(path)
        raise


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, record: Any) -> None:
    write_text(path, json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_jsonl(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(r, separators=(",", ":"), allow_nan=False) + "\n" for r in records))


def bounded(number: Number) -> Number:
    """A number that others wrote. Raises ValueError if it is not finite, or larger than any real one.

    >>> bounded(2.5), bounded(1e-200)
    (2.5, 0.0)
    """
    if isinstance(number, int):
        if not -MOST_INTEGER <= number < MOST_INTEGER:
            raise ValueError("a whole number of more than 64 bits")
        return number
    if not abs(number) <= MOST_NUMBER:
        raise ValueError(f"{number} is no number up to {MOST_NUMBER:g}")
    return number if abs(number) * MOST_NUMBER >= 1 else 0.0


def opened(path: Path) -> BufferedReader:
    """A regular file to read. Raises OSError if it cannot be opened, InputError if it is a pipe or a device, which may
    have no end."""

    def checked(name: str, flags: int) -> int:
        descriptor = os.open(name, flags | os.O_NONBLOCK)
        kind = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            os.close(descriptor)
            raise InputError(f"{path}: a pipe or a device, not a file")
        return descriptor

    return open(path, "rb", opener=checked)  # a Path takes no opener


def read_bytes(path: Path, most: int = _MOST_BYTES) -> bytes:
    with opened(path) as file:
        too_large = os.fstat(file.fileno()).st_size > most
        content = file.read(most + 1) if too_large else file.read()
    return _at_most(content, most, str(path))


def read_text(path: Path, most: int = _MOST_BYTES) -> str:
    """Text in UTF-8, with or without a byte order mark."""
    try:
        return read_bytes(path, most).removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as e:
        raise InputError(f"{path}: not UTF-8 text: {e.reason} at byte {e.start}") from None


def read_json(path: Path, infinite: bool = False) -> Any:
    return parse_json(read_bytes(path), str(path), infinite)


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Read JSON Lines, each an object; empty lines are skipped."""
    return (record for _, record in numbered_jsonl(path))


def numbered_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The same with the number of each line."""
    read = 0
    with opened(path) as lines:
        for number, line in enumerate(iter(lambda: lines.readline(MOST_LINE_BYTES + 1), b""), 1):
            read += len(_at_most(line, MOST_LINE_BYTES, f"{path}: line {number}"))
            if number > MOST_LINES or read > MOST_LINES_BYTES:
                raise InputError(f"{path}: larger than {MOST_LINES:,} lines or {MOST_LINES_BYTES // MIB} MiB")
            if line.strip():
                record = parse_json(line, f"{path}: line {number}")
                if not isinstance(record, dict):
                    raise InputError(f"{path}: line {number}: not a JSON object")
                yield number, record


def parse_json(content: bytes, where: str, infinite: bool = False) -> Any:
    """The values of a JSON text in UTF-8, with at most 200 levels and bounded numbers, or `infinite` ones too. Raises
    InputError, which begins with `where`.

    >>> parse_json(b'{"a": [1, 2.5]}', "a.json")
    {'a': [1, 2.5]}
    """
    if sum(map(content.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise InputError(f"{where}: more than {MOST_VALUES:,} values")
    try:
        values = from_json(content, allow_inf_nan=infinite)
        if _PERHAPS_EXTREME.search(content):
            values = json.loads(
                content, parse_float=lambda text: bounded(float(text)), parse_int=lambda text: bounded(int(text[:300]))
            )
    except ValueError as e:
        raise InputError(f"{where}: not JSON: {e}") from None
    return values


def is_json_object(text: str) -> bool:
    """
    >>> is_json_object('{"a": 1}'), is_json_object("[1]"), is_json_object("")
    (True, False, False)
    """
    try:
        return isinstance(parse_json(text.encode(), ""), dict)
    except InputError:
        return False


def unpack_zip(archive: Path, pattern: str, folder: Path) -> int:
    """Unpack the files of a zip archive whose whole names match a regular expression into a new folder; their number.
    Links become files, and no file is outside of the folder, whatever its name. Raises FileExistsError if the folder
    exists, and InputError if the archive is damaged, encrypted, or has more than 16 GiB."""
    with opened(archive) as file:
        try:
            packed = zipfile.ZipFile(file)
            members = [info for info in packed.infolist() if re.fullmatch(pattern, info.filename)]
            if sum(info.file_size for info in members) > MOST_UNPACKED_BYTES:
                raise zipfile.BadZipFile(f"unpacked larger than {MOST_UNPACKED_BYTES >> 30} GiB")
            # Of other compressions, zipfile expands whole blocks, however large.
            if {info.compress_type for info in members} - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                raise zipfile.BadZipFile("compressed by another method than deflate")
            folder.mkdir(parents=True)
            packed.extractall(folder, members)
        except FileExistsError:
            raise
        except Exception as e:  # zipfile raises errors of many kinds for a damaged archive
            raise InputError(f"{archive}: damaged, encrypted or too large: {e}") from None
    return len(members)


def _at_most(content: bytes, most: int, where: str) -> bytes:
    if len(content) > most:
        raise InputError(f"{where}: larger than {most / MIB:g} MiB, the largest that is read")
    return content


def last_line(path: Path) -> str:
    """The last line of a log that is not blank, with single spaces; empty if there is none."""
    lines = read_end(path).split("\n")
    return next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "")


def read_end(path: Path, most: int = MOST_END_BYTES) -> str:
    """The last bytes of a log as text; what is not UTF-8 is replaced."""
    with opened(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most).decode(errors="replace")


def sha256_of(path: Path) -> str:
    with opened(path) as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
