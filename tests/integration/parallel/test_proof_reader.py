"""Tables and pages of whole studies, read as a proof-reader would: what is stated twice is stated alike."""

import json
import re
from html.parser import HTMLParser
from itertools import chain, product
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest

from workflow_scripts.catalog.gpus_and_models import get_model
from workflow_scripts.common.columns import COLUMNS, column, unit_of
from workflow_scripts.common.wording import number
from workflow_scripts.page.blocks import DIGITS as TABLE_DIGITS
from workflow_scripts.page.blocks import UNKNOWN
from workflow_scripts.page.digits import rounded_ratio
from workflow_scripts.physics.model_facts import read_model_facts
from workflow_scripts.physics.rate_ceiling import MeanLengths, judge_rate
from workflow_scripts.tables.measurements import joined
from workflow_scripts.tables.results import under_load
from workflow_scripts.tables.summary import RATE, comparable_rows

NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
UNITS = "tokens/s|ms|J/token|GiB"
IN_WORDS = re.compile(rf"({NUMBER}) (?:(?:output|total) )?({UNITS})\b(?! each)")  # "each" is of the steps of a repeat
OF_HEADING = re.compile(rf"\(({UNITS})\)")
INTERVAL = re.compile(rf"95 % interval ({NUMBER}) to ({NUMBER})")
DIGITS = range(1, 7)


STUDIES = ("two_gpus", "h200_later", "slurm_h100")


class Page(HTMLParser):
    """The tables of a page by caption, as rows of texts; its answers, and the texts of its sections."""

    def __init__(self, html):
        super().__init__()
        self._tag = self._title = ""
        self.tables, self.answers, self.told, self._into = [], [], [], None
        # By caption, the cell that each row of a table links to.
        self.cells = []
        # By figure what the marks of its cells say.
        self.marks, self._figure = {}, ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        if tag == "table":
            self.tables.append((known["aria-label"], []))
            self.cells.append([])
        elif tag == "tr":
            self.tables[-1][1].append([])
            self.cells[-1].append(None)
        elif tag == "a" and self.cells and self._into is not None:
            _, is_cell, cell = (known.get("href") or "").partition("&cell=")
            if is_cell:
                self.cells[-1][-1] = unquote(cell)
        elif tag in ("td", "th"):
            self._into = self.tables[-1][1][-1]
            self._into.append("")
        elif tag == "li":
            self.answers.append({})
        elif tag == "figure":
            self._figure = known.get("id", "")
        elif tag == "circle" and self._figure:
            self.marks.setdefault(self._figure, []).append(self._title)
        kind = (known.get("class") or "").split(" ")[0]
        if kind in ("verdict", "q", "ans", "told") or tag == "title":
            self._tag = "title" if tag == "title" else kind
        elif tag != "span":
            self._tag = ""

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._into = None
        self._tag = "" if tag != "span" or self._tag != "verdict" else self._tag

    def handle_data(self, data):
        if self._tag == "title":
            self._title = data
        elif self._tag in ("verdict", "q", "ans"):
            self.answers[-1][self._tag] = self.answers[-1].get(self._tag, "") + data
        elif self._tag == "told":
            self.told.append(data)
        if self._into is not None:
            self._into[-1] += data


@pytest.fixture(params=["two_gpus", "h200_later", "slurm_h100", "report"])
def folder(request):
    found = request.getfixturevalue(request.param)
    return found if found.is_dir() else found.parent


@pytest.fixture
def tables(folder):
    return {path.stem: pd.read_parquet(path) for path in (folder / "tables").glob("*.parquet")}


@pytest.fixture
def page(folder):
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_tables_state_one_value_of_a_cell_and_one_interval_of_a_pair(folder, tables):
    """A rate or latency is that of `intervals`, with its interval, and a ratio the quotient of its two rates."""
    of_cells = tables["intervals"].set_index(["cell_id", "measure"])
    values = of_cells["value"]
    compared = tables["comparisons"].dropna(subset="mean_b")
    recommended = tables["recommendations"].dropna(subset="cell_id")
    of_recommended = {"rate": recommended["metric"]}
    of_recommended |= {name: [name] * len(recommended) for name in ("tpot_s_p50", "ttft_s_p50")}
    measured = tables["predictions"].dropna(subset="measured")
    stated = [
        *((compared[side], compared["metric"], compared[f"mean_{side}"]) for side in "ab"),
        *((recommended["cell_id"], of, recommended[name]) for name, of in of_recommended.items()),
        (measured["cell_id"], measured["quantity"], measured["measured"]),
    ]
    for cells, measures, numbers in stated:
        keys = pd.MultiIndex.from_frame(pd.DataFrame({"cell_id": cells, "measure": measures}))
        assert values.reindex(keys).to_numpy(float) == pytest.approx(numbers.to_numpy(float), rel=1e-9, nan_ok=True)
    for name, of in of_recommended.items():
        ends = of_cells[["low", "high"]].reindex(pd.MultiIndex.from_arrays([recommended["cell_id"], of]))
        told = recommended[[f"{name}_low", f"{name}_high"]].to_numpy(float)
        assert told == pytest.approx(ends.to_numpy(float), rel=1e-9, nan_ok=True)
    assert len(compared)
    assert not tables["comparisons"].duplicated(["a", "b", "metric"]).any()
    pairs = tables["comparisons"].query("ratio.notna()")
    a, b = (values.reindex(pd.MultiIndex.from_frame(pairs[[side, "metric"]])).to_numpy() for side in "ab")
    assert pairs["ratio"].to_numpy(float) == pytest.approx(b / a, rel=1e-9)


