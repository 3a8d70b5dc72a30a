"""A hub on localhost with one repository at one commit."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeHub(ThreadingHTTPServer):
    """The two calls of the hub's interface that a download makes, for one repository at one commit."""

    def __init__(
        self, files: dict[str, bytes], repo: str, revision: str, refusal: tuple[int, str] | None = None, kind: str = ""
    ):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.repo, self.revision, self.refusal = files, repo, revision, refusal
        self.tree = f"/api/{kind or 'models'}/{repo}/tree/{revision}"
        self.resolve = f"/{kind + '/' if kind else ''}{repo}/resolve/{revision}/"
        self.requests: list[tuple[str, str | None]] = []

    @property
    def downloaded(self) -> set[str]:
        return {path.split("/resolve/")[1].split("/", 1)[1] for path, _ in self.requests if "/resolve/" in path}


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        if self.server.repo in self.path:
            self.server.requests.append((self.path, self.headers.get("Authorization")))
        tree, files = self.server.tree, self.server.resolve
        if self.server.refusal:
            status, code = self.server.refusal
            self._answer(status, b"", {"X-Error-Code": code, "X-Error-Message": "as the test wants it"})
        elif self.path.startswith(tree):
            listing = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in self.server.files.items()
            ]
            self._answer(200, json.dumps(listing).encode(), {"Content-Type": "application/json"})
        elif self.path.startswith(files) and (name := self.path.removeprefix(files)) in self.server.files:
            data = self.server.files[name]
            etag = f'"{hashlib.sha1(data).hexdigest()}"'
            self._answer(200, data, {"ETag": etag, "X-Repo-Commit": self.server.revision})
        else:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@contextmanager
def serving() -> Iterator[Callable[..., FakeHub]]:
    """A function that starts hubs, which end with the block."""
    hubs = []

    def start(*args, **kwargs) -> FakeHub:
        hub = FakeHub(*args, **kwargs)
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        hubs.append(hub)
        return hub

    yield start
    for hub in hubs:
        hub.shutdown()
        hub.server_close()
