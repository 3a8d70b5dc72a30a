"""Predictions for every cell of a study, compared with hand-computed numbers and with `engines.vllm.capacity`."""

from dataclasses import asdict, replace

import pytest

from tests.unit.made_studies import fixed, made_study
from workflow_scripts.catalog.gpus_and_models import get_gpu, get_model
from workflow_scripts.engines.capacity import TERMS
from workflow_scripts.engines.vllm import predictions as vllm_predictions
from workflow_scripts.engines.vllm.capacity import predict_capacity
from workflow_scripts.engines.vllm.knobs import VllmKnobs
from workflow_scripts.engines.vllm.memory import GIB, EngineSettings
from workflow_scripts.engines.vllm.predictions import engine_settings, vllm_capacity
from workflow_scripts.physics.model_facts import read_model_facts
from workflow_scripts.predict import predictions
from workflow_scripts.predict.predictions import predict_study
from workflow_scripts.study.grid import Cell, expand

LLAMA_8B = read_model_facts(get_model("llama-3.1-8b-instruct").config)
TINY = read_model_facts(get_model("tiny-llama-57m").config, "float32")
FIXED = fixed(4, 8, 8)


def cells(*sweeps, **more):
    named = [{"name": f"sweep-{i}", **sweep} for i, sweep in enumerate(sweeps)]
    return expand(made_study(*named, **{"workloads": {"load": FIXED, "other": FIXED}} | more))


def predict(gpu="h100-sxm", facts=LLAMA_8B, **knobs):
    return vllm_capacity(VllmKnobs(**knobs), get_gpu(gpu), facts).line()


def test_a_record_holds_the_terms_with_how_each_was_found_and_the_engines_own_defaults():
    given = {"block_size": 32, "gpu_memory_utilization": 0.9, "max_model_len": 4096, "max_num_seqs": 64}
    terms = predict_capacity(LLAMA_8B, get_gpu("h100-sxm"), EngineSettings(**given, usage="offline"))
    record = predict(**given)
    assert {field: record[field] for field in TERMS} == {field: terms[term].value for field, term in TERMS.items()}
    assert record["how"] == {field: terms[term].how for field, term in TERMS.items()}
    assert record["num_blocks"] == record["kv_cache_bytes"] // record["bytes_per_block"] > 10_000
    assert (record["source"], record["block_size"], record["gpu_memory_utilization"]) == ("predicted", 32, 0.9)
    assert (record["infeasible"], record["unknown"]) == (None, None)
    record = predict()
    assert predict(max_model_len=131072)["infeasible"] is None  # as long as the model reads
    assert (record["block_size"], record["gpu_memory_utilization"]) == (16, 0.92)
    assert record["vllm_version"] == EngineSettings.vllm_version
    assert record["max_concurrency"] == pytest.approx(record["num_blocks"] / (131072 / 16), abs=1e-4)
    assert predict("cpu-all", TINY, cpu_kv_cache_gib=1)["block_size"] == 128


def test_a_given_size_of_the_cache_and_shared_tokens_are_predicted_as_the_capacity_command_does():
    given = predict(kv_cache_memory_bytes=2**30, max_model_len=4096)
    assert (given["kv_cache_bytes"], given["gpu_memory_utilization"]) == (2**30, None)
    assert given["num_blocks"] == 2**30 // given["bytes_per_block"]
    assert predict("cpu-all", TINY, kv_cache_memory_bytes=2**30)["kv_cache_bytes"] == 2**30
    assert "must divide" in predict(decode_context_parallel_size=2)["infeasible"]


def test_states_are_counted_in_their_own_type():
    def records(gpu, *types):
        knobs = {"block_size": 32, "kv_cache_memory_bytes": GIB, "mamba_ssm_cache_dtype": list(types)}
        return predict_study(cells({"gpu": gpu, "model": "states-8b", "knobs": knobs}))

    # 8192 x 3 inputs and 4096 x 128 elements of a state fill 9, or 17, steps of 32 tokens of 4096 bytes in 8 layers.
    assert [record.value("bytes_per_block") for record in records("h200", "auto", "bfloat16", "float32")] == [
        steps * 32 * 4096 * 8 for steps in (9, 9, 17)
    ]
    assert [record.value("num_blocks") for record in records("cpu-all", "float32")] == [None]


PASSED_ON = {"kv_cache_dtype": "fp8", "tensor_parallel_size": 2, "pipeline_parallel_size": 2, "enforce_eager": True}
PASSED_ON |= {"max_num_batched_tokens": 32768, "max_num_seqs": 1, "gpu_memory_utilization": 0.5}


def test_every_knob_that_takes_memory_or_gives_it_is_passed_on():
    asked = engine_settings(VllmKnobs(**PASSED_ON), get_gpu("h100-sxm"))
    assert asdict(asked).items() >= PASSED_ON.items()
    for knob, value in PASSED_ON.items():
        assert predict(**{knob: value})["num_blocks"] != predict()["num_blocks"], knob


