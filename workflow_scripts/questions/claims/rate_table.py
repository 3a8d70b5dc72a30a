"""Tables of throughputs as people publish them: which numbers are rates, and what the table says about each.

A number is a rate if its heading, the first field of its row or its own field says so. The two forms of a grid without
units are read too: GPUs as rows or as headings, and a setting in the other direction.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from workflow_scripts.catalog.gpus_and_models import CatalogError, resolve
from workflow_scripts.common.csv_rows import Fields, Value
from workflow_scripts.common.faults import InputError

_LENGTH = r"(?!_tok)( seq(uence)?)?( len(gth)?s?| size)?(\s?tok(en)?s?)?"
_TOGETHER = r"concurrent|parallel|simultaneous|active|in flight|client|request"
# What a column or a heading can say besides the GPU and its throughput -> its usual names, as `_named` reads them.
# Names with `_tokens` are left out: they often count a whole run.
STATED: Mapping[str, str] = {
    "sequences": (
        rf"batch( size)?|bs|c|ccu|conc(urrency|urrent)?( level)?|requests at once|in flight|({_TOGETHER}) concurrency"
        rf"|({_TOGETHER}) (reqs?|requests?|prompts)|(({_TOGETHER}) )?(seqs?|sequences|users|streams|clients|sessions)"
    ),
    "devices": r"(gpus?|devices|cards|accelerators|chips)( (count|num(ber)?|used|quantity))?|world size|qty|quantity",
    **{
        f"{way[0]}p": rf"({way[0]}p|{way} parallel(ism)?)( (size|degree))?"
        for way in ("tensor", "pipeline", "data", "expert")
    },
    "model": r"model( (name|id|path))?|llm|checkpoint",
    "precision": r"((model|weights?) )?(precision|dtype|data type|quant(i[sz]ation)?)|quantized",
    "lengths": rf"(isl|in(put)?|prompt){_LENGTH}\s*[/x×,+:→-]\s*(osl|out(put)?){_LENGTH}|(seq(uence)? )?lengths",
    "prompt_tokens": rf"isl|((mean|avg|average|random) )?(input|prompt|in(?!\s*\d)){_LENGTH}",
    "output_tokens": (
        rf"osl|((mean|avg|average|random) )?(output|out(?!\s*\d)){_LENGTH}|(max )?new tokens|max tokens"
        r"|(gen(eration)?|completion|decode) (len(gth)?s?|tok(en)?s?)"
    ),
    "speculative": r"spec(ulative)?( (dec\w*|tokens))?|draft( model)?",
}


def _named(names: str) -> str:
    """The pattern of usual names: words apart or together, with words around them that say nothing more.

    >>> [bool(re.fullmatch(_named("users|c"), name)) for name in ("num_users", "max. users", "c (users)", "user c")]
    [True, True, True, False]
    """
    before, names = (f"(?:{text})".replace(" ", "[ _.#-]{0,3}") for text in ("(knob|max|num(ber)?|no|n|of) ", names))
    return rf"{before}{{0,4}}{names}( ?[(\[](n|reqs?|requests?|tok(en)?s?|{names})[)\]])?"


_PATTERNS: Mapping[str, str] = {
    **{kind: _named(names) for kind, names in STATED.items()},
    "gpu": r"gpus?|gpu[ _-]?(name|type|model)|device|accelerator|hardware|card",
    # Limits per engine: with data parallelism each of several engines has as many.
    "per_engine": r".*(seqs|sequences|batch|bs).*",
}
_RATE = re.compile(
    r"throughput|\btput\b|(?:\b|_)tps\b|\bt/s\b|tok\w{0,30}?(?:\s*/\s*|[_ -]per[_ -]|_)s(?:ec(?:ond)?)?(?![a-z])", re.I
)
# What rates, numbers and headings with a unit are if they are no rates of generated tokens. Requests at once are.
_ANOTHER = re.compile(
    r"(?<!concurrent[ _-])(?<!parallel[ _-])req|samples?\b|images?\b|(?:per[ _-]?|/ ?)(?:watt|joule|user|[wj]\b)"
    r"|(?<![a-z])ratio|speed-?up|time|latency|ttft|tpot|\bitl\b|\bms\b|_ms\b|\butil|%|percent|\bv?ram\b|\bgi?b\b|\bunits?\b|\bdate\b",
    re.I,
)
_OUTPUT = re.compile(r"\bout(?:put)?(?:\b|_)|generat|decod", re.I)
_INPUT = re.compile(r"\bin(?:put)?(?:\b|_)(?!.{0,200}\bout)|prompt|prefill", re.I)
_TOTAL = re.compile(r"total|overall|\+", re.I)
_PER_DEVICE = re.compile(r"(?:/|per)[ _-]?(?:gpu|device|card|accelerator|chip)\b", re.I)
_FOOTNOTE = re.compile(
    r"\s{0,20}(?:\(\d{1,2}\)|\[\^?\w{1,3}\]|\^\w{1,2}\^?|[\u00b9\u00b2\u00b3\u2070-\u2079*\u2020\u2021\u00a7]{1,3})\s{0,20}$"
)
_LINK = re.compile(r"\[([^\[\]]*)\]\([^()]*\)")
# What else a heading such as `block size 16` may set.
_SETTING = r"block[ _-]?size|max[ _-]?model[ _-]?len|max[ _-]?num[ _-]?batched[ _-]?tokens|(chunk|page)[ _-]?size"
_COUNTED = ("sequences", "tp", "pp", "dp", "ep", "prompt_tokens", "output_tokens")
_NAMES = "|".join([*(_PATTERNS[kind] for kind in _COUNTED), _SETTING])
_NAMED_NUMBER = re.compile(
    rf"(?<![a-z0-9])(?P<name>{_NAMES})\.?\s{{0,3}}(?:[=:@]|of\b)?\s{{0,3}}(?P<value>\d+(?:,\d{{3}})*k?)(?![\w.])",
    re.IGNORECASE,
)
# `8xH100`, `H100 x8`, `(8x)`, `8 GPUs`.
_DEVICES = (
    r"(?<![\w.])(\d{1,5})\s?[x×*](?=\s?[A-Za-z]|\))|(?<=[\w)])\s?(?<![rg]t)[x×*]\s?(\d{1,5})(?![\w.])"
    r"|(?<![\w.])(\d{1,5})[ -]?(?:gpus?|cards|devices)(?!\w)"
)
# `TP4+PP2`, `tp4_pp2`, `TP4DP2`, `DEP8` (ranks of data and expert parallelism).
_RANKS = re.compile(r"(?<![a-wyz])d?(tp|pp|dp|ep)\s?[=:_-]?\s?(\d{1,4})(?=\W|_|$|x|d?[tpde]p\s?=?\d)", re.IGNORECASE)
_AT_ONCE = (
    r"(?<![\w.])(\d+(?:,\d{3})*)\s?"
    r"(?:(?:concurrent|parallel)(?: \w+)?|(?:stream|user|client|session|seq|sequence)s?)(?!\w)"
)
# `1k/1k`, `1024:128`, `1024 in, 128 out`.
_COUNT, _TOKENS = r"(\d{2,6}|\d{1,3}k)", r"(?: tok\w{0,4})?"
_LENGTHS = re.compile(
    rf"(?<![\w.]){_COUNT}(?:\s?/\s?|(?:(?<=\d\d\d)|(?<=k))\s?[:+→]\s?|{_TOKENS}\s?(?:in|input|prompt){_TOKENS}\W{{1,3}})"
    rf"{_COUNT}(?:{_TOKENS}\s?(?:out|output|generated){_TOKENS})?(?![\w.])",
    re.IGNORECASE,
)
_PRECISIONS: Mapping[str, int] = {
    **dict.fromkeys(("fp32", "float32"), 32),
    **dict.fromkeys(("bf16", "bfloat16", "fp16", "float16", "half"), 16),
    **dict.fromkeys(("fp8", "int8", "w8a8", "w8a16", "e4m3", "e5m2"), 8),
    **dict.fromkeys(("int4", "w4a16", "awq", "gptq", "nvfp4", "mxfp4", "fp4"), 4),
}
_PRECISION = rf"(?<![a-z0-9])({'|'.join(_PRECISIONS)}|\d{{1,2}}[ -]?bit|q\d(?:_\w+)?)(?![a-z0-9])"
_STATED_IN = {
    **{"dp": r"(\d+)\s?[x×](?=\s?tp\s?=?\d)", "tp": r"(\d+)[ -]?way(?: tp| tensor[ -]?parallel\w*)?"},
    **{"devices": _DEVICES, "sequences": _AT_ONCE, "precision": _PRECISION},
}
_UNIT = re.compile(
    r"[\s(\[,:–-]{0,20}((output|total|generation|decode)\s{1,9})?(throughput\s{0,9})?[(\[]?tok\w{0,30}\s{0,9}(/|per)\s{0,9}"
    r"s(ec(ond)?)?\b(\s{0,9}(/|per)\s{0,9}\w+)?[)\]]*",
    re.IGNORECASE,
)


class AuditError(InputError):
    """A table that cannot be audited; the message says what is missing and what is allowed."""


@dataclass(frozen=True)
class Rate:
    """A number that a table calls a rate: its GPU as written, what the table says about it by the kinds of `STATED`,
    what it counts, and the fields that tell it apart. `unread`: columns of its row in which nothing was recognised."""

    gpu: str
    value: float
    said: Fields
    says: str
    row: Fields
    per_engine: bool = False
    texts: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def output_only(self) -> bool:
        return bool(_OUTPUT.search(self.says))

    @property
    def per_device(self) -> bool:
        return bool(_PER_DEVICE.search(self.says))


def find_rates(
    names: Sequence[str],
    rows: Sequence[Fields],
    gpu: str | None = None,
    given: Mapping[str, str] = MappingProxyType({}),
) -> list[Rate]:
    """The rates of a table, row by row; columns are known by their usual names, or as `given` by their kind. A row that
    names no GPU has that of the row above. In a table that names none, `gpu` is meant.

    Raises:
        AuditError: no number is a rate, no GPU is named, or a `gpu` is given for a table that names it.
    """
    if absent := {*given.values()} - {*names}:
        raise AuditError(f"no column {min(absent)!r}; columns: {', '.join(names) or 'none'}")
    table = _Table(names, rows, given)
    found = list(table.rates(table.says_rate)) or list(table.rates(table.is_in_a_grid))
    if not found:
        raise AuditError(
            "no heading, row or field says that a number is a rate (tokens_per_s, throughput, tok/s): name its column "
            f"with --column throughput=NAME; columns: {', '.join(names) or 'none'}"
        )
    named = next((rate.gpu for rate in found if rate.gpu), None)
    if gpu is not None and named:
        raise AuditError(f"--gpu is for a table that does not name it; this one names {named!r}")
    if named is None and gpu is None:
        columns = ", ".join(names)
        raise AuditError(f"no column names the GPU (gpu, device): give it with --gpu; columns: {columns}")
    if gpu is None:
        return found
    said, row = stated_in(gpu)[1], dict[str, Value](gpu=gpu)
    return [replace(rate, gpu=gpu, said=said | rate.said, row=row | rate.row) for rate in found]


class _Table:
    """The parts of a table: the column that names GPUs (`place`), the first one if its texts say what their rows hold
    (`label`), and those of each kind of `STATED`."""

    def __init__(self, names: Sequence[str], rows: Sequence[Fields], given: Mapping[str, str]) -> None:
        self.names, self.rows, self.given = names, rows, given
        named = [name for name in names if like("gpu", _halves(name)[0])]
        named = [name for name in named if not rows or any(isinstance(row[name], str) for row in rows)]
        self.place = given.get("gpu") or next(iter(named), None)
        first = next(iter(names), None)
        texts = [str(row[first]) for row in rows if first not in (None, self.place) and isinstance(row[first], str)]
        states = not any(like(kind, first or "") for kind in STATED)
        is_label = any(gpu_named(text) or _is_rate(text) or (states and stated_in(text)[1]) for text in texts)
        self.label = first if is_label else None
        others = [name for name in names if name not in (self.place, self.label, given.get("throughput"))]
        stated = {kind: given.get(kind) or next((n for n in others if like(kind, n)), None) for kind in STATED}
        self.stated = {kind: name for kind, name in stated.items() if name}

    def says_rate(self, row: Fields, name: str) -> bool:
        """Whether a field is called a rate."""
        if "throughput" in self.given:
            return name == self.given["throughput"]
        label = str(row[self.label]) if self.label is not None else ""
        if any(_ANOTHER.search(text) for text in (name, label)):
            return False
        return _is_rate(name) or (any(map(_is_rate, (label, str(row[name])))) and float_or_nan(row[name]) >= 0)

    def is_in_a_grid(self, row: Fields, name: str) -> bool:
        """Whether a field stands in a table of numbers alone, under GPUs or under settings beside GPUs."""
        columns = [column for column in self._open() if not _ANOTHER.search(column) or _NAMED_NUMBER.search(column)]
        of_gpus = self.place or all(map(gpu_named, columns))
        cells = ((row[c], c) for row in self.rows for c in columns if row[c])
        numeric = all(math.isfinite(float_or_nan(cell)) or gpu_named(column) for cell, column in cells)
        return bool(of_gpus) and numeric and name in columns

    def _open(self) -> list[str]:
        return [name for name in self.names if name not in (self.place, self.label, *self.stated.values())]

    def rates(self, is_rate: Callable[[Fields, str], bool]) -> Iterator[Rate]:
        found = [(row, n) for row in self.rows for n in self._open() if row[n] is not None and is_rate(row, n)]
        headed = {name for _, name in found}
        above: Value = None
        kept = [name for name in self.names if name not in headed]
        for row in self.rows:
            above = row[self.place] if self.place and row[self.place] is not None else above
            for name in (name for of_row, name in found if of_row is row):
                yield self._rate(row | ({self.place: above} if self.place else {}), name, kept, len(headed) > 1)

    def _rate(self, row: Fields, name: str, kept: Sequence[str], several: bool) -> Rate:
        label = str(row[self.label] or "") if self.label is not None else ""
        place = str(row[self.place]) if self.place else next(filter(gpu_named, (name, label)), "")
        texts = {c: _LINK.sub(" ", str(row[c])) for c in kept if c != self.place and isinstance(row[c], str)}
        said: Fields = {}
        unread = []
        for column in (c for c in kept if c not in (self.place, self.label, *self.stated.values())):
            rest, found = stated_in(texts.get(column, ""))
            found = {kind: found[kind] for kind in found if kind in _BESIDE_TEXT or not re.search(r"\w", rest)}
            unread += [] if found or _ANOTHER.search(column) else [column]
            said |= found
        for text in (label, place, name):
            said |= stated_in(text)[1]
        if axis := self._axis():
            said |= {axis: float_or_nan(name)} if re.fullmatch(r"[\d,]+k?", name.strip()) else {}
        stated = {kind: row[column] for kind, column in self.stated.items() if row[column] is not None}
        said |= {kind: _LINK.sub(r"\1", value) if isinstance(value, str) else value for kind, value in stated.items()}
        said = {kind: value for kind, value in said.items() if str(value).lower() not in _NOT_SET}
        shown = {column: row[column] for column in kept}
        shown |= {"setting": name, "throughput": row[name]} if several or self.label is not None else {name: row[name]}
        shown = shown if self.place else {"gpu": place, **shown} if place else shown
        sequences = self.stated.get("sequences")
        return Rate(
            gpu=place,
            value=float_or_nan(row[name]),
            said=said,
            says=" ".join((name, label, place, str(row[name]))),
            row=shown,
            per_engine=bool(sequences and like("per_engine", sequences)),
            texts=(name, _LINK.sub(" ", label), *texts.values()),
            unread=tuple(unread),
        )

    def _axis(self) -> str | None:
        """What headings that are numbers state: the text behind a stroke in the heading of the GPUs (`GPU / seqs`), or
        the heading of rows."""
        heading = _halves(self.place)[1] if self.place else self.label or ""
        return next((kind for kind in _COUNTED if like(kind, heading)), None)


_NOT_SET = ("none", "false", "0", "0.0", "no", "off")
# What counts also in a text that says more.
_BESIDE_TEXT = ("tp", "pp", "dp", "ep", "precision")


def like(kind: str, heading: str) -> bool:
    """Whether a heading has a usual name of a kind, perhaps with a mark of a footnote or a remark in parentheses.

    >>> like("tp", "TP (1)"), like("sequences", "Conc.*"), like("prompt_tokens", "Input Length [tok]")
    (True, True, True)
    """
    name = _FOOTNOTE.sub("", heading)
    names = (part.strip(" -#.`") for part in (name, re.sub(r"\s{0,20}[(\[][^()\[\]]{0,200}[)\]]\s{0,20}$", "", name)))
    return any(re.fullmatch(_PATTERNS[kind], each, re.IGNORECASE) for each in names)


def _is_rate(text: str) -> bool:
    """Whether a text says that a number is a rate of output tokens, or of all.

    >>> [_is_rate(text) for text in ("Output tput/GPU", "293 output tok/s", "Input tput (tok/s)", "req/s")]
    [True, True, False, False]
    """
    is_input = _INPUT.search(text) and not _OUTPUT.search(text) and not _TOTAL.search(text)
    return bool(_RATE.search(_FOOTNOTE.sub("", text))) and not _ANOTHER.search(text) and not is_input


def stated_in(text: str) -> tuple[str, Fields]:
    """What a heading or a label states besides a name, by the kinds of `STATED`, and what is left of it.

    >>> stated_in("8xH100 (TP=8, c=4)"), stated_in("H200 tok/s")
    (('H100', {'devices': 8, 'sequences': 4, 'tp': 8}), ('H200', {}))
    """
    found: Fields = {}
    rest = text
    for kind, pattern in _STATED_IN.items():
        for match in re.finditer(pattern, rest, re.IGNORECASE):
            value = next(filter(None, match.groups()))
            found[kind] = value if kind == "precision" else int(value.replace(",", ""))
        rest = re.sub(pattern, " ", rest, flags=re.IGNORECASE)
    found |= {kind.lower(): int(count) for kind, count in _RANKS.findall(rest)}
    rest = _RANKS.sub(" ", rest)
    for match in _NAMED_NUMBER.finditer(rest):
        kind = next((kind for kind in _COUNTED if like(kind, match["name"])), match["name"])
        found[kind] = int(float_or_nan(match["value"]))
    rest = _UNIT.sub(" ", _NAMED_NUMBER.sub(" ", rest))
    if lengths := _LENGTHS.search(rest):
        found["prompt_tokens"], found["output_tokens"] = map(float_or_nan, lengths.groups())
        rest = _LENGTHS.sub(" ", rest)
    return " ".join(re.sub(r"[()\[\],;@]", " ", rest).split()), dict(sorted(found.items()))


def gpu_named(text: str) -> str | None:
    """The name of a device in a text; None if it names none that is known.

    >>> gpu_named("8xH100 (TP=8)"), gpu_named("H100 (AWS P5)"), gpu_named("vLLM")
    ('H100', 'H100', None)
    """
    for part in (text, *re.split(r"[()\[\],@;\u2013\u2014]|\s(?:at|on)\s", text)):
        name = stated_in(part)[0]
        try:
            resolve(name)
        except CatalogError:
            continue
        return name
    return None


def bits_of(precision: str) -> int | None:
    """Bits of a weight; None if the precision is not known.

    >>> bits_of("FP8 (dynamic)"), bits_of("4-bit"), bits_of("Q4_K_M"), bits_of("yes")
    (8, 4, 4, None)
    """
    match = re.search(_PRECISION, precision, re.IGNORECASE)
    return match and (_PRECISIONS.get(match[1].lower()) or int(re.findall(r"\d+", match[1])[0]))


def two_lengths(value: Value) -> list[float]:
    """The numbers of a field such as `1k/1k` or `1024 in, 128 out`. Raises AuditError if there are not two."""
    numbers = re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?k?", str(value), re.IGNORECASE)
    if len(numbers) != 2:
        raise AuditError(f"{value!r} is not two lengths")
    return list(map(float_or_nan, numbers))


def _halves(heading: str) -> list[str]:
    """The two parts of a heading such as `GPU / max_num_seqs`."""
    return [part.strip() for part in re.sub(r"[\\|]", "/", heading).partition("/")[::2]]


_NUMBER = re.compile(
    r"\s*+[~≈<>≤≥]?\s*+((?:\d{1,3}(?:[,'_\s]\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?)(?![\d,.]|\s*(?:%|[x×]\b))"
    r"\s*(k(?:\b|tok))?",
    re.IGNORECASE,
)


def float_or_nan(value: Any) -> float:
    """A number from a table, NaN if there is none, or if it is a share or a multiple; a range has its lower end.

    Thousands separators, an "about" sign, units and marks of footnotes are ignored.

    >>> [float_or_nan(text) for text in ("~11,939", 4.5, "11 939 tok/s", "11'939", "11.2k", "4000-4100", "4,036[^1]")]
    [11939.0, 4.5, 11939.0, 11939.0, 11200.0, 4000.0, 4036.0]
    >>> [float_or_nan(text) for text in ("n/a", "95 %", "17.9x", "2.144,2")]
    [nan, nan, nan, nan]
    """
    match = _NUMBER.match(str(value))
    return float(re.sub(r"[,'_\s]", "", match[1])) * (1000 if match[2] else 1) if match else math.nan
