"""Check a table of throughputs against the maximum that the hardware allows.

    kvsweep audit rates.csv \\
        --model llama-3.1-8b-instruct --tokens-per-request 200,200

All uncertainties are resolved in the table's favour: memory and arithmetic run at their data-sheet rates and overlap
fully, prompts are read in steps in which other requests decode, tok/s counts prompt tokens unless the column says
output, and a name shared by several cards means the one with the highest ceiling. A number above such a ceiling is
wrong, or means something else than its table says. A number below the ceiling may still be wrong. A row without a
ceiling is `unknown`, and so are all rows if the model is not understood. Of a range the lower end counts. The exit code
is 0 for all verdicts.

The audit assumes: the model and the type of its weights, one device per row, one new token per sequence and step (no
speculative decoding), and prompts that are read in full (no shared prefix).
"""

import csv
import io
import json
import math
import re
import sys
from argparse import ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, get_args

from workflow_scripts.catalog.any_model import ANY_MODEL, find_model
from workflow_scripts.catalog.gpus_and_models import CatalogError, resolve
from workflow_scripts.common.command import command, option, positive, share
from workflow_scripts.common.csv_rows import Fields, Value, read_rows
from workflow_scripts.common.csv_text import as_text
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_text
from workflow_scripts.physics.model_facts import ModelFacts, ModelFactsError, read_model_facts
from workflow_scripts.physics.rate_ceiling import USUAL_LENGTHS, JudgedRate, MeanLengths, RateVerdict, judge_rate
from workflow_scripts.physics.stored_weights import KV_CACHE_DTYPE, QUANTIZATION

# Names of columns, as published tables have them, in upper or lower case.
_PATTERNS: Mapping[str, str] = {
    "gpu": r"gpus?|gpu[ _-]?(name|type|model)|device|accelerator|hardware",
    "sequences": (
        r"(knob[ _-])?max[ _-]?num[ _-]?seqs|(max[ _-]?)?batch([ _-]?size)?|(max[ _-]?)?concurrency"
        r"|((max[ _-])?num[ _-]|concurrent[ _-])?(seqs?|sequences|users)"
    ),
    "throughput": r".*(throughput|tok\w*(\s*/\s*|[_ -]per[_ -]|_)s(ec(ond)?)?(?![a-z])|\btps\b|_tps\b).*",
    "not_tokens": (
        r".*(req|per[ _-]?watt|per[ _-]?joule|(?<![a-z])ratio|speed-?up|time|latency|ms\b|%|percent|\bv?ram\b|\bgi?b\b)"
        r".*"
    ),
    "output": r".*(output|generat|decod).*",
    # Tables with several such columns count one work in several ways.
    "counted": r".*(output|generat|decod|total|prompt|prefill|input).*",
}


class AuditError(InputError):
    """A table that cannot be audited; the message says what is missing and what is allowed."""


@dataclass(frozen=True)
class Columns:
    """Names of the columns that an audit reads; `sequences` is None if the table has no such column."""

    gpu: str
    throughput: str
    sequences: str | None

    @property
    def counts_output_only(self) -> bool:
        return _like("output", self.throughput)


def find_columns(names: Sequence[str], throughput: str | None = None) -> Columns:
    """Find the columns for an audit by their usual names, in upper or lower case.

    >>> find_columns(["GPU", "max-num-seqs", "Output tok/s", "TTFT ms"])
    Columns(gpu='GPU', throughput='Output tok/s', sequences='max-num-seqs')

    Raises:
        AuditError: there is no GPU or throughput column, or there are several throughput columns and none is chosen.
    """
    columns = ", ".join(names) or "none"
    if not (gpus := [name for name in names if _like("gpu", name)]):
        raise AuditError(f"no column names the GPU (gpu, device): give it with --gpu; columns: {columns}")
    rates = [name for name in names if _is_rate(name)]
    if throughput is not None and throughput not in names:
        raise AuditError(f"no column {throughput!r}; columns: {columns}")
    if throughput is None and len(rates) != 1:
        which = f"{len(rates)} columns look like a throughput (tokens_per_s, throughput, tok/s)"
        raise AuditError(f"{which}: choose one with --throughput-column; columns: {columns}")
    return Columns(gpus[0], throughput or rates[0], next((name for name in names if _like("sequences", name)), None))


