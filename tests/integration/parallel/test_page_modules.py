"""Modules of the page's script, run in a real browser beside the Python code that they must agree with."""

import json
import math
import random
from inspect import signature
from typing import Any

import pytest

from workflow_scripts.analyse.claims.audit import AuditError, MeanLengths, ceiling, find_columns, judge
from workflow_scripts.catalog.gpus_and_models import CatalogError, get_model, load_gpus, resolve
from workflow_scripts.catalog.rate_columns import PATTERNS
from workflow_scripts.physics import formulas
from workflow_scripts.physics.model_facts import read_model_facts
from workflow_scripts.present.page_data import catalog
from workflow_scripts.present.page_script import FORMULAS

pytestmark = pytest.mark.needs_tool("chromium")


def test_numbers_have_three_digits_and_thousands_separated(in_page):
    numbers = [12345.678, 0.0123456, 0, None, 999.5, 1e-7, 1e6]
    assert in_page("words.js", f"{json.dumps(numbers)}.map((n) => m.number(n))") == [
        *("12,300", "0.0123", "0", "–", "1,000", "1.00e-7", "1,000,000")
    ]
    assert in_page("words.js", "[m.bytes(131072), m.bytes(0), m.bytes(5e12), m.withUnit(null, 's')]") == [
        *("128 KiB", "0 bytes", "4.55 TiB", "–")
    ]


def test_points_of_one_setting_stand_side_by_side(in_page):
    points = [
        *({"px": 100, "series": 1, "y": 5}, {"px": 100, "series": 0, "y": 9}, {"px": 100, "series": 0, "y": 3}),
        *({"px": 200, "series": 0, "y": 1}, {"px": 150, "xLow": 1, "series": 0, "y": 1}),
    ]
    moved = f"((points) => (m.dodge(points, 0, 500, 4.5), points.map((p) => p.px)))({json.dumps(points)})"
    assert in_page("dodge.js", moved) == [112, 100, 88, 200, 150]


def test_tables_are_written_as_csv_markdown_and_latex(in_page):
    texts = [["Name", "Rate", "8,16"], ['=1+"2"', "12,300", "–"], ["a\nb | c", "+3.1 %", "8,16"]]
    assert in_page("save.js", f"m.csvOf({json.dumps(texts)}, [false, true])") == (
        'Name,Rate,"8,16"\r\n"\'=1+""2""",12300,\r\n"a\nb | c",+3.1 %,"8,16"\r\n'
    )
    assert in_page("save.js", f"m.markdownOf({json.dumps(texts)}, [false, true])").splitlines() == [
        "| Name | Rate | 8,16 |",
        "| --- | ---: | --- |",
        '| =1+"2" | 12,300 | – |',
        "| a b \\| c | +3.1 % | 8,16 |",
    ]
    ranges = [["-1.2 to 3", "-1.2 to +3.5 %", "-2 to 1 (95 %)", "-1+2", "-1 to 3+A1", "+cmd"]]
    assert in_page("save.js", f"m.csvOf({json.dumps(ranges)})") == (
        "-1.2 to 3,-1.2 to +3.5 %,-2 to 1 (95 %),'-1+2,'-1 to 3+A1,'+cmd\r\n"
    )
    latex = [["Name", "50 % & more"], ["a_b\\c", "12,300"]]
    assert in_page("save.js", f"m.latexOf({json.dumps(latex)}, [false, true])").splitlines() == [
        *(r"\begin{tabular}{lr}", r"\toprule", r"Name & 50 \% \& more \\", r"\midrule"),
        *(r"a\_b\textbackslash{}c & 12,300 \\", r"\bottomrule", r"\end{tabular}"),
    ]
    assert in_page("save.js", "[m.slug('Study demo: KV blocks'), m.slug('??'), m.slug('../x')]") == [
        *("study-demo-kv-blocks", "kvsweep", "x")
    ]


def test_a_cell_has_its_rows_and_of_each_measure_the_mean_or_the_median(in_page):
    data = {
        "cells": {"cell_id": ["a", "b", "c"]},
        # The rows of a cell need not follow each other.
        "repeats": {"cell": [1, 0, 1, 1, 0], "rate": [4, 1, 9, 5, None], "power": [None] * 5},
        "limits": {"cell": [2], "rates": {"of": ["measured"], "at": [0]}},
        "predictions": {},
        "intervals": {
            **{"cell": [1, 0], "measure": {"of": ["power", "rate"], "at": [0, 1]}},
            **{"value": [7, 1.5], "low": [6, 1.2], "high": [8, 1.8]},
        },
    }
    told = "[c.repeats, c.limits, c.statistic('rate'), c.statistic('power'), c.statistic('none')]"
    a, b, c = in_page("data.js", f"m.storeOf({json.dumps(data)}).cells.map((c) => {told})")
    interval = {"value": 1.5, "low": 1.2, "high": 1.8}
    assert a[0] == [{"cell": 0, "rate": 1, "power": None}, {"cell": 0, "rate": None, "power": None}]
    assert a[1:] == [[], {"value": 1.5, "low": 1, "high": 1, "n": 1, "interval": interval}, None, None]
    assert [row["rate"] for row in b[0]] == [4, 9, 5]
    # An interval of a measure that no repeat has is of no cell here.
    assert b[2:] == [{"value": 5, "low": 4, "high": 9, "n": 3, "interval": None}, None, None]
    assert c == [[], [{"cell": 2, "rates": "measured"}], None, None, None]
    assert in_page("data.js", f"m.storeOf({json.dumps(data)}).byId.get('c').limits.length") == 1


