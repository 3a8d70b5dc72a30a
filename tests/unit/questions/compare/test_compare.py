import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.unit.questions.runs import CONTENT, ENVIRONMENT, cell, mean, run, written
from workflow_scripts.present import compare
from workflow_scripts.questions.compare.comparison import KV_TOKENS, OF_OUTCOME, Comparison, comparison, in_order
from workflow_scripts.questions.compare.run import Run, RunCell, read_run
from workflow_scripts.statistics.comparisons import NOT_DECIDED

A, B = (cell("bs32", mean(100), began=f"2026-01-0{day}T00:00:00Z") for day in (1, 2))


def changed(of: RunCell, **fields: Any) -> RunCell:
    return replace(of, **fields)


def test_a_ratio_is_of_b_over_a_with_its_interval_and_what_it_covers():
    (found,) = comparison([run(A)], run(cell("bs32", mean(110)))).cells
    assert (found.cell, found.measure) == (A.id, "output_tokens_per_s")
    assert (found.a, found.b, found.ratio) == pytest.approx((100, 110, 1.1))
    # Two standard errors of 1 % and 15 % for each occasion, together 21.3 %.
    assert (found.low, found.high) == pytest.approx((1.1 * math.exp(-0.4167), 1.1 * math.exp(0.4167)), rel=1e-3)
    assert found.verdict == "not decided"


def test_one_occasion_promises_nothing_unless_it_is_known_what_occasions_vary():
    """10 % more is within what occasions vary on a shared machine, and a change where they vary by 1 %."""
    a, b = run(A), run(cell("bs32", mean(112)))
    assert [comparison([a], b, vary).cells[0].verdict for vary in (15, 1)] == ["not decided", "changes"]
    same = run(cell("bs32", mean(100, 0.1)))
    assert comparison([same], same, 0.1).cells[0].verdict == "flat"
    assert comparison([same], same).cells[0].verdict == "not decided"
    # Three times as fast is more than any two occasions differed by.
    assert comparison([a], run(cell("bs32", mean(300)))).cells[0].verdict == "changes"
    (without_error,) = comparison([a], run(cell("bs32", mean(900, None)))).cells
    assert (without_error.low, without_error.high, without_error.verdict) == (None, None, "not decided")


@pytest.mark.parametrize(
    ("of_b", "why"),
    [
        ({"comparable": False}, "another definition"),
        ({"source": "measured elsewhere"}, "elsewhere in B"),
        ({"environment": {"protocol": ["2"]}}, "3 in A"),
        ({"environment": {"dtype": ["float32"]}}, "float32 in B"),
        ({"environment": {"lock_sha256": ["a", "b"]}}, "several locks"),
        ({"content": {"model": CONTENT["model"] | {"revision": "abc"}}}, "model.revision is"),  # type: ignore[operator]
        ({"content": {"num_prompts": 64}}, "num_prompts is 32"),
        ({"began": A.began}, "same measurement"),
    ],
)
def test_two_cells_that_must_not_be_compared_are_refused_with_a_reason(of_b, why):
    base = {"content": CONTENT, "environment": ENVIRONMENT}
    fields = {name: base[name] | value if name in base else value for name, value in of_b.items()}
    found = comparison([run(A)], run(changed(B, **fields)))
    assert found.cells == []
    ((refused, (told,)),) = [(one.cell, one.why) for one in found.refused]
    assert (refused, why in told) == (A.id, True)


def test_what_a_comparison_is_for_is_listed_and_refuses_nothing():
    elsewhere = {**ENVIRONMENT, "host": ["node-2"], "engine_version": ["vllm 0.12"], "lock_sha256": ["b" * 64]}
    a = run(changed(A, effective={"max_num_batched_tokens": 2048}))
    now = {"effective": {"max_num_batched_tokens": 8192}, "environment": elsewhere}
    found = comparison([a], run(changed(B, **now)))
    assert len(found.cells) == 1
    assert [(d.what, d.a, d.b, d.cells) for d in found.differences] == [
        ("max_num_batched_tokens", 2048, 8192, 1),
        ("engine_version", "vllm 0.11", "vllm 0.12", 1),
        ("host", "node-1", "node-2", 1),
        ("lock_sha256", "a" * 64, "b" * 64, 1),
    ]


