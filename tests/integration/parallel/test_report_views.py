"""The views of the report, used in a real browser: the page's own policy holds, and the console stays silent."""

import re
from pathlib import Path

import pytest

from tests.browser import Tab
from tests.unit.present.synthetic import SCRIPT

pytestmark = pytest.mark.needs_tool("chromium")

EXPLORE = "#view=explore"
READY = "document.querySelector('#view-explore table')"
LIMITS = "document.querySelector('#view-limits table')"
DIALOG = "document.querySelector('dialog')?.open"


def opened(tab: Tab, report: Path, address: str, ready: str) -> None:
    tab.open(report, address)
    tab.wait(ready)


def closed(tab: Tab) -> None:
    """Close the dialog of a cell."""
    tab.press("Escape")
    tab.wait("!document.querySelector('dialog').open")


def cells_shown(tab: Tab) -> str:
    told: str = tab.evaluate("document.querySelector('#view-explore [role=status]').textContent")
    return told


def test_a_filter_acts_on_chart_and_table_and_are_in_the_address(tab, report):
    opened(tab, report, EXPLORE, READY)
    # At first one engine, model and workload, whose table needs no columns for them, sorts and fits.
    assert "engine=vllm&workload=chat" in tab.evaluate("location.hash")
    named = (
        "[...document.querySelectorAll('#view-explore tbody th')].some((name) => name.textContent.startsWith('l40s: '))"
    )
    assert tab.evaluate(named)
    headings = "[...document.querySelectorAll('#view-explore thead th')].map((h) => h.textContent)"
    assert not {"Engine", "Model", "Workload"} & set(tab.evaluate(headings))
    scroll = "document.querySelector('#view-explore .scroll')"
    assert tab.evaluate(f"{scroll}.scrollWidth <= {scroll}.clientWidth")
    tab.evaluate("document.querySelectorAll('#view-explore thead button')[1].click()")
    rates = tab.evaluate("[...document.querySelectorAll('#view-explore tbody tr')].map((r) => r.cells[1].textContent)")
    known = [float(rate.replace(",", "")) for rate in rates if rate != "–"]
    assert known == sorted(known)
    assert len(known) > 10
    # Names with numbers sort by these.
    tab.evaluate("document.querySelectorAll('#view-explore thead button')[0].click()")
    names = tab.evaluate("[...document.querySelectorAll('#view-explore tbody th')].map((name) => name.textContent)")
    sequences = [int(re.search(r"at most (\d+)", name)[1]) for name in names if name.startswith("l40s: block size 16,")]
    assert sequences == sorted(sequences)
    assert len(sequences) > 2
    clear = "[...document.querySelectorAll('#view-explore .plain')].find((b) => b.textContent === 'Clear the filter')"
    tab.evaluate(f"{clear}.click()")
    assert cells_shown(tab).startswith("80 cells: ")
    tab.evaluate("document.querySelector('#view-explore input[value=l40s]').click()")
    assert cells_shown(tab).startswith("27 cells: ")
    assert "gpu=l40s" in tab.evaluate("location.hash")
    tab.evaluate("document.querySelector('#view-explore input[value=l40s]').click()")
    assert cells_shown(tab).startswith("0 cells: ")
    tab.evaluate(f"{clear}.click()")
    assert cells_shown(tab).startswith("80 cells: ")
    opened(tab, report, f"{EXPLORE}&gpu=l40s", READY)
    assert not tab.evaluate(named)
    opened(tab, report, "#view=explore&gpu=l40s&gpu=h200&outcome=timeout&y=ttft_s_p50", READY)
    assert cells_shown(tab) == "1 cell: 1 timeout."
    assert tab.evaluate("document.querySelector('#view-explore select').value") == "ttft_s_p50"
    tab.evaluate(f"{clear}.click()")
    assert cells_shown(tab).startswith("80 cells: ")


def test_the_keyboard_moves_from_point_to_point_and_opens_a_cell(tab, report):
    tab.open(report)
    tab.evaluate("document.getElementById('tab-report').focus()")
    tab.press("ArrowRight")
    tab.wait(READY)
    assert tab.evaluate("document.activeElement.id") == "tab-explore"
    opened(tab, report, f"{EXPLORE}&engine=vllm&gpu=h200&set.max_num_seqs=64", READY)
    tab.evaluate("document.querySelector('#view-explore canvas[tabindex]').focus()")
    told = []
    for _ in range(7):
        tab.press("ArrowRight")
        told.append(tab.evaluate("document.querySelector('.said').textContent"))
    assert len(set(told)) == 7
    assert all("tokens/s" in said and " 3 repeats, from " in said for said in told)
    # Of the fastest cell a table holds an interval.
    assert any("95 % interval " in said for said in told)
    assert not tab.evaluate("document.querySelector('.tip').hidden")
    # The ring lies on the point, whose place the tip follows.
    left = "parseFloat(document.querySelector('{}').style.left)"
    assert 0 < tab.evaluate(left.format(".chart .ring")) < tab.evaluate(left.format(".tip"))
    tab.press("Enter")
    tab.wait(DIALOG)
    assert "cell=h200" in tab.evaluate("location.hash")
    assert tab.evaluate("Boolean(document.activeElement.closest('dialog'))")
    closed(tab)
    tab.wait("!location.hash.includes('cell=')")
    assert tab.evaluate("document.activeElement.matches('#view-explore canvas')")


