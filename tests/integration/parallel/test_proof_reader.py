"""Tables and pages of whole studies, read as a proof-reader would: what is stated twice is stated alike."""

import re
from html.parser import HTMLParser
from itertools import product

import pandas as pd
import pytest

from workflow_scripts.common.columns import unit_of
from workflow_scripts.common.wording import number
from workflow_scripts.physics.rate_ceiling import MeanLengths, judge_rate
from workflow_scripts.questions.claims.evidence import facts_of
from workflow_scripts.questions.engines.table import with_cell_ids
from workflow_scripts.statistics.summary import RATE, cell_ids, comparable_rows
from workflow_scripts.tables.measurements import joined

CELLS, RATES = ("cell_id", "baseline_cell_id"), ("rate", "baseline_rate")
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
UNITS = "tokens/s|ms|J/token|GiB"
IN_WORDS = re.compile(rf"({NUMBER}) (?:(?:output|total) )?({UNITS})\b(?! each)")  # "each" is of the steps of a repeat
OF_HEADING = re.compile(rf"\(({UNITS})\)")
INTERVAL = re.compile(rf"95 % interval ({NUMBER}) to ({NUMBER})")
GAIN = re.compile(rf"({NUMBER}) times(?: less)? [^:]+: [^:]*?({NUMBER}) (\S+) with .+?, ({NUMBER}) \3 with")
DIGITS = range(2, 7)


