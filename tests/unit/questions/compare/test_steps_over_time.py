import math
import random
import zipfile

import pytest

from tests.unit.questions.digests import cell, digest, mean
from workflow_scripts.common.files import read_json
from workflow_scripts.questions.compare import regress
from workflow_scripts.questions.compare.comparison import comparison
from workflow_scripts.questions.compare.steps_over_time import steps_over_time
from workflow_scripts.statistics.comparisons import CHANGES, FLAT, NOT_DECIDED


def nights(rates, vary_pct=1.0, error_pct=0.2):
    """The rates of one cell over time, or of several cells if each run has a list, as `steps_over_time` tells them."""
    runs = [
        digest(*(cell(f"bs{i}", mean(rate, error_pct, starts=6)) for i, rate in enumerate(night)))
        for night in ([of] if isinstance(of, int | float) else of for of in rates)
    ]
    found = [comparison(run, runs[-1], vary_pct) for run in runs[:-1]]
    return steps_over_time([f"night-{i}" for i, _ in enumerate(runs)], runs, found).series


def around(rates, chance, sd_pct=1.0):
    return [rate * math.exp(chance.gauss(0, sd_pct / 100)) for rate in rates]


@pytest.mark.parametrize(
    ("rates", "steps"),
    [
        ([100] * 10, {}),
        ([100] * 6 + [90] * 4, {6: 0.9}),
        ([100] * 9 + [90], {9: 0.9}),
        ([100] * 4 + [80] * 4 + [95] * 4, {4: 0.8, 8: 95 / 80}),
        ([100, 80], {1: 0.8}),
    ],
)
def test_a_step_is_found_at_its_run_with_its_ratio(rates, steps):
    (found,) = nights(around(rates, random.Random(3)))
    assert {step.run: step.found.ratio for step in found.steps} == pytest.approx(steps, rel=0.03)
    assert all(step.found.verdict == CHANGES for step in found.steps)
    assert found.values == pytest.approx(rates, rel=0.04)


def test_noise_is_hardly_ever_a_step():
    """Of 100 studies of 12 cells over 10 nights, in which nothing changed but the occasions."""
    chance = random.Random(5)
    studies = [nights([around([100] * 12, chance, 5.0) for _ in range(10)], 5.0) for _ in range(100)]
    assert sum(any(of.steps for of in study) for study in studies) <= 5


def test_a_proposed_step_within_the_margin_is_dropped_and_a_single_low_run_is_not_decided():
    (small,) = nights([100.0] * 6 + [98.6] * 6, vary_pct=0.1)
    assert (small.steps, small.now.verdict) == ([], FLAT)
    (last,) = nights([100.0] * 9 + [96.0])
    assert (last.steps, last.now.verdict) == ([], NOT_DECIDED)


def test_a_run_that_may_not_be_compared_is_left_out():
    runs = [digest(cell("bs1", mean(rate, 0.2, starts=6))) for rate in (100, 100, 100, 80)]
    runs[1] = digest(cell("bs1", mean(50, 0.2), comparable=False))
    found = [comparison(run, runs[-1], 1.0) for run in runs[:-1]]
    (of,) = steps_over_time(list("abcd"), runs, found).series
    assert (of.runs, [step.run for step in of.steps]) == ([0, 2, 3], [3])


@pytest.mark.parametrize(
    ("rates", "code"),
    [([100, 100, 100, 100], 0), ([100, 100, 70, 70], 1), ([70, 70, 100, 100], 0), ([100, 70, 100, 99], 0)],
)
@pytest.mark.parametrize("archive", ["unpacked", "packed.zip"])
def test_the_guard_fails_if_the_last_step_is_for_the_worse(tmp_path, rates, code, archive):
    # A digest, an archive, packed or not, the folder of a study, and the present run.
    places = [tmp_path / name for name in ("0.json", archive, "2", "3.json")]
    of_archive = tmp_path / "unpacked/results/try/tables/digest.json"
    files = [places[0], of_archive, places[2] / "tables/digest.json", places[3]]
    for day, (path, rate) in enumerate(zip(files, rates, strict=True)):
        of = cell("bs32", mean(rate, 0.2, starts=6), began=f"2026-01-0{day + 1}T00:00:00Z")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(digest(of).model_dump_json())
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as packed:
        packed.write(of_archive, of_archive.relative_to(tmp_path / "unpacked"))
    out, steps = tmp_path / "regression.md", tmp_path / "steps.json"
    in_any_order = [str(places[place]) for place in (2, 0, 1, 3)]
    options = ["--occasions-vary", "1", "--markdown", str(out), "--json", str(steps)]
    assert regress.main([*in_any_order, *options]) == code
    assert "| cpu-all/vllm/tiny/chat/bs32 | output_tokens_per_s | " + " → ".join(map(str, rates)) in out.read_text()
    assert read_json(steps)["runs"] == list(map(str, places))
