import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.questions.digests import CONTENT, ENVIRONMENT, cell, digest, mean
from workflow_scripts.common.columns import column
from workflow_scripts.questions.compare import compare
from workflow_scripts.questions.compare.comparison import Comparison, comparison, in_order
from workflow_scripts.questions.compare.digest import Digest, DigestCell
from workflow_scripts.statistics.comparisons import verdicts
from workflow_scripts.statistics.errors import Error
from workflow_scripts.statistics.occasions import Means, compare_occasions

A, B = (cell("bs32", mean(100), began=f"2026-01-0{day}T00:00:00Z") for day in (1, 2))


DATED = [(100, "2026-01-01T00:00:00Z"), (120, "2026-01-02T00:00:00Z"), (110, None)]


def changed(of: DigestCell, **fields: Any) -> DigestCell:
    return of.model_copy(update=fields)


def test_a_ratio_is_of_b_over_a_with_its_interval_and_what_it_covers():
    (found,) = comparison(digest(A), digest(cell("bs32", mean(110)))).cells
    assert (found.cell, found.measure) == (A.id, "output_tokens_per_s")
    assert (found.a, found.b, found.ratio) == pytest.approx((100, 110, 1.1))
    # Two standard errors of 1 % and 15 % for each occasion, together 21.3 %.
    assert (found.low, found.high) == pytest.approx((1.1 * math.exp(-0.4167), 1.1 * math.exp(0.4167)), rel=1e-3)
    assert found.scope == "between occasions"
    assert found.verdict == "not decided"


def test_one_occasion_promises_nothing_unless_it_is_known_what_occasions_vary():
    """10 % more is within what occasions vary on a shared machine, and a change where they vary by 1 %."""
    a, b = digest(A), digest(cell("bs32", mean(112)))
    assert [comparison(a, b, vary).cells[0].verdict for vary in (15, 1)] == ["not decided", "changes"]
    same = digest(cell("bs32", mean(100, 0.1)))
    assert comparison(same, same, 0.1).cells[0].verdict == "flat"
    assert comparison(same, same).cells[0].verdict == "not decided"
    # Three times as fast is more than any two occasions differed by.
    assert comparison(a, digest(cell("bs32", mean(300)))).cells[0].verdict == "changes"
    (without_error,) = comparison(a, digest(cell("bs32", mean(900, None)))).cells
    assert (without_error.low, without_error.high, without_error.verdict) == (None, None, "not decided")


def test_a_change_is_false_in_at_most_5_percent_of_comparisons_of_equal_cells():
    """20 cells of three starts, whose occasions vary by 5 % and starts by 3 %; 1,000 comparisons of two studies."""
    rng = np.random.default_rng(4)
    shape = (1000, 20)

    def occasion() -> Means:
        starts = rng.normal(0, 0.05, shape)[..., None] + rng.normal(0, 0.03, (*shape, 3))
        return Means(starts.mean(-1), Error(starts.var(-1, ddof=1) / 3, np.full(shape, 2.0)))

    found = verdicts(compare_occasions(occasion(), occasion(), 5), 2.0)
    assert (found == "changes").any(axis=-1).mean() <= 0.05
    assert not (found == "flat").any()


