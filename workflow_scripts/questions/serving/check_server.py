"""Check with a minute of load whether a running vLLM server is as fast as the study measured.

    kvsweep check-server --study config/studies/serving.yaml --url http://localhost:8000

The promise of the study (`snakemake export` writes it) names the cell. The requests of this cell that arrived within
the first `--seconds` are sent once; their number is printed first. The latencies of the same requests in each start of
the study give the interval that one more start would have. The server is `slower` if a latency is shown to be longer,
`as measured` if all are shown to be longer by at most the study's margin, otherwise `not decided`. Settings that differ
from the measured ones are listed.

Exit codes: 0: as measured; 1: slower; 2: bad input, or no load could be sent; 3: not decided; 4: a fault of the
infrastructure.
"""

import math
import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from workflow_scripts.common.command import RESULTS, STUDY, command, option, positive
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_json
from workflow_scripts.common.wording import number
from workflow_scripts.questions.serving.latencies import LATENCIES
from workflow_scripts.questions.serving.make_promise import one_more_start
from workflow_scripts.questions.serving.send_load import address_of, described, load_of, send_load
from workflow_scripts.questions.serving.table import BUSY_CORES, LATE_S, LATE_SHARE, summarise_pass
from workflow_scripts.statistics.comparisons import CONFIDENCE, EQUIVALENCE_ALPHA, NOT_DECIDED, SLOWER, log_margin
from workflow_scripts.statistics.further_starts import AnotherStart
from workflow_scripts.statistics.summary import Row, comparable_rows, numbers, records
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.promise import PROMISE, Promise, PromiseError
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.measurements import read_measurements
from workflow_scripts.tables.parsed_facts import REPEAT, read_parsed
from workflow_scripts.workloads.arrivals import Load

AS_MEASURED = "as measured"
MOST_S = 60
EXIT = {AS_MEASURED: 0, SLOWER: 1, NOT_DECIDED: 3}
# Latencies do not depend on the kind of load.
_ANY_LOAD = dict.fromkeys(Load.model_fields)
# vLLM's metric with the settings of its cache, and those of its labels that are compared.
_CACHE = re.compile(r"vllm:cache_config_info\{(.*)\}")
_LABELS = ("block_size", "num_gpu_blocks")


@dataclass(frozen=True)
class Compared:
    """A latency of the server and of the study: the interval of their ratio for one further start, and the verdict."""

    measure: str
    study_s: float
    server_s: float
    low: float
    high: float
    verdict: str


def first_requests(requests: pd.DataFrame, seconds: float) -> list[str]:
    """Ids of the requests that arrived within the first seconds of the first pass, in order of arrival."""
    _, first = next(iter(requests.groupby(REPEAT)))
    ordered = first.sort_values("queued_s", kind="stable")
    return [str(name) for name in ordered.loc[ordered["queued_s"] - ordered["queued_s"].min() <= seconds, "request_id"]]


def of_study(cells: pd.DataFrame, requests: pd.DataFrame, ids: list[str]) -> dict[str, AnotherStart]:
    """What one further start of a cell is expected to measure for the requests with these ids, by latency."""
    passes = dict(iter(requests[requests["request_id"].astype(str).isin(ids)].groupby(list(REPEAT))))
    starts = [(row, passes[tuple(row[name] for name in REPEAT)]) for row in records(cells)]
    rows = [row | summarise_pass(requests_of, _ANY_LOAD, {}) for row, requests_of in starts]
    return one_more_start(pd.DataFrame(rows), LATENCIES)


def compare_latencies(study: Mapping[str, AnotherStart], server: Row, margin_pct: float) -> list[Compared]:
    """Each latency of the server beside that of the study.

    A latency is `slower` with an error of at most 2.5 % over all of them, and `as measured` if a one-sided test of 5 %
    shows that it is not longer by more than the margin.
    """
    latencies = []
    for name, expected in study.items():
        value, mean = float(server[name]), float(expected.mean[0])
        ratio = math.log(value) - mean
        confidences = (CONFIDENCE, 1 - (1 - CONFIDENCE) / len(study), 1 - 2 * EQUIVALENCE_ALPHA)
        half, together, not_slower = (float(expected.half(confidence)[0]) for confidence in confidences)
        verdict = NOT_DECIDED
        if ratio - together > 0:
            verdict = SLOWER
        elif ratio + not_slower <= log_margin(margin_pct):
            verdict = AS_MEASURED
        low, high = math.exp(ratio - half), math.exp(ratio + half)
        latencies.append(Compared(name, math.exp(mean), value, low, high, verdict))
    return latencies


def verdict_of(compared: list[Compared]) -> str:
    """The server's verdict: slower in one latency, or as measured in all.

    >>> latency = Compared("ttft_s_p50", 1.0, 1.0, 0.9, 1.1, AS_MEASURED)
    >>> verdict_of([latency]), verdict_of([])
    ('as measured', 'not decided')
    """
    verdicts = {each.verdict for each in compared}
    if SLOWER in verdicts:
        return SLOWER
    return AS_MEASURED if verdicts == {AS_MEASURED} else NOT_DECIDED


def client_faults(server: Row, client_cpu_cores: float) -> Iterator[str]:
    """Why the client rather than the server may have caused the latencies."""
    if server["client_lag_s_p99"] > max(LATE_S, LATE_SHARE * server["ttft_s_p50"]):
        yield f"1 % of the requests left more than {server['client_lag_s_p99']:.3g} s late"
    if client_cpu_cores > BUSY_CORES:
        yield f"the client used {client_cpu_cores:.2g} cores"


