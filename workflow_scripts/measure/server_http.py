"""Plain requests to a server under measurement: health, metrics, small commands. They never use a proxy."""

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

TIMEOUT_S = 10.0
HEALTH_POLL_S = 0.1

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerError(RuntimeError):
    """The server ended, or did not answer as expected."""


class ServerTimeoutError(RuntimeError):
    """The server did not become healthy in time."""


@dataclass(frozen=True)
class Address:
    """Where a server listens and the key that it requires. No text form of this object shows the key."""

    base_url: str
    api_key: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def call(self, path: str, body: Any = None, method: str | None = None) -> str:
        """Send a request and return the text of the answer. Raises OSError if the server cannot be reached, or answers
        with an error (`urllib.error.HTTPError`)."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base_url + path, data=data, method=method, headers=self.headers)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        try:
            with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
                text: str = answer.read().decode("utf-8", errors="replace")
                return text
        except http.client.HTTPException as e:  # an answer that is not HTTP, or that was cut off
            raise OSError(f"{type(e).__name__}: {e}") from e


def wait_until_healthy(address: Address, path: str, ended: Callable[[], str | None], limit_s: float) -> None:
    """Wait until the server answers at `path`. Raises ServerError if the server ended (`ended` says how),
    ServerTimeoutError if the server is not healthy after `limit_s`."""
    deadline = time.monotonic() + limit_s
    last = "no answer"
    while True:
        if (how := ended()) is not None:
            raise ServerError(f"{how} before it was healthy")
        try:
            address.call(path)
            return
        except urllib.error.HTTPError as e:
            last = f"HTTP {e.code}"
        except OSError as e:
            last = str(getattr(e, "reason", e))
        if time.monotonic() > deadline:
            raise ServerTimeoutError(f"the server was not healthy after {limit_s:g} s; {path} last said: {last}")
        time.sleep(HEALTH_POLL_S)
