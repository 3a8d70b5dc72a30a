"""Check a table of throughputs against the maximum that the hardware allows.

    kvsweep audit rates.csv --model llama-3.1-8b-instruct

All uncertainties are resolved in the table's favour: memory and arithmetic run at their data-sheet rates and overlap
fully, prompts are read in steps in which other requests decode, tok/s counts prompt tokens unless the column says
output, and a name shared by several cards means the one with the highest ceiling. What the table leaves open takes the
value that allows the most: lengths, requests at once, and prompts from a prefix cache. If only some values allow a
number, it is `conditional`, with what it needs ("possible only if at least 93 % of the tokens are prompt tokens"). An
`impossible` number is wrong, or means something else than its table says. A possible one may still be wrong. A row
without a ceiling is `unknown`, and so are all rows if the model is not understood. Of a range the lower end counts. The
exit code is 0 for all verdicts.

A number is a rate if its heading, the first field of its row or its own field says so (`tok/s`, `throughput`); a grid
of GPUs and settings needs no unit. Columns and headings may state the number of GPUs (`GPUs`, `TP`, `8xH100`), the
model, the precision, the lengths of prompts and outputs, and the requests at once (`Concurrency`, `c=8`, `bs`,
`streams`). Several devices are judged by the sum of their rates; a rate per GPU needs their number. A row about another
model, other weights or speculative decoding is `unknown`, and rates of prompts alone are not judged. The audit assumes
what a row does not state: the model and the type of its weights, one device (or `--devices`), and one new token per
sequence and step.
"""

import json
import math
import re
from argparse import ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import get_args

from workflow_scripts.catalog.any_model import ANY_MODEL, find_model
from workflow_scripts.common.checkout import own_or_of_checkout
from workflow_scripts.common.command import command, option, positive
from workflow_scripts.common.csv_rows import Fields, Value, read_rows
from workflow_scripts.physics.model_facts import ModelFacts, ModelFactsError, read_model_facts
from workflow_scripts.physics.rate_ceiling import JudgedRate, MeanLengths, RateVerdict, judge_rate
from workflow_scripts.physics.stored_weights import DTYPE_BYTES, KV_CACHE_DTYPE, QUANTIZATION, QUANTIZED_BITS
from workflow_scripts.questions.claims.rate_table import (
    STATED,
    AuditError,
    Rate,
    bits_of,
    find_rates,
    float_or_nan,
    gpu_named,
    stated_in,
    two_lengths,
)

# Families and sizes of models by which a text is known to name one.
_MODEL = re.compile(
    r"(?:^|[/ (])(?:meta[ -])?(?:llama|qwen|mi[sx]tral|gemma|gpt|deepseek|falcon|mpt|bloom|vicuna|codellama|smollm|glm"
    r"|kimi|granite|nemotron|olmo|minimax|(?:opt|phi|yi)[ -]?\d)(?![a-z]|[ .-]?cpp)|(?<![\w.])\d+(?:\.\d+)?b(?![a-z])",
    re.IGNORECASE,
)
_SHORTCUTS = re.compile(r"speculat|\beagle|\bmtp\b|\bmedusa|\bn-?gram|prefix[ -]?cach|cached prompt", re.IGNORECASE)


