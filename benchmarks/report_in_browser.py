"""The cost of the report's page compared with its budgets: its size, and the time to make and to show it in Chromium.

    make bench-report            (or: python -m benchmarks.report_in_browser [--cells 1000 10000] [--page report.html])

It makes the pages of simulated studies with three starts of three repeats per cell, without figures. It measures each
page with its views, and the time of `kvsweep status` for the same number of cells. The page of the demo is measured too
if it exists; `--page` measures only another page, by the budgets of the demo.

Exit code 1 if a budget is exceeded.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.analysis import commands, run
from benchmarks.generated_study import write_generated_study, write_outcomes
from tests.browser import Tab, browser
from workflow_scripts.common.command import run_command

DEMO = Path("results/demo/report.html")
STARTS = 3


@dataclass(frozen=True)
class Cost:
    """The cost of one page: megabytes, and seconds until it was painted, until Explore was drawn, and for a filter.

    `memory_mb` is that of the whole process that shows the page. `made_s` is the time to make the page, and `status_s`
    that of `kvsweep status`; both are None for an existing page.
    """

    page_mb: float
    painted_s: float
    explore_s: float
    filter_s: float
    memory_mb: float
    made_s: float | None = None
    status_s: float | None = None


TITLES = ("size", "painted", "Explore", "filter", "memory", "made", "status")
# The maximum cost of a page: of the demo, and of studies with this number of cells and three starts.
DEMO_BUDGET = Cost(2.5, 1.0, 1.0, 0.2, 600)
BUDGETS = {1000: Cost(6, 1.0, 1.0, 0.2, 600, 10, 2), 10_000: Cost(25, 1.0, 3.0, 0.2, 600, 40, 15)}

FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
DRAWN = "document.querySelector('#view-explore table')"
# Until the next frame was painted with the filtered points and rows.
FILTER = """new Promise((done) => {
  const box = document.querySelector("#view-explore form input[type=checkbox]");
  const began = performance.now();
  box.click();
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
})"""


def measure(tab: Tab, page: Path) -> Cost:
    """Open a page, first as the report and then as Explore, and filter once."""
    tab.open(page)
    tab.wait(f"{FIRST_PAINT} > 0")
    painted = tab.evaluate(FIRST_PAINT)
    tab.open(page, "#view=explore")
    tab.wait(DRAWN)
    explore = tab.evaluate("performance.now()")
    filtered = tab.evaluate(FILTER)
    return Cost(page.stat().st_size / 1e6, painted / 1e3, explore / 1e3, filtered / 1e3, _renderer_bytes() / 1e6)


def _renderer_bytes() -> int:
    """Resident memory of the largest process of the browser that shows pages."""
    processes = psutil.Process().children(recursive=True)
    return max(p.memory_info().rss for p in processes if "--type=renderer" in p.cmdline())


def cost_of(scratch: Path, cells: int, tab: Tab) -> Cost:
    study = write_generated_study(scratch, cells, STARTS)
    by_name = commands(study)
    took = {name: run(by_name[name]) for name in ("plan", "tables", "page")}
    results = study.parent / "results"
    cost = measure(tab, results / study.stem / "report.html")
    write_outcomes(study, results, STARTS)
    looked = run(["workflow_scripts", "status", "--study", str(study), "--results", str(results)])
    return replace(cost, made_s=took["page"].seconds, status_s=looked.seconds)


def exceeded(cost: Cost, budget: Cost) -> Iterator[str]:
    for field, title in zip(fields(Cost), TITLES, strict=True):
        of, most = getattr(cost, field.name), getattr(budget, field.name)
        if of is not None and most is not None and of > most:
            yield f"{title} {of:.3g}, at most {most:g}"


def _texts(cost: Cost) -> Iterator[str]:
    for field in fields(Cost):
        value = getattr(cost, field.name)
        unit, digits = ("MB", 1 if field.name == "page_mb" else 0) if field.name.endswith("_mb") else ("s", 2)
        yield "" if value is None else f"{value:.{digits}f} {unit}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Cost of the report's page in a real Chromium.")
    parser.add_argument("--cells", type=int, nargs="*", default=list(BUDGETS), help="sizes (default: %(default)s)")
    parser.add_argument("--page", type=Path, help="measure this page instead of those of simulated studies")
    args = parser.parse_args(argv)
    page = args.page or DEMO
    if args.page is not None and not page.is_file():
        print(f"{page}: there is no such page", file=sys.stderr)
        return 2
    costs: dict[str, tuple[Cost, Cost]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch, browser(Path(scratch) / "profile") as tab:
        if page.is_file():
            costs[args.page.name if args.page else "the demo"] = measure(tab, page.resolve()), DEMO_BUDGET
        for cells in [] if args.page else args.cells:
            (folder := Path(scratch) / str(cells)).mkdir()
            # A study of another size has the budget of the next larger one.
            budget = BUDGETS[min((size for size in BUDGETS if size >= cells), default=max(BUDGETS))]
            costs[f"{cells:,} cells"] = cost_of(folder, cells, tab), budget
    table = Table("page", *TITLES, box=None)
    for name, (cost, budget) in costs.items():
        table.add_row(name, *_texts(cost))
        table.add_row("  at most", *_texts(budget), style="dim")
    console = Console(width=100)
    console.print(table)
    above = [f"{name}: {what}" for name, (cost, budget) in costs.items() for what in exceeded(cost, budget)]
    for line in above:
        console.print(line, style="red")
    return 1 if above else 0


if __name__ == "__main__":
    run_command(main)