def test_an_address_holds_a_view_or_a_section(in_page):
    assert in_page(
        "address.js",
        "['', '#energy', '#figure-x', '#%', '#a%20b'].map((a) => [m.parseAddress(a).view, m.parseAddress(a).section])",
    ) == [*(["report", ""], ["report", "energy"], ["report", "figure-x"], ["report", "%"], ["report", "a b"])]
    assert in_page("address.js", "m.parseAddress('#view=explore&gpu=a%26b&gpu=c').parameters.getAll('gpu')") == [
        "a&b",
        "c",
    ]


def test_axes_have_round_ticks_within_their_ends(in_page):
    linear = in_page("scale.js", "m.ticksOf(m.scaleOf([0, 97], false, 0, 1), 5)")
    assert linear == [0, 25, 50, 75, 100]
    logarithmic = in_page("scale.js", "m.ticksOf(m.scaleOf([3, 2000], true, 0, 1), 8)")
    assert logarithmic == [5, 10, 20, 50, 100, 200, 500, 1000, 2000]
    # A scale of nothing, of zeros and of one value still has an extent.
    assert (
        in_page(
            "scale.js",
            "[[], [0, 0], [5]].map((v) => [true, false].every((l) => m.ticksOf(m.scaleOf(v, l, 0, 1), 5).length > 0))",
        )
        == [True] * 3
    )


def test_blocks_over_the_steps_are_those_of_the_formula_and_shared_ones_count_once(in_page):
    """The sum over the decode steps is what `block_seconds` counts, and the prompt's blocks are there before."""
    chance, names = random.Random(3), ("prompt_tokens", "output_tokens", "block_size")
    requests = [
        dict(zip(names, (chance.randint(1, 200), chance.randint(2, 90), chance.choice([1, 8, 16, 48])), strict=True))
        for _ in range(300)
    ]
    script = """(requests) => requests.map((r) => {
      const steps = r.output_tokens - 1;
      const request = {...r, scheduled_s: 0, first_token_s: 1, last_token_s: 1 + steps};
      const held = (time) => m.blocksAt([request], time, r.block_size).reduce((n, b) => n + b.full + (b.partly > 0), 0);
      return [held(0.5), ...Array.from({length: steps}, (_, i) => held(1.5 + i))].reduce((a, b) => a + b);
    })"""
    summed = in_page("blocks.js", f"({script})({json.dumps(requests)})")
    expected = [
        formulas.block_seconds(float(prompt), float(output), 1.0, output - 1.0, size)
        for prompt, output, size in (r.values() for r in requests)
    ]
    assert summed == pytest.approx(expected)
    # Four requests of 40 tokens; three found the 32 of two blocks in the cache, and the first filled them.
    of_one = {"prompt_tokens": 40, "output_tokens": 10, "scheduled_s": 0, "first_token_s": 5, "last_token_s": 9}
    requests = [of_one, *({**of_one, "cached_prompt_tokens": 32} for _ in range(3))]
    assert in_page("blocks.js", f"m.blocksInUse(m.blocksAt({json.dumps(requests)}, 1, 16))") == 3 + 3
    assert in_page("blocks.js", f"m.blocksInUse(m.blocksAt({json.dumps(requests[1:])}, 1, 16))") == 2 + 3
    assert in_page("blocks.js", f"m.blocksAt({json.dumps(requests)}, 9, 16)") == []


def test_phases_of_a_request_that_lack_a_time_are_left_out(in_page):
    request = {"queued_s": 0, "scheduled_s": 0.5, "first_token_s": 1, "last_token_s": None}
    assert in_page("timeline.js", f"m.phasesOf({json.dumps(request)})") == [["waiting", 0, 0.5], ["prefill", 0.5, 1]]


