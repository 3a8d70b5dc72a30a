"""What the report's page costs a reader: its size, and how fast a real Chromium opens it and acts on a filter.

    make bench-report            (or: python -m benchmarks.report_in_browser [--cells 1000 10000] [--page report.html])

Makes the pages of made-up studies with three starts of three repeats per cell, without figures, and measures each page
with its views. The page of the demo is measured as well if it is there; `--page` measures another instead of all these.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.analysis import commands, run
from tests.browser import Tab, browser
from tests.generated_study import write_generated_study
from workflow_scripts.common.command import run_command

DEMO = Path("results/demo/report.html")
STARTS = 3
# The goals: megabytes of the page, and seconds until Explore is drawn.
GOALS = {"the demo": (2.5, 1.0), "1,000 cells": (6.0, 1.0), "10,000 cells": (25.0, 3.0)}
GOAL_PAINTED_S, GOAL_FILTER_S, GOAL_MEMORY_MB = 1.0, 0.2, 600

FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
DRAWN = "document.querySelector('#view-explore table')"
FILTER = """(() => {
  const box = document.querySelector("#view-explore input[type=checkbox][value]:not(.choice input)");
  const began = performance.now();
  box.click();
  document.body.getBoundingClientRect();
  return performance.now() - began;
})()"""


@dataclass(frozen=True)
class Measured:
    """What one page costs: megabytes, and seconds until it was painted, until Explore was drawn, and of a filter.

    `memory_mb` is that of the whole process that shows the page, `heap_mb` that of the script in it.
    """

    page_mb: float
    painted_s: float
    explore_s: float
    filter_s: float
    heap_mb: float
    memory_mb: float


def measure(tab: Tab, page: Path) -> Measured:
    """Open a page, first as the report and then as Explore, and filter once."""
    tab.open(page)
    tab.wait(f"{FIRST_PAINT} > 0")
    painted = tab.evaluate(FIRST_PAINT)
    tab.open(page, "#view=explore")
    tab.wait(DRAWN)
    explore = tab.evaluate("performance.now()")
    filtered = tab.evaluate(FILTER)
    tab.call("Performance.enable")
    metrics = {m["name"]: m["value"] for m in tab.call("Performance.getMetrics")["metrics"]}
    heap = metrics["JSHeapUsedSize"] / 1e6
    return Measured(
        page.stat().st_size / 1e6, painted / 1e3, explore / 1e3, filtered / 1e3, heap, _renderer_bytes() / 1e6
    )


def _renderer_bytes() -> int:
    """Resident memory of the largest process of the browser that shows pages."""
    processes = psutil.Process().children(recursive=True)
    return max(p.memory_info().rss for p in processes if "--type=renderer" in p.cmdline())


def page_of(scratch: Path, cells: int) -> Path:
    """The page of a made-up study with so many cells."""
    study = write_generated_study(scratch, cells, STARTS)
    by_name = commands(study)
    for name in ("cells", "limits", "intervals", "recommendations", "page"):
        run(by_name[name])
    return study.parent / "results" / study.stem / "report.html"


def main(argv: Sequence[str] | None = None) -> int:
    """Print what each page costs."""
    parser = argparse.ArgumentParser(description="Cost of the report's page in a real Chromium.")
    parser.add_argument("--cells", type=int, nargs="+", default=[1000, 10000], help="sizes (default: %(default)s)")
    parser.add_argument("--page", type=Path, help="measure this page instead of made-up ones")
    args = parser.parse_args(argv)
    if args.page is not None and not args.page.is_file():
        print(f"{args.page}: there is no such page", file=sys.stderr)
        return 2
    table = Table("page", "size", "painted", "Explore drawn", "filter", "heap", "memory", box=None)

    def add(name: str, found: Measured) -> None:
        times = (f"{seconds:.2f} s" for seconds in (found.painted_s, found.explore_s, found.filter_s))
        table.add_row(name, f"{found.page_mb:.1f} MB", *times, f"{found.heap_mb:.0f} MB", f"{found.memory_mb:.0f} MB")

    with tempfile.TemporaryDirectory(prefix="bench-") as scratch, browser(Path(scratch) / "profile") as tab:
        if args.page is not None:
            add(args.page.name, measure(tab, args.page.resolve()))
        else:
            if DEMO.exists():
                add("the demo", measure(tab, DEMO.resolve()))
            for cells in args.cells:
                (folder := Path(scratch) / str(cells)).mkdir()
                add(f"{cells:,} cells", measure(tab, page_of(folder, cells)))
    console = Console(width=100)
    console.print(table)
    for name, (size, seconds) in GOALS.items():
        console.print(
            f"goals for {name}: {size:g} MB, painted in {GOAL_PAINTED_S:g} s, Explore drawn in {seconds:g} s, "
            f"filter {GOAL_FILTER_S} s, memory {GOAL_MEMORY_MB} MB"
        )
    return 0


if __name__ == "__main__":
    run_command(main)