ADDED = tuple(field.name for field in fields(JudgedRate))


def judge(
    row: Mapping[str, Any],
    columns: Columns,
    facts: ModelFacts,
    workload: MeanLengths,
    gpu_memory_utilization: float = 1.0,
    kv_cache_dtype: str = "auto",
    default_max_num_seqs: int = 256,
) -> JudgedRate:
    """The verdict on the throughput in a row of a table; `columns` says which of its columns count."""
    stated = None if columns.sequences is None else row[columns.sequences]
    is_stated = stated is not None and stated == stated  # pandas reads an empty field as NaN
    sequences = _float_or_nan(stated) if is_stated else None
    if sequences is not None and not sequences >= 1:
        return JudgedRate(reason=f"{columns.sequences} is {stated!r}, not a number of sequences")
    judged = judge_rate(
        str(row[columns.gpu]),
        _float_or_nan(row[columns.throughput]),
        sequences,
        facts,
        workload,
        output_only=columns.counts_output_only,
        gpu_memory_utilization=gpu_memory_utilization,
        kv_cache_dtype=kv_cache_dtype,
        default_max_num_seqs=default_max_num_seqs,
    )
    return judged if judged.reason else replace(judged, reason=f"no number in {columns.throughput}")


def as_long(
    names: Sequence[str],
    rows: Sequence[Fields],
    gpu: str | None = None,
    of: str | None = None,
    throughput: str | None = None,
) -> tuple[list[str], list[Fields]]:
    """A table with one GPU and one throughput per row: of one whose columns are GPUs, settings or engines, each cell.

    `of` says what the columns are; otherwise the text before their numbers (`max_num_seqs=4`), or behind a stroke in
    the heading of the GPUs (`GPU / max_num_seqs`), says it. A row that names no GPU has that of the row above.

    >>> as_long(["GPU / max-num-seqs", "1", "4"], [{"GPU / max-num-seqs": "H200", "1": "11,939", "4": 11977}])[1]
    ... # doctest: +NORMALIZE_WHITESPACE
    [{'gpu': 'H200', 'max-num-seqs': 1, 'throughput': '11,939'},
     {'gpu': 'H200', 'max-num-seqs': 4, 'throughput': 11977}]

    Raises:
        AuditError: a `gpu` is given for a table that names it.
    """
    place = next((name for name in names if _like("gpu", _halves(name)[0])), None)
    if gpu is not None:
        if place is not None:
            raise AuditError(f"--gpu is for a table that does not name it; this one has the column {place!r}")
        place, names, rows = "gpu", ["gpu", *names], [{"gpu": gpu, **row} for row in rows]
    rates = [name for name in names if _is_rate(name)]
    values: list[str] = []
    if throughput is None and len(rates) != 1 and not any(_like("counted", name) for name in rates):
        numeric = [name for name in names if not all(math.isnan(_float_or_nan(row[name])) for row in rows)]
        of_settings = rates or [name for name in numeric if name != place and not _like("not_tokens", name)]
        values = [name for name in names if cards(name)] if place is None else of_settings
    if place is not None:  # in many tables only the first of several rows names its GPU
        gpus: Iterable[Value] = accumulate(
            (row[place] for row in rows), lambda above, name: above if name is None else name
        )
        rows = [row | {place: name} for row, name in zip(rows, gpus, strict=True)]
    if not values:
        return list(names), list(rows)
    stated = of or _halves(str(place))[1] or "setting"
    long: list[Fields] = []
    for row in rows:
        held = {name: row[name] for name in names if name not in (place, *values)}
        for name in values:
            labels = {"gpu": name} if place is None else {"gpu": row[place], **_setting(name, stated, of)}
            long += [held | labels | {"throughput": row[name]}] if row[name] is not None else []
    return list(dict.fromkeys(name for row in long for name in row)), long


