"""Tables and pages of whole studies, read as a proof-reader would: what is stated twice is stated alike."""

import json
import re
from html.parser import HTMLParser
from itertools import chain, pairwise, product
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest

from workflow_scripts.catalog.gpus_and_models import get_model
from workflow_scripts.catalog.published import PROMPT_SHARES
from workflow_scripts.common.columns import COLUMNS, column, unit_of
from workflow_scripts.common.wording import number
from workflow_scripts.page.blocks import DIGITS as TABLE_DIGITS
from workflow_scripts.page.blocks import UNKNOWN
from workflow_scripts.page.sentences import MOST_SENTENCES
from workflow_scripts.physics.model_facts import read_model_facts
from workflow_scripts.physics.rate_ceiling import MeanLengths, judge_rate
from workflow_scripts.questions.engines.table import with_cell_ids
from workflow_scripts.statistics.summary import RATE, cell_ids, comparable_rows
from workflow_scripts.tables.measurements import joined
from workflow_scripts.tables.results import under_load

CELLS, RATES = ("cell_id", "baseline_cell_id"), ("rate", "baseline_rate")
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
UNITS = "tokens/s|ms|J/token|GiB"
IN_WORDS = re.compile(rf"({NUMBER}) (?:(?:output|total) )?({UNITS})\b(?! each)")  # "each" is of the steps of a repeat
OF_HEADING = re.compile(rf"\(({UNITS})\)")
INTERVAL = re.compile(rf"95 % interval ({NUMBER}) to ({NUMBER})")
RATIO = re.compile(rf"({NUMBER}) times[^(]*\((?:95 % interval )?({NUMBER} to {NUMBER})")
WAITING = re.compile(r"(\d+) %\s+([^:]+: [^:]+): the GPU waits for its host")
# Verdicts without a number: one word for one thing.
VERDICTS = {
    *("flat", "not decided", "changes", "possible", "impossible", "infeasible", "timeout", "engine error", "invalid"),
    *("failed start", "flagged", "kept up", "kept up, slow client", "saturated", "predicted", "quiet host", "busy GPU"),
    *("limited by server", "limited by client and server", "not steady"),
    *("block size", "decided", "simulated", "published", "remote code", "by itself", "ramp", "cannot show", "missed"),
    *("loaded host", "slowed GPU", "not compared", "holds", "failed"),
}
DIGITS = range(2, 7)


STUDIES = ("two_gpus", "h200_later", "slurm_h100")


class Page(HTMLParser):
    """The tables of a page by caption, as rows of texts, and the texts of its findings."""

    def __init__(self, html):
        super().__init__()
        self._tag = self._title = ""
        self.tables, self.findings, self._into = [], [], None
        # By caption, the cell that each row of a table links to.
        self.cells = []
        # The verdicts of the findings, and by figure what the marks of its cells say.
        self.verdicts, self.marks, self._figure = [], {}, ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag == "table":
            self.tables.append((dict(attrs)["aria-label"], []))
            self.cells.append([])
        elif tag == "tr":
            self.tables[-1][1].append([])
            self.cells[-1].append(None)
        elif tag == "a" and self.cells and self._into is not self.findings and self._into is not None:
            _, is_cell, cell = (dict(attrs).get("href") or "").partition("&cell=")
            if is_cell:
                self.cells[-1][-1] = unquote(cell)
        elif tag in ("td", "th"):
            self._into = self.tables[-1][1][-1]
            self._into.append("")
        elif tag == "li":
            self._into = self.findings
            self._into.append("")
        elif tag == "figure":
            self._figure = dict(attrs).get("id", "")
        elif tag == "circle":
            self.marks.setdefault(self._figure, []).append(self._title)
        is_verdict = (dict(attrs).get("class") or "").startswith("verdict")
        self._tag = tag if tag == "title" or is_verdict else ""

    def handle_endtag(self, tag):
        if tag in ("td", "th", "li"):
            self._into = None

    def handle_data(self, data):
        if self._tag == "title":
            self._title = data
        elif self._tag:
            self.verdicts.append(data)
        self._tag = ""
        if self._into is not None:
            self._into[-1] += data


