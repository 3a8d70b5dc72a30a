"""How files are damaged or made hostile: by byte, by value, and as a whole. All follows from the random generator."""

import copy
import json
import re
from random import Random
from typing import Any

import yaml

from tests.hostile.grammar import patterns, texts
from tests.unit.parse.test_benchmark_results import EACH_FORMAT

# Texts that would do something in a terminal, a shell, a page, a template, a path, a spreadsheet or a parser.
PAYLOADS = (
    *("$(touch hacked)", "'; touch hacked #", '"><script>hacked()</script>', "{0.__class__}", "%s%n%d", "[/bold]"),
    *("\x1b[2J\x1b]0;x\x07", "\u202egpj.exe", "=1+1", "-1", "../../etc", "/etc/passwd", "a\nb: c", "\x00", "\u2028"),
    *("", " ", "nan", "inf", "1e999", "None", "true", "2001-01-01", "9" * 400, "x" * 100_000, "|" * 99, "ok"),
)
NUMBERS = (0, -1, 1, 1.5, -0.0, 1e-320, 1e99, 1e308, -1e308, 2**53 + 1, 2**63, -(2**63) - 1, 10**30, 10**250, 10**300)
# Texts in a JSON file that no value of Python is written as.
RAW = (
    *("NaN", "-Infinity", "1e999", "9" * 5000, "[" * 100_000, '{"a":' * 5000, "[" * 150 + "]" * 150, "nul", "'x'", ""),
    *("01", '"\\ud800"', '"\\u0000"', "1 2", "[1,]", "[" + "1," * 300_000 + "1]", '{"a":1,"a":2}'),
    "{" + ",".join(f'"k{i}":{i}' for i in range(20_000)) + "}",
)
_MARK = "@raw@"
# Parts of lines that patterns of logs look for; a run of one of them, or of two in turn, is long to search.
LOG_PARTS = (
    *("Running: 1 reqs, ", "KV cache usage: 1.1.1%, ", "1%|1/1 [", "ERROR 09-10 23:26:51 [", "(pid=1", "AError('"),
    *("A.", "Using attn ", "Throughput: 1.5 requests/s, ", "Traceback (most recent call last):\n", "raise E('\\"),
    *("# GPU blocks: 9,999", "\x1b[1;", "{", " " * 50, "\r", "GPU KV cache size: 99999999999999999999 tokens\n"),
)
# Values in a line of YAML: bombs of aliases, depth, tags, and numbers that are slow to read.
YAML_VALUES = (
    "\n" + "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'x'}]" for i in range(12)),
    "\n" + "\n".join(f"a{i}: &a{i} {{{f'<<: [*a{i - 1}, *a{i - 1}]' if i else 'x: 1'}}}" for i in range(30)),
    *("[" * 60, "[" * 5000, "&a [*a]", "*nowhere", ".nan", ".inf", "0x" + "f" * 5000, "1:" * 2000 + "1", "1_0", "0o17"),
    *("!!int ''", "!!timestamp x", "!!binary x", "!!set {a}", "!!python/object:os.system x", "{? [a] : b}", "~", "'"),
    *("2001-99-99", "%", "@", "|", "---", "\t", json.dumps(["a"] * 20_000)),
)


def value(rnd: Random) -> Any:
    """A value that is rarely allowed."""
    others = (None, True, [], {}, [[]], [1, "a", {}], {"": 1}, {"a": {"b": {"c": []}}}, [0.5] * 1000)
    raw = _MARK + str(rnd.randrange(len(RAW)))
    return rnd.choice((rnd.choice(NUMBERS), rnd.choice(PAYLOADS), rnd.choice(others), raw))


def _place(tree: Any, rnd: Random) -> tuple[Any, Any]:
    """A collection in a tree that is not empty, and one of its keys or indices."""
    key = rnd.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
    inner = tree[key]
    return _place(inner, rnd) if isinstance(inner, dict | list) and inner and rnd.random() < 0.7 else (tree, key)


def changed(tree: Any, rnd: Random) -> Any:
    """A tree in which up to three values were left out, renamed, added, repeated, exchanged or replaced."""
    tree = copy.deepcopy(tree)
    for _ in range(rnd.choice((1, 1, 1, 3))):
        if not (isinstance(tree, dict | list) and tree):
            return value(rnd)
        (holder, key), (other, other_key), how = _place(tree, rnd), _place(tree, rnd), rnd.randrange(8)
        if how == 0:
            del holder[key]
        elif how == 1 and isinstance(holder, dict):
            holder[rnd.choice(PAYLOADS)] = holder.pop(key)
        elif how == 2 and isinstance(holder, dict):
            holder[rnd.choice(PAYLOADS)] = value(rnd)
        elif how == 2:
            holder += [holder[key]] * 50
        elif how == 3:
            holder[key] = copy.deepcopy(other[other_key])
        elif how == 4 and not isinstance(holder[key], dict | list):
            holder[key] = str(holder[key])
        else:
            holder[key] = value(rnd)
    return tree


