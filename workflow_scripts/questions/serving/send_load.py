"""Send the beginning of a cell's load to a running vLLM server, and record what the client sees.

Only the announced requests are sent, each once. They have a new cache salt, so the server does not use prefixes that it
has cached before.
"""

import ipaddress
import json
import os
import secrets
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

from workflow_scripts.common.faults import InputError
from workflow_scripts.engines.engine import Metrics, RequestRecord
from workflow_scripts.engines.serving.client import Address, Target, send
from workflow_scripts.engines.serving.scrape import parse_metrics
from workflow_scripts.engines.vllm.knobs import VLLM_SERVE, VllmServeKnobs
from workflow_scripts.study.definition import cell_definition, resolved_models, workload_key
from workflow_scripts.study.grid import expand
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.protocol import SEED
from workflow_scripts.study.study import Study
from workflow_scripts.workloads.request import Request, read_requests
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


def described(address: Address) -> tuple[list[Mapping[str, Any]], Metrics]:
    """The models of a server, as it describes them, and its metrics. Raises InputError if no server answers there as
    vLLM does."""
    try:
        return list(json.loads(address.call("/v1/models"))["data"]), parse_metrics(address.call("/metrics"))
    except (OSError, ValueError, KeyError) as e:
        raise InputError(f"{address.base_url}: {getattr(e, 'reason', e)}") from None


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
    requests = read_requests(file)
    arrivals_s = knobs.arrivals_s([request.arrival_s for request in requests], SEED)
    return requests[:count], arrivals_s[:count], knobs.users, definition.workload.sampling


def send_load(address: Address, model: str, load: CellLoad) -> tuple[list[RequestRecord], float]:
    """Send the load; return the records of the requests, and the client's share of a core. Raises InputError if the
    server does not answer in time."""
    requests, arrivals_s, users, sampling = load
    body = {"ignore_eos": True, "cache_salt": secrets.token_hex(16)}
    target = Target(address, model, extra_body=body, sampling=sampling)
    began_s, cpu_s = time.monotonic(), time.process_time()
    limit_s = max(arrivals_s, default=0.0) + LIMIT_S
    try:
        records = send(target, requests, [r.prompt for r in requests], arrivals_s, users, limit_s)
    except TimeoutError:
        raise InputError(f"the load could not be sent: no end within {limit_s:g} s") from None
    return records, (time.process_time() - cpu_s) / (time.monotonic() - began_s)
