"""Capacity compared with hand-computed numbers and published figures (source: published)."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.unit.made_models import shape
from workflow_scripts.catalog.gpus_and_models import get_gpu, get_model
from workflow_scripts.engines.vllm.capacity import main, predict_capacity
from workflow_scripts.engines.vllm.memory import GIB, CapacityError, EngineSettings, batch_of, split_layers
from workflow_scripts.physics.layers import Mlp
from workflow_scripts.physics.model_facts import model_facts, read_model_facts

LLAMA_8B = read_model_facts(get_model("llama-3.1-8b-instruct").config)


def llama_8b(**changes):
    """Llama-3.1-8B with another config."""
    return model_facts(json.loads(get_model("llama-3.1-8b-instruct").config.read_text()) | changes)


GPT_OSS_20B = read_model_facts(get_model("gpt-oss-20b").config, "bfloat16")
QWEN2_7B = read_model_facts(get_model("qwen2-7b").config)
H100 = get_gpu("h100-sxm")
OPT_125M = read_model_facts(get_model("opt-125m").config)
LLAMA_2_7B = model_facts(
    shape("llama", layers=32, hidden=4096, inner=11008, heads=32, vocab=32000, positions=4096, torch_dtype="float16")
)
QWEN3_14B = model_facts(
    shape("qwen3", layers=40, hidden=5120, inner=17408, heads=40, kv_heads=8, head_dim=128)
    | shape(vocab=151936, positions=40960, torch_dtype="bfloat16")
)


def terms_of(facts=LLAMA_8B, gpu="h100-sxm", log_gib=None, **settings):
    return predict_capacity(facts, get_gpu(gpu), EngineSettings(**settings), log_gib)


def value(name, *place, **settings):
    return terms_of(*place, **settings)[name].value


# Start-ups of vLLM that others published: what was started, where, and the GiB left for the KV cache. A100 with
# 0.10.1.1: logs of dennislee22/vLLM-benchmarking. H100: the accuracy report of llm-d-incubation/llm-d-planner. The last
# three: logs in notes on GitHub.
A100_LOG, TWO = {"max_model_len": 16384, "vllm_version": "0.10.1.1"}, {"tensor_parallel_size": 2}
A_QUARTER = A100_LOG | {"gpu_memory_utilization": 0.25}
H100_TABLE = {"max_model_len": 8192, "gpu_memory_utilization": 0.95}
L40S = {"gpu_memory_utilization": 0.95, "max_model_len": 4096, "max_num_seqs": 128, "vllm_version": "0.22.0"}
GPT_OSS = {"gpu_memory_utilization": 0.65, "max_model_len": 131072, "vllm_version": "0.19.0"}
PUBLISHED = {
    "one A100 80GB": (QWEN2_7B, "a100-pcie-80gb", A_QUARTER, 5.01),
    "two A100 80GB": (QWEN2_7B, "a100-pcie-80gb", A_QUARTER | TWO, 12.02),
    "H100, 0.19": (LLAMA_8B, "h100-sxm", H100_TABLE | {"vllm_version": "0.19.0"}, 58.11),
    "H100, 0.16 sorts": (QWEN3_14B, "h100-sxm", H100_TABLE | {"vllm_version": "0.16.0"}, 41.94),
    "H100, 0.18 loads more": (QWEN3_14B, "h100-sxm", H100_TABLE | {"vllm_version": "0.18.0"}, 45.23),
    "A100 80GB, 0.31": (LLAMA_8B, "a100-pcie-80gb", {"gpu_memory_utilization": 0.92, "vllm_version": "0.31.0"}, 56.21),
    "a 48 GB card, 0.22": (QWEN2_7B, "l40s", L40S, 26.32),
    "gpt-oss-20b on an A100 80GB, 0.19": (GPT_OSS_20B, "a100-sxm-80gb", GPT_OSS, 36.56),
}
# The accuracy table of docs/capacity.md, for some of them: predicted and published GiB, and the error in per cent.
PAGE = (Path(__file__).parents[4] / "docs" / "capacity.md").read_text(encoding="utf-8").splitlines()
CELLS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE]
IN_TABLE = {name: list(map(float, cells)) for name, *cells in CELLS if name in PUBLISHED}


@pytest.mark.parametrize("case", PUBLISHED)
def test_the_prediction_is_near_published_logs_and_in_the_table_of_the_page(case):
    facts, gpu, settings, kv_gib = PUBLISHED[case]
    found = value("available_kv_cache", facts, gpu, **settings) / GIB
    # The tables for the H100 are of a known device memory.
    assert found == pytest.approx(kv_gib, rel=0.0025 if case.startswith("H100") else 0.05)
    row = [found, kv_gib, 100 * (found / kv_gib - 1)]
    assert IN_TABLE.get(case, row) == pytest.approx(row, abs=0.0051)


LOGGED = [(LLAMA_8B, 1, 14.99), (LLAMA_8B, 2, 7.51), (LLAMA_8B, 4, 3.77), (LLAMA_2_7B, 8, 1.587)]
LOGGED += [(replace(LLAMA_8B, quantization="fp8"), 1, 8.49), (QWEN2_7B, 1, 14.29), (QWEN3_14B, 1, 27.52)]


@pytest.mark.parametrize(("facts", "ranks", "weights_gib"), LOGGED)
def test_weights_are_those_of_published_logs(facts, ranks, weights_gib):
    assert value("weights", facts, tensor_parallel_size=ranks) / GIB == pytest.approx(weights_gib, abs=0.005)


def test_experts_in_mxfp4_are_padded_before_hopper():
    facts = read_model_facts(get_model("gpt-oss-120b").config, "bfloat16")
    settings = EngineSettings(tensor_parallel_size=4, gpu_memory_utilization=0.8, max_model_len=16384)
    older = replace(settings, vllm_version="0.10.1.1")
    # https://github.com/dennislee22/vLLM-benchmarking: 2,640,144 tokens.
    tokens = predict_capacity(facts, get_gpu("a100-sxm-80gb"), older)["kv_cache_tokens"].value
    assert tokens == pytest.approx(2640144, rel=0.005)
    on = {
        gpu: predict_capacity(facts, get_gpu(gpu), settings)["weights"].value for gpu in ("a100-sxm-80gb", "h100-sxm")
    }
    experts = 36 * 128 * 3 * 2880 * 2880 / 4 * 4.25 / 8
    assert on["a100-sxm-80gb"] - on["h100-sxm"] == pytest.approx(experts * (768 / 720 * 3072 / 2880 - 1), rel=0.05)


def test_worked_example():
    """opt-125m: 12 layers with 4 x 768^2 and 2 x 768 x 3072 parameters, and a table padded to 50,304 rows."""
    terms = {name: term.value for name, term in l4_terms(enforce_eager=True).items()}
    layer = 4 * 768**2 + 2 * 768 * 3072 + 4 * 768 + (3072 + 768) + 4 * 768
    # The table of 73.7 MiB takes 74 MiB of the allocator's 2 MiB steps.
    assert terms["weights"] == 2 * (12 * layer + 2050 * 768) + 74 * 2**20
    # 256 sequences: logits in two bytes and three copies in four, and two hidden states of 2048 tokens.
    assert terms["activation"] == 256 * 50272 * (2 + 12) + 2 * 2048 * 768 * 2
    left = 23_656_923_136 // 2 - terms["weights"] - terms["activation"] - GIB // 4
    blocks = left // (16 * 36864)
    assert (terms["available_kv_cache"], terms["num_blocks"], terms["kv_cache_tokens"]) == (left, blocks, blocks * 16)
    assert (terms["max_concurrency"], terms["feasible"]) == (round(blocks / 128, 4), True)


def test_graphs_are_counted_and_come_off_the_budget_once():
    # Sizes 1, 2, 4, 8, 16, 24 and 32 in 33 pieces of 0.26 MiB; the first five are also whole, 32 layers of 0.1 MiB.
    assert value("cuda_graphs", max_num_seqs=16) == round((7 * 33 * 0.26 + 5 * 32 * 0.1) * 2**20)

    graphs, older = partial(value, "cuda_graphs"), {"vllm_version": "0.20.2"}
    assert graphs() > 0
    assert graphs(enforce_eager=True) == graphs(**older) == 0


@pytest.mark.parametrize(("version", "copies"), [("0.16.9", 9), ("0.17.0", 3)])
def test_a_sampler_holds_logits_and_their_copies(version, copies):
    # 1024 sequences over 128,256 tokens in two bytes, each copy in four; and two hidden states of 8192 tokens.
    found = value("activation", vllm_version=version)
    assert found == 1024 * 128256 * (2 + 4 * copies) + 2 * 8192 * 4096 * 2


def test_an_mlp_is_the_peak_where_the_sampler_copies_nothing():
    # A gated MLP of 14,336 and four hidden states of 4096, for 8192 tokens in two bytes; half of the MLP on each rank.
    assert value("activation") == 8192 * (3 * 14336 + 4 * 4096) * 2
    assert value("activation", tensor_parallel_size=2) == 8192 * (3 * 14336 // 2 + 4 * 4096) * 2
    plain = tuple(replace(layer, feed_forward=(Mlp(14336, gated=False),)) for layer in LLAMA_8B.stack)
    assert value("activation", replace(LLAMA_8B, stack=plain)) == 8192 * (2 * 14336 + 4 * 4096) * 2


def batch(gpu="l4", memory_gib=None, **settings):
    card = get_gpu(gpu) if memory_gib is None else H100.model_copy(update={"usable_memory_bytes": memory_gib * GIB})
    found = batch_of(EngineSettings(**settings), LLAMA_8B, card)
    return found.max_model_len, found.max_num_seqs, found.max_num_batched_tokens


@pytest.mark.parametrize("usage", ["server", "offline"])
def test_default_batches_grow_with_memory_and_ranks(usage):
    twice = 1 + (usage == "offline")
    of_gpus = {"h200": (1024, 8192 * twice), "a100-pcie-80gb": (256, 2048 * twice**2), "l4": (256, 2048 * twice**2)}
    of_gpus |= {"cpu-all": (128 * twice, 2048 * twice)}
    assert {gpu: batch(gpu, max_model_len=4096, usage=usage)[1:] for gpu in of_gpus} == of_gpus
    for ranks in ({"tensor_parallel_size": 3}, {"pipeline_parallel_size": 3}):
        asked = batch("cpu-all", max_model_len=4096, usage=usage, **ranks)
        assert asked[1:] == (3 * 128 * twice, 3 * 2048 * twice)


def test_default_batches_change_with_the_memory_and_are_no_larger_than_their_tokens():
    for gib, seqs, tokens in ((69.9, 256, 2048), (70, 1024, 8192), (160, 1024, 16384)):
        assert batch(memory_gib=gib, max_model_len=4096) == (4096, seqs, tokens)
    assert batch() == (131072, 256, 2048)
    assert batch(max_model_len=4) == (4, 256, 1024)
    assert batch(max_num_seqs=2, max_model_len=100) == (100, 2, 200)
    assert batch(max_num_batched_tokens=128) == (131072, 128, 128)
    assert batch(max_num_batched_tokens=128, max_num_seqs=200) == (131072, 200, 128)


def test_more_ranks_than_kv_heads_keep_a_whole_head_each():
    # 28 heads and 4 KV heads: 7 ranks are refused (below), 4 hold one each; 28 hold a copy of one each.
    found = [value("bytes_per_token", QWEN2_7B, "h200", tensor_parallel_size=size) for size in (1, 4, 28)]
    assert found == [57344, 57344 / 4, 57344 / 4]
    few = llama_8b(num_key_value_heads=2)
    assert value("bytes_per_token", few, tensor_parallel_size=4) == 131072 / 8


def test_a_layer_that_drafts_keeps_tokens_on_the_last_rank():
    terms = terms_of(LLAMA_8B, log_gib=4.0, num_speculative_tokens=2, draft_layers=1)
    assert terms["bytes_per_token"].value == 33 * 4096 == terms["bytes_per_block"].value / 16


def test_an_encoder_of_pictures_is_part_of_the_weights():
    seeing = replace(LLAMA_8B, encoder_parameters=10**9)
    for ranks in (1, 2):
        alone, both = (value("weights", facts, tensor_parallel_size=ranks) for facts in (LLAMA_8B, seeing))
        assert both - alone == 2 * 10**9 / ranks


def test_pipeline_ranks_split_layers_and_the_last_one_samples():
    assert [rank.layers for rank in split_layers(32, 3)] == [11, 11, 10]
    terms = terms_of(pipeline_parallel_size=3, vllm_version="0.19.0")
    assert terms["bytes_per_token"].value == 131072 * 11 / 32
    assert terms["num_blocks"].value > 3 * value("num_blocks", vllm_version="0.19.0")
    # Two ranks hold 11 layers; the first has the vocabulary table, so less is left there than in the middle.
    assert terms["pipeline_rank"].value == 0
    small = llama_8b(num_hidden_layers=2, intermediate_size=64)
    terms = terms_of(small, pipeline_parallel_size=2, vllm_version="0.19.0")
    assert terms["pipeline_rank"].value == 1
    assert "logits" in terms["activation"].how


REFUSED = {"28 attention heads": {"tensor_parallel_size": 3}, "4 KV heads": {"tensor_parallel_size": 7}}
REFUSED |= {"28 layers": {"pipeline_parallel_size": 29}, "'latest' is not": {"vllm_version": "latest"}}
REFUSED |= {"cpu-1core has no memory.*--kv-cache-memory-bytes": {"gpu": "cpu-1core"}}


@pytest.mark.parametrize("message", REFUSED)
def test_settings_without_a_prediction_are_refused(message):
    with pytest.raises(CapacityError, match=message):
        terms_of(QWEN2_7B, **REFUSED[message])


def l4_terms(**changes):
    settings = {"gpu_memory_utilization": 0.5, "max_model_len": 2048, "vllm_version": "0.22.1"}
    return terms_of(OPT_125M, "l4", **settings, **changes)


# --- the command -----------------------------------------------------------------------------------------------------

OF_70B = ["--block-size", "16", "--gpu-memory-utilization", "0.9", "--max-model-len", "8192"]
REQUIRED = ["--block-size", "16", "--gpu-memory-utilization", "0.5", "--max-model-len", "2048"]


def printed(capsys, *argv):
    """What the command prints for Llama-3-70B on H100s without `--json`, and the numbers of each line by its words."""
    assert main(["--model", "llama-3-70b", "--gpu", "h100-sxm", *OF_70B, *argv]) == 0
    out = capsys.readouterr().out
    rows = re.findall(
        r"^[+= ]*([A-Za-z][A-Za-z ]*?) {2,}((?:-?[\d,]+\.?\d*(?: MiB| GiB| B)? {2,})+)", out, re.MULTILINE
    )
    return out, {
        words: [float(number) for number in re.findall(r"-?\d+\.?\d*", of.replace(",", ""))] for words, of in rows
    }


def test_the_cache_of_a_token_a_request_and_a_batch_is_printed(capsys):
    """5 MiB for a block of 16 tokens, so 1.25 GiB for 4,096 tokens."""
    rows = printed(capsys, "--max-model-len", "4096", "--batch", "32")[1]
    sizes = [rows[name] for name in ("KV of a token", "KV of a request", "KV of the batch", "a KV block")]
    assert sizes == [[5 * 2**20 / 16], [1.25], [40.0], [5.0]]


def test_people_read_how_much_memory_a_model_lacks(capsys):
    out, rows = printed(capsys)
    lacking = -rows["KV cache"][0]
    assert lacking > 60
    assert f"{lacking:.2f} GiB" in out
    assert "lacks" not in printed(capsys, "--tensor-parallel-size", "2")[0]


def report_of(capsys, *argv):
    assert main(["--model", "opt-125m", "--gpu", "l4", "--json", *argv]) == 0
    return json.loads(capsys.readouterr().out)


def test_blocks_that_are_given_come_before_the_memory_and_a_version_before_that_of_the_log(tmp_path, capsys):
    report = report_of(capsys, *REQUIRED, "--num-gpu-blocks-override", "100", "--kv-cache-memory-bytes", str(2**40))
    assert report["num_blocks"]["value"] == 100
    log = tmp_path / "log.json"
    log.write_text(json.dumps({"available_kv_cache_gib": 5.01, "engine_version": "0.10.1.1"}))
    for options, version in ((["--vllm-version", "0.12.0"], "0.12.0"), ([], "0.10.1.1")):
        report = report_of(capsys, *REQUIRED, "--from-log", str(log), *options)
        assert report["settings"]["vllm_version"] == version
    log.write_text(json.dumps({"available_kv_cache_gib": 5.01}))
    assert report_of(capsys, *REQUIRED, "--from-log", str(log))["settings"]["vllm_version"] == "0.32.0"


@pytest.mark.parametrize("error", ["Based on it, the estimated maximum model length is 1280.", "out of memory"])
def test_where_nothing_fits_the_length_that_the_log_names_is_told(error, tmp_path, capsys):
    (tmp_path / "log.json").write_text(json.dumps({"available_kv_cache_gib": 0.07, "error": error}))
    assert (
        main(["--model", "qwen2-7b", "--gpu", "a100-sxm-80gb", *REQUIRED, "--from-log", str(tmp_path / "log.json")])
        == 0
    )
    printed = " ".join(capsys.readouterr().out.split())
    assert "It does not fit" in printed
    assert ("--max-model-len 1280" in printed) == ("1280" in error)


def test_a_log_with_the_memory_needs_no_weights_but_a_structure(tmp_path, capsys):
    (tmp_path / "log.json").write_text(json.dumps({"available_kv_cache_gib": 5.01}))
    logged = ["--from-log", str(tmp_path / "log.json")]

    def report(*options, family="qwen2", **stored):
        config = json.loads(get_model("qwen2-7b").config.read_text())
        (tmp_path / "config.json").write_text(
            json.dumps(config | {"model_type": family, "quantization_config": stored})
        )
        status = main(["--model", str(tmp_path), "--gpu", "a100-sxm-80gb", "--json", *REQUIRED, *options])
        told = capsys.readouterr()
        return told.err if status else json.loads(told.out)

    of_log = report(*logged, quant_method="modelopt")
    assert (of_log["num_blocks"]["value"], "weights" in of_log) == (5863, False)
    assert "quant_algo 'None' is not" in report(quant_method="modelopt")["unknown"]
    smaller = {"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    assert report(*logged, **smaller)["num_blocks"]["value"] == 2 * 5863
    smaller["kv_cache_scheme"] = {"num_bits": 4, "type": "float"}
    assert "--kv-cache-dtype" in report(*logged, **smaller)
    assert report(*logged, "--kv-cache-dtype", "fp8", **smaller)["num_blocks"]["value"] == 2 * 5863
    assert set(report(family="made_up")) == {"source", "model", "gpu", "unknown"}


BAD = {"--model=gpt-5": "unknown model 'gpt-5'", "--gpu=A100 PCIe": "a100-pcie-40gb, a100-pcie-80gb"}
BAD |= {"--gpu=H300": "unknown GPU 'H300'; allowed: h200", "--from-log=none.json": "none.json: No such file"}


@pytest.mark.parametrize("option", BAD)
def test_bad_input_ends_with_2_and_one_message(option, capsys):
    assert main(["--model", "opt-125m", "--gpu", "l4", *REQUIRED, option]) == 2
    error = capsys.readouterr().err
    assert (BAD[option] in error, error.count("\n")) == (True, 1)


NO_MEMORY = ("{", "[]", '{"num_gpu_blocks": 3}', '{"available_kv_cache_gib": "5"}', '{"available_kv_cache_gib": 1e300}')


@pytest.mark.parametrize("text", [*NO_MEMORY, '{"available_kv_cache_gib": 1, "engine_version": [1]}'])
def test_a_log_that_says_nothing_of_memory_is_refused(text, tmp_path, capsys):
    (tmp_path / "log.json").write_text(text)
    assert main(["--model", "opt-125m", "--gpu", "l4", "--from-log", str(tmp_path / "log.json"), *REQUIRED]) == 2
    assert "log.json: " in capsys.readouterr().err