def test_what_took_effect_otherwise_is_one_line_for_each_setting_and_comes_first():
    settings = [{"block_size": 16, "num_gpu_blocks": n, "async_scheduling": False} for n in (100, 200)]
    now = [{"block_size": 32, "num_gpu_blocks": n, "async_scheduling": False, "new": 1} for n in (50, 90)]
    a, b = (
        run(*(cell(f"seqs{i}", mean(100), effective=of) for i, of in enumerate(effective)))
        for effective in (settings, now)
    )
    found = comparison([a], b)
    assert [tuple(d.model_dump().values()) for d in found.differences] == [
        ("block_size", 16, 32, 2, 0),
        ("num_gpu_blocks", 100, 50, 2, 1),
    ]
    (differing,) = compare.tables(found)[compare.DIFFERENT]
    assert differing.rows[1] == ("KV blocks", "100", "50", "2", "1")


def test_cells_that_ended_otherwise_or_are_in_one_study_only_are_told():
    missing = changed(cell("bs64"), outcome="missing")
    found = comparison(
        [run(A, cell("bs8"), missing)],
        run(changed(B, outcome="infeasible", reason="refused"), missing, cell("bs1")),
    )
    assert [(o.cell, o.a, o.b, o.reason) for o in found.outcomes] == [(A.id, "ok", "infeasible", "refused")]
    assert ([c.split("/")[-1] for c in found.only_a], [c.split("/")[-1] for c in found.only_b]) == (["bs8"], ["bs1"])
    assert found.changed


@pytest.mark.parametrize("of_b", [{"source": "measured elsewhere"}, {"content": CONTENT | {"num_prompts": 640}}])
def test_a_cell_that_was_asked_for_something_else_has_not_ended_otherwise(of_b):
    b = changed(B, outcome="timeout", comparable=False, means=[], **of_b)
    found = comparison([run(A)], run(b))
    assert (found.outcomes, found.changed) == ([], False)
    assert [refused.cell for refused in found.refused] == [A.id]


def test_a_terminal_obeys_no_name(capsys):
    named = "bs32\x1b]0;owned\x07\x9b2J"
    a, b = run(cell(named, mean(100))), run(cell(named, mean(900)))
    compare.print_comparison(comparison([a], b))
    printed = capsys.readouterr().out
    assert "bs32\\x1b]0;owned\\x07\\x9b2J" in printed
    assert not {"\x1b", "\x07", "\x9b"} & {*printed}


@pytest.mark.parametrize(
    ("rates", "began", "code", "said"),
    [
        ({32: 100}, "2026-01-02", 0, "0 changed, 0 flat"),
        ({32: 900}, "2026-01-02", 1, "1 changed"),
        ({1: 1}, "2026-01-02", 2, "no cell"),
        ({32: 100}, "2026-01-01", 2, "the same run twice"),
    ],
)
def test_the_exit_code_says_whether_anything_changed(tmp_path, capsys, rates, began, code, said):
    runs = [written(tmp_path / "a", {32: 100}), written(tmp_path / "b", rates, began)]
    assert compare.main(list(map(str, runs))) == code
    assert said in "".join(capsys.readouterr())


def test_the_json_has_the_whole_comparison_whatever_the_exit_code(tmp_path):
    a = written(tmp_path / "a", {1: 100, 2: 100})
    b = written(tmp_path / "results/b", {1: 300, 4: 300}, "2026-01-02", study="other")
    options = ["--json", str(tmp_path / "of.json"), "--occasions-vary", "5"]
    assert compare.main([str(a), str(tmp_path), *options]) == 1  # an unpacked archive has the study below results/
    found = Comparison.model_validate_json((tmp_path / "of.json").read_text())
    assert found == comparison([read_run(a)], read_run(b), 5)
    assert (found.cells[0].ratio, len(found.cells), len(found.only_a)) == (pytest.approx(3), 1, 1)


