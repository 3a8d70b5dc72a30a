"""The report in a real browser: it fits the window, logs no errors and requests nothing from outside."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.unit.present.synthetic import write_results
from workflow_scripts.present import figures, page

pytestmark = pytest.mark.needs_tool("chromium")

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
    "--allow-file-access-from-files",
    "--enable-logging=stderr",
)
# Run inside the page, which a frame of the wanted width holds: a window can't be as narrow as a phone.
PROBE = """
const page = document.documentElement;
const wide = [...document.querySelectorAll("body *")].filter((e) =>
  !e.closest(".scroll, pre, .skip") && e.getBoundingClientRect().right > innerWidth + 0.5);
parent.document.getElementById("seen").textContent = JSON.stringify({
  width: innerWidth,
  scrollWidth: page.scrollWidth,
  tooWide: wide.map((e) => e.outerHTML.slice(0, 80)),
  images: [...document.images].map((i) => ({loaded: i.complete && i.naturalWidth > 0, width: i.clientWidth,
    drawn: i.currentSrc === i.src ? "page" : "column"})),
  sortable: document.querySelectorAll("thead th button").length,
  firstScreen: document.getElementById("summary").getBoundingClientRect().bottom,
  background: getComputedStyle(document.body).backgroundColor,
});
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    study = str(write_results(root))
    tables, drawn, out = str(root / "tables"), str(root / "figures"), root / "report.html"
    assert figures.main(["--study", study, "--tables", tables, "--parsed", str(root / "parsed"), "--out", drawn]) == 0
    folders = ["--tables", tables, "--figures", drawn, "--cells", str(root / "cells")]
    assert page.main(["--study", study, *folders, "--out", str(out)]) == 0
    return out


def chromium(profile: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the browser once, with a new profile."""
    command = ["chromium", *FLAGS, f"--user-data-dir={profile}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)


def seen_at(report: Path, width: int, tmp_path: Path, *arguments: str) -> dict[str, object]:
    """What the probe finds in the page at a width in CSS pixels."""
    html = report.read_text(encoding="utf-8")
    # The page's policy would forbid the probe, as it should.
    probed = re.sub(r"<meta http-equiv=.*?>", "", html).replace("</body>", f"<script>{PROBE}</script></body>")
    assert probed.count("<script>") == 2
    (tmp_path / "page.html").write_text(probed, encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(f'<pre id="seen"></pre><iframe src="page.html" style="width:{width}px;height:900px;border:0">')
    # A probe that runs before the images are decoded would see none of them.
    dom = chromium(tmp_path / "profile", "--virtual-time-budget=20000", *arguments, "--dump-dom", frame.as_uri()).stdout
    found = re.search(r'<pre id="seen">(.+?)</pre>', dom, re.DOTALL)
    assert found, dom[:2000]
    seen: dict[str, object] = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    return seen


@pytest.mark.parametrize(("width", "drawn", "screens"), [(1280, "page", 1), (400, "column", 2)])
def test_the_page_fits_its_width_with_every_figure(
    report: Path, width: int, drawn: str, screens: int, tmp_path: Path
) -> None:
    seen = seen_at(report, width, tmp_path)
    assert seen["width"] == width
    assert seen["tooWide"] == []
    assert seen["scrollWidth"] == width
    images = seen["images"]
    assert len(images) == len(figures.FIGURES)
    assert all(image["loaded"] and image["drawn"] == drawn and image["width"] > 300 for image in images)
    assert seen["sortable"] > 20
    assert 0 < seen["firstScreen"] <= screens * 800


def test_the_page_turns_dark_with_the_reader(report: Path, tmp_path: Path) -> None:
    light = seen_at(report, 1280, tmp_path)
    dark = seen_at(report, 1280, tmp_path, "--blink-settings=preferredColorScheme=0")
    assert (light["background"], dark["background"]) == ("rgb(254, 254, 254)", "rgb(20, 24, 29)")


def test_the_console_stays_silent_and_the_page_is_drawn(report: Path, tmp_path: Path) -> None:
    shot = tmp_path / "page.png"
    ended = chromium(tmp_path / "profile", "--window-size=1280,3000", f"--screenshot={shot}", report.as_uri())
    assert "CONSOLE" not in ended.stderr
    assert shot.stat().st_size > 100_000


def test_the_probe_for_a_silent_console_would_hear(report: Path, tmp_path: Path) -> None:
    """A script that was planted in the page is refused by its policy, and the browser says so."""
    planted = tmp_path / "planted.html"
    html = report.read_text(encoding="utf-8").replace("</body>", "<script>document.body.remove()</script></body>")
    planted.write_text(html, encoding="utf-8")
    ended = chromium(tmp_path / "profile", "--dump-dom", planted.as_uri())
    assert "CONSOLE" in ended.stderr
    assert "Content Security Policy" in ended.stderr
    assert '<main id="content">' in ended.stdout


def test_the_page_prints(report: Path, tmp_path: Path) -> None:
    pdf = tmp_path / "page.pdf"
    chromium(tmp_path / "profile", f"--print-to-pdf={pdf}", "--no-pdf-header-footer", report.as_uri())
    printed = pdf.read_bytes()
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type /Page\b", printed)) > 3