@pytest.mark.parametrize(
    ("of_b", "why"),
    [
        ({"comparable": False}, "another definition"),
        ({"source": "simulated"}, "simulated in B"),
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
    found = comparison(digest(A), digest(changed(B, **fields)))
    assert found.cells == []
    ((refused, (told,)),) = [(one.cell, one.why) for one in found.refused]
    assert (refused, why in told) == (A.id, True)


def test_what_a_comparison_is_for_is_listed_and_refuses_nothing():
    elsewhere = {**ENVIRONMENT, "host": ["node-2"], "engine_version": ["vllm 0.12"], "lock_sha256": ["b" * 64]}
    a = digest(changed(A, effective={"max_num_batched_tokens": 2048}))
    now = {"effective": {"max_num_batched_tokens": 8192}, "environment": elsewhere}
    b = digest(changed(B, **now), settings={"repeats": 5, "equivalence_margin_pct": 2.0})
    found = comparison(a, b)
    assert len(found.cells) == 1
    assert [(d.what, d.a, d.b, d.cells) for d in found.differences] == [
        ("study: repeats", 3, 5, 0),
        ("engine_version", "vllm 0.11", "vllm 0.12", 1),
        ("host", "node-1", "node-2", 1),
        ("lock_sha256", "a" * 64, "b" * 64, 1),
    ]
    told = list(compare.summary(found))[1]
    named = {name for name, words in compare.ENVIRONMENT.items() if words in told}
    assert named == {"host", "engine_version", "lock_sha256"}


def test_the_summary_counts_open_measures_whose_interval_excludes_1_and_tells_only_what_was_compared():
    rates = {"bs1": 107, "bs2": 100, "bs3": 60}
    of_a, of_b = (
        [cell(name, mean(rate), id=f"h200/vllm/tiny/chat/{name}", label=f"{name}, context of 8") for name, rate in of]
        for of in (dict.fromkeys(rates, 100).items(), rates.items())
    )
    found = comparison(digest(*of_a), digest(*of_b))
    apart = [c.verdict for c in found.cells if not c.low <= 1 <= c.high]
    assert (sorted(apart), found.open_without_1) == (["changes", "not decided"], 1)
    shared, names = found.compared_in_words
    assert (shared, list(names.values())) == ("h200, vllm, tiny, chat, context of 8", list(rates))
    text = " ".join(compare.summary(found))
    assert ("1.7 % on GPUs" in text, "CPU" in text, "than A" in text) == (True, False, False)


def test_what_took_effect_otherwise_is_one_line_for_each_setting_and_comes_first():
    settings = [{"block_size": 16, "num_gpu_blocks": n, "async_scheduling": False} for n in (100, 200)]
    now = [{"block_size": 32, "num_gpu_blocks": n, "async_scheduling": False, "new": 1} for n in (50, 90)]
    a, b = (
        digest(*(cell(f"seqs{i}", mean(100), effective=of) for i, of in enumerate(effective)))
        for effective in (settings, now)
    )
    found = comparison(a, b)
    assert [tuple(d.model_dump().values()) for d in found.by_itself] == [
        ("block_size", 16, 32, 2, 0),
        ("num_gpu_blocks", 100, 50, 2, 1),
    ]
    assert found.differences == []
    first, *_ = compare.sections(found)
    assert (first.title, first.rows[1]) == (
        "What changed by itself",
        ("KV blocks", "100", "50, and 1 other pair", "2"),
    )


def test_cells_that_ended_otherwise_or_are_in_one_study_only_are_told():
    missing = changed(cell("bs64"), outcome="missing")
    found = comparison(
        digest(A, cell("bs8"), missing),
        digest(changed(B, outcome="infeasible", reason="refused"), missing, cell("bs1")),
    )
    assert [(o.cell, o.a, o.b, o.reason) for o in found.outcomes] == [(A.id, "ok", "infeasible", "refused")]
    assert ([c.split("/")[-1] for c in found.only_a], [c.split("/")[-1] for c in found.only_b]) == (["bs8"], ["bs1"])
    assert found.changed


@pytest.mark.parametrize("of_b", [{"source": "simulated"}, {"content": CONTENT | {"num_prompts": 640}}])
def test_a_cell_that_was_asked_for_something_else_has_not_ended_otherwise(of_b):
    b = changed(B, outcome="timeout", comparable=False, means=[], **of_b)
    found = comparison(digest(A), digest(b))
    assert (found.outcomes, found.changed) == ([], False)
    assert [refused.cell for refused in found.refused] == [A.id]


def test_a_terminal_obeys_no_name(capsys):
    named = "bs32\x1b]0;owned\x07\x9b2J"
    a, b = digest(cell(named, mean(100))), digest(cell(named, mean(900)))
    compare.print_comparison(comparison(a, b))
    printed = capsys.readouterr().out
    assert "bs32\\x1b]0;owned\\x07\\x9b2J" in printed
    assert not {"\x1b", "\x07", "\x9b"} & {*printed, *compare.markdown(comparison(a, b))}


def written(folder: Path, of: Digest) -> str:
    path = folder / "tables" / "digest.json"
    path.parent.mkdir(parents=True)
    path.write_text(of.model_dump_json())
    return str(folder)


@pytest.mark.parametrize(
    ("other", "code", "said"),
    [
        (B, 0, "0 changed, 0 flat"),
        (cell("bs32", mean(900)), 1, "1 changed"),
        (cell("bs1", mean(1)), 2, "no cell"),
        (A, 2, "the same run twice"),
    ],
)
def test_the_exit_code_says_whether_anything_changed(tmp_path, capsys, other, code, said):
    folders = [written(tmp_path / name, digest(of)) for name, of in (("a", A), ("b", other))]
    assert compare.main(folders) == code
    assert said in "".join(capsys.readouterr())


def test_markdown_and_json_are_written_whatever_the_exit_code(tmp_path):
    hostile = "<script>alert(1)</script>|x\n# y"
    cells = [(cell("bs1", mean(r)), cell("bs2", mean(r), began=None, comparable=r < 200)) for r in (100, 300)]
    a, b = (digest(*of, study=study) for of, study in zip(cells, ("try", hostile), strict=True))
    folders = [written(tmp_path / name, of) for name, of in (("a", a), ("b", b))]
    out = tmp_path / "of.md", tmp_path / "of.json"
    compare.main([*folders, "--markdown", str(out[0]), "--json", str(out[1]), "--occasions-vary", "5"])
    assert Comparison.model_validate_json(out[1].read_text()) == comparison(a, b, 5)
    text = out[0].read_text()
    assert "<script>" not in text
    assert "\n# y" not in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {"| cell | B/A (95 % interval) | verdict | A | B | interval covers |"} <= set(tables)
    assert "## Not compared" in text


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.json", "{}", "not a digest: study: Field required"),
        ("a.json", "nothing", "not a digest: not JSON"),
        ("a.html", "<p>some page</p>", "not a digest: not JSON"),
    ],
)
def test_what_is_no_study_is_bad_input(tmp_path, capsys, name, text, why):
    (tmp_path / name).write_text(text)
    assert compare.main([str(tmp_path / name), str(tmp_path / name)]) == 2
    assert re.search(f"kvsweep compare: .*/{name}: {why}", capsys.readouterr().err)
    assert compare.main([str(tmp_path), str(tmp_path)]) == 2
    assert "snakemake --config partial=1" in capsys.readouterr().err  # how to make a digest
    for name in ("one", "two"):
        written(tmp_path / "results" / name, digest(A))
    assert compare.main([str(tmp_path), str(tmp_path)]) == 2
    assert "holds 2 studies" in capsys.readouterr().err