def test_what_is_no_study_is_bad_input(tmp_path, capsys):
    assert compare.main([str(tmp_path), str(tmp_path)]) == 2
    assert "snakemake --config partial=1" in capsys.readouterr().err  # how to make tables
    one = written(tmp_path / "results/one", {32: 100})
    for change, why in (
        ({"study": ["a", "b"]}, "studies ['a', 'b']"),
        ({"equivalence_margin_pct": 80.0}, "margins [80.0]"),
        ({"definition": "no JSON"}, "not a JSON object"),
    ):
        cells = pd.read_parquet(one / "tables/cells.parquet")
        pd.concat([cells, cells.assign(cell_id="x")]).assign(**change).to_parquet(one / "tables/cells.parquet")
        assert compare.main([str(one), str(one)]) == 2
        assert why in capsys.readouterr().err
        written(one, {32: 100})
    written(tmp_path / "results/two", {32: 100})
    assert compare.main([str(tmp_path), str(tmp_path)]) == 2
    assert "holds 2 studies" in capsys.readouterr().err


def test_dates_decide_which_run_is_a(tmp_path, capsys):
    later, earlier = (
        str(written(tmp_path / day, {32: rate}, day)) for day, rate in (("2026-01-02", 120), ("2026-01-01", 100))
    )
    compare.main([later, earlier, "--json", str(tmp_path / "of.json")])
    found = Comparison.model_validate_json((tmp_path / "of.json").read_text())
    begun = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")
    assert (found.began_a, found.began_b, found.cells[0].ratio) == (*begun, pytest.approx(1.2))
    assert begun[0] in capsys.readouterr().out.splitlines()[0]
    # Without a date the order is that of the call.
    undated = run(changed(A, began=None))
    assert in_order(undated, run(A)) == (undated, run(A))


@pytest.mark.parametrize("text", ["-1", "100", "much", "nan"])
def test_what_occasions_vary_is_a_number_of_per_cent(text):
    with pytest.raises(SystemExit):
        compare.main(["a", "b", "--occasions-vary", text])


# --- what became worse in the last of several runs


def guarded(*runs: Run, vary_pct: float | None = None) -> tuple[list[tuple[str, ...]], str]:
    """What became worse in the last run, and the verdict."""
    *earlier, now = (run.judged() for run in runs)
    found = comparison(earlier, now, vary_pct)
    verdict = next(compare.guarded(found)).removeprefix(f"{now.study}: ").partition(":")[0]
    return [(w.cell, w.measure, w.a, w.b, w.ratio) for w in found.worse], verdict


KV = [{"num_gpu_blocks": 1000, "block_size": 16}, {"num_gpu_blocks": 990, "block_size": 16}]
KV += [{"num_gpu_blocks": 480, "block_size": 32}]


@pytest.mark.parametrize(
    ("measure", "ratio", "error_pct", "said"),
    [
        ("output_tokens_per_s", 0.8, 0.2, compare.REGRESSED),
        ("output_tokens_per_s", 1.25, 0.2, compare.PASSED),
        ("output_tokens_per_s", 1.0, 0.2, compare.PASSED),
        ("output_tokens_per_s", 0.9, 20, NOT_DECIDED),
        ("ttft_s_p50", 1.25, 0.2, compare.REGRESSED),
        ("ttft_s_p50", 0.8, 0.2, compare.PASSED),
    ],
)
def test_only_what_is_shown_to_be_worse_is_a_regression(measure, ratio, error_pct, said):
    before, now = (run(cell("bs32", mean(r, error_pct, measure=measure, starts=6))) for r in (100, 100 * ratio))
    worse, told = guarded(before, now, vary_pct=0.1)
    assert (told, [measure for _, measure, *_ in worse]) == (said, [measure] if said == compare.REGRESSED else [])


@pytest.mark.parametrize(
    ("gpu", "said"), [("h200", compare.REGRESSED), ("cpu-all", NOT_DECIDED), ("unknown", NOT_DECIDED)]
)
def test_what_occasions_vary_is_by_kind_of_device(gpu, said):
    """Among 16 cells of two starts, one on a GPU that became 20 % slower is seen."""
    names = [f"{gpu}/vllm/tiny/chat/bs{n}" for n in range(16)]
    before = run(*(cell("bs32", mean(100, 2, starts=2), id=name) for name in names))
    now = run(*(cell("bs32", mean(80 if n == 3 else 100, 2, starts=2), id=name) for n, name in enumerate(names)))
    worse, told = guarded(before, now)
    assert (told, [name for name, *_ in worse]) == (said, [names[3]] if said == compare.REGRESSED else [])


