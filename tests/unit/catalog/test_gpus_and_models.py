import shutil

import pytest
from pydantic import ValidationError

from tests.recipes import blocks, recipe
from workflow_scripts.catalog import gpus_and_models
from workflow_scripts.catalog.gpus_and_models import (
    GPUS,
    CatalogError,
    Gpu,
    get_gpu,
    get_model,
    load_gpus,
    load_models,
    readable_models,
    resolve,
)
from workflow_scripts.common.files import write_text
from workflow_scripts.engines.vllm import capacity as kv_capacity


def test_arithmetic_of_the_data_sheets():
    assert get_gpu("h200").peak_flop_per_s("bfloat16") == 989.5e12  # of dense matrices
    assert get_gpu("a100-sxm-80gb").peak_flop_per_s("float32") == 156e12  # may run in TF32
    assert get_gpu("cpu-1core").peak_flop_per_s("float32") is get_gpu("t4").peak_flop_per_s("bfloat16") is None


@pytest.mark.parametrize(
    ("published", "names"),
    [
        ("H100", {"h100-sxm", "h100-pcie", "h100-nvl"}),
        ("A100 80GB", {"a100-pcie-80gb", "a100-sxm-80gb"}),
        ("NVIDIA L40S", {"l40s"}),
        ("V100 32GB", {"v100-pcie-32gb", "v100-sxm2-32gb"}),
        ("GH200", {"gh200-96gb", "gh200-144gb"}),
        ("RTX PRO 6000", {"rtx-pro-6000-blackwell"}),
        ("AMD Instinct MI355X", {"mi355x"}),
        ("DGX Spark", {"gb10"}),
    ],
)
def test_an_ambiguous_name_resolves_to_all_candidates(published, names):
    assert {gpu.name for gpu in resolve(published)} == names


PRODUCTS = {
    **{"NVIDIA H200": "h200", "NVIDIA B200": "b200", "NVIDIA H100 NVL": "h100-nvl", "NVIDIA H100 PCIe": "h100-pcie"},
    **{"NVIDIA H100 80GB HBM3": "h100-sxm", "NVIDIA A100 80GB PCIe": "a100-pcie-80gb", "NVIDIA L4": "l4"},
    **{"NVIDIA A100-PCIE-40GB": "a100-pcie-40gb", "A100-PCIE-40GB": "a100-pcie-40gb", "NVIDIA L40S": "l40s"},
    **{"NVIDIA A100-SXM4-40GB": "a100-sxm-40gb", "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb", "Tesla T4": "t4"},
    **{"Tesla V100-PCIE-16GB": "v100-pcie-16gb", "Tesla V100-PCIE-32GB": "v100-pcie-32gb", "NVIDIA A10": "a10"},
    **{"Tesla V100-SXM2-16GB": "v100-sxm2-16gb", "Tesla V100-SXM2-32GB": "v100-sxm2-32gb", "NVIDIA A10G": "a10g"},
    **{"NVIDIA GeForce RTX 4090": "rtx4090", "NVIDIA GeForce RTX 4090 D": None, "NVIDIA H200 NVL": None},
    **{"NVIDIA GeForce RTX 3090": "rtx3090", "NVIDIA GeForce RTX 3090 Ti": None, "NVIDIA GeForce RTX 5090": "rtx5090"},
    **{"NVIDIA GeForce RTX 5090 D": None, "NVIDIA GB10": "gb10", "NVIDIA H20": "h20", "NVIDIA H20-3e": None},
    **{"NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx-pro-6000-blackwell"},
    **{"NVIDIA RTX PRO 6000 Blackwell Server Edition": None, "NVIDIA B300 SXM6 AC": "b300"},
    **{"NVIDIA GH200 480GB": "gh200-96gb", "NVIDIA GH200 144G HBM3e": "gh200-144gb"},
    **{"NVIDIA L40": None, "NVIDIA A10M": None, "Tesla V100S-PCIE-32GB": None},
}


@pytest.mark.parametrize("nvml", PRODUCTS)
def test_a_product_name_tells_a_gpu_from_all_others(nvml):
    matching = [gpu.name for gpu in load_gpus().values() if gpu.is_called(nvml)]
    assert matching == ([PRODUCTS[nvml]] if PRODUCTS[nvml] else [])


