"""The project's studies: each has a reduced version with the same question for a CPU, and all can be planned."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workflow_scripts.catalog.gpus_and_models import get_model
from workflow_scripts.physics.layers import Attention, Experts, LatentAttention, Mlp, State
from workflow_scripts.physics.model_facts import read_model_facts
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study import Study, Sweep
from workflow_scripts.study.study_file import load_study

CHECKOUT = Path(__file__).parents[2]
STUDIES = CHECKOUT / "config" / "studies"
# The demo is a CPU study itself; the others are about devices and numbers that they name.
WITHOUT_CUT = {"demo", "h200_later", "slurm_h100", "two_gpus", "what_if"}
# Sweeps that take too long on a CPU, as the cuts' own comments say.
LEFT_OUT = {"parallelism": ["both"], "kv_capacity": ["awq-70b", "fp8-70b", "405b-on-eight"]}
# Sweeps that only a cut has.
ADDED = {"kv_pressure": ["users-in-blocks", "users-contiguous"]}
NAMES = sorted({path.stem for path in STUDIES.glob("*.yaml")} - WITHOUT_CUT)


def cut_of(name: str) -> Study:
    return load_study(STUDIES / "tiny" / f"{name}.yaml")


def varied(sweep: Sweep) -> set[str]:
    """Knobs of which a sweep takes several values."""
    return {knob for knob, values in sweep.knob_values().items() if len(values) > 1}


def test_every_study_has_a_cut_and_every_cut_a_study():
    assert {path.stem for path in (STUDIES / "tiny").glob("*.yaml")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_cut_varies_the_same_knobs_of_the_same_engines(name):
    study, cut = load_study(STUDIES / f"{name}.yaml"), cut_of(name)
    assert cut.name == f"tiny_{name}"
    of_study, of_cut = ({sweep.name: sweep for sweep in s.sweeps} for s in (study, cut))
    added = ADDED.get(name, [])
    assert set(added) <= set(of_cut)
    assert [*(sweep for sweep in of_cut if sweep not in added), *LEFT_OUT.get(name, [])] == list(of_study)
    for small in (sweep for sweep in cut.sweeps if sweep.name not in added):
        sweep = of_study[small.name]
        assert set(small.engine) == set(sweep.engine), sweep.name
        assert varied(small) == varied(sweep), sweep.name
        assert (len(small.workload) > 1) == (len(sweep.workload) > 1), sweep.name
    kinds = [{workload.kind for workload in s.workloads.values()} for s in (study, cut)]
    assert kinds[0] - {"sharegpt"} <= kinds[1] | {"synthetic"}


@pytest.mark.parametrize("name", NAMES)
def test_a_cut_is_small_and_runs_on_a_cpu(name):
    cut = cut_of(name)
    cells = expand(cut)
    assert {cell.gpu for cell in cells} == {"cpu-all"}
    assert all(cell.model.startswith("tiny-") for cell in cells)
    assert len(cells) <= 20
    assert cut.cell_time_limit_s <= 240


@pytest.mark.parametrize("like", ["llama-3.1-8b-instruct", "tiny-llama-57m"])
def test_architectures_differ_in_one_part_and_have_the_same_number_of_parameters(like):
    tiny = like.startswith("tiny-")
    study = cut_of("architectures") if tiny else load_study(STUDIES / "architectures.yaml")
    facts = {name: read_model_facts(get_model(name).config) for name in study.sweeps[0].model}
    parts = {name: {type(part) for layer in f.layer_counts for part in layer.parts} for name, f in facts.items()}
    plain, size = {Attention, Mlp}, "57m" if tiny else "8b"
    prefix = "tiny-" if tiny else ""
    assert parts == {
        like: plain,
        f"{prefix}experts-{size}": {Attention, Experts},
        f"{prefix}windows-{size}": plain,
        f"{prefix}latent-{size}": {LatentAttention, Mlp},
        f"{prefix}states-{size}": {Attention, State, Mlp},
    }
    assert [f.parameters for f in facts.values()] == pytest.approx([facts[like].parameters] * 5, rel=2e-3)
    windows = [name for name, f in facts.items() if len(f.reaches) > 1]
    assert windows == [f"{prefix}windows-{size}"]


# `make test-studies` runs every cut; other tests plan the demo and draw two_gpus. Planned here are the other studies
# without a cut, and a cut of each way through the rules: most engines, weights that are made, endpoints, and a second
# model.
CUTS = ("paged_attention", "quantization", "serving", "speculative")
PLANNED = [*(f"tiny/{name}" for name in CUTS), "what_if"]


@pytest.mark.parametrize("name", PLANNED)
def test_studies_of_each_kind_can_be_planned(name, tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "snakemake", "--cores", "2", "--nolock", "--dry-run", "--quiet", "all"),
            *("--configfile", str(STUDIES / f"{name}.yaml"), "--config", f"results={tmp_path}"),
        ],
        cwd=CHECKOUT,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