def test_numbers_of_a_row_that_follow_from_each_other_do(folder, tables):
    of = values_of(tables).dropna(subset=["power_w_mean", "energy_j_per_output_token"])
    tokens, energy_j = of["wall_s"] * of[RATE], of["power_w_mean"] * of["wall_s"]
    told = {"output_tokens": tokens, "energy_j": energy_j, "energy_j_per_output_token": energy_j / tokens}
    for name, follows in told.items():
        assert of[name].to_numpy() == pytest.approx(follows.to_numpy(), rel=0.003), name
    # One sequence at a time waits for nearly all of its time to the first token.
    alone = of[of.index.str.contains("/chat.*(?:-seqs1-|-batch1-)") & (folder.name in STUDIES)]
    assert alone["queue_s_p50"].to_numpy() == pytest.approx(alone["ttft_s_p50"].to_numpy(), rel=0.03)


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


def test_every_number_with_a_unit_is_one_of_the_tables(folder, tables, page):
    texts = known(tables)
    stated = [(unit, value, text) for text in page.told for value, unit in IN_WORDS.findall(text)]
    for caption, (headings, *rows) in page.tables:
        if "data-sheet" in caption:
            continue
        for row in rows:
            assert not re.search(rf"{UNKNOWN} to |to {UNKNOWN}", " ".join(row)), row
            for heading, text in zip(headings, row, strict=True):
                if found := OF_HEADING.search(heading):
                    values = re.findall(NUMBER, text.partition(" (")[0])
                    stated += [(found[1], value, f"{caption}: {row}") for value in values]
    assert len(stated) > 50
    # The digits that an interval allows may end in zeros: 20.0.
    bare = [re.sub(r"(\.\d*?)0+$", r"\1", value).removesuffix(".") for _, value, _ in stated]
    assert [of for of, value in zip(stated, bare, strict=True) if not {of[1], value} & texts.get(of[0], set())] == []


def test_every_interval_of_a_mark_is_one_of_the_tables(tables, page):
    ends = set()
    for table in tables.values():
        measures = {unit_of(str(name)) for key in {"measure", "metric"} & set(table) for name in table[key].unique()}
        for low in [name for name in table if name.endswith("low")]:
            high = low.removesuffix("low") + "high"
            for factor in {unit_of(low)[1], *(factor for _, factor in measures)}:
                for a, b in table[[low, high]].dropna().drop_duplicates().to_numpy(float):
                    for pair in [(a, b), *([(1 / b, 1 / a)] if a > 0 else [])]:
                        ends.add(tuple(number(end * factor) for end in pair))
    # A prediction is drawn over the measured rate, and this over the ceiling.
    rates = tables["intervals"].query("measure == @RATE")[["cell_id", "low", "high"]]
    rows = tables["predictions"].query("quantity == @RATE")[["cell_id", "predicted"]].merge(rates, on="cell_id")
    ends |= {tuple(number(row.predicted / of) for of in (row.high, row.low)) for row in rows.itertuples()}
    ends |= {(number(row.low), number(row.high)) for row in shares_of(tables).itertuples()}
    intervals = [(found, text) for text in chain(*page.marks.values()) for found in INTERVAL.findall(text)]
    assert len(intervals) > 3
    assert [of for of in intervals if of[0] not in ends] == []


