"""What every engine behind a server has in common: start it, load it, watch its queues, stop it."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from workflow_scripts.engines.engine import CLIENT_CPU_S, Effective, Engine, EngineSetup, Metrics, RequestRecord
from workflow_scripts.engines.serving.client import Address, IsEnough, ServerError, Target, send, wait_until_healthy
from workflow_scripts.engines.serving.processes import ServerProcess
from workflow_scripts.engines.serving.scrape import queues_noted, read_metrics
from workflow_scripts.workloads.arrivals import Load
from workflow_scripts.workloads.request import Prompt, Request

SERVED_MODEL_NAME = "model"
# After a broken connection, it may take so long until the end of the server's process is seen.
END_IS_SEEN_S = 0.5


class Serving(Engine):
    """A server under load; subclasses define how it is launched and what is sent to it. The client is this process. On
    a CPU it runs on the cores that are not the device's, if there are any. Its steps are the server's queues, about
    once a second, without token counts."""

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        self.use(setup)
        self._server: ServerProcess | None = None
        self._folder: str | None = None
        self._target: Target

    def use(self, setup: EngineSetup) -> None:
        super().use(setup)
        self._load = Load.model_validate({k: setup.knobs[k] for k in Load.model_fields if k in setup.knobs})

    def _launch(self) -> tuple[ServerProcess | None, Target, str]:
        """Start the server, if this process has to start it; return it, the target of requests and its health path."""
        raise NotImplementedError

    def _own_folder(self) -> Path:
        """A new folder of mode 0700 for the sockets of a server: no other user reaches it there or takes its place. The
        path leads through this process's open folder, because the address of a socket has at most 107 bytes."""
        self._folder = tempfile.mkdtemp(prefix="kvsweep-server-")
        return Path(f"/proc/{os.getpid()}/fd/{os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)}")

    def _effective(self) -> Effective:
        """Settings of the healthy server that took effect."""
        raise NotImplementedError

    def _target_at(self, socket: Path) -> Target:
        """The target of requests to a server of vLLM's kind, which can ignore end tokens and report tokens, at this
        UNIX socket."""
        with_tokens = {"return_token_ids": True} if self._setup.keep_answers else {}
        return Target(
            Address("http://localhost", socket_path=str(socket)),
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
        arrivals_s = self._load.arrivals_s([r.arrival_s for r in requests], self._setup.arrival_seed)
        records = self._send(requests, arrivals_s, self._setup.is_enough)
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

    def _send(
        self, requests: Sequence[Request], arrivals_s: Sequence[float], is_enough: IsEnough | None = None
    ) -> list[RequestRecord]:
        guard = self._server.guarded() if self._server else contextlib.nullcontext()
        with guard, queues_noted(self._target.address, self._steps):
            return send(
                self._target, requests, self._prompts(requests), arrivals_s, self._load.users, is_enough=is_enough
            )

    def metrics(self) -> Metrics:
        """The server's own metrics, and the CPU time of the client so far."""
        return {**read_metrics(self._target.address), CLIENT_CPU_S: time.process_time()}

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