def test_addresses_of_sections_and_cells_still_lead_there(tab, report):
    unfolded = "[...document.querySelectorAll('#view-report .section[open]')].map((fold) => fold.id)"
    tab.open(report)
    assert tab.evaluate(unfolded) == []
    tab.open(report, "#glossary")
    assert tab.evaluate(unfolded) == ["glossary"]
    tab.open(report, "#energy")
    assert tab.evaluate(unfolded) == []
    assert 0 <= tab.evaluate("document.getElementById('energy').getBoundingClientRect().top") < 600
    assert not tab.evaluate("document.getElementById('view-report').hidden")
    # A part of a section opens all that it is in.
    tab.evaluate("location.hash = '#figure-grid_outcomes'")
    tab.wait("document.getElementById('figure-grid_outcomes').checkVisibility()")
    assert 0 <= tab.evaluate("document.getElementById('figure-grid_outcomes').getBoundingClientRect().top") < 600
    opened(tab, report, f"{EXPLORE}&cell=l40s/vllm/llama-3.1-8b-instruct/chat/bs8-seqs1-len4096", DIALOG)
    told = tab.evaluate("document.querySelector('dialog').innerText")
    assert "infeasible" in told
    # The engine's words and its log hold markup, which stays text.
    assert told.count(SCRIPT) == 2
    assert "snakemake --cores all" in told
    tab.evaluate("document.querySelector('#tab-report').click()")


def test_a_cell_opens_from_the_tables_of_the_report_and_tells_what_was_measured(tab, report):
    tab.open(report)
    link = "document.querySelector('#limits tbody a[href*=\"cell=\"]')"
    named = tab.evaluate(f"{link}.textContent")
    assert "block size " in named
    tab.evaluate(f"{link}.click()")
    tab.wait(DIALOG)
    assert not tab.evaluate("document.getElementById('view-report').hidden")
    settings = tab.evaluate("document.querySelector('dialog h2').textContent")
    mark = "document.querySelector('#figure-throughput .wide .marks a')"
    assert re.search(r"tokens/s \(95 % interval .*\)$", tab.evaluate(f"{mark}.querySelector('title').textContent"))
    assert set(named.partition(": ")[2].split(", ")) <= set(settings.partition(": ")[2].split(", "))
    closed(tab)
    tab.evaluate(f"{mark}.dispatchEvent(new MouseEvent('click'))")
    tab.wait(DIALOG)
    assert "llama-3.1-8b-instruct, chat: " in tab.evaluate("document.querySelector('dialog h2').textContent")
    closed(tab)
    tab.evaluate(f"{mark}.focus()")
    tab.press("ArrowRight")
    assert tab.evaluate(f"document.activeElement === {mark}.nextElementSibling")
    tab.press("Enter")
    tab.wait(DIALOG)
    closed(tab)
    opened(tab, report, "#view=report&cell=a100-sxm-80gb/vllm/llama-3.1-8b-instruct/chat/bs64-seqs256-len4096", DIALOG)
    told = tab.evaluate("document.querySelector('dialog .facts').innerText")
    assert ("not run" in told, "definition" in told) == (True, False)
    opened(tab, report, "#view=report&cell=l40s/vllm/llama-3.1-8b-instruct/chat/bs8-seqs1-len4096", DIALOG)
    log = tab.evaluate("document.querySelector('dialog a').href").removeprefix("file://")
    assert Path(log).is_file()
    opened(tab, report, f"{EXPLORE}&cell=h200/vllm/llama-3.1-8b-instruct/chat/bs16-seqs64-len4096", DIALOG)
    titles = tab.evaluate("[...document.querySelectorAll('dialog h3')].map((h) => h.textContent)")
    assert {"Measure again", "Repeats", "Limits", "Settings"} <= set(titles)
    told = tab.evaluate("document.querySelector('dialog').innerText")
    assert "max_model_len 2048, not 4096" in told
    assert tab.evaluate("document.querySelectorAll('dialog table[aria-label=\"Every repeat\"] thead th').length") == 6