def test_the_pareto_front_is_what_no_other_point_beats(in_page):
    chance = random.Random(2)
    clouds = [
        [{"x": chance.randint(1, 9), "y": chance.randint(1, 9)} for _ in range(chance.randint(0, 25))]
        for _ in range(200)
    ]

    def beaten(point: dict[str, int], other: dict[str, int]) -> bool:
        no_worse = other["x"] <= point["x"] and other["y"] >= point["y"]
        return no_worse and other != point

    def by_place(points: list[dict[str, int]]) -> list[dict[str, int]]:
        return sorted(points, key=lambda point: (point["x"], point["y"]))

    found = in_page("limits.js", f"{json.dumps(clouds)}.map(m.paretoFront)")
    for cloud, front in zip(clouds, found, strict=True):
        assert by_place(front) == by_place([p for p in cloud if not any(beaten(p, other) for other in cloud)])


def test_a_limit_must_be_kept_in_every_repeat_and_prices_count_all_devices(in_page):
    highest = {"ttft_s_p99": {"high": 0.4}, "tpot_s_p99": {"high": 0.01}}
    cell = f"{{statistic: (measure) => ({json.dumps(highest)})[measure] ?? null}}"
    bounds = [[0.5, 0.02], [0.3, None], [None, 0.005], [None, None]]
    script = f"{json.dumps(bounds)}.map(([ttft, tpot]) => m.brokenBound({cell}, {{ttft, tpot}}, 99))"
    assert in_page("limits.js", script) == [None, "TTFT too long", "TPOT too long", None]
    assert in_page("limits.js", f"m.brokenBound({cell}, {{e2e: 1}}, 99)") == "end-to-end latency not known"
    # 100 tokens/s for an hour at 2 per device hour, on one device and on four.
    assert in_page("limits.js", "[1, 4].map((n) => m.tokensPerPrice(100, 2, n))") == [180_000, 45_000]
    assert in_page("limits.js", "m.tokensPerPrice(100, 0, 1)") is None
    ranks = {"knob_tensor_parallel_size": 2, "knob_pipeline_parallel_size": 3}
    assert in_page("limits.js", f"[{{}}, {json.dumps(ranks)}].map(m.devicesOf)") == [1, 6]


def test_formulas_give_in_the_page_what_they_give_in_python(in_page):
    """Each on 200 random lists of arguments, evaluated at once."""
    chance = random.Random(11)
    calls = [
        (formula, {name: float(chance.randint(1, 10**6)) for name in signature(formula).parameters})
        for formula in FORMULAS
        for _ in range(200)
    ]
    given = json.dumps([[formula.__name__, list(values.values())] for formula, values in calls])
    here = in_page("formulas.js", f"{given}.map(([name, values]) => m[name](...values))")
    for (formula, values), found in zip(calls, here, strict=True):
        assert found == pytest.approx(formula(**values), rel=1e-12), (formula.__name__, values)


SETTINGS = {"utilization": [0.5, 0.9, 1.0], "kv": ["auto", "fp8"], "quantization": ["", "awq", "fp8"]}


def test_ceilings_and_operations_agree_with_the_audit_for_every_model_and_device(in_page):
    """Each model on each device with random settings: 3,000 ceilings at once."""
    chance, known, gpus = random.Random(5), catalog(), load_gpus()
    calls = [
        {
            "model": chance.choice(known["models"])["name"],
            "device": chance.choice(known["devices"])["name"],
            "most": chance.choice([1, 4, 16, 64, 256, 1024]),
            "workload": {"prompt": chance.randint(1, 4000), "output": chance.randint(1, 2000)},
            "settings": {name: chance.choice(values) for name, values in SETTINGS.items()},
        }
        for _ in range(3000)
    ]
    script = """(catalog, calls) => calls.map((c) => {
      const model = catalog.models.find((one) => one.name === c.model);
      if (!(c.settings.quantization in model.weights)) return "quantized already";
      return m.ceiling(model, catalog.devices.find((one) => one.name === c.device), c.most, c.workload, c.settings);
    })"""
    here = in_page("verdicts.js", f"({script})({json.dumps(known)}, {json.dumps(calls)})")
    assert sum(isinstance(one, dict) for one in here) > 1000
    for call, found in zip(calls, here, strict=True):
        if found == "quantized already":
            continue
        model, settings = get_model(call["model"]), call["settings"]
        facts = read_model_facts(model.config, model.fixed_dtype, settings["quantization"] or None)
        workload = MeanLengths(call["workload"]["prompt"], call["workload"]["output"])
        highest = ceiling(facts, gpus[call["device"]], call["most"], workload, settings["utilization"], settings["kv"])
        if highest is None:
            assert found is None, call
            continue
        assert found["limit"] == highest.limit, call
        assert found["total"] == pytest.approx(highest.total_tokens_per_s, rel=1e-9), call
        assert found["output"] == pytest.approx(highest.output_tokens_per_s, rel=1e-9), call


