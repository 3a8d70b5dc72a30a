import json

import numpy as np
import pytest

from tests.unit.questions.digests import cell, digest, mean
from workflow_scripts.questions.compare.compare import main
from workflow_scripts.questions.compare.comparison import comparison
from workflow_scripts.questions.compare.digest import Digest
from workflow_scripts.questions.compare.worse import (
    KV_TOKENS,
    OUTCOME,
    PASSED,
    REGRESSED,
    Regression,
    against_all,
    judged,
    regressions,
    undecided,
    verdict,
)
from workflow_scripts.statistics.comparisons import NOT_DECIDED


def found(*runs: Digest, vary_pct: float | None = None) -> tuple[list[Regression], str]:
    """What became worse in the last run, and the verdict."""
    *earlier, now = runs
    results = [comparison(run, now, vary_pct) for run in earlier]
    ratios = against_all(earlier, now, results)
    worse = regressions(earlier, now, results, ratios)
    return worse, verdict(worse, undecided(earlier[-1], ratios, worse))


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
    worse, told = found(before, now, vary_pct=0.1)
    assert (told, [w.measure for w in worse]) == (said, [measure] if said == REGRESSED else [])


@pytest.mark.parametrize(("gpu", "said"), [("h200", REGRESSED), ("cpu-all", NOT_DECIDED), ("unknown", NOT_DECIDED)])
def test_what_occasions_vary_is_by_kind_of_device(gpu, said):
    """Among 16 cells of two starts, one on a GPU that became 20 % slower is seen."""
    names = [f"{gpu}/vllm/tiny/chat/bs{n}" for n in range(16)]
    before = digest(*(cell("bs32", mean(100, 2, starts=2), id=name) for name in names))
    now = digest(*(cell("bs32", mean(80 if n == 3 else 100, 2, starts=2), id=name) for n, name in enumerate(names)))
    worse, told = found(before, now)
    assert (told, [w.cell for w in worse]) == (said, [names[3]] if said == REGRESSED else [])


def test_several_earlier_runs_show_a_smaller_change_than_one(tmp_path):
    nights = [digest(cell("bs32", mean(rate, 0.2, starts=6))) for rate in (100, 103, 97, 100, 102, 98)]
    now = digest(cell("bs32", mean(93.2, 0.2, starts=6)))
    assert found(nights[0], now, vary_pct=3)[1] == NOT_DECIDED
    worse, told = found(*nights, now, vary_pct=3)
    assert told == REGRESSED
    rate = np.exp(np.mean(np.log([100, 103, 97, 100, 102, 98])))
    assert worse[0].ratio.startswith(f"{93.2 / rate:.3g} (")
    # A night in which the cell was not comparable does not count.
    other = cell("bs32", mean(1, 0.2, starts=6), comparable=False)
    assert found(digest(other), *nights, now, vary_pct=3)[0] == worse


@pytest.mark.parametrize(
    ("before", "now", "worse", "said"),
    [
        (cell("bs16", mean(100), effective=KV[0]), cell("bs16", mean(100), effective=KV[0]), [], NOT_DECIDED),
        (cell("bs16", mean(100), effective=KV[0]), cell("bs16", mean(100), effective=KV[1]), [], NOT_DECIDED),
        (
            *(cell("bs16", mean(100), effective=of) for of in (KV[0], KV[2])),
            [(KV_TOKENS, "16,000", "15,400", "0.96")],
            REGRESSED,
        ),
        (
            *(cell("bs32", mean(100)), cell("bs32", outcome="infeasible", reason="too small")),
            [(OUTCOME, "ok", "infeasible", "")],
            REGRESSED,
        ),
        (cell("bs32", outcome="infeasible", reason="too small"), cell("bs32", mean(100)), [], PASSED),
        *(
            (cell("bs32", mean(100)), cell("bs32", mean(100), outcome=of), [], NOT_DECIDED)
            for of in ("missing", "invalid")
        ),
        (cell("bs32", mean(100)), cell("bs32", mean(100), comparable=False), [], NOT_DECIDED),
    ],
)
def test_kv_tokens_and_outcomes_count_and_what_is_not_compared_is_not_decided(before, now, worse, said):
    for earlier in ([digest(before)], [digest(before), digest(before)]):
        regressed, told = found(*earlier, digest(now))
        assert ([tuple(each[1:]) for each in regressed], told) == (worse, said)


def test_a_run_is_judged_by_the_rate_of_a_cell_or_by_its_latencies_if_requests_arrive_at_a_rate():
    rate, ttft, energy = mean(100), mean(1, measure="ttft_s_p50"), mean(1, measure="energy_j_per_output_token")
    run = judged(digest(cell("bs16", rate, ttft, energy), cell("served", ttft, energy)))
    assert [of.means for of in run.cells] == [[rate], [ttft]]


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
        of.write(tmp_path / f"{name}.json")
    out = tmp_path / "regression.md"
    assert guard(tmp_path / "before.json", tmp_path / "now.json", "--markdown", out) == code
    assert out.exists() == (code < 2)
    if code == 1:
        assert "bs32 | output_tokens_per_s | 100 tokens/s | 10 tokens/s | 0.1 (" in out.read_text()
    if code == 2:
        assert "before.json" in capsys.readouterr().err


def test_one_run_and_three_without_the_guard_are_bad_input(tmp_path):
    for name in "abc":
        digest(cell("bs32", mean(100 + ord(name)))).write(tmp_path / name)
    runs = [str(tmp_path / name) for name in "abc"]
    assert [main(runs[:1]), main(runs), guard(runs[0])] == [2, 2, 2]


def guard(*words: object) -> int:
    return main(["--fail-if-worse", *map(str, words)])


NOW = digest(cell("bs32", mean(100)))


def changed(**cell_fields):
    content = json.loads(NOW.model_dump_json())
    content["cells"][0] |= cell_fields
    return json.dumps(content).encode()


MEAN = {"measure": "output_tokens_per_s", "log_mean": 4.6, "squared_error": 0.1, "df": 3.0}


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
        changed(effective={"num_gpu_blocks": 10**300, "block_size": 1}),
        changed(effective={"num_gpu_blocks": 2**63, "block_size": 1}),
        changed(environment={f"{i}": [] for i in range(10_000)}),
        NOW.model_copy(update={"settings": {"equivalence_margin_pct": -200}}).model_dump_json().encode(),
        NOW.model_copy(update={"settings": {"equivalence_margin_pct": "2"}}).model_dump_json().encode(),
    ],
)
def test_hostile_runs_are_bad_input_and_no_regression(tmp_path, capsys, raw):
    before = tmp_path / "before.json"
    before.write_text(NOW.model_dump_json())
    (tmp_path / "now.json").write_bytes(raw)
    assert guard(before, tmp_path / "now.json") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"kvsweep compare: {tmp_path}/now.")
    assert len(said.splitlines()) == 1
