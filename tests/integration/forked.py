"""vLLM's server and client in children of the fork server that other tests have started: both start in seconds.

python -m tests.integration.forked serve vllm.yaml PORT
python -m tests.integration.forked load WORKLOAD URL MODEL USERS REQUESTS_PER_ANSWER SECONDS
"""

import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp

from workflow_scripts.common.files import read_jsonl
from workflow_scripts.engines.vllm.adapter import _serve
from workflow_scripts.engines.vllm.knobs import VLLM_SERVE
from workflow_scripts.measure.forkserver import begin

LIMIT_S = 300.0


def serve(config: str, port: str) -> None:
    """Serve as a file for `vllm serve --config` says, with its folder on the path for modules."""
    sys.path.append(str(Path(config).parent))
    with tempfile.TemporaryDirectory() as folder:
        _serve(["--config", config, "--host", "127.0.0.1", "--port", port], Path(folder, "effective.json"), on_cpu=True)


def load(workload: str, url: str, model: str, users: str, per_answer: str, seconds: str) -> None:
    """Send so many requests at once, and for some seconds so many more for each answer.

    So two per answer are twice what the server sustains, however fast this machine is at each moment.
    """
    from vllm.utils.system_utils import set_ulimit

    rows = itertools.cycle(list(read_jsonl(Path(workload))))
    set_ulimit()  # a connection for each request that waits
    asyncio.run(_send(rows, f"{url}/v1/completions", model, int(users), int(per_answer), float(seconds)))


async def _send(
    rows: Iterator[dict[str, Any]], url: str, model: str, users: int, per_answer: int, seconds: float
) -> None:
    ends_s = time.monotonic() + seconds
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(LIMIT_S),
        connector=aiohttp.TCPConnector(limit=0),
        headers={"Authorization": f"Bearer {os.environ['VLLM_API_KEY']}"},
    ) as http:

        async def ask(tasks: asyncio.TaskGroup) -> None:
            row = next(rows)
            body = {"model": model, "prompt": row["prompt_token_ids"], "max_tokens": row["output_tokens"]}
            async with http.post(url, json=body | {"ignore_eos": True}, raise_for_status=True) as answer:
                await answer.read()
            if time.monotonic() < ends_s:
                for _ in range(per_answer):
                    tasks.create_task(ask(tasks))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(users):
                tasks.create_task(ask(tasks))


def main(argv: Sequence[str]) -> int:
    """Do what the first word says; the fork server calls it."""
    {"serve": serve, "load": load}[argv[0]](*argv[1:])
    return 0


if __name__ == "__main__":
    words = sys.argv[1:]
    asked = ("tests.integration.forked", words, sys.stderr.buffer, dict(os.environ), VLLM_SERVE.preload)
    with closing(begin(*asked)) as child:
        raise SystemExit(child.wait(LIMIT_S))
