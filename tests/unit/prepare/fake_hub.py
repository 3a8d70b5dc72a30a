"""A hub on localhost with one repository at one commit."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests import http_server


class FakeHub:
    """The two calls of the hub's interface that a download makes, for one repository at one commit."""

    address: str

    def __init__(self, files: dict[str, bytes], repo: str, revision: str, refusal: tuple[int, str] | None = None):
        self.files, self.repo, self.revision, self.refusal = files, repo, revision, refusal
        self.tree = f"/api/models/{repo}/tree/{revision}"
        self.resolve = f"/{repo}/resolve/{revision}/"
        self.requests: list[tuple[str, str | None]] = []

    @property
    def downloaded(self) -> set[str]:
        return {path.split("/resolve/")[1].split("/", 1)[1] for path, _ in self.requests if "/resolve/" in path}


class _Handler(http_server.Handler):
    hub: FakeHub

    def get(self):
        hub = self.hub
        if hub.repo in self.path:
            hub.requests.append((self.path, self.headers.get("Authorization")))
        if hub.refusal:
            status, code = hub.refusal
            self._answer(status, b"", {"X-Error-Code": code, "X-Error-Message": "as the test wants it"})
        elif self.path.startswith(hub.tree):
            listing = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in hub.files.items()
            ]
            self._answer(200, json.dumps(listing).encode(), {"Content-Type": "application/json"})
        elif self.path.startswith(hub.resolve) and (name := self.path.removeprefix(hub.resolve)) in hub.files:
            data = hub.files[name]
            etag = f'"{hashlib.sha1(data).hexdigest()}"'
            self._answer(200, data, {"ETag": etag, "X-Repo-Commit": hub.revision})
        else:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]):
        self.answer(status, body, {**headers, "Content-Length": str(len(body))})


@contextmanager
def serving() -> Iterator[Callable[..., FakeHub]]:
    """A function that starts hubs, which end with the block."""
    with http_server.serving(_Handler) as start:

        def begin(*args, **kwargs) -> FakeHub:
            hub = FakeHub(*args, **kwargs)
            hub.address = start(hub=hub)
            return hub

        yield begin