def test_every_number_of_every_gpu_has_a_source():
    for gpu in load_gpus().values():
        if gpu.kind != "cpu":
            assert {"memory_bytes", "memory_bandwidth_bytes_per_s", "dense_flop_per_s", "tdp_w"} <= set(gpu.sources)
            # What programs get is near what is sold: more than nine tenths, and at most its GB read as GiB.
            assert gpu.usable_memory_bytes is None or 0.9 < gpu.usable_memory_bytes / gpu.memory_bytes < 1.0738
    with pytest.raises(ValidationError, match="sources must name"):
        Gpu(name="x", title="x", kind="cuda", nvml_names=("x",), memory_bytes=1e9)


def test_a_bad_file_names_the_place_and_the_allowed_keys(tmp_path):
    path = tmp_path / "gpus.yaml"
    with pytest.raises(CatalogError, match="No such file"):
        load_gpus(path)
    path.write_text("x: {title: X, kind: cpu, core: 1}\n")
    with pytest.raises(CatalogError, match=r"gpus.yaml: x.core: .*allowed: .*cpu_cores"):
        load_gpus(path)


def test_models_of_the_hub_name_a_commit_and_a_licence_or_say_that_none_is_known():
    assert get_model("opt-125m").pinned() == ("facebook/opt-125m", "27dcfa74d334bc871f3234de431e71c6eeba5dd6")
    tiny = get_model("tiny-llama-57m")
    assert (tiny.load_format, tiny.dtype, tiny.fixed_dtype) == ("dummy", "native", None)
    with pytest.raises(CatalogError, match="set hub_repo"):
        tiny.pinned()
    for model in load_models().values():
        assert model.licence
        if model.hub_repo is not None and model.revision is None:
            assert "No public file names a commit" in (model.config.parent / "model.yaml").read_text(encoding="utf-8")


def test_a_hub_model_needs_a_config_a_repository_and_a_commit(tmp_path):
    folder = tmp_path / "m"
    write_text(folder / "model.yaml", "{hub_repo: a/b, dtype: float16, licence: MIT, load_format: hub}\n")
    with pytest.raises(CatalogError, match=r"config.json: missing"):
        load_models(tmp_path)["m"]
    (folder / "config.json").write_text("{}")
    with pytest.raises(CatalogError, match=r"set revision .*m/model.yaml"):
        load_models(tmp_path)["m"].pinned()
    (folder / "model.yaml").write_text("{dtype: float16, licence: MIT, load_format: hub}\n")
    with pytest.raises(CatalogError, match="needs hub_repo"):
        load_models(tmp_path)["m"]


def test_a_broken_entry_is_left_out_by_those_who_do_not_need_it(tmp_path, monkeypatch):
    shutil.copytree(get_model("opt-125m").config.parent, tmp_path / "opt-125m")
    write_text(tmp_path / "broken" / "model.yaml", "dtype: int3\n")
    monkeypatch.setattr(gpus_and_models, "load_models", lambda: load_models(tmp_path))
    assert list(readable_models()) == ["opt-125m"]


(ENTRY,) = blocks(recipe("A GPU"), "yaml")


@pytest.fixture
def catalogue(tmp_path, monkeypatch):
    path = tmp_path / "gpus.yaml"
    path.write_text(GPUS.read_text(encoding="utf-8") + "\n" + ENTRY, encoding="utf-8")
    monkeypatch.setenv("KVSWEEP_GPUS", str(path))
    return path


def test_an_entry_is_a_gpu(catalogue, capsys):
    name = ENTRY.partition(":")[0]
    assert name not in load_gpus(GPUS)
    gpu = load_gpus()[name]
    assert gpu.is_called("NVIDIA RTX 6000 Ada Generation")
    assert resolve(gpu.aliases[0]) == (gpu,)
    options = ["--block-size", "16", "--gpu-memory-utilization", "0.9", "--max-model-len", "8192"]
    assert kv_capacity.main(["--model", "llama-3.1-8b-instruct", "--gpu", name, *options]) == 0
    assert f"on 1 x {name}," in capsys.readouterr().out