@pytest.fixture(params=["two_gpus", "h200_later", pytest.param("slurm_h100", marks=pytest.mark.long), "report"])
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
    """A rate or latency is that of `intervals`, with its interval, and a ratio the quotient of the rates beside it."""
    of_cells = tables["intervals"].set_index(["cell_id", "measure"])
    values = of_cells["value"]
    effects, engines = tables["knobs"], with_cell_ids(tables["engines"])
    recommended = tables["recommendations"].dropna(subset="cell_id")
    of_recommended = {"rate": recommended["metric"]}
    of_recommended |= {name: [name] * len(recommended) for name in ("tpot_s_p50", "ttft_s_p50")}
    measured = tables["predictions"].dropna(subset="measured")
    devices = [cell_ids(tables["devices"], f"gpu_{side}") for side in "ab"]
    stated = [
        *((effects[of], effects["metric"], effects[rate]) for of, rate in zip(CELLS, RATES, strict=True)),
        *((engines[of], RATE, engines[f"{side}_{RATE}"]) for of, side in zip(CELLS, ("vllm", "hf"), strict=True)),
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
    ends = [*CELLS, "metric", "ratio_low", "ratio_high"]
    together = pd.concat([of[ends] for of in pairs if len(of)]).round(9).drop_duplicates()
    assert not together.duplicated([*CELLS, "metric"]).any()


def test_a_pair_of_cells_has_one_verdict(tables):
    engines, steps = with_cell_ids(tables["engines"]), tables["engine_decomposition"]
    for of, name in zip(CELLS, ("numerator", "denominator"), strict=True):
        ends = steps[name].str.split("/").str
        steps = steps.assign(**{of: cell_ids(steps.assign(engine=ends[0], knobs=ends[1]))})
    rows = pd.concat([engines, steps]).dropna(subset="verdict").drop_duplicates([*CELLS, "verdict"])
    assert not rows.duplicated([*CELLS]).any()
    changes = tables["knobs"].query("comparison == 'pair' and metric == @RATE and verdict == 'changes'")
    pairs = {frozenset(of) for of in changes[[*CELLS]].to_numpy()}
    ids = tables["cells"].set_index(["gpu", "engine", "model", "workload", "knobs"])["cell_id"]
    for row in tables["recommendations"].dropna(subset="ties").itertuples():
        for knobs in row.ties.split(", "):
            assert frozenset((row.cell_id, ids[row.gpu, "vllm", row.model, row.workload, knobs])) not in pairs


def test_numbers_of_a_row_that_follow_from_each_other_do(folder, tables):
    of = values_of(tables).dropna(subset=["power_w_mean", "energy_j_per_output_token"])
    tokens, energy_j = of["wall_s"] * of[RATE], of["power_w_mean"] * of["wall_s"]
    told = {"output_tokens": tokens, "energy_j": energy_j, "energy_j_per_output_token": energy_j / tokens}
    for name, follows in told.items():
        assert of[name].to_numpy() == pytest.approx(follows.to_numpy(), rel=0.003), name
    # One sequence at a time waits for nearly all of its time to the first token.
    alone = of[of.index.str.contains("/chat.*(?:-seqs1-|-batch1-)") & (folder.name in STUDIES)]
    assert alone["queue_s_p50"].to_numpy() == pytest.approx(alone["ttft_s_p50"].to_numpy(), rel=0.03)


def test_the_parts_of_a_repeat_are_its_time_and_only_cells_that_wait_by_no_measure_are_busy(folder, tables, page):
    waits = tables["waiting"]
    parts = waits[["device_s", "launch_s", "arrival_s", "other_s"]]
    assert parts.notna().all(axis=1).equals(parts.notna().any(axis=1))
    known = waits[parts.notna().all(axis=1)]
    assert parts.loc[known.index].sum(axis=1).to_numpy() == pytest.approx(known["wall_s"].to_numpy(), rel=1e-9)
    assert len(known) or folder.name not in STUDIES
    shown = [(of, rows) for of, rows in page.tables if of.startswith("Shares of the time")]
    for row in [dict(zip(rows[0], row, strict=True)) for _, rows in shown for row in rows[1:]]:
        told = [
            float(row[of]) for of in row if of.startswith(("GPU works", "Launches", "First", "Other")) if row[of] != "–"
        ]
        assert told == [] or sum(told) == pytest.approx(100, abs=0.05)
    sampled = waits.dropna(subset="driver_idle_share").groupby("cell_id")
    means = sampled[["waiting_share", "driver_idle_share"]].mean()
    shares = means["waiting_share"].fillna(means["driver_idle_share"]).sort_values(ascending=False)
    much = [f"{100 * share:.0f}" for share in shares[shares > 0.1]]
    named = {name: pct for text in page.findings for pct, name in WAITING.findall(text)}
    assert sorted(named.values()) == sorted(much[:MOST_SENTENCES] if shown else [])
    assert ("busy GPU" in page.verdicts) == (bool(shown) and not much)


def test_rows_of_a_place_are_in_the_order_of_their_settings(folder, tables, page):
    knobs = [of for of in tables["cells"] if of.startswith("knob_")]
    place = tables["cells"].set_index("cell_id")[["gpu", "engine", "model", "workload"]].agg("/".join, axis=1)
    order = tables["cells"].sort_values(knobs, na_position="first")["cell_id"].tolist()
    for (caption, _), cells in zip(page.tables, page.cells, strict=True):
        for a, b in pairwise([of for of in cells[1:] if of in order]):
            by_value = caption.startswith(("Cells closest", "Shares of the time")) or folder.name not in STUDIES
            assert by_value or place[a] != place[b] or order.index(a) < order.index(b), (caption, a, b)


def known(tables):
    """By unit, the texts of all numbers in the tables and in the published data."""
    texts = {}

    def add(values, name):
        unit, factor = unit_of(name)
        found = (number(float(value) * factor, digits) for value in values for digits in DIGITS)
        texts.setdefault(unit, set()).update(found)

    # Published rates stand at a range of mixes of tokens.
    others = tables["predictions"].dropna(subset="published")
    add(
        pd.concat(others["published"] * (1 - of) for of in (max(PROMPT_SHARES), others["published_prompt_share"])), RATE
    )
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
    stated = [(unit, value, text) for text in page.findings for value, unit in IN_WORDS.findall(text)]
    for caption, (headings, *rows) in page.tables:
        if "data-sheet" in caption:
            continue
        for row in rows:
            assert not re.search(rf"{UNKNOWN} to |to {UNKNOWN}", " ".join(row)), row
            for heading, text in zip(headings, row, strict=True):
                found = OF_HEADING.search(heading) or (heading.isdecimal() and OF_HEADING.search(caption))
                if found:
                    values = re.findall(NUMBER, text.partition(" (")[0])
                    stated += [(found[1], value, f"{caption}: {row}") for value in values]
    assert len(stated) > 50
    assert [of for of in stated if of[1] not in texts.get(of[0], ())] == []


def test_a_rate_while_full_is_a_steady_one(folder, tables, page):
    steady = tables["intervals"].query("measure == 'steady_output_tokens_per_s'")["value"]
    texts = {of for value in steady for of in (*(number(value, digits) for digits in DIGITS), f"{value:,.0f}")}
    claims = tables.get("claims", pd.DataFrame(columns=["evidence", "seen_here"]))
    told = [*page.findings, *claims[["evidence", "seen_here"]].stack()]
    stated = [(of, text) for text in told for of in re.findall(rf"({NUMBER}) output tokens/s while [a-z ]*full", text)]
    assert [of for of in stated if of[0] not in texts] == []
    assert stated or folder.name not in STUDIES


def test_a_ratio_before_a_sentence_is_one_of_its_numbers(page):
    ratios = [(found[1], text) for text in page.findings if (found := re.match(r"\s*([\d.,]+ times)", text))]
    assert [of for of in ratios if of[1].count(of[0]) < 2] == []


def test_every_interval_of_a_finding_is_one_of_the_tables(folder, tables, page):
    ends = set()
    for table in tables.values():
        measures = {unit_of(str(name)) for key in {"measure", "metric"} & set(table) for name in table[key].unique()}
        for low in [name for name in table if name.endswith("low")]:
            high = low.removesuffix("low") + "high"
            for factor in {unit_of(low)[1], *(factor for _, factor in measures)}:
                for a, b in table[[low, high]].dropna().drop_duplicates().to_numpy(float):
                    for pair in [(a, b), *([(1 / b, 1 / a)] if a > 0 else [])]:
                        ends.add(tuple(number(end * factor) for end in pair))
    texts = [*page.findings, *chain(*page.marks.values())]
    intervals = [(found, text) for text in texts for found in INTERVAL.findall(text)]
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


def test_a_verdict_is_a_number_or_one_of_few_words(page):
    assert {of for of in page.verdicts if not re.search(r"\d", of)} <= VERDICTS


def test_a_ratio_is_a_badge_only_if_a_test_decides_it(folder, tables, page):
    by_verdict = {True: set(), False: set()}
    for name in ("knobs", "latencies", "engines", "engine_decomposition", "environments"):
        rows = tables.get(name, pd.DataFrame(columns=["verdict"])).dropna(subset="verdict")
        for row in rows.rename(columns=lambda of: of.removeprefix("improvement_")).itertuples():
            ratio = tuple(number(of) for of in (row.ratio, row.ratio_low, row.ratio_high))
            by_verdict[row.verdict != "not decided"].add(ratio)
    badges = [
        (found[1], INTERVAL.search(text)) for text in page.findings if (found := re.match(rf"({NUMBER}) times ", text))
    ]
    ratios = [(ratio, *interval.groups()) for ratio, interval in badges if interval]
    assert ratios
    assert not set(ratios) & (by_verdict[False] - by_verdict[True])


def test_the_errors_of_predictions_are_told_of_every_device_and_engine(folder, tables, page):
    compared = tables["predictions"].dropna(subset=["predicted", "measured"])
    compared = compared[compared["quantity"].isin([RATE, "ttft_s_p50", "tpot_s_p50"])]
    # The rate of a server follows from its load.
    loaded = compared["cell_id"].isin(tables["cells"].loc[under_load(tables["cells"]), "cell_id"])
    compared = compared[~loaded | compared["quantity"].ne(RATE)]
    told = [text for text in page.findings if " predicted from " in text]
    by = ["gpu", "engine", "model", compared["bound_by"].eq("kv_blocks"), compared["same_card"].fillna(value=True)]
    for (gpu, engine, *which), part in compared.groupby(by):
        of_cells = [f"On {gpu}, ", f" {engine} cell"]
        for quantity, of in part.groupby("quantity"):
            sizes = 100 * (of["predicted"] / of["measured"] - 1).abs()
            off = f"{number(sizes.median())} % (at most {number(sizes.max())} %)"
            off = off if len(sizes) > 2 else " and ".join(map(number, sizes)) + " %"
            of_cells.append(f"{off} for {column(quantity).in_words}")
        banded = part.dropna(subset=["low", "high"])
        outside = int((~banded["measured"].between(banded["low"], banded["high"])).sum())
        of_cells += [f"; {outside} of {len(banded)} values are outside"] * (outside > 0)
        texts = [text for text in told if all(part in text for part in of_cells)]
        assert texts, (gpu, engine, which)
        assert any((" values are outside" in text) == (outside > 0) for text in texts)
    assert len(compared) or folder.name not in STUDIES


def test_a_figure_has_the_cells_of_the_sentences_of_its_section(folder, page):
    waiting = {name for text in page.findings for _, name in WAITING.findall(text)}
    assert waiting or folder.name != "two_gpus"
    drawn = page.marks.get("figure-waiting_by_repeat", [])
    assert [name for name in waiting if not any(text.startswith(name) for text in drawn)] == []
    rates = page.marks.get("figure-throughput", [])
    assert len(rates) > 1
    assert all("tokens/s" in text for text in rates)
    # Lines that colours do not tell apart, as those of the made study, are not all drawn.
    for name in ("speed_per_user", "latency"):
        beside = {text.rpartition(": ")[0] for text in page.marks[f"figure-{name}"]}
        assert {text.rpartition(": ")[0] for text in rates} <= beside or folder.name not in STUDIES


def values_of(tables):
    """By measure and cell, the one value that everything shows: of servers those from the scheduled arrival."""
    values = tables["intervals"].pivot(index="cell_id", columns="measure", values="value")
    served = tables["serving_summary"].set_index("cell_id")
    return served[served.columns.intersection(list(COLUMNS))].combine_first(values).astype(float)


def test_the_mark_of_a_cell_in_a_figure_is_the_value_that_tables_and_sentences_state(folder, tables):
    """Whatever is drawn of a cell is its mean or median as it is declared, and a ratio is one of a table."""
    values = values_of(tables)
    measured = tables["repeats"].groupby("cell_id")[RATE].apply(lambda of: set(of.dropna()))
    predictions = tables["predictions"].query("quantity == @RATE").set_index("cell_id")
    errors = predictions["predicted"] / predictions["measured"]
    idle = tables["waiting"].groupby("cell_id")["driver_idle_share"].apply(lambda of: 100 * of)
    at_ceiling = tables["limits"]["mfu"] * tables["limits"]["flop_per_s"] / tables["limits"]["factor"]
    limits = tables["limits"].assign(at=at_ceiling / 1e12 / tables["limits"][f"{RATE}_ceiling"])
    ratios = pd.concat([tables["knobs"], tables["devices"].assign(cell_id=cell_ids(tables["devices"], "gpu_a"))])
    engines = tables["engines"]["improvement_ratio"].dropna()
    checked = set()
    for name, figure in json.loads((folder / "figures/figures.json").read_text()).items():
        for cell, measure, (value, *_), *_ in figure.get("marks", {}).get("wide", ()):
            checked.add(name)
            if measure in values:
                stated = [column(measure).scaled(values.at[cell, measure])]
            elif measure == "driver_idle_share":
                stated = list(idle[cell])
            elif measure == "flop_per_s":
                stated = list(limits[limits["cell_id"] == cell].groupby("rates")["at"].median() * values.at[cell, RATE])
            elif name == "spread":
                stated = [rate / values.at[cell, RATE] for rate in measured[cell]]
            elif name == "prediction_errors":
                stated = [errors[cell]]
            else:
                stated = [*ratios.loc[ratios["cell_id"] == cell, "ratio"], *(engines if name == "effects" else ())]
            assert any(np.isclose(value, number, rtol=1e-6) for number in stated), (name, cell, measure, value, stated)
    assert {"roofline", "waiting_by_repeat", "prediction_errors", "spread"} <= checked or folder.name not in STUDIES
    if folder.name == "two_gpus":
        assert {"throughput", "speed_per_user", "output_by_block_size", "energy", "engines"} <= checked
        assert {"predicted_by_max_num_seqs", "prefix_caching", "effects", "device_ratios"} <= checked


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
    sides = [cell_ids(tables["devices"], f"gpu_{side}") for side in "ab"]
    for side, cells in zip("ab", sides, strict=True):
        for name in (of for of in values if f"{of}_{side}" in tables["devices"]):
            assert tables["devices"][f"{name}_{side}"].to_numpy(float) == pytest.approx(
                values[name].reindex(cells).to_numpy(float), rel=1e-9, nan_ok=True
            )


def test_no_recommendation_rests_on_a_higher_mean_alone(folder, tables):
    cells = tables["starts"].groupby("cell_id")["kv_cache_tokens"].first()
    ids = tables["cells"].set_index(["gpu", "engine", "model", "workload", "knobs"])["cell_id"]
    best = tables["recommendations"].query("role == 'best_throughput'").dropna(subset="ties")
    for _, row in best.iterrows():
        tied = [ids[row["gpu"], "vllm", row["model"], row["workload"], knobs] for knobs in row["ties"].split(", ")]
        rates = tables["intervals"].query("measure == @row.metric").set_index("cell_id")["value"]
        near = [cell for cell in tied if rates[cell] >= 0.91 * max(rates[[row["cell_id"], *tied]])]
        assert not (cells.reindex(near) > 1.02 * cells[row["cell_id"]]).any()
    assert len(best) or folder.name != "two_gpus"


def test_kv_memory_in_use_is_at_most_that_of_the_blocks_in_use(tables):
    repeats = tables["repeats"].dropna(subset=["kv_bytes_used_mean", "kv_cache_usage_mean"])
    blocks = repeats["kv_cache_usage_mean"] * repeats["kv_bytes_reserved_mean"]
    assert (repeats["kv_bytes_used_mean"] <= blocks * (1 + 1e-9)).all()


def test_each_line_of_the_first_screen_has_a_number_and_no_ratio_is_told_twice(folder):
    _, _, after = (folder / "report.html").read_text(encoding="utf-8").partition('<ul class="findings lines">')
    lines = re.findall(r"<li>(.*?)</li>", re.sub(r"<(?!/?li>)[^>]*>", "", after.partition("</ul>")[0]), re.DOTALL)
    assert [line for line in lines if not re.search(r"\d", line)] == []
    ratios = [of for line in lines for of in RATIO.findall(line)]
    assert len(ratios) == len(set(ratios))


def test_a_share_of_the_ceiling_is_the_rate_beside_it_over_the_ceiling(tables, page):
    rates = tables["intervals"].query("measure == @RATE").set_index("cell_id")["value"]
    ceilings = (
        tables["limits"].groupby(["cell_id", "rates"])[f"{RATE}_ceiling"].median().reset_index("rates", drop=True)
    )
    shares = (100 * rates / ceilings).dropna()
    texts = {number(share, digits) for share in shares for digits in DIGITS}
    stated = [of for text in page.findings if "share of the ceiling" in text for of in re.findall(r"([\d.]+) %", text)]
    for (_, (headings, *rows)), cells in zip(page.tables, page.cells, strict=True):
        if "Of ceiling" in headings:
            stated += [of for row in rows for of in re.findall(NUMBER, row[headings.index("Of ceiling")])]
        elif column("ceiling_share").axis in headings:
            at = headings.index(column("ceiling_share").axis)
            shown = [(cell, row[at]) for row, cell in zip(rows, cells[1:], strict=True) if cell in shares]
            texts_of = {of: {number(n, TABLE_DIGITS) for n in shares.loc[[of]]} for of, _ in shown}
            texts_of |= {of: {UNKNOWN} for of in tables["cells"].loc[under_load(tables["cells"]), "cell_id"]}
            assert [of for of in shown if of[1] not in texts_of[of[0]]] == []
            assert shown
    assert [of for of in stated if of not in texts] == []


def test_a_share_above_the_ceiling_is_impossible_or_not_decided(page):
    above = re.compile(r"share of the ceiling (?:.* )?\d{3,}(?:\.\d+)? %")
    assert [text for text in page.findings if above.search(text) and not text.startswith("not decided")] == []
    for _, (headings, *rows) in page.tables:
        shares = [row[headings.index("Of ceiling")] for row in rows if "Of ceiling" in headings]
        assert [of for of in shares if re.search(r"(?<![\d.])\d{3,}", of) and "not decided" not in of] == []


def test_the_first_line_answers_what_the_study_asks_first_and_no_text_has_the_short_name_of_settings(folder, tables):
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert "random, of llama" in html.partition("<nav")[0] or folder.name not in STUDIES
    if asked := {"two_gpus": "devices", "h200_later": "predictions"}.get(folder.name):
        assert f'href="#{asked}"' in html.partition('<ul class="findings lines">')[2].partition("</li>")[0]
    texts = " ".join(re.findall(r'alt="([^"]*)"', html))
    texts += re.sub(r"<(script|style|template)\b.*?</\1>|<[^>]*>", " ", html, flags=re.DOTALL)
    assert not re.search(r"\de[+-]\d", texts)
    assert not [name for name in tables["cells"]["knobs"] if "-" in name and name in texts]
    assert not re.search(r"Published by \S+:", texts)