def differing_settings(
    promise: Promise, models: list[Mapping[str, Any]], metrics: Mapping[str, Any], model: str
) -> list[str]:
    """Settings that the server reports at /v1/models and /metrics, where they differ from the study's."""
    settings: dict[str, Any] = {"model": model}
    for entry in models:
        if entry["id"] == model and entry.get("max_model_len"):
            settings["max_model_len"] = entry["max_model_len"]
    for cache in filter(None, map(_CACHE.fullmatch, metrics)):
        labels = dict(pair.split("=", 1) for pair in cache[1].split(",") if "=" in pair)
        settings |= {name: labels[name] for name in _LABELS if labels.get(name) not in (None, "None")}
    measured = promise.effective | {"model": promise.served_model}
    return [
        f"{name}: {value} here, {measured[name]} in the study"
        for name, value in settings.items()
        if name in measured and str(measured[name]) != str(value)
    ]


def _sentences(promise: Promise, compared: list[Compared], study: Study) -> Iterator[str]:
    for each in compared:
        yield (
            f"{each.measure}: {number(each.server_s)} s here, {number(each.study_s)} s in the study; "
            f"{number(each.server_s / each.study_s)}x, 95 % interval {each.low:.3g}x to {each.high:.3g}x: "
            f"{each.verdict}"
        )
    rest = promise.scope or "nothing"
    yield f"The margin is the study's {study.equivalence_margin_pct:g} %; the intervals rest on: {rest}."


def _seconds(text: str) -> int:
    """The type of an option that is a whole number of seconds, up to a minute."""
    if (value := positive(text)) > MOST_S:
        raise ArgumentTypeError(f"{text} is more than {MOST_S}, the maximum")
    return value


@command(
    "check-server",
    STUDY,
    RESULTS,
    option("--url", required=True, help="the server's address, such as http://localhost:8000"),
    option("--seconds", type=_seconds, default=MOST_S, help="how much of the load, at most 60 (%(default)s)"),
    option("--model", help="the model's name in requests; without it, the first that the server names"),
    option("--elsewhere", action="store_true", help="the server may be on another machine than this one"),
    option("--api-key-env", default="VLLM_API_KEY", help="variable that holds the server's key (%(default)s)"),
    option("--json", type=Path, help="write the answer as JSON too"),
    fault=4,
)
def main(args: Namespace) -> int:
    study = load_study(args.study)
    paths = StudyPaths(args.results, study.name)
    if not (file := paths.deploy / PROMISE).exists():
        raise PromiseError(f"{file}: the study promises nothing yet; `snakemake export` writes it")
    promise = Promise.read(file)
    if not promise.server:
        raise PromiseError(f"{promise.cell_id} was measured without a server; export a cell of a server: pick=...")
    cells = comparable_rows(read_measurements(paths.tables))
    cells = cells[cells["cell_id"].eq(promise.cell_id) & cells["repeat"].notna()]
    if cells.empty:
        raise PromiseError(
            f"{paths.tables}: no measured cell {promise.cell_id}; `snakemake export` writes the promise anew"
        )
    requests = read_parsed(paths.root / "parsed", str(cells["gpu"].iloc[0]), "requests")
    requests = requests[requests["cell_id"].eq(promise.cell_id)]
    ids = first_requests(requests, args.seconds)
    tokens = requests[requests["request_id"].astype(str).isin(ids)].drop_duplicates("request_id")
    load = load_of(study, promise.cell_id, paths, len(ids))
    address = address_of(args.url, args.api_key_env, args.elsewhere)
    models, metrics = described(address)
    model = args.model or str(models[0]["id"])
    if model not in (names := [str(entry["id"]) for entry in models]):
        raise InputError(f"--model {model}: not served at {address.base_url}; allowed: {', '.join(names)}")
    print(
        f"Sending {len(ids)} requests ({numbers(tokens['prompt_tokens']).sum():,.0f} prompt and "
        f"{numbers(tokens['output_tokens']).sum():,.0f} output tokens) within {args.seconds} s to {args.url}: "
        f"the first of {promise.load}.",
        flush=True,
    )
    sent, client_cpu_cores = send_load(address, model, load)
    answered = pd.DataFrame(sent)
    errors = answered["error"].dropna()
    if len(errors):
        raise PromiseError(f"{len(errors)} of {len(answered)} requests failed; the first: {errors.iloc[0]}")
    server = summarise_pass(answered, _ANY_LOAD, {})
    compared = compare_latencies(of_study(cells, requests, ids), server, study.equivalence_margin_pct)
    faults = list(client_faults(server, client_cpu_cores))
    verdict = NOT_DECIDED if faults else verdict_of(compared)
    differing = differing_settings(promise, models, metrics, model)
    lines = [*_sentences(promise, compared, study), *(f"Client: {fault}, so nothing is decided." for fault in faults)]
    lines += [f"Setting that differs: {each}" for each in differing] or [
        "Settings: those that the server reports are the measured ones."
    ]
    print("\n".join([*lines, verdict]))
    if args.json:
        answer = {"verdict": verdict, "latencies": [vars(each) for each in compared], "client": faults}
        write_json(args.json, answer | {"differing": differing, "requests": len(ids)})
    return EXIT[verdict]