def test_blocks_that_the_study_gives_replace_those_that_fit():
    record = predict(num_gpu_blocks_override=1025, max_model_len=4096)
    assert (record["num_blocks"], record["kv_cache_tokens"]) == (1025, 1025 * 16)
    assert record["kv_cache_bytes"] == 1025 * record["bytes_per_block"]
    assert (record["gpu_memory_utilization"], record["infeasible"]) == (None, None)
    # 4,096 tokens take 256 blocks, and the engine keeps one.
    assert predict(num_gpu_blocks_override=257, max_model_len=4096)["infeasible"] is None
    assert "are 256 blocks, too few" in predict(num_gpu_blocks_override=256, max_model_len=4096)["infeasible"]
    on_a_cpu = predict("cpu-all", TINY, num_gpu_blocks_override=65, block_size=32, max_model_len=256)
    assert (on_a_cpu["num_blocks"], on_a_cpu["unknown"]) == (65, None)


def test_a_cell_in_another_environment_is_predicted_by_the_rules_of_its_version():
    place = ("h100-sxm", "vllm", "llama-3.1-8b-instruct", "w", VllmKnobs(max_num_seqs=1024, max_model_len=4096), ("s",))
    of_versions = (Cell(*place, name) for name in ("", "vllm-0.25.1", "vllm-0.16.0"))
    now, same, old = (capacity.line() for capacity in predict_study(of_versions))
    assert same == {**now, "vllm_version": "0.25.1", "cell_id": same["cell_id"]}
    # Before 0.20 the engine takes 0.9 of the memory, before 0.21 no graphs off it, before 0.17 it sorts the logits.
    assert (old["gpu_memory_utilization"], old["cuda_graphs_bytes"]) == (0.9, 0)
    assert old["activation_bytes"] > now["activation_bytes"]


V100, FP8, TRITON = "v100-sxm2-32gb", {"kv_cache_dtype": "fp8"}, {"attention_backend": "TRITON_ATTN"}
HALF = read_model_facts(get_model("llama-3.1-8b-instruct").config, "float16")