def test_names_of_columns_and_devices_are_found_as_by_the_audit(in_page):
    rates = [
        *("Output tok/s", "throughput", "tokens_per_s", "TPS", "req/s", "tok/s per watt", "latency ms"),
        *("tokens per second", "tokenss"),
    ]
    gpus = ["GPU", "device", "gpu_type", "card"]
    lists = [[gpu, *(rates[i:j])] for gpu in gpus for i in range(len(rates)) for j in range(i, len(rates) + 1)]
    script = """(names) => {
      try {
        const found = m.findColumns(names, patterns);
        return [found.gpu, found.throughput, found.sequences, found.countsOutputOnly];
      } catch { return null; }
    }"""
    here = in_page("verdicts.js", f"((patterns) => {json.dumps(lists)}.map({script}))({json.dumps(PATTERNS)})")

    def of_audit(names: list[str]) -> list[Any] | None:
        try:
            found = find_columns(names)
        except AuditError:
            return None
        return [found.gpu, found.throughput, found.sequences, found.counts_output_only]

    assert here == [of_audit(names) for names in lists]
    written = ["H200", "NVIDIA H200", "a100 pcie", "A100-SXM4-80GB", "L40S", "RTX 9", "mi300x", " h100  sxm "]

    def resolved(name: str) -> list[str]:
        try:
            return [gpu.name for gpu in resolve(name)]
        except CatalogError:
            return []

    found = in_page(
        "verdicts.js",
        f"{json.dumps(written)}.map((n) => m.resolve(n, {json.dumps(catalog()['devices'])}).map((d) => d.name))",
    )
    assert found == [resolved(name) for name in written]


def test_a_pasted_table_gets_the_verdicts_of_the_audit(in_page):
    rows = [
        *(["H200", "1", "310"], ["H200", "1", "~4,500"], ["1x H100 80GB SXM", "1", "11.2k tok/s"]),
        *(["RTX 9", "1", "5"], ["L40S", "x", "5"], ["L40S", "8", "95 %"]),
    ]
    names = ["GPU", "max-num-seqs", "Output tok/s"]
    pasted = "\n".join(f"| {' | '.join(row)} |" for row in (names, ["---", "--:", "---"], *rows))
    script = f"""(() => {{
      const known = {json.dumps(catalog())};
      const model = known.models.find((one) => one.name === "llama-3.1-8b-instruct");
      return m.audit(m.parseTable({json.dumps(pasted)}), model, known, {{prompt: 200, output: 200}});
    }})()"""
    here = in_page("verdicts.js", script)
    model = get_model("llama-3.1-8b-instruct")
    facts, columns = read_model_facts(model.config, model.fixed_dtype), find_columns(names)
    there = [judge(dict(zip(names, row, strict=True)), columns, facts, MeanLengths(200, 200)) for row in rows]
    assert [row["verdict"] for row in here] == [row.verdict for row in there]
    assert [row.verdict for row in there] == ["possible", *["impossible"] * 2, *["unknown"] * 3]
    ceilings = [math.nan if row["ceiling"] is None else row["ceiling"] for row in here]
    assert ceilings == pytest.approx([row.predicted_ceiling_tokens_per_s for row in there], nan_ok=True)
    quoted = 'GPU,"tok/s, output"\nH200,"1,200"'
    assert in_page("verdicts.js", f"m.parseTable({json.dumps(quoted)})") == [{"GPU": "H200", "tok/s, output": "1,200"}]


def test_the_calculator_counts_blocks_as_the_formulas_do(in_page):
    """Qwen2-7B on 80 GB with 4 GB for the rest, in blocks of 16 tokens."""
    model = next(one for one in catalog()["models"] if one["name"] == "qwen2-7b")
    rates = {"memory_bandwidth_bytes_per_s": 2e12, "highest_flop_per_s": 3e14, "flop_per_s": {"bfloat16": 3e14}}
    given = {"model": model, "device": {"memory_bytes": 80e9, **rates}, "quantization": "", "kv": "auto"}
    given |= {"utilization": 0.9, "blockSize": 16, "length": 4096, "overhead": 4e9, "sequences": 64}
    found = in_page("calculator.js", f"m.capacity({json.dumps(given)})")
    free = formulas.kv_cache_bytes(80e9, 0.9, model["weights"][""]["weight_bytes"], 4e9)
    blocks = formulas.num_blocks(free, formulas.bytes_per_block(16, 57344))
    assert (found["perToken"], found["blocks"], found["tokens"]) == (57344, blocks, 16 * blocks)
    assert found["requests"] == pytest.approx(formulas.max_concurrency(blocks, 16, 4096))
    assert found["sequences"] == 64
    assert found["rate"] == pytest.approx(
        formulas.output_tokens_per_s_ceiling(
            64, model["weights"][""]["decode_weight_bytes"], 2e12, kv_tokens_per_sequence=4096, bytes_per_token=57344
        )
    )