def test_dates_decide_which_run_is_a(tmp_path, capsys):
    first, second, undated = (changed(A, means=[mean(rate)], began=began) for rate, began in DATED)
    later, earlier = (written(tmp_path / name, digest(of)) for name, of in (("later", second), ("earlier", first)))
    compare.main([later, earlier, "--json", str(tmp_path / "of.json")])
    found = Comparison.model_validate_json((tmp_path / "of.json").read_text())
    assert (found.began_a, found.began_b, found.cells[0].ratio) == (DATED[0][1], DATED[1][1], pytest.approx(1.2))
    assert DATED[0][1] in capsys.readouterr().out.splitlines()[0]
    # Without a date the order is that of the call.
    assert in_order(digest(undated), digest(first)) == (digest(undated), digest(first))


def test_every_measure_of_a_cell_is_compared_in_a_table_of_its_own_in_the_units_of_the_page():
    means = [mean(100), mean(0.25, measure="ttft_s_p50"), mean(3, measure="energy_j_per_output_token")]
    a, b = (digest(changed(of, means=means)) for of in (A, B))
    tables = [section for section in compare.sections(comparison(a, b)) if section.headings[0] == "cell"]
    assert [(table.title.split(",")[0], table.rows[0][3]) for table in tables] == [
        (column("output_tokens_per_s").axis, "100"),
        (column("ttft_s_p50").axis, "250"),
        (column("energy_j_per_output_token").axis, "3"),
    ]


@pytest.mark.parametrize("text", ["-1", "100", "much", "nan"])
def test_what_occasions_vary_is_a_number_of_per_cent(text, capsys):
    with pytest.raises(SystemExit):
        compare.main(["a", "b", "--occasions-vary", text])
    assert "not a percentage" in capsys.readouterr().err
