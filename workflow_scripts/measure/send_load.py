"""Send the beginning of a cell's load to a running vLLM server, and record what the client sees.

    kvsweep send-load --study config/studies/serving.yaml --requests 60 --url http://localhost:8000 \\
        --cell h100-sxm/vllm-serve/llama-3.1-8b-instruct/chat/seqs256-len4096-util0.9-rate1 --out sent.json

`kvsweep check-server` calls this and compares the answers with those of the study. Only the announced requests are
sent, each once. The requests have a new cache salt, so the server does not use prefixes that it has cached before.
"""

import ipaddress
import json
import os
import secrets
import time
import urllib.parse
from argparse import Namespace
from dataclasses import asdict
from typing import Any

from workflow_scripts.common.command import RESULTS, STUDY, command, option, out, positive
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import read_jsonl, write_json
from workflow_scripts.engines.serving.client import Address, Target, send
from workflow_scripts.engines.serving.scrape import parse_metrics
from workflow_scripts.engines.vllm.knobs import VLLM_SERVE, VllmServeKnobs
from workflow_scripts.study.definition import cell_definition, resolved_models, workload_key
from workflow_scripts.study.grid import expand
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.protocol import SEED
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study
from workflow_scripts.workloads.request import Request
from workflow_scripts.workloads.sampling import Sampling

# An overloaded server may take so much longer than the arrivals last; then the rest is given up.
LIMIT_S = 900.0


def is_here(url: str) -> bool:
    """Whether an address is this machine's own.

    >>> [is_here(url) for url in ("http://localhost:8000", "http://127.0.0.2:1/v1", "http://[::1]:8", "http://10.0.0.1")]
    [True, True, True, False]
    """
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def address_of(url: str, key_variable: str, elsewhere: bool) -> Address:
    """The server's address, if a load may be sent there. Raises InputError if it is not an address, or it is one of
    another machine without `elsewhere`."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"--url {url}: no address of a server; it looks like http://localhost:8000")
    if not elsewhere and not is_here(url):
        raise InputError(f"--url {url}: not this machine; add --elsewhere to send the load to {parts.hostname}")
    return Address(f"{parts.scheme}://{parts.netloc}", os.environ.get(key_variable) or None)


def served_models(address: Address) -> list[dict[str, Any]]:
    """The models of a server, as it describes them. Raises InputError if no server answers there as vLLM does."""
    try:
        return list(json.loads(address.call("/v1/models"))["data"])
    except (OSError, ValueError, KeyError) as e:
        raise InputError(f"{address.base_url}/v1/models: {getattr(e, 'reason', e)}") from None


# The requests of a cell, when each arrives, the number of users, and how tokens are chosen.
CellLoad = tuple[list[Request], list[float], int | None, Sampling | None]


def load_of(study: Study, cell_id: str, paths: StudyPaths, count: int) -> CellLoad:
    """The first requests of a cell's load. Raises InputError if the study has no such cell of a server, it searches its
    load, or its requests are not prepared here."""
    servers = {cell.id: (cell, cell.knobs) for cell in expand(study) if isinstance(cell.knobs, VllmServeKnobs)}
    cell, knobs = servers.get(cell_id, (None, None))
    if cell is None or knobs is None or knobs.find:
        allowed = ", ".join(name for name, (_, of) in servers.items() if not of.find) or "none in this study"
        why = "it searches the highest load and has none to send" if cell else f"no cell of {VLLM_SERVE.name}"
        raise InputError(f"{cell_id}: {why} in study {study.name}; allowed: {allowed}")
    definition = cell_definition(study, cell, resolved_models(study))
    file = paths.workload(cell.model, cell.workload, workload_key(definition))
    if not file.exists():
        raise InputError(f"{file}: the requests are not here; `snakemake prepare` makes them")
    rows = list(read_jsonl(file))
    arrivals_s = knobs.arrivals_s([row.get("arrival_s", 0.0) for row in rows], SEED)
    requests = [Request(**row) for row in rows[:count]]
    return requests, arrivals_s[:count], knobs.users, definition.workload.sampling


def send_load(address: Address, model: str, load: CellLoad) -> dict[str, Any]:
    """Send the load; return the requests, the server's metrics before and after, and the client's share of a core.
    Raises InputError if the server does not answer in time."""
    requests, arrivals_s, users, sampling = load
    body = {"ignore_eos": True, "cache_salt": secrets.token_hex(16)}
    target = Target(address, model, extra_body=body, sampling=sampling)
    before, began_s, cpu_s = address.call("/metrics"), time.monotonic(), time.process_time()
    limit_s = max(arrivals_s, default=0.0) + LIMIT_S
    try:
        records = send(target, requests, [r.prompt for r in requests], arrivals_s, users, limit_s)
    except TimeoutError:
        raise InputError(f"the load could not be sent: no end within {limit_s:g} s") from None
    wall_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
    after = address.call("/metrics")
    return {
        "model": model,
        "models": served_models(address),
        "wall_s": wall_s,
        "client_cpu_cores": cpu_s / wall_s,
        "before": parse_metrics(before),
        "after": parse_metrics(after),
        "requests": [asdict(record) for record in records],
    }


@command(
    "send-load",
    STUDY,
    RESULTS,
    option("--cell", required=True, help="the cell whose load is sent: gpu/engine/model/workload/knobs"),
    option("--requests", type=positive, required=True, help="how many of its requests are sent, from the first"),
    option("--url", required=True, help="the server's address, such as http://localhost:8000"),
    option("--model", help="the model's name in requests; without it, the first that the server names"),
    option("--elsewhere", action="store_true", help="the server may be on another machine"),
    option("--api-key-env", default="VLLM_API_KEY", help="variable that holds the server's key (%(default)s)"),
    out("record of the requests, as JSON"),
)
def main(args: Namespace) -> None:
    study = load_study(args.study)
    load = load_of(study, args.cell, StudyPaths(args.results, study.name), args.requests)
    address = address_of(args.url, args.api_key_env, args.elsewhere)
    names = [str(entry["id"]) for entry in served_models(address)]
    model = args.model or names[0]
    if model not in names:
        raise InputError(f"--model {model}: not served at {address.base_url}; allowed: {', '.join(names)}")
    write_json(args.out, send_load(address, model, load))
