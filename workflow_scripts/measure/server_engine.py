"""What every engine behind a server has in common: start it, load it, watch its queues, stop it."""

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import replace

from workflow_scripts.measure.client import Address, ServerError, Target, send, wait_until_healthy
from workflow_scripts.measure.engine import Engine, EngineSetup, Metrics, RequestRecord
from workflow_scripts.measure.processes import ServerProcess
from workflow_scripts.measure.scrape import queues_noted, read_metrics
from workflow_scripts.study.outcome import Effective
from workflow_scripts.study.paths import CLIENT_CPU_S
from workflow_scripts.workloads.arrivals import Load
from workflow_scripts.workloads.request import Prompt, Request

LOOPBACK = "127.0.0.1"
SERVED_MODEL_NAME = "model"
# After a broken connection, it may take so long until the end of the server's process is seen.
END_IS_SEEN_S = 0.5


class Serving(Engine):
    """A server under load; subclasses define how it is launched and what is sent to it. The client is this process. On
    a CPU it runs on the cores that are not the device's, if there are any. Its steps are the server's queues, about
    once a second, without token counts."""

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        self._load = Load.model_validate({k: setup.knobs[k] for k in Load.model_fields if k in setup.knobs})
        self._server: ServerProcess | None = None
        self._target: Target

    def _launch(self) -> tuple[ServerProcess | None, Target, str]:
        """Start the server, if this process has to start it; return it, the target of requests and its health path."""
        raise NotImplementedError

    def _effective(self) -> Effective:
        """Settings of the healthy server that took effect."""
        raise NotImplementedError

    def _target_at(self, address: Address) -> Target:
        """The target of requests to a server of vLLM's kind, which can ignore end tokens and report tokens."""
        with_tokens = {"return_token_ids": True} if self._setup.keep_answers else {}
        return Target(
            address,
            SERVED_MODEL_NAME,
            extra_body={"ignore_eos": True, **with_tokens},
            sampling=self._setup.sampling,
            keep_answers=self._setup.keep_answers,
        )

    def _prompts(self, requests: Sequence[Request]) -> Sequence[Prompt]:
        return [request.prompt for request in requests]

    def start(self) -> Effective:
        try:
            self._server, self._target, health_path = self._launch()
            wait_until_healthy(self._target.address, health_path, self._ended, self._setup.start_limit_s)
            return {**self._effective(), **self._client_cores()}
        except BaseException:
            self.stop()
            raise

    def _ended(self) -> str | None:
        return self._server.ended() if self._server else None

    def _client_cores(self) -> Effective:
        """Move this process off the device's cores, if the machine has others."""
        if self._setup.device_kind != "cpu" or self._server is None:
            return {}
        others = sorted(set(self._setup.host_cores) - set(self._setup.cores))
        if others:
            os.sched_setaffinity(0, others)
        return {"client_cores": others or list(self._setup.cores), "client_shares_cores": not others}

    def run(self, requests: Sequence[Request]) -> list[RequestRecord]:
        """Send the requests as the load says, and watch the server's queues meanwhile. A request that failed has an
        `error`; if the server has ended, the `error` says so."""
        records = self._send(requests, self._load.arrivals_s([r.arrival_s for r in requests], self._setup.arrival_seed))
        if any(record.error for record in records):
            time.sleep(END_IS_SEEN_S)
            if (how := self._ended()) is not None:
                return [replace(r, error=f"{how} ({r.error})") if r.error else r for r in records]
        return records

    def warm_up(self, requests: Sequence[Request]) -> None:
        """Send the requests all at once. Raises ServerError if one of them failed."""
        failed = [record for record in self._send(requests, [0.0] * len(requests)) if record.error]
        if failed:
            raise ServerError(f"{len(failed)} of {len(requests)} requests to warm up with failed: {failed[0].error}")
        self._steps.clear()

    def _send(self, requests: Sequence[Request], arrivals_s: Sequence[float]) -> list[RequestRecord]:
        guard = self._server.guarded() if self._server else contextlib.nullcontext()
        with guard, queues_noted(self._target.address, self._steps):
            return send(self._target, requests, self._prompts(requests), arrivals_s, self._load.users)

    def metrics(self) -> Metrics:
        """The server's own metrics, and the CPU time of the client so far."""
        return {**read_metrics(self._target.address), CLIENT_CPU_S: time.process_time()}

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()


def free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as probe:
        return int(probe.getsockname()[1])


def check_port_is_free(port: int) -> None:
    """Make sure that no other server is measured instead of the one to be started. Raises ServerError if something
    listens there."""
    try:
        # As for servers, a connection that an earlier server left in TIME_WAIT does not block the port.
        socket.create_server((LOOPBACK, port)).close()
    except OSError as e:
        raise ServerError(f"port {port} of {LOOPBACK} is not available: {os.strerror(e.errno or 0)}") from None


def new_address(port: int) -> Address:
    """The address of a server on this machine, reachable from this machine only, with a new random key."""
    return Address(f"http://{LOOPBACK}:{port}", secrets.token_urlsafe(24))
