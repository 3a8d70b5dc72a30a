"""The target `compare` of the workflow, on made-up digests; nothing is measured."""

import subprocess

from tests.integration.conftest import CHECKOUT, snakemake_command
from tests.unit.questions.digests import cell, digest, mean


def test_a_change_fails_the_target_and_is_in_the_markdown(tmp_path, write_study):
    before, now = tmp_path / "before.json", tmp_path / "results" / "small" / "tables" / "digest.json"
    now.parent.mkdir(parents=True)
    for path, rate in ((before, 100), (now, 900)):
        path.write_text(digest(cell("bs32", mean(rate))).model_dump_json())
    command = snakemake_command(write_study(tmp_path), tmp_path / "results", "compare")
    command.insert(command.index("--"), f"against={before}")
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "1 measure of 1 cell compared: 1 changed" in done.stdout
    assert (
        "| 9 (5.93 to 13.7) | changes | 100 | 900 | between occasions |"
        in (tmp_path / "results" / "small" / "comparison.md").read_text()
    )


def test_results_in_a_path_that_cannot_be_used_are_refused_before_anything(tmp_path, write_study):
    command = snakemake_command(write_study(tmp_path), tmp_path / "{x}", "compare")
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert (done.returncode, "cannot be used" in done.stderr, (tmp_path / "{x}").exists()) == (1, True, False)


def test_several_earlier_runs_are_a_guard_and_a_missing_one_stops_before_anything(tmp_path, write_study):
    study, results = write_study(tmp_path), tmp_path / "results" / "small"
    nights = [tmp_path / "night 1.json", tmp_path / "night-2.json", results / "tables" / "digest.json"]
    nights[-1].parent.mkdir(parents=True)
    for day, (path, rate) in enumerate(zip(nights, (1000, 1010, 100), strict=True)):
        began = f"2026-01-0{day + 1}T00:00:00Z"
        digest(cell("bs32", mean(rate, 0.2, starts=6), began=began)).write(path)

    def compared(*earlier):
        command = snakemake_command(study, tmp_path / "results", "compare")
        at = command.index("--")
        command[at:at] = [f"against={','.join(map(str, earlier))}", "fail_if_worse=1", "occasions_vary=1"]
        return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)

    missing = compared(nights[0], "no-such-night")
    assert (missing.returncode, "no-such-night" in missing.stderr, (results / "logs").exists()) == (1, True, False)
    done = compared(*nights[:2])
    assert done.returncode == 1, done.stderr
    assert (
        "bs32 | output_tokens_per_s | 1,000 tokens/s | 100 tokens/s | 0.0995 ("
        in (results / "comparison.md").read_text()
    )
    assert (results / "comparison.html").exists()
