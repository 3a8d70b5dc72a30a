"""Capacity against worked numbers, properties, and figures that others published (source: published)."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.catalog import get_gpu, get_model
from workflow_scripts.model_facts import model_facts, read_model_facts
from workflow_scripts.prepare.capacity import explain_observed, main, predict_capacity
from workflow_scripts.prepare.memory import GIB, Batch, CapacityError, EngineSettings, Term, capture_sizes, split_layers

LLAMA_8B = read_model_facts(get_model("llama-3.1-8b-instruct").config)
QWEN2_7B = read_model_facts(get_model("qwen2-7b").config)
H100 = get_gpu("h100-sxm")
OPT_125M = read_model_facts(get_model("opt-125m").config)
LLAMA_2_7B = model_facts(
    {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
        "torch_dtype": "float16",
    }
)
QWEN3_14B = model_facts(
    {
        "model_type": "qwen3",
        "num_hidden_layers": 40,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "torch_dtype": "bfloat16",
    }
)


def kv_cache_gib(terms):
    return terms["available_kv_cache"].value / GIB


# Start-ups of vLLM that others published: what was started, where, and the GiB left for the KV cache. A100 with
# 0.10.1.1: logs of dennislee22/vLLM-benchmarking. MI300X: AUGMXNT/MI300-testing, blocks of 16 tokens of 65,536 bytes.
# H100: the accuracy report of llm-d-incubation/llm-d-planner. The last two: logs in notes on GitHub.
A100_LOG = {"max_model_len": 16384, "vllm_version": "0.10.1.1"}
H100_TABLE = {"max_model_len": 8192, "gpu_memory_utilization": 0.95}
PUBLISHED = {
    "one A100 80GB": (
        QWEN2_7B,
        "a100-pcie-80gb",
        A100_LOG | {"gpu_memory_utilization": 0.25, "sampler": "fused"},
        5.01,
    ),
    "two A100 80GB": (
        QWEN2_7B,
        "a100-pcie-80gb",
        A100_LOG | {"gpu_memory_utilization": 0.25, "sampler": "fused", "tensor_parallel_size": 2},
        12.02,
    ),
    "two A100 40GB without FlashInfer": (
        QWEN2_7B,
        "a100-pcie-40gb",
        A100_LOG | {"gpu_memory_utilization": 0.5, "tensor_parallel_size": 2},
        11.03,
    ),
    "eight MI300X": (
        LLAMA_2_7B,
        "mi300x",
        {"vllm_version": "0.6.4.dev9", "tensor_parallel_size": 8, "max_num_seqs": 256, "max_num_batched_tokens": 4096},
        167700 * 16 * 65536 / GIB,
    ),
    "H100, 0.19": (LLAMA_8B, "h100-sxm", H100_TABLE | {"vllm_version": "0.19.0"}, 58.11),
    "H100, 0.19, fp8": (
        replace(LLAMA_8B, quantization="fp8"),
        "h100-sxm",
        H100_TABLE | {"vllm_version": "0.19.0"},
        64.61,
    ),
    "H100, 0.19, larger vocabulary": (QWEN2_7B, "h100-sxm", H100_TABLE | {"vllm_version": "0.19.0"}, 58.53),
    "H100, 0.16 sorts": (QWEN3_14B, "h100-sxm", H100_TABLE | {"vllm_version": "0.16.0"}, 41.94),
    "H100, 0.17 does not": (QWEN3_14B, "h100-sxm", H100_TABLE | {"vllm_version": "0.17.0"}, 45.34),
    "H100, 0.18 loads more": (QWEN3_14B, "h100-sxm", H100_TABLE | {"vllm_version": "0.18.0"}, 45.23),
    "A100 80GB, 0.31": (LLAMA_8B, "a100-pcie-80gb", {"gpu_memory_utilization": 0.92, "vllm_version": "0.31.0"}, 56.21),
    "a 48 GB card, 0.22": (
        QWEN2_7B,
        "l40s",
        {"gpu_memory_utilization": 0.95, "max_model_len": 4096, "max_num_seqs": 128, "vllm_version": "0.22.0"},
        26.32,
    ),
}


@pytest.mark.parametrize("case", PUBLISHED)
def test_without_a_log_the_prediction_is_within_5_percent_of_published_logs(case):
    facts, gpu, settings, kv_gib = PUBLISHED[case]
    assert kv_cache_gib(predict_capacity(facts, get_gpu(gpu), EngineSettings(**settings))) == pytest.approx(
        kv_gib, rel=0.05
    )


@pytest.mark.parametrize("case", [case for case in PUBLISHED if case.startswith("H100")])
def test_where_device_memory_and_sampler_are_known_it_is_within_a_quarter_percent(case):
    facts, gpu, settings, kv_gib = PUBLISHED[case]
    terms = predict_capacity(facts, get_gpu(gpu), EngineSettings(**settings))
    assert kv_cache_gib(terms) == pytest.approx(kv_gib, rel=0.0025)


@pytest.mark.parametrize(
    ("facts", "settings", "weights_gib"),
    [
        (LLAMA_8B, {}, 14.99),
        (LLAMA_8B, {"tensor_parallel_size": 2}, 7.51),
        (LLAMA_8B, {"tensor_parallel_size": 4}, 3.77),
        (replace(LLAMA_8B, quantization="fp8"), {}, 8.49),
        (QWEN2_7B, {}, 14.29),
        (QWEN3_14B, {}, 27.52),
        (LLAMA_2_7B, {"tensor_parallel_size": 8}, 1.587),
    ],
)
def test_weights_are_those_of_published_logs(facts, settings, weights_gib):
    terms = predict_capacity(facts, H100, EngineSettings(**settings))
    assert terms["weights"].value / GIB == pytest.approx(weights_gib, abs=0.005)


@pytest.mark.parametrize(
    ("facts", "log", "settings", "tokens"),
    [
        (QWEN2_7B, {"available_kv_cache_gib": 5.01, "model_weights_gib": 14.2488, "cuda_graph_gib": 0.5}, {}, 93872),
        (QWEN2_7B, {"available_kv_cache_gib": 12.02}, {"tensor_parallel_size": 2}, 450192),
        (QWEN2_7B, {"available_kv_cache_gib": 11.03}, {"tensor_parallel_size": 2}, 412944),
        (LLAMA_8B, {"available_kv_cache_gib": 56.21}, {}, 460496),
        (LLAMA_8B, {"available_kv_cache_gib": 58.11}, {"kv_cache_dtype": "fp8"}, 952032),
    ],
)
def test_with_a_logs_kv_memory_tokens_match_the_engines_to_half_a_percent(facts, log, settings, tokens):
    terms = predict_capacity(facts, get_gpu("a100-pcie-80gb"), EngineSettings(**settings), log)
    assert terms["kv_cache_tokens"].value == pytest.approx(tokens, rel=0.005)
    assert terms["available_kv_cache"].how.startswith("log: available_kv_cache_gib")


def test_a_logs_weights_and_activation_take_the_place_of_predictions():
    settings = EngineSettings(gpu_memory_utilization=0.95, vllm_version="0.19.0")
    log = {"model_weights_gib": 14.99, "peak_activation_gib": 1.89, "available_kv_cache_gib": None}
    terms = predict_capacity(LLAMA_8B, H100, settings, log)
    assert (terms["weights"].how, terms["activation"].value) == ("log: model_weights_gib 14.99", round(1.89 * GIB))
    assert kv_cache_gib(terms) == pytest.approx(79.19 * 0.95 - 14.99 - 1.89 - 0.25, abs=0.01)


def test_graphs_come_off_the_budget_once():
    def graphs(log=None, **settings):
        return predict_capacity(LLAMA_8B, H100, EngineSettings(**settings), log)["cuda_graphs"]

    assert graphs().value > 0
    assert graphs({"cuda_graph_gib": 0.25}).value == GIB / 4
    # Since 0.21 the activation that a log reports holds the estimate of the graphs.
    assert graphs({"cuda_graph_gib": 0.25, "peak_activation_gib": 1.44}).value == 0
    assert graphs(enforce_eager=True).value == 0
    assert graphs(vllm_version="0.20.2").value == 0
    assert graphs({"cuda_graph_gib": 0.25}, vllm_version="0.20.2").value == 0


def test_worked_example():
    """opt-125m: 12 layers with 4 x 768^2 and 2 x 768 x 3072 parameters, and a table padded to 50,304 rows."""
    settings = EngineSettings(gpu_memory_utilization=0.5, max_model_len=2048, vllm_version="0.22.1", enforce_eager=True)
    terms = predict_capacity(OPT_125M, get_gpu("l4"), settings)
    layer = 4 * 768**2 + 2 * 768 * 3072 + 4 * 768 + (3072 + 768) + 4 * 768
    # The table of 73.7 MiB takes 74 MiB of the allocator's 2 MiB steps.
    assert terms["weights"].value == 2 * (12 * layer + 2050 * 768) + 74 * 2**20
    # 256 sequences: logits in two bytes and three copies in four, and two hidden states of 2048 tokens.
    assert terms["activation"].value == 256 * 50272 * (2 + 12) + 2 * 2048 * 768 * 2
    left = 23_656_923_136 // 2 - terms["weights"].value - terms["activation"].value - GIB // 4
    assert terms["available_kv_cache"].value == left
    assert terms["num_blocks"].value == left // (16 * 36864)
    assert terms["kv_cache_tokens"].value == terms["num_blocks"].value * 16
    assert terms["max_concurrency"].value == round(terms["num_blocks"].value / 128, 4)
    assert terms["feasible"].value is True


def test_more_ranks_than_kv_heads_keep_a_whole_head_each():
    def per_token(size):
        terms = predict_capacity(QWEN2_7B, get_gpu("h200"), EngineSettings(tensor_parallel_size=size))
        return terms["bytes_per_token"].value

    # 28 heads and 4 KV heads: 7 ranks are refused (below), 4 hold one each; 28 hold a copy of one each.
    assert per_token(1) == 4 * per_token(4) == 57344
    assert per_token(28) == per_token(4)


def test_pipeline_ranks_split_layers_and_the_fullest_binds():
    assert [rank.layers for rank in split_layers(32, 3)] == [11, 11, 10]
    settings = EngineSettings(pipeline_parallel_size=3, vllm_version="0.19.0")
    terms = predict_capacity(LLAMA_8B, H100, settings)
    whole = predict_capacity(LLAMA_8B, H100, EngineSettings(vllm_version="0.19.0"))
    assert terms["bytes_per_token"].value == 131072 * 11 / 32
    assert terms["num_blocks"].value > 3 * whole["num_blocks"].value
    # Two ranks hold 11 layers; the first has the vocabulary table, so less is left there than in the middle.
    assert terms["pipeline_rank"].value == 0


def test_the_sampler_runs_on_the_last_pipeline_rank_alone():
    small = replace(LLAMA_8B, layers=2, intermediate=64)
    settings = EngineSettings(pipeline_parallel_size=2, vllm_version="0.19.0")
    terms = predict_capacity(small, H100, settings)
    assert terms["pipeline_rank"].value == 1
    assert "logits" in terms["activation"].how


@given(
    low=st.floats(0.05, 1),
    high=st.floats(0.05, 1),
    block_size=st.sampled_from([16, 32, 64, 128]),
    tensor=st.sampled_from([1, 2, 4, 8]),
    seqs=st.integers(1, 1024),
)
def test_more_utilization_or_ranks_never_hold_less_and_more_sequences_never_more(low, high, block_size, tensor, seqs):
    def tokens(utilization, tensor, seqs):
        settings = EngineSettings(
            block_size=block_size,
            gpu_memory_utilization=utilization,
            tensor_parallel_size=tensor,
            max_num_seqs=seqs,
            max_num_batched_tokens=2048,
        )
        return predict_capacity(LLAMA_8B, H100, settings)["kv_cache_tokens"].value

    low, high = sorted((low, high))
    assert tokens(low, tensor, seqs) <= tokens(high, tensor, seqs)
    assert tokens(high, 1, seqs) <= tokens(high, tensor, seqs)
    assert tokens(high, tensor, 1024) <= tokens(high, tensor, seqs)


def test_weights_that_do_not_fit_leave_nothing():
    terms = predict_capacity(
        read_model_facts(get_model("llama-3-70b").config), H100, EngineSettings(max_model_len=4096)
    )
    assert terms["available_kv_cache"].value < 0
    assert terms["num_blocks"].value == terms["max_concurrency"].value == 0
    assert terms["feasible"].value is False


def test_a_cpu_has_the_cache_that_it_is_given():
    tiny = read_model_facts(get_model("tiny-llama-57m").config)
    settings = EngineSettings(block_size=32, max_model_len=1024, kv_cache_memory_bytes=2**30)
    terms = predict_capacity(tiny, get_gpu("cpu-1core"), settings)
    assert terms["num_blocks"].value == 2**30 // (32 * 16384)
    assert "weights" not in terms
    with pytest.raises(CapacityError, match=r"cpu-1core has no memory of its own.*--kv-cache-memory-bytes"):
        predict_capacity(tiny, get_gpu("cpu-1core"), replace(settings, kv_cache_memory_bytes=None))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tensor_parallel_size": 3}, "must divide the model's 28 attention heads"),
        ({"tensor_parallel_size": 7}, "must divide the model's 4 KV heads, or they it"),
        ({"pipeline_parallel_size": 29}, "must be at most the model's 28 layers"),
        ({"vllm_version": "latest"}, "'latest' is not a version"),
    ],
)
def test_settings_without_a_prediction_are_refused(settings, message):
    with pytest.raises(CapacityError, match=message):
        predict_capacity(QWEN2_7B, get_gpu("h200"), EngineSettings(**settings))


def test_capture_sizes_stop_at_what_a_batch_can_hold():
    assert capture_sizes(Batch(1, max_num_seqs=1, max_num_batched_tokens=2048)) == [1, 2]
    assert len(capture_sizes(Batch(1, max_num_seqs=256, max_num_batched_tokens=2048))) == 51
    assert capture_sizes(Batch(1, max_num_seqs=1024, max_num_batched_tokens=8192), limit=1024)[-1] == 1024


# --- blocks that were published for an L4 ----------------------------------------------------------------------------

PUBLISHED_ON_AN_L4 = [(0.5, 8788), (0.9, 17234)]


def l4_terms(**changes):
    settings = EngineSettings(gpu_memory_utilization=0.5, max_model_len=2048, vllm_version="0.22.1", **changes)
    return predict_capacity(OPT_125M, get_gpu("l4"), settings)


def test_published_blocks_of_an_l4_are_half_of_what_fits_and_imply_a_device_of_half_the_memory():
    terms = l4_terms(usage="offline")
    assert terms["num_blocks"].value / 8788 == pytest.approx(2.1, abs=0.05)
    found = explain_observed(terms, PUBLISHED_ON_AN_L4)
    assert found["implied_memory"].value / GIB == pytest.approx(11.60, abs=0.005)
    # The overhead, which comes out of the same two numbers, is what is predicted for this model: so is the block.
    assert found["implied_overhead"].value == pytest.approx(found["predicted_overhead"].value, rel=0.11)
    assert "Only blocks 1.90 times as large would fill it" in found["explanation"]


def test_blocks_of_the_predicted_device_and_of_twice_the_width_are_told_apart():
    terms = l4_terms()
    device, per_block = terms["device_memory"].value, terms["bytes_per_block"].value

    def blocks(utilization, size):
        return utilization, int((device * utilization - GIB) / size)

    same = explain_observed(terms, [blocks(0.5, per_block), blocks(0.9, per_block)])
    assert "The blocks are those of this GPU." in same["explanation"]
    assert same["implied_overhead"].value == pytest.approx(GIB, rel=1e-3)
    twice = explain_observed(
        terms, [blocks(0.5, 2 * per_block), blocks(0.7, 2 * per_block), blocks(0.9, 2 * per_block)]
    )
    assert "an element of 2 times the width" in twice["explanation"]


def test_one_utilization_or_no_profiling_explains_nothing():
    with pytest.raises(CapacityError, match="two utilizations"):
        explain_observed(l4_terms(), [(0.5, 8788), (0.5, 8790)])
    with pytest.raises(CapacityError, match="given size"):
        explain_observed(l4_terms(kv_cache_memory_bytes=2**30), PUBLISHED_ON_AN_L4)


# --- the command -----------------------------------------------------------------------------------------------------

REQUIRED = ["--block-size", "16", "--gpu-memory-utilization", "0.5", "--max-model-len", "2048"]


def test_the_command_prints_each_term_with_how_it_was_found(capsys):
    argv = ["--model", "opt-125m", "--gpu", "L4", "--vllm-version", "0.22.1", *REQUIRED]
    assert main([*argv, "--observed", "0.5=8788", "--observed", "0.9=17234"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["source"] == "predicted"
    assert report["bytes_per_block"] == {"value": 589824, "unit": "bytes", "how": "bytes_per_token x 16 tokens"}
    assert report["settings"]["max_num_batched_tokens"] == 2048
    assert report["observed"]["implied_memory"]["unit"] == "bytes"
    terms = [v for v in report.values() if isinstance(v, dict) and "how" in v]
    assert len(terms) == 14
    assert all(Term(**term).how for term in terms)


def test_the_command_reads_a_folder_and_a_log(tmp_path, capsys):
    (tmp_path / "config.json").write_text(get_model("qwen2-7b").config.read_text())
    log = tmp_path / "log.json"
    log.write_text(json.dumps({"available_kv_cache_gib": 5.01, "engine_version": "0.10.1.1", "num_gpu_blocks": 5867}))
    assert main(["--model", str(tmp_path), "--gpu", "a100-sxm-80gb", "--from-log", str(log), *REQUIRED]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["kv_cache_tokens"]["value"] == pytest.approx(93872, rel=0.005)
    assert report["settings"]["vllm_version"] == "0.10.1.1"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--model", "gpt-5"], "unknown model 'gpt-5'; allowed: llama-3"),
        (["--gpu", "A100 PCIe"], "may be any of a100-pcie-40gb, a100-pcie-80gb"),
        (["--gpu", "H300"], "unknown GPU 'H300'; allowed: h200"),
        (["--quantization", "int3"], "quantization 'int3' is not supported"),
        (["--kv-cache-dtype", "int3"], "unknown KV cache dtype 'int3'; allowed: auto"),
        (["--from-log", "none.json"], "none.json: No such file"),
        (["--from-log", "."], ".: Is a directory"),
        (["--observed", "0.5=8788"], "two utilizations"),
    ],
)
def test_bad_input_ends_with_2_and_one_message(change, message, capsys):
    assert main(["--model", "opt-125m", "--gpu", "l4", *REQUIRED, *change]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("text", ["{", "[]", '{"num_gpu_blocks": 3}'])
def test_a_log_that_says_nothing_of_memory_is_refused(text, tmp_path, capsys):
    log = tmp_path / "log.json"
    log.write_text(text)
    assert main(["--model", "opt-125m", "--gpu", "l4", "--from-log", str(log), *REQUIRED]) == 2
    assert "log.json: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", ["--block-size=0", "--gpu-memory-utilization=1.2", "--observed=half", "--observed=2=x"]
)
def test_values_out_of_range_are_refused(option, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--model", "opt-125m", "--gpu", "l4", *REQUIRED, option])
    assert "is not" in capsys.readouterr().err
