"""The target `compare` of the workflow, on made-up digests; nothing is measured."""

import subprocess

from tests.integration.conftest import CHECKOUT, snakemake_command
from tests.unit.analyse.digests import cell, digest, mean


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
    assert "| 9 (5.93 to 13.7) | between occasions |" in (tmp_path / "results" / "small" / "comparison.md").read_text()
