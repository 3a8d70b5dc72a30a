"""Resources of jobs on a cluster, from the portable needs of cells and one site's values."""

import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from workflow_scripts.cluster import site as site_module
from workflow_scripts.cluster.site import (
    Attempt,
    Site,
    cells_per_job,
    job_resources,
    load_site,
    main,
    needs_of,
    sbatch_options,
    what_fits,
)
from workflow_scripts.common.faults import InputError
from workflow_scripts.device.device_lock import WAIT
from workflow_scripts.engines.vllm.knobs import VllmKnobs
from workflow_scripts.physics.model_facts import ModelFactsError
from workflow_scripts.study.grid import Cell
from workflow_scripts.study.study_file import load_study

ROOT = Path(__file__).parents[3]
EXAMPLE = yaml.safe_load((ROOT / "config/site.yaml").read_text())
ONCE = Attempt(1, 1)


def cell(gpu: str = "h200", model: str = "llama-3.1-8b-instruct", **knobs: Any) -> Cell:
    return Cell(gpu, "vllm", model, "short", VllmKnobs(**knobs), ("all",))


def site(**changes: Any) -> Site:
    return Site.model_validate({**EXAMPLE, **changes})


def options(gpu: str, **changes: Any) -> str:
    return sbatch_options(job_resources([cell(gpu)], site(**changes), 3600, ONCE))


def test_a_model_of_an_unknown_family_may_fill_its_devices(monkeypatch):
    known = needs_of(cell()).memory_mb
    monkeypatch.setattr(site_module, "facts_on", Mock(side_effect=ModelFactsError("model_type 'x' is not supported")))
    site_module._needs.cache_clear()
    one, two = (needs_of(cell(tensor_parallel_size=ranks)).memory_mb for ranks in (1, 2))
    site_module._needs.cache_clear()
    assert one > known > needs_of(cell("cpu-1core", "tiny-llama-57m")).memory_mb
    assert two > 1.9 * (one - 16_000)


@pytest.mark.parametrize(
    ("gpu", "asked"),
    [
        ("h200", "-p gpu-h200 -t 75 --mem 40076 --cpus-per-task=16 --gres=gpu:h200:1"),
        ("h100-sxm", "-p gpu-h100 -t 75 --mem 40076 --cpus-per-task=8 --gpus=h100:1"),
        ("a100-pcie-80gb", "-p gpu-a100 -t 75 -C a100_80gb --mem 40076 --cpus-per-task=8 --gres=gpu:a100:1"),
        ("l40s", "-p gpu-l40s -t 75 --mem 40076 --cpus-per-task=8 --gres=gpu:l40s:1"),
    ],
)
def test_the_example_site_asks_for_each_gpu_in_its_own_partition(gpu, asked):
    assert options(gpu) == asked


def test_defaults_hold_for_every_gpu_that_does_not_say_otherwise():
    defaults = {"account": "physics", "qos": "long", "extra": "--exclusive"}
    gpus = {"h200": {}, "l40s": {"qos": "short", "ask_by": "nothing"}}
    of_all = "-A physics -t 75 --qos={} --mem 40076 {}--cpus-per-task=8 --exclusive"
    assert options("h200", defaults=defaults, gpus=gpus) == of_all.format("long", "") + " --gres=gpu:1"
    assert options("l40s", defaults=defaults, gpus=gpus) == of_all.format("short", "--ntasks=1 ")


def test_a_job_waits_for_a_device_as_long_as_its_site_says(tmp_path):
    setup = site(lock_wait_min=0.5, setup=["test -z $NOT_SET"]).shell_setup
    told = subprocess.check_output(["bash", "-euc", f"{setup}\nprintenv {WAIT}"], text=True)
    assert told == "0.5\n"


def test_types_with_a_hyphen_and_whole_cpu_nodes_are_requested_as_the_executor_accepts():
    hyphen = {"slurm_type": "nvidia_a100-sxm4-80gb", "ask_by": "gpus_per_node", "extra": "--exclusive"}
    asked = options("h200", defaults={}, gpus={"h200": hyphen})
    assert asked == (
        "-t 75 --mem 40076 --ntasks=1 --cpus-per-task=8 --exclusive --gpus-per-node=nvidia_a100-sxm4-80gb:1"
    )
    cpu_nodes = yaml.safe_load((ROOT / "config/site_cpu.yaml").read_text())["gpus"]
    of_cpu = Cell("cpu-all", "vllm", "tiny-llama-57m", "short", VllmKnobs(), ("all",))
    for cores, asked in ((None, "--ntasks=1 --exclusive"), (48, "--ntasks=1 --cpus-per-task=48")):
        nodes = site(defaults={}, gpus={"cpu-all": {**cpu_nodes["cpu-all"], "cores_per_gpu": cores}})
        assert asked in sbatch_options(job_resources([of_cpu], nodes, 3600, ONCE))


