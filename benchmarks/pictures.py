"""Take the pictures of the report that README.md and docs/report.md show, in a real Chromium.

    make pictures                (or: python -m benchmarks.pictures [--page results/two_gpus/report.html])

Writes docs/images/report.png, explore.png, cell.png, blocks.png and limits.png.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image

from tests.browser import Tab, browser
from workflow_scripts.common.command import run_command

IMAGES = Path("docs/images")
WIDTH, HEIGHT = 1280, 800
DIALOG = "document.querySelector('dialog input[type=range]')"
# 32 requests of different lengths, up to 16 at once.
CELL = "h200/vllm/llama-3.1-8b-instruct/chat/bs16-seqs16-len4096-util0.9"
TITLE = "[...document.querySelectorAll('dialog h3')].find((title) => title.textContent === {!r}).scrollIntoView()"

# Each picture: the address, when it is drawn, and what to do first.
VIEWS: Mapping[str, tuple[str, str, str]] = {
    "report": ("", "document.querySelector('#tab-report')", "scrollTo(0, 0)"),
    "explore": ("#view=explore", "document.querySelector('#view-explore table')", "scrollTo(0, 0)"),
    "cell": (f"#view=explore&cell={CELL}", DIALOG, TITLE.format("Timeline")),
    "blocks": (f"#view=explore&cell={CELL}", DIALOG, TITLE.format("Block map")),
    "limits": ("#view=limits", "document.querySelector('#view-limits table')", "scrollTo(0, 420)"),
}


def take(tab: Tab, page: Path, images: Path) -> None:
    for name, (address, drawn, first) in VIEWS.items():
        tab.open(page, address, width=WIDTH)
        tab.call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False)
        tab.wait(drawn)
        tab.evaluate(first)
        tab.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        tab.picture(path := images / f"{name}.png")
        # The page has few colours, so a palette loses nothing that is seen, and more than half of the bytes.
        Image.open(path).convert("RGB").quantize(method=Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
        print(path)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Pictures of the report for README.md and docs/report.md.")
    parser.add_argument("--page", type=Path, default=Path("results/two_gpus/report.html"), help="default: %(default)s")
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder to write to (default: %(default)s)")
    args = parser.parse_args(argv)
    if not args.page.is_file():
        print(f"{args.page}: there is no such page; `make gpu-report` makes it", file=sys.stderr)
        return 2
    args.images.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="pictures-", ignore_cleanup_errors=True) as scratch,
        browser(Path(scratch) / "profile") as tab,
    ):
        take(tab, args.page.resolve(), args.images)
    return 0


if __name__ == "__main__":
    run_command(main)
