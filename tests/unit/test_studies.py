"""The project's studies: each has a reduced version with the same question for a CPU, and all can be planned."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workflow_scripts.study.grid import expand
from workflow_scripts.study.study_file import Study, Sweep, load_study

CHECKOUT = Path(__file__).parents[2]
STUDIES = CHECKOUT / "config" / "studies"
PAGE = (CHECKOUT / "docs" / "studies.md").read_text(encoding="utf-8")
# The demo is a CPU study itself; the others are about devices and numbers that they name.
WITHOUT_CUT = {"demo", "h200_reference", "paged_attention", "published_claims", "what_if"}
# Sweeps that take too long on a CPU, as the cuts' own comments say.
LEFT_OUT = {"parallelism": ["both"]}
NAMES = sorted({path.stem for path in STUDIES.glob("*.yaml")} - WITHOUT_CUT)


def cut_of(name: str) -> Study:
    return load_study(STUDIES / "tiny" / f"{name}.yaml")


def varied(sweep: Sweep) -> set[str]:
    """Knobs of which a sweep takes several values."""
    return {knob for knob, values in sweep.knob_values().items() if len(values) > 1}


def test_every_study_has_a_cut_and_every_cut_a_study() -> None:
    assert {path.stem for path in (STUDIES / "tiny").glob("*.yaml")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_cut_varies_the_same_knobs_of_the_same_engines(name: str) -> None:
    study, cut = load_study(STUDIES / f"{name}.yaml"), cut_of(name)
    assert cut.name == f"tiny_{name}"
    of_study, of_cut = ({sweep.name: sweep for sweep in s.sweeps} for s in (study, cut))
    assert [*of_cut, *LEFT_OUT.get(name, [])] == list(of_study)
    for small in cut.sweeps:
        sweep = of_study[small.name]
        assert set(small.engine) == set(sweep.engine), sweep.name
        assert varied(small) == varied(sweep), sweep.name
        assert (len(small.workload) > 1) == (len(sweep.workload) > 1), sweep.name
    kinds = [{workload.kind for workload in s.workloads.values()} for s in (study, cut)]
    assert kinds[0] - {"sharegpt"} <= kinds[1] | {"synthetic"}


@pytest.mark.parametrize("name", NAMES)
def test_a_cut_is_small_and_runs_on_a_cpu(name: str) -> None:
    cut = cut_of(name)
    cells = expand(cut)
    assert {cell.gpu for cell in cells} == {"cpu-all"}
    assert all(cell.model.startswith("tiny-llama-57m") for cell in cells)
    assert len(cells) <= 20
    assert cut.cell_time_limit_s <= 240


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_studies_says_what_a_study_is_for(name: str) -> None:
    (section,) = (part for part in PAGE.split("\n### ")[1:] if part.startswith(f"`{name}`"))
    for word in ("**Question.**", "**Expect.**", "**Cost.**"):
        assert word in section
    cells = len(expand(load_study(STUDIES / f"{name}.yaml")))
    assert f"{cells} cells" in section
    assert f"{len(expand(cut_of(name)))} cells" in section


@pytest.mark.parametrize("study", sorted(STUDIES.glob("**/*.yaml")), ids=lambda path: str(path.relative_to(STUDIES)))
def test_every_study_can_be_planned(study: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "snakemake", "--cores", "2", "--nolock", "--dry-run", "--quiet", "all"),
            *("--configfile", str(study), "--config", f"results={tmp_path}"),
        ],
        cwd=CHECKOUT,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
