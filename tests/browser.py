"""A real Chromium for tests, driven by its DevTools protocol over a pipe."""

import base64
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
LIMIT_S = 120.0
# Opens every fold of the report.
UNFOLD = "for (const fold of document.querySelectorAll('#view-report details')) fold.open = true"
# The browser reads commands from descriptor 3 and answers on descriptor 4.
_LAUNCH = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3])
os.dup2(read, 3), os.dup2(write, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


class Tab:
    """One tab of a browser: opens pages, evaluates expressions, presses keys and takes pictures."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back, self._numbers, self._read = to, back, itertools.count(1), b""
        self._session: str | None = None
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != number:
            self._note(answer)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            part = os.read(self._back, 1 << 20)
            if not part:
                raise AssertionError("the browser has ended")
            self._read += part
        text, self._read = self._read.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        """Keep what the console complains of, and every request that is not for a file or for data in the page."""
        method, said = event.get("method"), event.get("params", {})
        if method == "Log.entryAdded":
            self.complaints.append(said["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(said["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(said["args"]))
        elif method == "Network.requestWillBeSent" and not said["request"]["url"].startswith(
            ("file:", "data:", "blob:")
        ):
            self.complaints.append(f"request for {said['request']['url']}")

    def open(self, page: Path, fragment: str = "", *, width: int = 1280, dark: bool = False) -> None:
        """Open a page in a window of this width and wait until it has loaded; forgets earlier complaints."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url="about:blank")
        self.complaints = []
        self.call("Page.navigate", url=page.as_uri() + fragment)
        self.wait("location.href !== 'about:blank' && document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, or of the promise that it gives.

        Raises:
            AssertionError: it throws.
        """
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(json.dumps(answer["exceptionDetails"], indent=1)[:3000])
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true.

        Raises:
            AssertionError: it is not true within `LIMIT_S`.
        """
        end = time.monotonic() + LIMIT_S
        while not self.evaluate(f"Boolean({condition})"):
            if time.monotonic() > end:
                raise AssertionError(f"never true: {condition}")
            time.sleep(0.05)

    def too_wide(self, chosen: str, but: str = ".scroll") -> list[str]:
        """What of the chosen elements reaches beyond the window, but for what is in an element that scrolls."""
        found: list[str] = self.evaluate(f"""[...document.querySelectorAll({json.dumps(chosen)})]
            .filter((e) => !e.closest({json.dumps(but)}) && e.getBoundingClientRect().right > innerWidth + 0.5)
            .map((e) => e.outerHTML.slice(0, 80))""")
        return found

    def press(self, key: str) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": _TEXTS[key]} if key in _TEXTS and kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=_CODES.get(key, 0), **text
            )

    def download(self, button: str, folder: Path) -> Path:
        """Click what an expression gives, and wait for the one file that it saves in this folder."""
        self.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        before = set(folder.iterdir())
        self.evaluate(f"({button}).click()")
        end = time.monotonic() + LIMIT_S
        while not (new := [path for path in set(folder.iterdir()) - before if _is_whole(path)]):
            if time.monotonic() > end:
                raise AssertionError(f"{button} saved nothing")
            time.sleep(0.05)
        return new[0]

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write what the tab shows (or the whole page) as PNG."""
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))


def _is_whole(path: Path) -> bool:
    """Whether a download has ended; the browser makes an empty file of its final name first."""
    return path.suffix != ".crdownload" and path.exists() and path.stat().st_size > 0


_TEXTS = {"Enter": "\r", " ": " "}
_CODES = {
    "Enter": 13,
    "Escape": 27,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "Tab": 9,
    " ": 32,
}


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Tab]:
    """A tab of a browser with a new profile; ends the browser afterwards."""
    to_read, to_write = os.pipe()
    back_read, back_write = os.pipe()
    command = ["chromium", *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe"]
    launched = [sys.executable, "-c", _LAUNCH, str(to_read), str(back_write), *command]
    with (profile.parent / f"{profile.name}.log").open("wb") as log:
        process = subprocess.Popen(launched, pass_fds=(to_read, back_write), stdout=log, stderr=log)
    os.close(to_read)
    os.close(back_write)
    try:
        yield Tab(to_write, back_read)
    finally:
        os.close(to_write)
        os.close(back_read)
        process.terminate()
        process.wait(timeout=30)