def _like(kind: str, name: str) -> bool:
    return re.fullmatch(_PATTERNS[kind], name.strip(), re.IGNORECASE) is not None


def _is_rate(name: str) -> bool:
    return _like("throughput", name) and not _like("not_tokens", name)


def cards(name: str) -> list[str]:
    """The devices that a name may mean; none if it is unknown."""
    try:
        return [gpu.name for gpu in resolve(name)]
    except CatalogError:
        return []


def _halves(heading: str) -> list[str]:
    """The two parts of a heading such as `GPU / max_num_seqs`."""
    return [part.strip() for part in re.sub(r"[\\|]", "/", heading).partition("/")[::2]]


def _setting(text: str, name: str, of: str | None) -> Fields:
    """A setting, such as `block size 16` or only its value, as its name and value."""
    match = re.fullmatch(r"(.*?)[\s=:]*([\d,]+)", text)
    return {of or match[1] or name: int(match[2].replace(",", ""))} if match else {of or name: text}


_NUMBER = re.compile(
    r"\s*[~≈<>≤≥]?\s*((?:\d{1,3}(?:[,'_\s]\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?)(?![\d,.]|\s*(?:%|[x×]\b))"
    r"\s*(k(?:\b|tok))?",
    re.IGNORECASE,
)


def _float_or_nan(value: Any) -> float:
    """A number from a table, NaN if there is none, or if it is a share or a multiple; a range has its lower end.

    Thousands separators, an "about" sign, units and marks of footnotes are ignored.

    >>> [_float_or_nan(text) for text in ("~11,939", 4.5, "11 939 tok/s", "11'939", "11.2k", "4000-4100", "4,036[^1]")]
    [11939.0, 4.5, 11939.0, 11939.0, 11200.0, 4000.0, 4036.0]
    >>> [_float_or_nan(text) for text in ("n/a", "95 %", "17.9x", "2.144,2")]
    [nan, nan, nan, nan]
    """
    match = _NUMBER.match(str(value))
    return float(re.sub(r"[,'_\s]", "", match[1])) * (1000 if match[2] else 1) if match else math.nan


