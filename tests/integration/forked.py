"""vLLM's server and client in children of the fork server that other tests have started: both start in seconds.

python -m tests.integration.forked serve vllm.yaml PORT
python -m tests.integration.forked load WORKLOAD URL MODEL SEQUENCES FACTOR SECONDS
"""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from workflow_scripts.common.files import read_jsonl
from workflow_scripts.engines.vllm_engines import VLLM_SERVE
from workflow_scripts.measure.client import Target, send
from workflow_scripts.measure.engine import preload_of
from workflow_scripts.measure.forkserver import run
from workflow_scripts.measure.server_http import Address
from workflow_scripts.measure.vllm_serve import _serve
from workflow_scripts.workloads.arrivals import Load
from workflow_scripts.workloads.request import Request

LIMIT_S = 300.0


def serve(config: str, port: str) -> None:
    """Serve as a file for `vllm serve --config` says."""
    with tempfile.TemporaryDirectory() as folder:
        _serve(["--config", config, "--host", "127.0.0.1", "--port", port], Path(folder, "effective.json"), on_cpu=True)


def load(workload: str, url: str, model: str, sequences: str, factor: str, seconds: str) -> None:
    """Measure what the server sustains now, with as many users as it has places; then send so many times that rate."""
    rows = list(read_jsonl(Path(workload)))
    target = Target(Address(url), model, extra_body={"ignore_eos": True})

    def sent(count: int, rate_per_s: float | None) -> float:
        some = [rows[i % len(rows)] for i in range(count)]
        requests = [
            Request(row["prompt_token_ids"], row["output_tokens"], request_id=f"r{i}") for i, row in enumerate(some)
        ]
        arrivals_s = Load(request_rate_per_s=rate_per_s).arrivals_s([0.0] * count, seed=0)
        prompts = [request.prompt_token_ids for request in requests]
        began_s, users = time.monotonic(), None if rate_per_s else int(sequences)
        with tempfile.NamedTemporaryFile() as log:
            send(target, requests, prompts, arrivals_s, users, Path(log.name))
        return time.monotonic() - began_s

    rate_per_s = float(factor) * 2 * len(rows) / sent(2 * len(rows), None)
    sent(max(2, int(rate_per_s * float(seconds))), rate_per_s)


def main(argv: Sequence[str]) -> int:
    """Do what the first word says; the fork server calls it."""
    {"serve": serve, "load": load}[argv[0]](*argv[1:])
    return 0


if __name__ == "__main__":
    ended = run(
        "tests.integration.forked",
        sys.argv[1:],
        sys.stderr.buffer,
        dict(os.environ),
        LIMIT_S,
        preload_of(VLLM_SERVE.name),
    )
    raise SystemExit(ended.exit_status)
