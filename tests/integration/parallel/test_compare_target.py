"""The target `compare` of the workflow, on made-up tables; nothing is measured."""

import re
import subprocess
from pathlib import Path

from tests.integration.conftest import CHECKOUT, snakemake_command
from tests.unit.questions.runs import written


def compare(study: Path, results: Path, *keys: str) -> "subprocess.CompletedProcess[str]":
    command = snakemake_command(study, results, "compare")
    at = command.index("--")
    command[at:at] = keys
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)


def test_a_change_or_a_loss_against_several_runs_fails_the_target_and_is_printed(tmp_path, write_study):
    study, results = write_study(tmp_path), tmp_path / "results" / "small"
    nights = [tmp_path / "night 1", tmp_path / "night-2", results]
    for day, (folder, rate) in enumerate(zip(nights, (1000, 1010, 100), strict=True)):
        written(folder, {32: rate}, f"2026-01-0{day + 1}", study="small")
    guard = ("fail_if_worse=1", "occasions_vary=1")
    missing = compare(study, results.parent, f"against={nights[0]},no-such-night", *guard)
    assert (missing.returncode, "no-such-night" in missing.stderr, (results / "logs").exists()) == (1, True, False)
    told = {}
    for keys in ([f"against={nights[0]}"], [f"against={nights[0]},{nights[1]}", *guard]):
        done = compare(study, results.parent, *keys)
        assert done.returncode == 1, done.stderr
        told[len(keys)] = done.stdout
    assert "1 measure of 1 cell compared: 1 changed" in told[1]
    assert re.search(r"bs16-seqs32 +output_tokens_per_s +1,000 tokens/s +100 tokens/s +0.0995 \(", told[3])
    assert (results / "comparison.html").exists()


def test_results_in_a_path_that_cannot_be_used_are_refused_before_anything(tmp_path, write_study):
    done = compare(write_study(tmp_path), tmp_path / "{x}")
    assert (done.returncode, "cannot be used" in done.stderr, (tmp_path / "{x}").exists()) == (1, True, False)