def test_no_measured_cell_is_impossible_at_its_lengths_or_at_any(folder, tables):
    cells = joined(*(tables[name] for name in ("cells", "starts", "repeats")))
    cells = comparable_rows(cells[cells["source"].eq("measured") & cells["total_tokens_per_s"].notna()])
    judged = []
    for _, cell in cells.iterrows():
        sequences = cell.reindex(["knob_max_num_seqs", "knob_batch_size"]).dropna().max()
        own = MeanLengths(cell["prompt_tokens"] / cell["num_requests"], cell["output_tokens"] / cell["num_requests"])
        set_as = cell.reindex(["knob_quantization", "knob_kv_cache_dtype"]).dropna()
        model, cache = get_model(cell["model"]), set_as.get("knob_kv_cache_dtype", "auto")
        facts = read_model_facts(model.config, model.fixed_dtype, set_as.get("knob_quantization"))
        for lengths, rate in product((own, None), (RATE, "total_tokens_per_s")):
            at = (cell["gpu"], cell[rate], None if pd.isna(sequences) else sequences, facts, lengths)
            verdict = judge_rate(*at, output_only=rate == RATE, kv_cache_dtype=cache)
            judged.append((cell["cell_id"], lengths, rate, verdict))
    assert judged or folder.name not in STUDIES
    assert [of for of in judged if of[-1].verdict == "impossible"] == []


def test_a_verdict_is_one_of_five_and_agrees_with_the_tables(folder, tables, page):
    verdicts = {of["verdict"].split()[-1] for of in page.answers}
    assert verdicts <= {"Yes", "No", "Partly", "Likely", "Open"}
    assert 3 <= len(page.answers) <= 7
    # A ratio that decides is one of a comparison that is shown to differ, or whose own interval excludes 1.
    compared = tables["comparisons"]
    decided = compared[compared["verdict"].eq("changes") | compared["kind"].eq("device")]
    excluded = compared[(compared["low"] > 1) | (compared["high"] < 1)]
    for answer in page.answers:
        for text in re.findall(rf"({NUMBER})×", answer["ans"]):
            of = {"Yes": decided, "No": decided, "Likely": excluded}.get(answer["verdict"].split()[-1])
            if of is not None:
                ratios = [
                    *zip(of["ratio"], of["low"], of["high"], strict=True),
                    *zip(1 / of["ratio"], 1 / of["high"], 1 / of["low"], strict=True),
                ]
                # Beside values with few digits, a ratio has few too.
                texts = {rounded_ratio(value, 0, (high - low) * few) for value, low, high in ratios for few in (1, 10)}
                assert text in texts, answer
    asked = {"two_gpus": "bandwidth", "h200_later": "Predictions"}.get(folder.name, "")
    assert asked in page.answers[0]["q"]


def shares_of(tables):
    """The rate of each cell with its interval over each of its ceilings, in per cent."""
    rates = tables["intervals"].query("measure == @RATE").set_index("cell_id")[["value", "low", "high"]]
    ceilings = tables["limits"].groupby(["cell_id", "rates"])[f"{RATE}_ceiling"].median().reset_index("rates")
    rows = rates.join(ceilings, how="inner")
    return (100 * rates.loc[rows.index]).div(rows[f"{RATE}_ceiling"], axis="index").dropna(subset="value")


def interval_in_table(ends):
    value, low, high = (number(of, TABLE_DIGITS) for of in ends)
    return f"{value} ({low} to {high})"


def values_of(tables):
    """By measure and cell, the one value that everything shows: of servers those from the scheduled arrival."""
    values = tables["intervals"].pivot(index="cell_id", columns="measure", values="value")
    served = tables["serving_summary"].set_index("cell_id")
    return served[served.columns.intersection(list(COLUMNS))].combine_first(values).astype(float)


def test_the_mark_of_a_cell_in_a_figure_is_the_value_that_tables_and_sentences_state(folder, tables):
    """Whatever is drawn of a cell is its mean or median as it is declared, and a ratio is one of a table."""
    values = values_of(tables)
    predictions = tables["predictions"].query("quantity == @RATE").set_index("cell_id")
    errors = predictions["predicted"] / predictions["measured"]
    ratios = tables["comparisons"].dropna(subset="ratio").merge(tables["devices"], on=["a", "b"], how="left")
    checked = set()
    for name, figure in json.loads((folder / "figures/figures.json").read_text()).items():
        for cell, measure, (value, *_), *_ in figure.get("marks", {}).get("", ()):
            checked.add(name)
            if measure in values:
                stated = [column(measure).scaled(values.at[cell, measure])]
            elif measure == "ceiling_share":
                ceilings = tables["limits"][tables["limits"]["cell_id"] == cell].groupby("rates")[f"{RATE}_ceiling"]
                stated = list(100 * values.at[cell, RATE] / ceilings.median())
            elif name == "prediction_errors":
                stated = [errors[cell]]
            else:
                stated = [*ratios.loc[ratios["b"] == cell, ["ratio", "predicted_ratio"]].stack()]
            assert any(np.isclose(value, number, rtol=1e-6) for number in stated), (name, cell, measure, value, stated)
    assert {"limits", "prediction_errors"} <= checked or folder.name not in STUDIES
    if folder.name == "two_gpus":
        assert {"throughput", "time_per_token", "energy", "engines", "prefix_caching", "block_size"} <= checked
        assert {"other_settings", "device_ratios"} <= checked