def test_a_cell_shows_its_timeline_and_block_map_and_saves_a_trace(tab, report, tmp_path):
    opened(tab, report, f"{EXPLORE}&cell=l40s/vllm/llama-3.1-8b-instruct/chat/bs16-seqs16-len4096", DIALOG)
    titles = tab.evaluate("[...document.querySelectorAll('dialog h3')].map((h) => h.textContent)")
    assert {"Timeline", "Block map"} <= set(titles)
    tab.evaluate("document.querySelector('dialog canvas[aria-roledescription=timeline]').focus()")
    for _ in range(3):
        tab.press("ArrowRight")
    # Requests of this device arrive one every tenth of a second; the third percent of 10 s is 0.3 s.
    assert "in decode; running " in tab.evaluate("document.querySelector('dialog .cursor').textContent")
    computed = tab.evaluate("document.querySelector('dialog [role=status]').textContent")
    assert computed.startswith("Computed, at ")
    assert "The engine reports " in computed
    slider = "document.querySelector('dialog input[type=range]')"
    tab.evaluate(f"{slider}.value = 0; {slider}.dispatchEvent(new Event('input'))")
    status = tab.evaluate("document.querySelector('dialog [role=status]').textContent")
    assert all(number in status for number in ("1 running", "20 tokens", "2 blocks of 16"))


def test_own_limits_order_the_settings_and_price_tokens(tab, report):
    opened(tab, report, "#view=limits", LIMITS)
    # The model and workload with the most cells.
    assert tab.evaluate("document.querySelector('#view-limits select').value") == "llama-3.1-8b-instruct, chat"
    opened(tab, report, "#view=limits&work=llama-3.1-8b-instruct,+chat&p=50&ttft=150", LIMITS)
    told = "document.querySelector('#view-limits [role=status]').innerText"
    drawn = "document.querySelector('#view-limits .chart canvas').ariaLabel"
    # Only the server's TTFT is below 0.15 s, at one request per second; the others have 0.2 s.
    assert tab.evaluate(told).startswith("1 of ")
    within = "[...document.querySelectorAll('#view-limits tbody tr')].map((r) => r.cells[1].textContent)"
    assert {text[:8] for text in tab.evaluate(within)} == {"yes", "no: TTFT"}
    # The chart has the limited latency, with the limit.
    assert "Median TTFT (ms); the upright line is your limit" in tab.evaluate(drawn)
    opened(tab, report, "#view=limits&work=llama-3.1-8b-instruct,+chat&p=50&ttft=1", LIMITS)
    assert re.search(
        r"^0 of .* The nearest takes \d+ times its limit: .*\(TTFT \d+ ms in its worst repeat\)", tab.evaluate(told)
    )
    opened(tab, report, "#view=limits&work=llama-3.1-8b-instruct,+chat&p=50&ttft=150", LIMITS)
    assert tab.evaluate(within).count("yes") == 1
    # Of 64 requests 32 take longer than the median, and hardly one longer than the 99th percentile.
    starred = (
        "[...document.querySelectorAll('#view-limits tbody td')].filter((d) => d.textContent.endsWith(' *')).length"
    )
    assert (tab.evaluate(starred), "*" in tab.evaluate(told)) == (0, False)
    opened(tab, report, "#view=limits&work=llama-3.1-8b-instruct,+chat&p=99&ttft=150", LIMITS)
    assert tab.evaluate(starred) >= tab.evaluate("document.querySelectorAll('#view-limits tbody tr').length")
    assert "* Fewer than 5 requests" in tab.evaluate(told)
    opened(tab, report, "#view=limits&price.h200=4&price.l40s=1&best=price", LIMITS)
    column = "[...document.querySelectorAll('#view-limits tbody tr')].map((r) => r.cells[{}].textContent)"
    headings = tab.evaluate("[...document.querySelectorAll('#view-limits thead th')].map((h) => h.textContent)")
    costs = tab.evaluate(column.format(headings.index("Price per million output tokens")))
    known = [cost != "–" for cost in costs]
    places = [name.partition(": ")[0].split(", ") for name in tab.evaluate(column.format(0))]
    devices = [device for device, _ in places]
    assert {*zip(known, devices, strict=True)} == {(True, "h200"), (True, "l40s"), (False, "a100-sxm-80gb")}
    assert {engine for _, engine in places} == {"vllm", "vllm-serve", "hf-static"}
    numbers = [float(cost.replace(",", "")) for cost in costs[: sum(known)]]
    assert numbers == sorted(numbers)
    assert "on the Pareto front" in tab.evaluate("document.querySelector('#view-limits canvas[tabindex]').ariaLabel")
    tab.evaluate("document.querySelector('#view-limits tbody button').click()")
    tab.wait(DIALOG)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 400])
def test_views_fit_the_window(tab, report, width, dark):
    tab.open(report, f"{EXPLORE}&cell=h200/vllm/llama-3.1-8b-instruct/chat/bs16-seqs64-len4096", width=width, dark=dark)
    tab.wait(DIALOG)
    shown = ("#view-explore *, dialog *", ".scroll, pre, .skip, .said")
    assert tab.too_wide(*shown) == []
    # Nor is a chart too wide before it is drawn for the first time, when its canvas has 300 pixels.
    undrawn = "document.querySelectorAll('dialog canvas').forEach(c => { c.removeAttribute('style'); c.width = 300; })"
    tab.evaluate(undrawn)
    assert tab.too_wide(*shown) == []
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert tab.evaluate("getComputedStyle(document.querySelector('dialog')).backgroundColor") == (
        "rgb(15, 19, 23)" if dark else "rgb(254, 254, 254)"
    )