def judge(
    rate: Rate,
    facts: ModelFacts,
    workload: MeanLengths | None,
    kv_cache_dtype: str = "auto",
    default_devices: int | None = None,
    model: str | None = None,
) -> JudgedRate:
    """The verdict on a rate of a table, with what its table states. It is unknown if that contradicts `facts`, or
    `model`, its names."""
    said = dict(rate.said)
    try:
        if "lengths" in said:
            said |= dict(zip(_OF_A_REQUEST, two_lengths(said["lengths"]), strict=True))
        numbers = {kind: _at_least_1(kind, said[kind]) for kind in _NUMBERS if kind in said}
        _refuse_contradiction(rate, said, facts, model)
        if not (counts := numbers.keys() & _DEVICES) and rate.per_device and default_devices is None:
            raise AuditError("a rate per GPU, and nothing states the number of GPUs: give it with --devices")
    except AuditError as e:
        return JudgedRate(reason=str(e))
    per_engine = numbers.get("tp", 1) * numbers.get("pp", 1)
    stated = max(*(numbers.get(kind, 1) for kind in ("devices", "ep")), per_engine * numbers.get("dp", 1))
    devices = stated if counts else default_devices or 1
    sequences = numbers.get("sequences")
    if sequences is not None and rate.per_engine:
        sequences *= max(devices / per_engine, 1)
    shown_by = devices if rate.per_device else 1
    lengths = asdict(workload) if workload else {}
    lengths |= {kind: numbers[kind] for kind in _OF_A_REQUEST if kind in numbers}
    judged = judge_rate(
        gpu_named(rate.gpu) or rate.gpu,
        rate.value * shown_by,
        sequences,
        facts,
        MeanLengths(**lengths) if len(lengths) == len(_OF_A_REQUEST) else None,
        output_only=rate.output_only,
        devices=devices,
        kv_cache_dtype=kv_cache_dtype,
    )
    judged = replace(judged, predicted_ceiling_tokens_per_s=judged.predicted_ceiling_tokens_per_s / shown_by)
    if judged.verdict == "impossible" and rate.unread:
        return replace(judged, reason=f"{judged.reason}; not read: {', '.join(rate.unread)}")
    return judged if judged.reason else replace(judged, reason="no number in this field")


_OF_A_REQUEST = ("prompt_tokens", "output_tokens")
_DEVICES = ("devices", "tp", "pp", "dp", "ep")
_NUMBERS = ("sequences", *_DEVICES, *_OF_A_REQUEST)


def _at_least_1(name: str, value: Value) -> float:
    number = float_or_nan(value)
    if not number >= 1:
        raise AuditError(f"{name} is {value!r}, not a number of at least 1")
    return number


def _refuse_contradiction(rate: Rate, said: Fields, facts: ModelFacts, model: str | None) -> None:
    """Raises AuditError if a rate is about another model, other weights or fewer steps than the audit assumes."""
    bits = {4: 4, 8: 8}.get(int(QUANTIZED_BITS.get(facts.quantization or "", 0)), 8 * DTYPE_BYTES.get(facts.dtype, 2))
    precisions = [said.get("precision")]
    for label, of_label in map(stated_in, [str(said.get("model") or ""), *filter(_MODEL.search, rate.texts[:2])]):
        if model is not None and not _words(label) - {"throughput"} <= _words(model):
            raise AuditError(f"the row is about the model {label!r}, and --model is {model.split()[0]}")
        precisions.append(of_label.get("precision"))
    for precision in map(str, filter(None, precisions)):
        if precision.lower() not in ("auto", "unquantized") and (stated := bits_of(precision)) != bits:
            weights = facts.quantization or facts.dtype
            raise AuditError(
                f"the precision is {precision!r}, and the weights are {weights} ({stated} and {bits} bits)"
            )
    if shortcut := next(filter(_SHORTCUTS.search, rate.texts), said.get("speculative")):
        raise AuditError(f"{str(shortcut)!r} may give several tokens per step, or skip prompts: there is no ceiling")


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z]+|\d+(?:\.\d+)?", name.lower()))