def _as_json(tree: Any) -> bytes:
    text = json.dumps(tree, ensure_ascii=False)
    return re.sub(rf'"{_MARK}(\d+)"', lambda m: RAW[int(m[1])], text).encode(errors="surrogatepass")


def damaged(content: bytes, rnd: Random) -> bytes:
    """A file with other bytes, as a bad disk, a broken transfer or somebody with a hex editor leaves it."""
    place, length, how = rnd.randrange(max(1, len(content))), rnd.choice((1, 16, 4096)), rnd.randrange(8)
    before, after = content[:place], content[place:]
    if how < 3 and after:
        return before + bytes([after[0] ^ 1 << rnd.randrange(8)]) + after[1:]
    text = content.decode(errors="replace")
    encoded = rnd.choice((text.encode("utf-16"), text.encode("utf-8-sig"), text.replace("\n", "\r").encode()))
    cut, zeros, repeated = after[length:], bytes(length) + after[length:], before[-length:] * 100 + after
    return rnd.choice(
        (before, *(before + rest for rest in (rnd.randbytes(length) + after, cut, zeros, repeated)), encoded)
    )


def json_file(content: bytes, rnd: Random) -> bytes:
    """A JSON file that is damaged, or holds other values."""
    return damaged(content, rnd) if rnd.random() < 0.3 else _as_json(changed(json.loads(content or b"{}"), rnd))


def jsonl_file(content: bytes, rnd: Random) -> bytes:
    """JSON Lines with a damaged, changed, foreign or repeated line."""
    lines = content.split(b"\n")
    place, how = rnd.randrange(max(1, len(lines) - 1)), rnd.randrange(5)
    if how == 0:
        lines[place] = rnd.choice(("[]", "1", "null", "{}", *RAW)).encode()
    elif how == 1:
        lines[place : place + 1] = [lines[place]] * rnd.choice((2, 5000))
    else:
        lines[place] = json_file(lines[place], rnd)
    return b"\n".join(lines)


def text_file(content: bytes, rnd: Random) -> bytes:
    """A log or a table that is damaged, or has a run made to be slow or strange to read."""
    if rnd.random() < 0.4:
        return damaged(content, rnd)
    place = rnd.randrange(max(1, len(content)))
    if rnd.random() < 0.5:
        pattern, _ = rnd.choice([*patterns().values()])
        made = rnd.choice([*texts(pattern, rnd.choice((2**12, 2**16)))])
        return content[:place] + made.encode(errors="replace") + content[place:]
    part = "".join(rnd.choices((*LOG_PARTS, *PAYLOADS), k=rnd.choice((1, 2))))
    run = part * max(1, rnd.choice((1, 2000, 100_000)) // max(1, len(part)))
    return content[:place] + run.encode() + content[place:]


def csv_file(content: bytes, rnd: Random) -> bytes:
    """A CSV that is damaged, or of which a field holds something else."""
    if rnd.random() < 0.4:
        return damaged(content, rnd)
    fields = re.split("([,\n])", content.decode())
    fields[rnd.randrange(0, len(fields), 2)] = str(rnd.choice((*PAYLOADS, *NUMBERS, "1," * 100_000)))
    return "".join(fields).encode()


def yaml_file(content: bytes, rnd: Random) -> bytes:
    """A YAML file that is damaged, has other values or other numbers, a line twice or not at all."""
    lines, how = content.decode().split("\n"), rnd.randrange(6)
    place = rnd.randrange(len(lines))
    if how == 0:
        return damaged(content, rnd)
    if how == 1:
        return _as_json(changed(yaml.safe_load(content), rnd))
    if how == 2:
        lines[place : place + 1] = [lines[place]] * rnd.choice((0, 2))
    elif how == 3:
        lines[place] = re.sub(r"\d+(\.\d+)?", lambda _: str(rnd.choice(NUMBERS)), lines[place])
    else:
        key, colon, _ = lines[place].partition(":")
        lines[place] = (key + colon + " " if colon else "") + rnd.choice(
            (*YAML_VALUES, json.dumps(rnd.choice(PAYLOADS)))
        )
    return "\n".join(lines).encode()


def results_file(rnd: Random) -> bytes:
    """Results of a benchmark that are damaged or hold other values, or several with a long run between them."""
    made = [json_file(json.dumps(rnd.choice(EACH_FORMAT)).encode(), rnd) for _ in range(rnd.choice((1, 1, 2)))]
    return (rnd.choice(("\n", " ", "\r\n", "\u2028", "}")) * rnd.choice((1, 60_000))).encode().join((*made, b""))