HOSTILE = ["$(touch X)", "n3 --wrap=x", "-n3", "n3;x", "n3\n", "`x`", ""]


def test_a_jobs_time_nodes_and_tasks():
    assert job_resources([cell()] * 2, site(), 7200, Attempt(2, 3))["runtime"] == 15 + 2 * 60
    resources = job_resources(
        [cell()], site(defaults={"extra": "--exclusive"}), 60, ONCE, avoid_nodes=["n2", "n1.a", *HOSTILE]
    )
    assert resources["slurm_extra"] == "--exclusive --exclude=n1.a,n2"
    resources = job_resources([cell(tensor_parallel_size=2)], site(), 60, ONCE)
    assert sbatch_options(resources).endswith("--cpus-per-task=32 --gres=gpu:h200:2")
    assert "ntasks" not in sbatch_options(resources)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": {"h300": {}}}, "gpus: h300: unknown; allowed: h200,"),
        ({"gpus": {"h200": {"gres": "gpu:1"}}}, "gpus.h200.gres: unknown key; allowed: account,"),
        ({"gpus": {"h200": {"slurm_type": "'h200'"}}}, "gpus.h200.slurm_type: String should match"),
        ({"gpus": {"h200": {"slurm_type": "nvidia_a100-80gb"}}}, "gpus.h200: slurm_type: nvidia_a100-80gb"),
        *(
            ({"gpus": {"h200": {"extra": f"--exclusive {option}"}}}, f"gpus.h200.extra: {name} is not allowed")
            for option in ("--gres=gpu:1", "--gpus 1", "--nodes=1", "--comment=x", "-N 1", "--parsable")
            for name in [option.partition("=")[0].partition(" ")[0]]
        ),
    ],
)
def test_a_bad_site_file_is_one_message_that_names_the_place(tmp_path, changes, message):
    path = tmp_path / "site.yaml"
    path.write_text(yaml.safe_dump({**EXAMPLE, **changes}))
    with pytest.raises(InputError) as e:
        load_site(path)
    assert str(e.value).startswith(f"{path}: {message}")


def test_options_are_printed_before_anything_is_submitted(capsys):
    study = ROOT / "config/studies/paged_attention.yaml"
    command = ["--study", str(study), "--site", str(ROOT / "config/site.yaml")]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" -t")[0] for line in lines] == [f"sbatch -p gpu-{g}" for g in ("h200", "h100", "a100", "l40s")]
    # The published baseline of HuggingFace is repeated on an A100 alone.
    assert [line.rpartition(" and ")[2] for line in lines] == [f"{n} more cells" for n in (19, 19, 23, 19)]
    # A device that the site file lacks: the shipped one that has it.
    assert main(["--study", str(ROOT / "config/studies/demo.yaml"), *command[2:]]) == 0
    assert "config/site_cpu.yaml" in capsys.readouterr().out
    assert "site=config/site_cpu.yaml" in what_fits(load_site(Path(command[3])), "site.yaml", ["cpu-all"])


def test_a_partition_s_longest_job_lowers_the_cells_of_a_job_and_an_array_is_refused(tmp_path):
    study = load_study(ROOT / "config/studies/paged_attention.yaml")  # 120 minutes a cell, 15 to start
    sites = [load_site(site_with(tmp_path, max_minutes=minutes)) for minutes in (3000, 260, 255, 100)]
    assert [cells_per_job(site, study, 8) for site in sites[:3]] == [8, 2, 2]
    with pytest.raises(InputError, match=r"max_minutes 100 .* cell_time_limit_s 7200"):
        cells_per_job(sites[3], study, 8)
    for extra in ("--array=1-4", "--exclusive -a 1-4"):
        with pytest.raises(InputError, match="--array is not allowed"):
            load_site(site_with(tmp_path, extra=extra))


def site_with(folder, **defaults):
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump({**EXAMPLE, "defaults": EXAMPLE.get("defaults", {}) | defaults}))
    return path