@pytest.mark.parametrize(
    ("gpu", "facts", "knobs", "refused"),
    [
        ("h100-sxm", LLAMA_8B, {"block_size": 8}, "blocks of 8 tokens on cuda: only multiples of 16"),
        ("mi300x", LLAMA_8B, {"block_size": 24}, "blocks of 24 tokens on rocm: only multiples of 16"),
        ("h100-sxm", LLAMA_8B, {"max_model_len": 131073}, "131073 is beyond the model's 131072 positions"),
        ("h100-sxm", LLAMA_8B, {"tensor_parallel_size": 3}, "must divide the model's 32 attention heads"),
        ("h100-sxm", LLAMA_8B, {"data_parallel_size": 2}, "needs engine vllm-serve"),
        ("l4", LLAMA_8B, {"gpu_memory_utilization": 0.5}, "weights and overhead take 1"),
        ("l4", LLAMA_8B, {"max_model_len": 131072}, "blocks, too few: a request of 131072 tokens fits"),
        (V100, LLAMA_8B, {}, "bfloat16 needs compute capability 8.0, and v100-sxm2-32gb has 7.0: set dtype"),
        (V100, HALF, {"kv_cache_dtype": "bfloat16"}, "set kv_cache_dtype: float16"),
        (V100, HALF, {"kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype fp8_e5m2"),
        ("a10", LLAMA_8B, FP8 | TRITON, "TRITON_ATTN"),
        (V100, replace(HALF, quantization="fp8"), {}, "fp8 needs compute capability 7.5"),
        (V100, HALF, {"attention_backend": "FLASH_ATTN"}, "FLASH_ATTN needs compute capability 8.0"),
        (V100, HALF, {}, None),
        (V100, TINY, {}, None),
        ("t4", replace(HALF, quantization="fp8"), {}, None),
        ("a10", LLAMA_8B, FP8 | {"attention_backend": "FLASHINFER"}, None),
        ("a100-sxm-40gb", LLAMA_8B, FP8, None),
        ("l4", LLAMA_8B, FP8 | TRITON, None),
        ("mi300x", LLAMA_8B, FP8, None),
    ],
)
def test_what_the_engine_would_refuse_on_a_gpu_is_infeasible_with_the_reason(gpu, facts, knobs, refused):
    record = predict(gpu, facts, **{"max_model_len": 2048} | knobs)
    assert refused in record["infeasible"] if refused else record["infeasible"] is None
    assert refused or record["num_blocks"] > 128


def test_every_cell_with_blocks_has_one_record_in_order_and_static_batches_have_none():
    llama, pages = {"model": "llama-3.1-8b-instruct"}, {"page_size": 32, "num_blocks": 100, "max_batch_tokens": 512}
    knobs = {"block_size": [16, 32], "quantization": "fp8"}
    grid = cells(
        llama | {"gpu": ["h200", "l40s"], "workload": ["load", "other"], "knobs": knobs},
        llama | {"gpu": "h200", "engine": "hf-static", "knobs": {"batch_size": 4}},
        llama | {"gpu": "h200", "engine": "hf-continuous", "knobs": pages},
    )
    records = [capacity.line() for capacity in predict_study(grid)]
    assert [r["cell_id"] for r in records] == [cell.id for cell in grid if cell.engine != "hf-static"]
    by_workload = {(r["cell_id"].split("/")[3]): r["num_blocks"] for r in records if "l40s" in r["cell_id"]}
    assert by_workload["load"] == by_workload["other"]
    assert records[0]["weights_bytes"] == pytest.approx(8.49 * GIB, rel=0.001)
    sizes = {"bytes_per_token": 131072, "bytes_per_block": 32 * 131072, "kv_cache_bytes": 100 * 32 * 131072}
    sizes |= {"num_blocks": 100, "kv_cache_tokens": 3200, "block_size": 32}
    assert records[-1].items() >= (sizes | dict.fromkeys(("max_concurrency", "weights_bytes", "vllm_version"))).items()


def test_what_the_paged_cache_of_transformers_does_not_hold_is_infeasible():
    models = ["llama-3.1-8b-instruct", "experts-8b", "windows-8b", "gpt-oss-20b", "latent-8b", "states-8b"]
    knobs = {"page_size": 32, "num_blocks": 100, "max_batch_tokens": 512}
    grid = cells({"gpu": "h200", "engine": "hf-continuous", "model": models, "knobs": knobs})
    refused = {record.cell_id.split("/")[2]: record.infeasible for record in predict_study(grid)}
    assert [model for model in models if refused[model] is None] == models[:4]
    assert "(deepseek_v2)" in refused["latent-8b"]
    assert "(qwen3_5_text)" in refused["states-8b"]


@pytest.mark.parametrize(("native", "bytes_per_token"), [(["float32"], 16384), (["float32", "bfloat16"], 8192)])
def test_a_model_in_the_dtype_that_this_host_has_and_not_that_of_its_config(monkeypatch, native, bytes_per_token):
    monkeypatch.setattr(predictions, "cpu_here", lambda gpu: {"native_dtypes": native})
    knobs = {"block_size": 32, "cpu_kv_cache_gib": 1}
    (record,) = predict_study(cells({"gpu": "cpu-all", "model": "tiny-llama-57m", "knobs": knobs}))
    assert (record.value("bytes_per_token"), record.dtype) == (bytes_per_token, native[-1])


def test_a_draft_model_and_weights_of_an_unknown_kind_leave_the_capacity_unknown():
    by = {"speculative_method": "draft_model", "speculative_model": "opt-125m"}
    drafted = predict(**by, num_speculative_tokens=4)
    assert "draft model" in drafted["unknown"]
    assert drafted["num_blocks"] is None
    assert predict(**by, num_speculative_tokens=4, block_size=8)["infeasible"] is not None
    own = {"facts": replace(LLAMA_8B, drafting_layers=1), "speculative_method": "mtp", "num_speculative_tokens": 1}
    assert "layers that draft" in predict(**own)["unknown"]
    assert predict(**own, block_size=16, kv_cache_memory_bytes=33 * 2**26)["num_blocks"] == 1024  # of 2 ** 16 per layer
    assert predict(**by, num_speculative_tokens=0)["num_blocks"] == predict()["num_blocks"]
    # Steps of whole sequences with their drafts are captured too.
    looked_up = predict(speculative_method="ngram", num_speculative_tokens=4)
    assert 0.99 < looked_up["num_blocks"] / predict()["num_blocks"] < 1
    asked = {"gpu": "h200", "model": "llama-3.1-8b-instruct", "knobs": {"quantization": "compressed-tensors"}}
    (record,) = predict_study(cells(asked))
    assert record.value("num_blocks") is None
    assert "'compressed-tensors' is not supported" in record.unknown
    assert record.line()["how"] == {}


def test_the_layers_of_a_draft_model_take_blocks_of_a_cache_of_given_size(monkeypatch):
    # vLLM 0.32 with an EAGLE draft of one such layer has 1,820 blocks of 9 x 64 KiB in 1 GiB.
    own = replace(TINY, stack=TINY.stack[:1])
    monkeypatch.setattr(vllm_predictions, "read_model_facts", lambda *_: own)
    eagle = {"speculative_method": "eagle", "speculative_model": "tiny-llama-57m", "num_speculative_tokens": 3}
    given = {"block_size": 32, "cpu_kv_cache_gib": 1}
    drafted = predict("cpu-all", TINY, **given, **eagle)
    assert (drafted["num_blocks"], drafted["bytes_per_block"]) == (1820, 9 * 65536)
    assert predict("cpu-all", TINY, **given, **eagle | {"num_speculative_tokens": 0})["num_blocks"] == 2048
    refused = predict("cpu-all", TINY, **given, **eagle, synthetic_acceptance_length=2.0)["infeasible"]
    assert "synthetic_acceptance_length needs a GPU" in refused
