"""Tables of throughputs as people publish them: which column or heading says what, and one row per throughput."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
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
        rf"batch( size)?|bs|c|ccu|conc(urrency|urrent)?( level)?|requests at once|({_TOGETHER}) concurrency"
        rf"|({_TOGETHER}) (reqs?|requests?|prompts)|(({_TOGETHER}) )?(seqs?|sequences|users|streams|clients|sessions)"
    ),
    "devices": r"(gpus?|devices|cards|accelerators|chips)( (count|num(ber)?|used|quantity))?|world size|qty|quantity",
    **{
        f"{of[0]}p": rf"({of[0]}p|{of} parallel(ism)?)( (size|degree))?"
        for of in ("tensor", "pipeline", "data", "expert")
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
    "throughput": r".*(throughput|tok\w*(\s*/\s*|[_ -]per[_ -]|_)s(ec(ond)?)?(?![a-z])|\btps\b|_tps\b).*",
    "not_tokens": (
        r".*((?<!concurrent[ _-])(?<!parallel[ _-])req|per[ _-]?(watt|joule|user)|/ ?user|(?<![a-z])ratio"
        r"|speed-?up|time|latency|ttft|tpot|\bitl\b|\bms\b|_ms\b|\butil|%|percent|\bv?ram\b|\bgi?b\b).*"
    ),
    "output": r".*(output|generat|decod).*",
    # Tables with several such columns count one work in several ways.
    "counted": r".*(output|generat|decod|total|prompt|prefill|input).*",
    "per_device": r".*(/|per)[ _-]?(gpu|device|card|accelerator)\b.*",
    # Limits per engine: with data parallelism each of several engines has as many.
    "per_engine": r".*(seqs|sequences|batch|bs).*",
}
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
    r"(?<![\w.])(\d{1,5})\s?[x×*](?=\s?[A-Za-z]|\))|(?<=\w)\s?(?<![rg]t)[x×*]\s?(\d{1,5})(?![\w.])"
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
    r"[\s(\[,:–-]*((output|total|generation|decode)\s+)?(throughput\s*)?[(\[]?tok\w*\s*(/|per)\s*s(ec(ond)?)?\b"
    r"(\s*(/|per)\s*\w+)?[)\]]*",
    re.IGNORECASE,
)


class AuditError(InputError):
    """A table that cannot be audited; the message says what is missing and what is allowed."""


@dataclass(frozen=True)
class Columns:
    """Names of the columns that an audit reads; `stated` has those of `STATED` that the table has."""

    gpu: str
    throughput: str
    stated: Mapping[str, str]

    @property
    def sequences(self) -> str | None:
        return self.stated.get("sequences")

    @property
    def counts_output_only(self) -> bool:
        return like("output", self.throughput)

    @property
    def read(self) -> tuple[str, ...]:
        return (self.gpu, *self.stated.values(), self.throughput)


def find_columns(
    names: Sequence[str], rows: Sequence[Fields] = (), given: Mapping[str, str] = MappingProxyType({})
) -> Columns:
    """Find the columns for an audit by their usual names, in upper or lower case, or as `given` by their kind.

    Raises:
        AuditError: there is no GPU or throughput column, or there are several throughput columns and none is chosen.
    """
    columns = ", ".join(names) or "none"
    if absent := {*given.values()} - {*names}:
        raise AuditError(f"no column {min(absent)!r}; columns: {columns}")
    gpu = given.get("gpu") or place_of(names, rows)
    if gpu is None:
        raise AuditError(f"no column names the GPU (gpu, device): give it with --gpu; columns: {columns}")
    rates = [given["throughput"]] if "throughput" in given else [name for name in names if is_rate(name)]
    if len(rates) != 1:
        which = f"{len(rates)} columns look like a throughput (tokens_per_s, throughput, tok/s)"
        raise AuditError(f"{which}: choose one with --column throughput=NAME; columns: {columns}")
    (throughput,) = rates
    others = [name for name in names if name not in (gpu, throughput)]
    found = {kind: next((name for name in others if like(kind, name)), None) for kind in STATED}
    stated = {kind: name for kind in STATED if (name := given.get(kind) or found[kind])}
    return Columns(gpu, throughput, stated)


def place_of(names: Sequence[str], rows: Sequence[Fields]) -> str | None:
    """The column that names the GPU: not one of that name with only numbers, which counts them."""
    named = [name for name in names if like("gpu", _halves(name)[0])]
    counts = [name for name in named if rows and all(isinstance(row[name], int | float | None) for row in rows)]
    return next((name for name in named if name not in counts), None)


def as_long(
    names: Sequence[str],
    rows: Sequence[Fields],
    gpu: str | None = None,
    of: str | None = None,
    given: Mapping[str, str] = MappingProxyType({}),
) -> tuple[list[str], list[Fields]]:
    """A table with one GPU and one throughput per row: of one whose columns are GPUs, settings or engines, each cell.

    `of` says what the columns are; otherwise the text before their numbers (`max_num_seqs=4`), or behind a stroke in
    the heading of the GPUs (`GPU / max_num_seqs`), or the heading of rows that are GPUs, says it. A row that names no
    GPU has that of the row above.

    Raises:
        AuditError: a `gpu` is given for a table that names it.
    """
    place = given.get("gpu") or place_of(names, rows)
    stated = of or (_halves(place)[1] if place else "") or "setting"
    if gpu is not None:
        if place is not None:
            raise AuditError(f"--gpu is for a table that does not name it; this one has the column {place!r}")
        place, names, rows = "gpu", ["gpu", *names], [{"gpu": gpu, **row} for row in rows]
    elif place is None and names:
        # Rows such as `H200 tok/s`, or `tok/s` below GPUs; those with another unit are no rates.
        labelled = [row for row in rows if not like("not_tokens", str(row[names[0]]))]
        if any(map(cards, names)):
            rows = labelled if any(is_rate(str(row[names[0]])) for row in rows) else rows
        elif labelled and all(cards(row[names[0]]) for row in labelled):
            place, stated, rows = names[0], of or names[0].strip() or "setting", labelled
    rates = [name for name in names if is_rate(name)]
    values: list[str] = []
    if "throughput" not in given and len(rates) != 1 and not any(like("counted", name) for name in rates):
        numeric = [name for name in names if not all(math.isnan(float_or_nan(row[name])) for row in rows)]
        counts = [name for name in numeric if name not in (place, *given.values()) and not _is_other(name)]
        # A column that states a setting holds rates only if no other column does.
        of_settings = rates or [name for name in counts if not any(like(kind, name) for kind in STATED)] or counts
        values = [name for name in names if cards(name)] if place is None else of_settings
    if place is not None:  # in many tables only the first of several rows names its GPU
        gpus: Iterable[Value] = accumulate(
            (row[place] for row in rows), lambda above, name: above if name is None else name
        )
        rows = [row | {place: name} for row, name in zip(rows, gpus, strict=True)]
    if not values:
        return list(names), list(rows)
    long: list[Fields] = []
    for row in rows:
        held = {name: row[name] for name in names if name not in (place, *values)}
        for name in values:
            labels = {"gpu": name} if place is None else {"gpu": row[place], **_setting(name, stated, of)}
            long += [held | labels | {"throughput": row[name]}] if row[name] is not None else []
    all_names = list(dict.fromkeys(name for row in long for name in row))
    return all_names, [{name: row.get(name) for name in all_names} for row in long]


def like(kind: str, name: str) -> bool:
    return re.fullmatch(_PATTERNS[kind], name.strip(" -#.`"), re.IGNORECASE) is not None


def is_rate(name: str) -> bool:
    return like("throughput", name) and not like("not_tokens", name)


def _is_other(name: str) -> bool:
    """Whether numbers below a heading are no rates of tokens; `Requests=8` says under which setting they are."""
    return like("not_tokens", name) and not _NAMED_NUMBER.fullmatch(name.strip())


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


def cards(name: Value) -> list[str]:
    """The devices that a name may mean; none if it is unknown."""
    try:
        return [gpu.name for gpu in resolve(stated_in(str(name))[0])]
    except CatalogError:
        return []


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


def _setting(text: str, name: str, of: str | None) -> Fields:
    """A setting, such as `block size 16` or only its value, as its name and value; another label as it is."""
    match = re.fullmatch(r"(?:(.*?)\s*[=:]\s*)?([\d,]+)", text) or re.fullmatch(
        rf"({_NAMES})\s*([\d,]+)", text, re.IGNORECASE
    )
    return {of or match[1] or name: int(match[match.lastindex or 0].replace(",", ""))} if match else {of or name: text}


_NUMBER = re.compile(
    r"\s*[~≈<>≤≥]?\s*((?:\d{1,3}(?:[,'_\s]\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?)(?![\d,.]|\s*(?:%|[x×]\b))"
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
