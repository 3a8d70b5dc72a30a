import base64
import gzip
import json
import zipfile

import pytest

from tests.unit.questions.digests import cell, digest, mean
from workflow_scripts.questions.compare import regress
from workflow_scripts.questions.compare.comparison import comparison
from workflow_scripts.questions.compare.regress import (
    KV_TOKENS,
    OUTCOME,
    PASSED,
    REGRESSED,
    judged,
    regressions,
    undecided,
    verdict,
)
from workflow_scripts.statistics.comparisons import NOT_DECIDED

KV = [{"num_gpu_blocks": 1000, "block_size": 16}, {"num_gpu_blocks": 990, "block_size": 16}]
KV += [{"num_gpu_blocks": 480, "block_size": 32}]


@pytest.mark.parametrize(
    ("measure", "ratio", "error_pct", "said"),
    [
        ("output_tokens_per_s", 0.8, 0.2, REGRESSED),
        ("output_tokens_per_s", 1.25, 0.2, PASSED),
        ("output_tokens_per_s", 1.0, 0.2, PASSED),
        ("output_tokens_per_s", 0.9, 20, NOT_DECIDED),
        ("ttft_s_p50", 1.25, 0.2, REGRESSED),
        ("ttft_s_p50", 0.8, 0.2, PASSED),
    ],
)
def test_only_what_is_shown_to_be_worse_is_a_regression(measure, ratio, error_pct, said):
    before, now = (digest(cell("bs32", mean(r, error_pct, measure=measure, starts=6))) for r in (100, 100 * ratio))
    found = comparison(before, now, 0.1)
    worse = regressions([before, now], [found], found.cells)
    assert verdict(worse, undecided(before, found)) == said
    assert [w.measure for w in worse] == ([measure] if said == REGRESSED else [])


@pytest.mark.parametrize(("gpu", "said"), [("h200", REGRESSED), ("cpu-all", NOT_DECIDED), ("unknown", NOT_DECIDED)])
def test_what_occasions_vary_is_by_kind_of_device(gpu, said):
    """Among 16 cells of two starts, one on a GPU that became 20 % slower is seen."""
    names = [f"{gpu}/vllm/tiny/chat/bs{n}" for n in range(16)]
    before = digest(*(cell("bs32", mean(100, 2, starts=2), id=name) for name in names))
    now = digest(*(cell("bs32", mean(80 if n == 3 else 100, 2, starts=2), id=name) for n, name in enumerate(names)))
    found = comparison(before, now)
    worse = regressions([before, now], [found], found.cells)
    assert (verdict(worse, undecided(before, found)), [w.cell for w in worse]) == (
        said,
        [names[3]] if said == REGRESSED else [],
    )


def test_a_run_is_judged_by_the_rate_of_a_cell_or_by_its_latencies_if_requests_arrive_at_a_rate():
    rate, ttft, energy = mean(100), mean(1, measure="ttft_s_p50"), mean(1, measure="energy_j_per_output_token")
    run = judged(digest(cell("bs16", rate, ttft, energy), cell("served", ttft, energy)))
    assert [of.means for of in run.cells] == [[rate], [ttft]]


@pytest.mark.parametrize(("effective", "ratio"), [(KV[0], None), (KV[1], None), (KV[2], "0.96")])
def test_fewer_kv_tokens_beyond_the_margin_are_a_regression(effective, ratio):
    before, now = (digest(cell("bs16", mean(100), effective=of)) for of in (KV[0], effective))
    found = comparison(before, now)
    worse = regressions([before, now], [found], found.cells)
    assert [(w.measure, w.ratio) for w in worse] == ([(KV_TOKENS, ratio)] if ratio else [])


@pytest.mark.parametrize(("pct", "told"), [(4.0, 0), (12.0, 1), (None, 0)])
def test_a_verdict_says_how_much_of_the_cpu_others_used(pct, told, tmp_path, capsys):
    cells = [cell("bs32", mean(rate), others_pct=of) for rate, of in ((100, None), (101, pct))]
    for name, one in zip(("before", "now"), cells, strict=True):
        digest(one, cell("bs64", mean(100))).write(tmp_path / f"{name}.json")
    assert regress.main([str(tmp_path / f"{name}.json") for name in ("before", "now")]) == 0
    assert capsys.readouterr().out.count("12 % of the CPU") == told


def test_a_cell_that_does_not_run_any_more_is_a_regression():
    before, now = digest(cell("bs32", mean(100))), digest(cell("bs32", outcome="infeasible", reason="too small"))
    worse = regressions([before, now], [comparison(before, now)], [])
    assert [w[1:4] for w in worse] == [(OUTCOME, "ok", "infeasible")]
    assert not regressions([now, before], [comparison(now, before)], [])