def test_a_cell_has_one_value_of_a_measure_in_every_table_of_the_page_and_in_its_views(folder, tables, page):
    """Columns that are headed as a declared measure show its mean or median, as the table `intervals` has it."""
    values = values_of(tables)
    rows = comparable_rows(joined(*(tables[name] for name in ("cells", "starts", "repeats"))))
    headings = {of.axis: of for of in COLUMNS.values()}
    checked = set()
    for (caption, texts), cells in zip(page.tables, page.cells, strict=True):
        for row, cell in zip(texts[1:], cells[1:], strict=True):
            for heading, text in zip(texts[0], row, strict=True):
                of = headings.get(heading)
                if cell is None or of is None or of.name not in values or cell not in values.index or text == "–":
                    continue
                if "first repeat" in caption or "by turn" in caption:
                    continue
                shown = float(text.partition(" ")[0].replace(",", ""))
                assert shown == pytest.approx(
                    of.scaled(values.at[cell, of.name]), rel=0.6 * 10 ** (1 - TABLE_DIGITS)
                ), (caption, cell, heading)
                checked.add(of.name)
    assert {"power_w_mean", RATE} <= checked or folder.name not in STUDIES
    for name, known in tables["intervals"].groupby("measure"):
        if (how := COLUMNS[name].summary) in ("median", "first", "max", "min"):
            of_cells = rows.groupby("cell_id")[name].agg(how).reindex(known["cell_id"])
            assert known["value"].to_numpy() == pytest.approx(of_cells.to_numpy(float), rel=1e-9), name


def test_a_recommendation_has_the_highest_mean_and_names_all_that_is_not_shown_to_be_slower(folder, tables):
    ids = tables["cells"].set_index(["gpu", "engine", "model", "workload", "knobs"])["cell_id"]
    pairs = tables["comparisons"].query("kind == 'knob'").dropna(subset="verdict")
    falls = pairs["ratio"] < 1
    pairs = pairs.assign(slower=pairs["b"].where(falls, pairs["a"]), faster=pairs["a"].where(falls, pairs["b"]))
    changes = pairs.query("verdict == 'changes'")
    environments = {row.cell_id: (row.lock_sha256, row.processor) for row in tables["starts"].itertuples()}
    checked = 0
    for row in tables["recommendations"].query("role == 'best_throughput'").itertuples():
        of_place = ids[row.gpu, "vllm", row.model, row.workload]
        rates = tables["intervals"].query("measure == @row.metric").set_index("cell_id")["value"].reindex(of_place)
        alike = rates[[environments.get(of) == environments[row.cell_id] for of in of_place]]
        assert row.rate == pytest.approx(alike.max(), rel=1e-9)
        ties = set(of_place[row.ties.split(", ")]) if pd.notna(row.ties) else set()
        slower = set(changes.loc[changes["faster"].isin({row.cell_id, *ties}), "slower"])
        compared = set(pairs.query("metric == @row.metric and faster == @row.cell_id")["slower"])
        assert compared <= ties | slower, row.cell_id
        assert not ties & slower, row.cell_id
        checked += len(compared)
    assert checked or folder.name != "two_gpus"


def test_kv_memory_in_use_is_at_most_that_of_the_blocks_in_use(tables):
    repeats = tables["repeats"].dropna(subset=["kv_bytes_used_mean", "kv_cache_usage_mean"])
    blocks = repeats["kv_cache_usage_mean"] * repeats["kv_bytes_reserved_mean"]
    assert (repeats["kv_bytes_used_mean"] <= blocks * (1 + 1e-9)).all()


def test_a_share_of_the_ceiling_is_the_rate_beside_it_over_the_ceiling(tables, page):
    shares = shares_of(tables)
    for (_, (headings, *rows)), cells in zip(page.tables, page.cells, strict=True):
        if column("ceiling_share").axis in headings:
            at = headings.index(column("ceiling_share").axis)
            shown = [(cell, row[at]) for row, cell in zip(rows, cells[1:], strict=True) if cell in shares.index]
            texts_of = {of: {interval_in_table(row) for row in shares.loc[[of]].to_numpy()} for of, _ in shown}
            texts_of |= {of: {UNKNOWN} for of in tables["cells"].loc[under_load(tables["cells"]), "cell_id"]}
            assert [of for of in shown if of[1] not in texts_of[of[0]]] == []
            assert shown
