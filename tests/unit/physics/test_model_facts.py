import json
from pathlib import Path

import pytest
import yaml

from workflow_scripts.catalog.gpus_and_models import get_model, load_models
from workflow_scripts.physics.model_facts import (
    ModelFactsError,
    model_facts,
    read_config,
    read_model_facts,
    vocabulary_and_context,
)

MODELS = load_models()

# Small models of all families; some also as they were published.
CONFIGS = yaml.safe_load(Path("tests/fixtures/model_configs.yaml").read_text(encoding="utf-8"))
VARIANTS = {name: config for name, config in CONFIGS.items() if not name.endswith("-published")}
LLAMA, MIXTRAL, GPT_OSS, DEEPSEEK = (CONFIGS[name] for name in ("llama", "mixtral", "gpt_oss", "deepseek_v3"))
NEMOTRON_H, DEEPSEEK_V4 = (CONFIGS[name] for name in ("nemotron_h", "deepseek_v4"))


def stored(method: str, **values: object) -> dict[str, object]:
    return {"quantization_config": {"quant_method": method, **values}}


def transformers_model(config):
    """The model that transformers builds of this config, on no device."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    kind = transformers.CONFIG_MAPPING[config["model_type"]]
    auto = transformers.AutoModelForImageTextToText if "vision_config" in config else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        return auto.from_config(kind.from_dict(dict(config)))


@pytest.mark.parametrize("name", [*VARIANTS, *MODELS])
def test_parameters_are_those_that_transformers_builds(name):
    config = VARIANTS.get(name) or read_config(MODELS[name].config)
    facts, model = model_facts(config), transformers_model(config)
    assert facts.parameters == sum(p.numel() for p in model.parameters())
    assert facts.tied_embeddings == (model.get_input_embeddings().weight is model.get_output_embeddings().weight)
    assert facts.token_embedding_parameters == model.get_input_embeddings().weight.numel()


def test_experts_may_have_fewer_bits_than_the_other_matrices():
    in_8_bits, in_4_bits = (
        model_facts(DEEPSEEK_V4 | stored("fp8") | {"expert_dtype": kind}) for kind in ("fp8", "fp4")
    )
    experts = sum(count * m.parameters for m, count in in_4_bits.matrices if m.role == "experts")
    assert (in_8_bits.quantization, in_4_bits.quantization) == ("fp8", "deepseek_v4_fp8")
    assert in_8_bits.weight_bytes - in_4_bits.weight_bytes == round(experts * (8 - 4.25) / 8)


# Bytes per token of the KV cache.
KNOWN = {
    **{"llama-3.1-8b-instruct": 131_072, "llama-3.1-405b": 516_096, "llama-2-70b": 327_680, "llama-3-70b": 327_680},
    **{"llama-3.1-70b-instruct-awq": 327_680, "mixtral-8x7b": 131_072, "opt-125m": 36_864, "smollm-135m": 23_040},
    **{"qwen2-7b": 57_344, "qwen2.5-0.5b-instruct": 12_288, "mistral-7b-instruct-v0.3": 131_072},
    **{"tiny-llama-57m": 16_384, "qwen3-30b-a3b": 98_304, "experts-8b": 131_072, "windows-8b": 131_072},
    **{"latent-8b": 36_864, "states-8b": 32_768, "deepseek-v3": 70_272, "qwen3-235b-a22b": 192_512},
    "gemma-3-27b-it": 507_904,
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_models(name):
    facts = read_model_facts(MODELS[name].config.parent)
    assert facts.bytes_per_token() == KNOWN[name]
    assert facts.dtype == (MODELS[name].fixed_dtype or "float32")


def test_experts_in_four_bits():
    facts = read_model_facts(MODELS["gpt-oss-120b"].config, "bfloat16")
    assert facts.parameters == 116_829_156_672
    assert facts.weight_bytes == pytest.approx(65.25e9, rel=1e-3)  # 60.8 GiB
    small = read_model_facts(MODELS["gpt-oss-20b"].config, "bfloat16")
    assert (small.parameters, small.bytes_per_token()) == (20_914_757_184, 49_152)
    assert small.weight_bytes == pytest.approx(12.82 * 2**30, rel=1e-3)  # the size of the published files
    facts = model_facts(GPT_OSS | {"dtype": "bfloat16"})
    in_experts = stored("mxfp4", modules_to_not_convert=["model.layers.*.self_attn"])
    small = model_facts(GPT_OSS | {"dtype": "bfloat16"} | in_experts)
    assert facts.weight_bytes - small.weight_bytes == round(3 * 4 * 3 * 48 * 100 * (2 - 4.25 / 8))


# As published by those who made them; without the table of tokens that gpt-oss does not count.
ACTIVE = {"qwen3-235b-a22b": 22, "qwen3-30b-a3b": 3.3, "mixtral-8x7b": 12.9, "gpt-oss-20b": 3.6, "deepseek-v3": 37}


@pytest.mark.parametrize("name", ACTIVE)
def test_parameters_that_a_token_uses_are_as_published(name):
    facts = read_model_facts(MODELS[name].config, "bfloat16")
    used = facts.parameters - facts.layer_matrix_parameters + facts.layer_matmul_parameters
    used -= facts.token_embedding_parameters if name.startswith("gpt-oss") else 0
    assert used / 1e9 == pytest.approx(ACTIVE[name], rel=0.02)


def test_bytes_follow_the_dtype():
    config = LLAMA | {"dtype": "bfloat16"}
    facts, wide = model_facts(config), model_facts(config, dtype="float32")
    assert (facts.dtype, wide.dtype, model_facts(LLAMA).dtype) == ("bfloat16", "float32", "float32")
    assert wide.weight_bytes == 2 * facts.weight_bytes == 4 * facts.parameters
    assert facts.bytes_per_token("fp8") == facts.bytes_per_token() / 2 == facts.bytes_per_token("auto") / 2
    with pytest.raises(ModelFactsError, match="'fp7'; allowed: auto, float32"):
        facts.bytes_per_token("fp7")


def test_quantization_shrinks_the_layers_matrices_alone():
    facts = model_facts(LLAMA | {"dtype": "bfloat16"})
    fp8 = model_facts(LLAMA | {"dtype": "bfloat16"}, quantization="fp8")
    awq = model_facts(LLAMA | {"dtype": "bfloat16"} | stored("awq", bits=4))
    matrices = facts.layer_matrix_parameters
    assert facts.weight_bytes - fp8.weight_bytes == facts.decode_weight_bytes - fp8.decode_weight_bytes == matrices
    assert facts.weight_bytes - awq.weight_bytes == round(matrices * (2 - 4.15625 / 8))
    assert fp8.bytes_per_token() == facts.bytes_per_token()
    per_tensor = model_facts(LLAMA | {"dtype": "bfloat16"}, quantization="fp8_per_tensor")
    assert per_tensor.weight_bytes == fp8.weight_bytes
    with pytest.raises(ModelFactsError, match="'bitsandbytes' is not supported; supported: awq"):
        model_facts(LLAMA, quantization="bitsandbytes")


def test_matrices_that_a_checkpoint_leaves_out_keep_their_type():
    # meta-llama/Llama-3.1-405B-FP8: attention, and the first and last MLP. dstackai/benchmarks logs 56.7677 GiB on each
    # of 8 GPUs (comparison/h100sxm5_vs_mi300x/raw_data/gpu-usage.md).
    attention = [f"model.layers.{n}.self_attn.{name}_proj" for n in range(126) for name in "qkvo"]
    left_out = ["lm_head", *attention, "model.layers.0.mlp", "re:model.layers.125.mlp", "vision_model.layers.0.mlp"]
    config = read_config(MODELS["llama-3.1-405b"].config) | stored("fbgemm_fp8", modules_to_not_convert=left_out)
    facts = model_facts(config)
    assert facts.quantization == "fp8"
    assert facts.weight_bytes / 8 / 2**30 == pytest.approx(56.7677, rel=1e-3)
    assert read_model_facts(MODELS["llama-3.1-405b"].config, None, "fp8").weight_bytes / 8 / 2**30 < 48


def modelopt(folder, algorithm, **said):
    """Facts of a checkpoint with what ModelOpt says beside its config."""
    (folder / "config.json").write_text(json.dumps(LLAMA | {"dtype": "bfloat16", "rope": [0, float("inf")]}))
    stated = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": algorithm, **said}}
    (folder / "hf_quant_config.json").write_text(json.dumps(stated))
    return read_model_facts(folder)


@pytest.mark.parametrize(("algorithm", "bits"), [("FP8", 8), ("NVFP4", 4.5)])
@pytest.mark.parametrize("cache", [None, "FP8"])
@pytest.mark.parametrize("excluded", [["lm_head"], ["lm_head", "model.layers.0.self_attn*"]])
def test_what_a_checkpoint_says_beside_its_config_counts(algorithm, bits, cache, excluded, tmp_path):
    facts = modelopt(tmp_path, algorithm, kv_cache_quant_algo=cache, exclude_modules=excluded)
    whole, attention = model_facts(LLAMA, "bfloat16"), 48 * (2 * 48 + 2 * 16)
    quantized = whole.layer_matrix_parameters - (attention if len(excluded) > 1 else 0)
    assert whole.weight_bytes - facts.weight_bytes == pytest.approx(quantized * (16 - bits) / 8)
    assert whole.bytes_per_token() / facts.bytes_per_token() == (2 if cache else 1)


@pytest.mark.parametrize(
    ("algorithm", "said", "fault"),
    [
        ("W4A16_AWQ", {}, "quant_algo 'W4A16_AWQ' is not supported; supported: FP8, NVFP4"),
        ("FP8", {"exclude_modules": ["model.layers.0.self_attn.q_proj"]}, "leaves out some layers"),
    ],
)
def test_what_is_not_known_beside_a_config_is_named_with_its_file(algorithm, said, fault, tmp_path):
    with pytest.raises(ModelFactsError, match=f"hf_quant_config.json: .*{fault}"):
        modelopt(tmp_path, algorithm, **said)


def test_names_of_no_matrix_do_not_matter():
    left_out = ["gate", "e_score_correction_bias", "lm_head", "model.layers.0.input_layernorm", "model.norm"]
    left_out += ["*lm_head*", "re:.*lm_head.*", "re:.*mlp.gate$", "model.embed_tokens*", "*.router"]
    left_out += ["model.layers.3*", "model.layers.61.self_attn.q_proj", "mtp*"]  # of layers that draft
    left_out += ["model.layers.0.self_attn.indexer.weights_proj"]
    facts = model_facts(LLAMA | stored("fp8", modules_to_not_convert=left_out))
    assert facts.weight_bytes == model_facts(LLAMA | stored("fp8")).weight_bytes


def compressed(*weights: tuple[int, str, str], **others: object) -> dict[str, object]:
    groups = [{"num_bits": bits, "type": kind, "strategy": strategy} for bits, kind, strategy in weights]
    groups = {f"group_{i}": {"targets": ["Linear"], "weights": group} for i, group in enumerate(groups)}
    return stored("compressed-tensors", config_groups=groups, **others)


@pytest.mark.parametrize(("kind", "quantization"), [("int", "int8"), ("float", "fp8")])
@pytest.mark.parametrize("strategy", ["channel", "tensor"])
@pytest.mark.parametrize("ignore", [[], ["lm_head"], ["re:.*lm_head$"]])
def test_compressed_tensors_of_8_bits_are_a_byte_a_parameter(kind, quantization, strategy, ignore):
    facts = model_facts(LLAMA | compressed((8, kind, strategy), ignore=ignore), dtype="float32")
    saved = model_facts(LLAMA, dtype="float32").weight_bytes - facts.weight_bytes
    assert (facts.quantization, saved) == (quantization, (4 - 1) * facts.layer_matrix_parameters)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (compressed((8, "int", "group")), r"compressed-tensors \(8 bits int by group"),
        (stored("compressed-tensors", ignore=["lm_head", "layers.0.mlp.down_proj"]), "down_proj'$"),
        (stored("fp8", ignored_layers=["model.layers.0.mlp.down_proj"]), "leaves out some layers"),
        (stored("fp8", kv_cache_scheme={"num_bits": 8, "type": "float"}), "kv_cache_scheme"),
        (stored("gptq", bits=8), "gptq with 8 bits in groups of 128"),
        (DEEPSEEK_V4 | {"compress_ratios": [0, 4]}, "compress_ratios must name 0, 4 or 128 for each layer"),
        (DEEPSEEK_V4 | {"vision_n_layers": 2}, "encoders of pictures"),
        (CONFIGS["mimo_v2_flash"] | {"vision_config": {"depth": 2}}, "encoders of pictures or sounds"),
        (CONFIGS["minimax_m3_vl_text"] | {"num_key_value_heads": 1}, "another number of heads in the indexer"),
        ({"model_type": "mamba"}, r"'mamba' is not supported; supported: llama, mistral.*glm4, opt"),
        ({"model_type": "mistral", "sliding_window": "wide"}, "mistral: sliding_window must be a whole number above 0"),
        ({"model_type": "gemma2", "layer_types": ["sliding_attention"] * 3}, "gemma2: missing 'sliding_window'"),
        (DEEPSEEK | {"kv_lora_rank": None}, "deepseek_v3: missing 'kv_lora_rank'"),
        (NEMOTRON_H | {"hybrid_override_pattern": "M?"}, r"hybrid_override_pattern names '\?'; supported: M, "),
        (CONFIGS["falcon_h1"] | {"mamba_d_head": 13}, "mamba_d_head 13 x mamba_n_heads 8 must be 96"),
        (CONFIGS["deepseek_v32"] | {"index_topk": None}, "deepseek_v32: missing 'index_topk'"),
        ({"dtype": "int4"}, "dtype 'int4'"),
        ({"model_type": "gemma4_text"}, "gemma4_text: hidden_size_per_layer_input above 0"),
        (
            CONFIGS["qwen3_moe"] | {"mlp_only_layers": ["a"]},
            "mlp_only_layers must be a list of whole numbers, but has 'a'",
        ),
        (
            CONFIGS["qwen3_moe"] | {"mlp_only_layers": [0, 99]},
            "mlp_only_layers names layer 99; there are layers 0 to 2",
        ),
        ({"num_hidden_layers": 10**7}, "num_hidden_layers must be at most 10000"),
        (NEMOTRON_H | {"hybrid_override_pattern": None, "layers_block_type": 7}, "layers_block_type must be a list"),
        (NEMOTRON_H | {"mamba_ssm_cache_dtype": "float12"}, "mamba_ssm_cache_dtype must be one of float32, bfloat16"),
        (
            CONFIGS["gemma4_text-keys-are-values"] | {"num_global_key_value_heads": 4},
            "num_global_key_value_heads 4 must divide",
        ),
        ({"quantization_config": "awq"}, "quantization_config must be a mapping of keys to values, not 'awq'"),
    ],
)
def test_what_is_not_supported_or_would_be_counted_wrong_is_said(change, message):
    with pytest.raises(ModelFactsError, match=message) as error:
        model_facts(LLAMA | change)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ModelFactsError, match=r"config.json: No such file"):
        read_model_facts(tmp_path)
    for content in ("{", "[]", json.dumps(LLAMA | {"model_type": "x"})):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ModelFactsError, match=r"config.json: "):
            read_model_facts(tmp_path / "config.json")


def test_an_indexer_adds_its_keys_and_limits_what_is_read():
    facts, without = model_facts(VARIANTS["deepseek_v32"]), model_facts(DEEPSEEK)
    assert facts.bytes_per_token() - without.bytes_per_token() == 3 * 132
    assert facts.bytes_per_token("float16") - without.bytes_per_token("float16") == 3 * 132
    assert [reach.limit for reach in facts.reaches] == [8]
    assert without.is_uniform
    assert not facts.is_uniform
    with pytest.raises(ModelFactsError, match="layers that share an indexer"):
        model_facts(VARIANTS["glm_moe_dsa"] | {"indexer_types": ["full", "shared", "shared"]})


@pytest.mark.parametrize(
    ("sharing", "own"),
    [
        ({"index_topk_pattern": "FSS"}, 1),
        ({"index_topk_pattern": "FSF"}, 2),
        ({"index_topk_freq": 2}, 2),  # layers 0, 1 and every second one from there
        ({"index_topk_freq": 2, "index_skip_topk_offset": 1}, 2),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 1}, 1),
    ],
)
def test_a_layer_that_takes_the_choice_of_another_has_no_indexer(sharing, own):
    """As vLLM 0.32 gives each layer its indexer (models/deepseek_v32/attention.py)."""
    all_, some = model_facts(VARIANTS["glm_moe_dsa"]), model_facts(VARIANTS["glm_moe_dsa"] | sharing)
    assert all_.bytes_per_token() - some.bytes_per_token() == (3 - own) * 132
    of_one = (all_.parameters - model_facts(DEEPSEEK).parameters) // 3
    assert all_.parameters - some.parameters == (3 - own) * of_one
    assert [reach.limit for reach in some.reaches] == [8]


@pytest.mark.parametrize(
    ("family", "parameters", "gigabytes", "bytes_per_token"),
    [
        ("kimi_k25", 1026.9e9, 595.15, 61 * 576 * 2),  # the files of the hub: 595 GB
        ("mimo_v2_flash", 309e9, 311.69, (9 * 4 + 39 * 8) * (192 + 128) * 2),  # published: 309 B
        ("step3p5", 196.96e9, 393.9, 45 * 2 * 8 * 128 * 2),  # published: 196.81 B
    ],
)
def test_published_models_of_2026(family, parameters, gigabytes, bytes_per_token):
    facts = model_facts(CONFIGS[f"{family}-published"], "bfloat16")
    assert facts.parameters == pytest.approx(parameters, rel=1e-3)
    assert facts.weight_bytes / 1e9 == pytest.approx(gigabytes, rel=1e-4)
    assert facts.bytes_per_token() == bytes_per_token


def test_layers_are_known_where_the_weights_are_not():
    unknown = LLAMA | stored("modelopt", quant_algo="W4A8")
    facts = model_facts(unknown, weights=False)
    assert facts.bytes_per_token() == model_facts(LLAMA).bytes_per_token()
    for name in ("weight_bytes", "decode_weight_bytes"):
        with pytest.raises(ModelFactsError, match="llama: how the checkpoint stores"):
            getattr(facts, name)
    with pytest.raises(ModelFactsError, match="quant_algo 'W4A8' is not supported"):
        model_facts(unknown)
    # A known text model inside an unknown one.
    kimi = {"model_type": "kimi_k9", "dtype": "bfloat16", "text_config": DEEPSEEK | {"model_type": "kimi_k2"}}
    facts = model_facts(kimi, weights=False)
    assert facts.bytes_per_token() == 3 * (12 + 4) * 2
    with pytest.raises(ModelFactsError, match="how the checkpoint stores"):
        _ = facts.weight_bytes
    with pytest.raises(ModelFactsError, match="model_type 'kimi_k9' is not supported"):
        model_facts(kimi)


def test_decoding_latent_attention_computes_in_the_space_of_the_latent_vectors():
    facts = model_facts(DEEPSEEK)
    (reach,) = facts.reaches
    # Scores with 12 + 4 elements, values of 12, in each of 6 heads.
    assert reach.decode_pair_flops == 3 * 2 * 6 * (12 + 4 + 12)
    assert reach.prefill_pair_flops == 3 * 2 * 6 * (8 + 4 + 10)
    one, two, three = (facts.request_flops(1, outputs) for outputs in (1, 2, 3))
    assert three - 2 * two + one == reach.decode_pair_flops


def test_states_have_their_own_types_and_are_split_over_ranks():
    facts = model_facts(NEMOTRON_H | {"dtype": "bfloat16"})
    inputs, recurrent = (96 + 2 * 2 * 6) * 3, 96 * 6
    assert facts.state_bytes() == 3 * (2 * inputs + 4 * recurrent)
    assert facts.state_bytes(tensor=2) == facts.state_bytes() // 2
    # Each of 4 ranks has a copy of the channels of one of the 2 groups.
    assert facts.state_bytes(tensor=4) == 3 * (2 * (96 + 2 * 4 * 6) // 4 * 3 + 4 * recurrent // 4)


def test_any_config_has_a_vocabulary_and_a_context():
    in_text = {"model_type": "y", "text_config": LLAMA}
    for config in (LLAMA | {"model_type": "x"}, in_text):
        assert vocabulary_and_context(config) == (70, 32)
    for config in ({"model_type": "y"}, {"text_config": {"num_hidden_layers": 2}}, {"model_type": "llama"}):
        with pytest.raises(ModelFactsError):
            vocabulary_and_context(config)
    # What a published config leaves out is the family's.
    config = read_config(get_model("gemma-3-27b-it").config)
    assert "vocab_size" not in config | config["text_config"]
    assert vocabulary_and_context(config) == (262208, 131072)