class Page(HTMLParser):
    """The tables of a page by caption, as rows of texts, and the texts of its findings."""

    def __init__(self, html):
        super().__init__()
        self.tables, self.findings, self._into = [], [], None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag == "table":
            self.tables.append((dict(attrs)["aria-label"], []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("td", "th"):
            self._into = self.tables[-1][1][-1]
            self._into.append("")
        elif tag == "li":
            self._into = self.findings
            self._into.append("")

    def handle_endtag(self, tag):
        if tag in ("td", "th", "li"):
            self._into = None

    def handle_data(self, data):
        if self._into is not None:
            self._into[-1] += data


@pytest.fixture(params=["two_gpus", "h200_later", "report"])
def folder(request):
    found = request.getfixturevalue(request.param)
    return found if found.is_dir() else found.parent


@pytest.fixture
def tables(folder):
    return {path.stem: pd.read_parquet(path) for path in (folder / "tables").glob("*.parquet")}


@pytest.fixture
def page(folder):
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_tables_state_one_value_of_a_cell_and_one_interval_of_a_pair(tables):
    """A rate or latency is that of `intervals`, and a ratio the quotient of the rates beside it."""
    values = tables["intervals"].set_index(["cell_id", "measure"])["value"]
    effects, engines = tables["knobs"], with_cell_ids(tables["engines"])
    recommended = tables["recommendations"].dropna(subset="cell_id")
    measured = tables["predictions"].dropna(subset="measured")
    devices = [cell_ids(tables["devices"], f"gpu_{side}") for side in "ab"]
    stated = [
        *((effects[of], effects["metric"], effects[rate]) for of, rate in zip(CELLS, RATES, strict=True)),
        *((engines[of], RATE, engines[f"{side}_{RATE}"]) for of, side in zip(CELLS, ("vllm", "hf"), strict=True)),
        *((recommended["cell_id"], name, recommended[name]) for name in (RATE, "tpot_s_p50", "ttft_s_p50")),
        (measured["cell_id"], measured["quantity"], measured["measured"]),
    ]
    for cells, measures, numbers in stated:
        keys = pd.MultiIndex.from_frame(pd.DataFrame({"cell_id": cells, "measure": measures}))
        assert values.reindex(keys).to_numpy(float) == pytest.approx(numbers.to_numpy(float), rel=1e-9, nan_ok=True)
    assert len(effects)
    pairs = [
        effects[[*CELLS, "metric", "ratio", "ratio_low", "ratio_high"]],
        engines[engines["comparable"]]
        .rename(columns=lambda name: name.removeprefix("improvement_"))
        .assign(metric=RATE),
        tables["devices"].assign(**dict(zip(CELLS, devices, strict=True))),
    ]
    for of in pairs:
        a, b = (values.reindex(pd.MultiIndex.from_frame(of[[cell, "metric"]])).to_numpy() for cell in CELLS)
        assert of["ratio"].to_numpy(float) == pytest.approx(a / b, rel=1e-9)
    together = pd.concat(pairs)[[*CELLS, "metric", "ratio_low", "ratio_high"]].round(9).drop_duplicates()
    assert not together.duplicated([*CELLS, "metric"]).any()


def known(tables):
    """By unit, the texts of all numbers in the tables and in the published data."""
    texts = {}

    def add(values, name):
        unit, factor = unit_of(name)
        found = (number(float(value) * factor, digits) for value in values for digits in DIGITS)
        texts.setdefault(unit, set()).update(found)

    for table in tables.values():
        names = table.select_dtypes("number").columns
        for name in names:
            add(table[name].dropna().unique(), name)
        for key in {"measure", "metric", "quantity"} & set(table):
            for measure, rows in table.groupby(key):
                add(rows[[name for name in names if not unit_of(name)[0]]].stack().unique(), measure)
        for name in table.select_dtypes("string"):
            for value, unit in IN_WORDS.findall(" ".join(table[name].dropna().unique())):
                texts.setdefault(unit, set()).add(value)
    return texts


def test_every_number_with_a_unit_is_one_of_the_tables(tables, page):
    texts = known(tables)
    stated = [(unit, value, text) for text in page.findings for value, unit in IN_WORDS.findall(text)]
    for caption, (headings, *rows) in page.tables:
        if "data-sheet" in caption:
            continue
        for row in rows:
            for heading, text in zip(headings, row, strict=True):
                found = OF_HEADING.search(heading) or (heading.isdecimal() and OF_HEADING.search(caption))
                if found:
                    values = re.findall(NUMBER, text.partition(" (")[0])
                    stated += [(found[1], value, f"{caption}: {row}") for value in values]
    assert len(stated) > 50
    assert [of for of in stated if of[1] not in texts.get(of[0], ())] == []


def test_every_interval_of_a_finding_is_one_of_the_tables_and_every_gain_a_quotient(tables, page):
    ends = set()
    for table in tables.values():
        measures = {unit_of(str(name)) for key in {"measure", "metric"} & set(table) for name in table[key].unique()}
        for low in [name for name in table if name.endswith("low")]:
            high = low.removesuffix("low") + "high"
            for factor in {unit_of(low)[1], *(factor for _, factor in measures)}:
                for a, b in table[[low, high]].dropna().drop_duplicates().to_numpy(float):
                    for pair in [(a, b), *([(1 / b, 1 / a)] if a > 0 else [])]:
                        ends.add(tuple(number(end * factor) for end in pair))
    intervals = [(found, text) for text in page.findings for found in INTERVAL.findall(text)]
    assert len(intervals) > 3
    assert [of for of in intervals if of[0] not in ends] == []
    gains = [
        tuple(float(found[i].replace(",", "")) for i in (1, 2, 4)) for found in map(GAIN.search, page.findings) if found
    ]
    for gain, before, after in gains:
        assert gain == pytest.approx(max(before / after, after / before), rel=0.01)


def test_no_measured_cell_is_impossible_at_its_lengths_or_at_any(folder, tables):
    cells = joined(*(tables[name] for name in ("cells", "starts", "repeats")))
    cells = comparable_rows(cells[cells["source"].eq("measured") & cells["total_tokens_per_s"].notna()])
    judged = []
    for _, cell in cells.iterrows():
        sequences = cell.reindex(["knob_max_num_seqs", "knob_batch_size"]).dropna().max()
        own = MeanLengths(cell["prompt_tokens"] / cell["num_requests"], cell["output_tokens"] / cell["num_requests"])
        for lengths, rate in product((own, None), (RATE, "total_tokens_per_s")):
            at = (cell["gpu"], cell[rate], None if pd.isna(sequences) else sequences, facts_of(cell["model"]), lengths)
            judged.append((cell["cell_id"], lengths, rate, judge_rate(*at, output_only=rate == RATE)))
    assert judged or folder.name not in ("two_gpus", "h200_later")
    assert [of for of in judged if of[-1].verdict == "impossible"] == []


def test_random_weights_are_said_on_the_first_screen(h200_later):
    first, _, _ = (h200_later / "report.html").read_text(encoding="utf-8").partition("<nav")
    assert "random, of llama-3.1-8b-instruct and qwen2-7b" in first