@pytest.mark.parametrize("changes", [{"outcome": "missing"}, {"outcome": "invalid"}, {"comparable": False}])
def test_a_cell_that_is_not_compared_is_not_decided(changes):
    before = digest(cell("bs32", mean(100, 0.2)), cell("bs64", mean(100, 0.2)))
    now = digest(cell("bs32", mean(100, 0.2)), cell("bs64", mean(100, 0.2), **changes))
    found = comparison(before, now, 0.1)
    worse = regressions([before, now], [found], found.cells)
    assert (worse, undecided(before, found)) == ([], [before.cells[1].id])
    assert verdict(worse, undecided(before, found)) == NOT_DECIDED


@pytest.mark.parametrize(
    ("now", "code"),
    [
        (digest(cell("bs32", mean(900))), 0),
        (digest(cell("bs32", mean(10))), 1),
        (digest(cell("bs1", mean(100))), 2),
        (digest(cell("bs32", mean(100)), study="other"), 2),
        (digest(cell("bs32", mean(100))), 2),
    ],
)
def test_the_exit_code_and_the_markdown_say_what_became_worse(tmp_path, capsys, now, code):
    for name, of in (("before", digest(cell("bs32", mean(100)))), ("now", now)):
        (tmp_path / f"{name}.json").write_text(of.model_dump_json())
    out = tmp_path / "regression.md"
    digests = [str(tmp_path / f"{name}.json") for name in ("before", "now")]
    assert regress.main([*digests, "--markdown", str(out)]) == code
    assert out.exists() == (code < 2)
    if code == 1:
        assert (
            "| cpu-all/vllm/tiny/chat/bs32 | output_tokens_per_s | 100 tokens/s | 10 tokens/s | 0.1 ("
            in out.read_text()
        )
    if code == 2:
        assert "before.json" in capsys.readouterr().err


def packed(folder, raw):
    path = folder / "now.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("results/try/tables/digest.json", raw)
    return path


def paged(folder, raw):
    (folder / "now.html").write_text(
        f'<template id="digest">{base64.b64encode(gzip.compress(raw)).decode()}</template>'
    )
    return folder / "now.html"


def plain(folder, raw):
    (folder / "now.json").write_bytes(raw)
    return folder / "now.json"


NOW = digest(cell("bs32", mean(100)))


def changed(**cell_fields):
    content = json.loads(NOW.model_dump_json())
    content["cells"][0] |= cell_fields
    return json.dumps(content).encode()


MEAN = {"measure": "output_tokens_per_s", "log_mean": 4.6, "squared_error": 0.1, "df": 3.0}


@pytest.mark.parametrize("put", [packed, paged, plain])
@pytest.mark.parametrize(
    "raw",
    [
        NOW.model_dump_json().encode("utf-16"),
        b"[" * 10**6,
        b"\0" * 10**8,
        b"{}",
        b'{"cells": [' + b"{}," * 10**6 + b"{}]}",
        changed(means=[MEAN | {"log_mean": 1e300}]),
        changed(means=[MEAN | {"squared_error": -1.0}]),
        changed(means=[MEAN, MEAN]),
        changed(means=[MEAN] * 10_000),
        changed(ceilings={"data sheet": 0.0}),
        changed(device_rate=1e-320),
        changed(environment={f"{i}": [] for i in range(10_000)}),
        NOW.model_copy(update={"settings": {"equivalence_margin_pct": -200}}).model_dump_json().encode(),
        NOW.model_copy(update={"settings": {"equivalence_margin_pct": "2"}}).model_dump_json().encode(),
    ],
)
def test_hostile_runs_are_bad_input_and_no_regression(tmp_path, capsys, put, raw):
    before = tmp_path / "before.json"
    before.write_text(NOW.model_dump_json())
    assert regress.main([str(before), str(put(tmp_path, raw))]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"kvsweep regress: {tmp_path}/now.")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("name", ["now.zip", "now.html"])
def test_a_damaged_run_is_bad_input_and_no_regression(tmp_path, name):
    path = {"now.zip": packed, "now.html": paged}[name](tmp_path, NOW.model_dump_json().encode())
    content = path.read_bytes()
    before = tmp_path / "before.json"
    before.write_text(NOW.model_dump_json())
    for place in range(20, len(content), 7):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x41]) + content[place + 1 :])
        assert regress.main([str(before), str(path)]) in (0, 2)


def test_kv_tokens_that_no_double_holds_are_compared(tmp_path):
    files = [plain(tmp_path, changed(effective={"num_gpu_blocks": 10**300, "block_size": size})) for size in (1,)]
    files.append(tmp_path / "before.json")
    files[1].write_bytes(changed(effective={"num_gpu_blocks": 10**300, "block_size": 10**300}))
    assert regress.main([str(files[1]), str(files[0])]) in (0, 1)
