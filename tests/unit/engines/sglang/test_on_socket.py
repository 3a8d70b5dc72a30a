"""A module's server listens on a socket alone, and reaches itself through the address that it has by its options."""

import os
import sys
from pathlib import Path

import psutil
import pytest

from tests.processes import wait_for
from workflow_scripts.engines.serving.client import Address, wait_until_healthy
from workflow_scripts.engines.serving.processes import ServerProcess
from workflow_scripts.engines.sglang import on_socket

# Warms itself up as SGLang does, in a thread.
SERVER = """
import sys, threading, time, requests, uvicorn

seen = []

def warm_up():
    while not seen:
        time.sleep(0.05)
        try:
            seen.append(requests.get(sys.argv[2]).text)
        except requests.ConnectionError:
            pass

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": "".join(["itself ", *seen]).encode()})

threading.Thread(target=warm_up, daemon=True).start()
uvicorn.Server(uvicorn.Config(app, port=int(sys.argv[1]), lifespan="off")).run()
"""


@pytest.fixture
def server(tmp_path):
    (tmp_path / "small_server.py").write_text(SERVER)
    words = [sys.executable, "-P", str(Path(on_socket.__file__)), str(tmp_path / "s"), "small_server"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    server = ServerProcess.command([*words, "9", "http://127.0.0.1:9/"], environment, tmp_path)
    yield server
    server.stop()


def test_a_server_listens_on_a_socket_alone_and_reaches_itself(server, tmp_path):
    address = Address("http://localhost", socket_path=str(tmp_path / "s"))
    wait_until_healthy(address, "/", server.ended, limit_s=60)
    wait_for(lambda: address.call("/") == "itself itself ", what="a request of the server to itself")
    assert psutil.Process(server.pid).net_connections("inet") == []