def _plain(value: Value) -> Value:
    """The value, or None for a number that JSON cannot hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _as_csv(names: Sequence[str], rows: Sequence[Fields]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(map(as_text, row) for row in (names, *([row.get(name) for name in names] for row in rows)))
    return text.getvalue()


def _print(
    args: Namespace, columns: Columns, also: Sequence[str], rows: Sequence[Fields], verdicts: Sequence[JudgedRate]
) -> None:
    from rich.table import Table

    from workflow_scripts.common.terminal import Terminal

    workload: MeanLengths = args.tokens_per_request
    assumed = "" if columns.sequences else f"; max-num-seqs is not stated: {args.max_num_seqs} assumed"
    counted = "output tokens" if columns.counts_output_only else "prompt and output tokens"
    caption = f"predicted ceilings for {counted}; uncertainties are resolved in the table's favour{assumed}"
    if len(unknown := set(verdicts)) == 1 and (shared := unknown.pop()).verdict == "unknown":
        caption = f"unknown: {shared.reason}"
        verdicts = [replace(shared, reason="")] * len(rows)
    tokens = f"{workload.prompt_tokens:g} + {workload.output_tokens:g} tokens per request"
    title = f"{args.table.name}: {args.model}, {tokens}"
    shown = Table(title=title, caption=caption, box=None, collapse_padding=True, pad_edge=False)
    stated = [*filter(None, (columns.gpu, columns.sequences)), *also, columns.throughput]
    for name in (*stated, "ceiling", "times", "verdict", "reason"):
        is_text = name in (columns.gpu, "verdict", "reason")
        shown.add_column(name, justify="left" if is_text else "right", no_wrap=name != "reason")
    for row, judged in zip(rows, verdicts, strict=True):
        ceiling_, times = judged.predicted_ceiling_tokens_per_s, judged.times_ceiling
        shown.add_row(
            *("" if row[name] is None else str(row[name]) for name in stated),
            "" if math.isnan(ceiling_) else f"{ceiling_:,.0f}",
            "" if math.isnan(times) else f"{times:.2f}",
            judged.verdict,
            # The multiple of the ceiling, with which a reason begins, has a column.
            judged.reason if judged.verdict == "unknown" else judged.reason.partition("; ")[2],
        )
    Terminal().print(shown)


def _verdicts(args: Namespace, columns: Columns, rows: Sequence[Fields]) -> list[JudgedRate]:
    model, conditions = find_model(args.model), (args.gpu_memory_utilization, args.kv_cache_dtype, args.max_num_seqs)
    try:
        facts = read_model_facts(model.config, model.fixed_dtype, args.quantization)
        return [judge(row, columns, facts, args.tokens_per_request, *conditions) for row in rows]
    except ModelFactsError as e:
        return [JudgedRate(reason=str(e))] * len(rows)


def _mean_lengths(text: str) -> MeanLengths:
    try:
        prompt_tokens, output_tokens = (float(part) for part in text.split(","))
    except ValueError:
        prompt_tokens = output_tokens = math.nan
    if not (prompt_tokens >= 1 and output_tokens >= 1):
        raise ArgumentTypeError(f"{text!r} is not PROMPT,OUTPUT: two numbers of at least 1")
    return MeanLengths(prompt_tokens, output_tokens)


@command(
    "audit",
    option(
        "table",
        type=Path,
        help="CSV or Markdown with columns for GPU, throughput and max-num-seqs, or with GPUs as rows or columns",
    ),
    option("--model", required=True, help=ANY_MODEL),
    option(
        "--tokens-per-request",
        type=_mean_lengths,
        metavar="PROMPT,OUTPUT",
        help="tokens of a request; means, if requests differ (if left out: 200,200, with a warning)",
    ),
    QUANTIZATION,
    option("--gpu-memory-utilization", type=share, default=1.0, help="share of the memory in use (default: all of it)"),
    KV_CACHE_DTYPE,
    option("--max-num-seqs", type=positive, default=256, help="for rows that do not state it (default: 256)"),
    option("--gpu", help="the GPU of a table that does not name it"),
    option("--columns", metavar="KNOB", help="setting in the headings of a table with GPUs as rows"),
    option("--throughput-column", help="the column to check if several look like a throughput"),
    option("--json", action="store_true", help="print JSON"),
    option("--out", type=Path, metavar="FILE.csv", help="write the table with its verdicts"),
)
def main(args: Namespace) -> None:
    if args.tokens_per_request is None:
        args.tokens_per_request = USUAL_LENGTHS
        print("kvsweep audit: lengths are not given: 200 prompt and 200 output tokens assumed", file=sys.stderr)
    read, cells = read_rows(args.table)
    of_file = [name for name in read if name not in ADDED]
    names, rows = as_long(of_file, cells, args.gpu, args.columns, args.throughput_column)
    columns = find_columns(names, args.throughput_column)
    verdicts = _verdicts(args, columns, rows)
    audited = [
        {name: _plain(value) for name, value in (row | asdict(judged)).items() if name in (*names, *ADDED)}
        for row, judged in zip(rows, verdicts, strict=True)
    ]
    if args.out is not None:
        write_text(args.out, _as_csv([*names, *ADDED], audited))
    if args.json:
        counts = Counter(row["verdict"] for row in audited)
        report = {"table": str(args.table), "model": args.model, "quantization": args.quantization}
        report |= asdict(args.tokens_per_request) | {"gpu_memory_utilization": args.gpu_memory_utilization}
        report |= {"verdicts": {name: counts[name] for name in get_args(RateVerdict)}, "rows": audited}
        print(json.dumps(report, indent=2))
    else:
        # The settings that were columns of the file tell its numbers apart.
        also = [name for name in names if name not in (*of_file, columns.gpu, columns.sequences, columns.throughput)]
        _print(args, columns, also, rows, verdicts)