def test_several_earlier_runs_show_a_smaller_change_than_one(tmp_path):
    nights = [run(cell("bs32", mean(rate, 0.2, starts=6))) for rate in (100, 103, 97, 100, 102, 98)]
    now = run(cell("bs32", mean(93.2, 0.2, starts=6)))
    assert guarded(nights[0], now, vary_pct=3)[1] == NOT_DECIDED
    worse, told = guarded(*nights, now, vary_pct=3)
    assert told == compare.REGRESSED
    rate = np.exp(np.mean(np.log([100, 103, 97, 100, 102, 98])))
    assert worse[0][-1].startswith(f"{93.2 / rate:.3g} (")
    # A night in which the cell was not comparable does not count.
    other = cell("bs32", mean(1, 0.2, starts=6), comparable=False)
    assert guarded(run(other), *nights, now, vary_pct=3)[0] == worse


@pytest.mark.parametrize(
    ("before", "now", "worse", "said"),
    [
        (cell("bs16", mean(100), effective=KV[0]), cell("bs16", mean(100), effective=KV[0]), [], NOT_DECIDED),
        (cell("bs16", mean(100), effective=KV[0]), cell("bs16", mean(100), effective=KV[1]), [], NOT_DECIDED),
        (
            *(cell("bs16", mean(100), effective=of) for of in (KV[0], KV[2])),
            [(KV_TOKENS, "16,000", "15,400", "0.96")],
            compare.REGRESSED,
        ),
        (
            *(cell("bs32", mean(100)), cell("bs32", outcome="infeasible", reason="too small")),
            [(OF_OUTCOME, "ok", "infeasible", "")],
            compare.REGRESSED,
        ),
        (cell("bs32", outcome="infeasible", reason="too small"), cell("bs32", mean(100)), [], compare.PASSED),
        *(
            (cell("bs32", mean(100)), cell("bs32", mean(100), outcome=of), [], NOT_DECIDED)
            for of in ("missing", "invalid")
        ),
        (cell("bs32", mean(100)), cell("bs32", mean(100), comparable=False), [], NOT_DECIDED),
    ],
)
def test_kv_tokens_and_outcomes_count_and_what_is_not_compared_is_not_decided(before, now, worse, said):
    for earlier in ([run(before)], [run(before), run(before)]):
        regressed, told = guarded(*earlier, run(now))
        assert ([each[1:] for each in regressed], told) == (worse, said)


def test_a_run_is_judged_by_the_rate_of_a_cell_or_by_its_latencies_if_requests_arrive_at_a_rate():
    rate, ttft, energy = mean(100), mean(1, measure="ttft_s_p50"), mean(1, measure="energy_j_per_output_token")
    judged = run(cell("bs16", rate, ttft, energy), cell("served", ttft, energy)).judged()
    assert [of.means for of in judged.cells] == [[rate], [ttft]]


@pytest.mark.parametrize(
    ("rates", "study", "code"),
    [({32: 900}, "try", 0), ({32: 10}, "try", 1), ({1: 100}, "try", 2), ({32: 100}, "other", 2), (None, "try", 2)],
)
def test_the_exit_code_and_what_is_printed_say_what_became_worse(tmp_path, capsys, rates, study, code):
    before = written(tmp_path / "before", {32: 100})
    now = written(tmp_path / "now", rates, "2026-01-02", study) if rates else before
    assert guard(before, now) == code
    printed = capsys.readouterr()
    assert ("10 tokens/s" in printed.out) == (code == 1)
    assert ("before" in printed.err) == (code == 2)


def test_one_run_and_three_without_the_guard_are_bad_input(tmp_path):
    runs = [str(written(tmp_path / name, {32: 100 + ord(name)})) for name in "abc"]
    assert [compare.main(runs[:1]), compare.main(runs), guard(runs[0])] == [2, 2, 2]


def guard(*words: object) -> int:
    return compare.main(["--fail-if-worse", *map(str, words)])
