"""docs/artifact.md as its reader follows it: every value that it states, and the report of an archive."""

import re
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pytest

from tests.integration.conftest import CHECKOUT
from workflow_scripts.study.archive import main as archive
from workflow_scripts.study.report_of_archive import main as report_of_archive

PAGE = (CHECKOUT / "docs/artifact.md").read_text(encoding="utf-8")
CODE = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
CLAIMS = re.findall(r"^\| (.+?) \| ([\d.,; ]+) \| ([\d.]+) \| `(.+)` \|$", PAGE, re.MULTILINE)
CLAIMED_IN = "".join((CHECKOUT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/gpus.md"))


@pytest.fixture(scope="module")
def stated(two_gpus, h200_later, tmp_path_factory):
    """What the names of the page's code stand for."""
    names: dict[str, object] = {}
    (results := tmp_path_factory.mktemp("artifact") / "results").mkdir()
    for drawn in (two_gpus, h200_later):
        (results / drawn.name).symlink_to(drawn)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(results.parent)
        exec(CODE, names)
        yield names


@pytest.mark.parametrize(("claim", "values", "allowed_pct", "expression"), CLAIMS, ids=[claim[0] for claim in CLAIMS])
def test_a_claim_holds_and_is_stated_as_here(stated, claim, values, allowed_pct, expression):
    told = values.split("; ")
    found = np.atleast_1d(np.asarray(eval(expression, stated), dtype=float))
    expected = np.array([float(value.replace(",", "")) for value in told])
    assert found == pytest.approx(expected, rel=float(allowed_pct) / 100)
    assert [value for value in told if not re.search(rf"(?<![\d.,]){re.escape(value)}(?!\d|[.,]\d)", CLAIMED_IN)] == []


def test_every_number_of_the_results_has_its_row():
    table = re.search(r"\| max-num-seqs \|.*?\n\n", CLAIMED_IN, re.DOTALL)[0]
    cells = [cell for row in table.splitlines()[2:] for cell in row.split("|")[2:]]
    numbers = [number for cell in cells for number in re.findall(r"[\d.,]+", cell)]
    assert len(numbers) == 40
    assert set(numbers) <= {value for _, values, _, _ in CLAIMS for value in values.split("; ")}


def test_the_report_of_an_archive_is_drawn_without_its_code(h200_later, tmp_path):
    study = ["--study", str(CHECKOUT / "config/studies/h200_later.yaml"), "--results", str(h200_later.parent)]
    assert archive([*study, "--out", str(tmp_path / "kept.zip")]) == 0
    with ZipFile(tmp_path / "kept.zip") as kept, ZipFile(theirs := tmp_path / "theirs.zip", "w") as sent:
        for name in kept.namelist():
            data = name.startswith(("study.yaml", "results/")) and "/tables/" not in name
            sent.writestr(name, kept.read(name) if data else b"raise SystemExit")
    assert report_of_archive(["--archive", str(theirs), "--out", str(tmp_path / "theirs")]) == 0
    drawn = tmp_path / "theirs/results/h200_later"
    assert "</html>" in (drawn / "report.html").read_text()
    for table in (h200_later / "tables").glob("*.parquet"):
        assert pd.read_parquet(drawn / "tables" / table.name).equals(pd.read_parquet(table)), table.name