def _plain(value: Value) -> Value:
    """The value, or None for a number that JSON cannot hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print(args: Namespace, rates: Sequence[Rate], verdicts: Sequence[JudgedRate]) -> None:
    from rich.table import Table

    from workflow_scripts.common.terminal import Terminal

    workload: MeanLengths | None = args.tokens_per_request
    caption = "predicted ceilings; uncertainties are resolved in the table's favour"
    if unread := list(dict.fromkeys(name for rate in rates for name in rate.unread)):
        caption += f"; columns that are not read: {', '.join(unread)} (see --column)"
    tokens = f"{workload.prompt_tokens:g} + {workload.output_tokens:g}" if workload else "any number of"
    title = f"{args.table.name}: {args.model}, {tokens} tokens per request"
    shown = Table(title=title, caption=caption, box=None, collapse_padding=True, pad_edge=False)
    names = [name for name in dict.fromkeys(name for rate in rates for name in rate.row) if name not in unread]
    for name in (*names, "ceiling", "times", "verdict", "reason"):
        is_text = name in (names[0], "verdict", "reason")
        shown.add_column(name, justify="left" if is_text else "right", no_wrap=name != "reason")
    for rate, judged in zip(rates, verdicts, strict=True):
        ceiling_, times = judged.predicted_ceiling_tokens_per_s, judged.times_ceiling
        shown.add_row(
            *("" if (value := rate.row.get(name)) is None else str(value) for name in names),
            "" if math.isnan(ceiling_) else f"{ceiling_:,.0f}",
            "" if math.isnan(times) else f"{times:.2f}",
            judged.verdict,
            # The multiple of the ceiling, with which a reason begins, has a column.
            judged.reason if judged.verdict == "unknown" else judged.reason.partition("; ")[2],
        )
    Terminal().print(shown)


def audit_table(args: Namespace) -> tuple[list[Rate], list[JudgedRate]]:
    """Judge the table that the command's options describe: its rates, and the verdict on each. Raises InputError."""
    names, cells = read_rows(args.table)
    rates = find_rates(names, cells, args.gpu, dict(args.column))
    model = find_model(args.model)
    known_as = f"{model.name} {model.hub_repo or ''} {args.model}"
    try:
        facts = read_model_facts(model.config, model.fixed_dtype, args.quantization)
        given = (args.tokens_per_request, args.kv_cache_dtype, args.devices, known_as)
        return rates, [judge(rate, facts, *given) for rate in rates]
    except ModelFactsError as e:
        return rates, [JudgedRate(reason=str(e))] * len(rates)


def audited_rows(rates: Sequence[Rate], verdicts: Sequence[JudgedRate]) -> list[Fields]:
    """One row per rate: the fields of the table that tell it apart, and its verdict."""
    both = (rate.row | asdict(judged) for rate, judged in zip(rates, verdicts, strict=True))
    return [{name: _plain(value) for name, value in row.items()} for row in both]


def _mean_lengths(text: str) -> MeanLengths:
    try:
        prompt_tokens, output_tokens = (float(part) for part in text.split(","))
    except ValueError:
        prompt_tokens = output_tokens = math.nan
    if not (prompt_tokens >= 1 and output_tokens >= 1):
        raise ArgumentTypeError(f"{text!r} is not PROMPT,OUTPUT: two numbers of at least 1")
    return MeanLengths(prompt_tokens, output_tokens)


def _named_column(text: str) -> tuple[str, str]:
    kind, _, name = text.partition("=")
    if kind not in _KINDS or not name:
        raise ArgumentTypeError(f"{text!r} is not KIND=NAME with one of the kinds {', '.join(_KINDS)}")
    return kind, name


_KINDS = ("gpu", "throughput", *STATED)


@command(
    "audit",
    option(
        "table",
        type=own_or_of_checkout,
        help="CSV or Markdown: columns for GPU, throughput and max-num-seqs, or GPUs as rows or headings",
    ),
    option("--model", required=True, help=ANY_MODEL),
    option(
        "--tokens-per-request",
        type=_mean_lengths,
        metavar="PROMPT,OUTPUT",
        help="tokens of a request; means, if requests differ (if left out: what the rows state, else any)",
    ),
    QUANTIZATION,
    KV_CACHE_DTYPE,
    option("--gpu", help="the GPU of a table that does not name it"),
    option("--devices", type=positive, help="GPUs behind each number, for rows that do not state it (default: 1)"),
    option(
        "--column",
        action="append",
        default=[],
        type=_named_column,
        metavar="KIND=NAME",
        help=f"a column that is not recognised, for example sequences=Parallel; kinds: {', '.join(_KINDS)}",
    ),
    option("--json", action="store_true", help="print JSON"),
)
def main(args: Namespace) -> None:
    rates, verdicts = audit_table(args)
    if args.json:
        rows = audited_rows(rates, verdicts)
        counts = Counter(row["verdict"] for row in rows)
        report = {"table": str(args.table), "model": args.model, "quantization": args.quantization}
        report |= dict.fromkeys(_OF_A_REQUEST) | (asdict(args.tokens_per_request) if args.tokens_per_request else {})
        report |= {"verdicts": {name: counts[name] for name in get_args(RateVerdict)}, "rows": rows}
        print(json.dumps(report, indent=2))
    else:
        _print(args, rates, verdicts)
