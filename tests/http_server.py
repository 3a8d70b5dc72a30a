"""HTTP servers of tests on free ports of this machine, or on UNIX sockets."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer, ThreadingUnixStreamServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Answers in silence; a subclass has `get` or `post`."""

    def do_GET(self) -> None:
        self.get()

    def do_HEAD(self) -> None:
        self.get()

    def do_POST(self) -> None:
        self.post()

    def get(self) -> None:
        self.answer(404)

    def post(self) -> None:
        self.answer(404)

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def asked(self) -> bytes:
        """The body of a request."""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))


@contextmanager
def serving(handler: type[Handler]) -> Iterator[Callable[..., str]]:
    """A function that starts servers, each with attributes of its handler's own, and returns their addresses."""
    servers: list[BaseServer] = []

    def start(socket: Path | None = None, **attributes: Any) -> str:
        own = type("Own", (handler,), attributes)
        server = ThreadingUnixStreamServer(str(socket), own) if socket else ThreadingHTTPServer(("127.0.0.1", 0), own)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return "http://localhost" if socket else f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
