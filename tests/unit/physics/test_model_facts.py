import json

import pytest

from tests.unit.made_models import shape
from workflow_scripts.catalog.gpus_and_models import get_model, load_models
from workflow_scripts.physics.model_facts import (
    ModelFactsError,
    model_facts,
    read_config,
    read_model_facts,
    vocabulary_and_context,
)

MODELS = load_models()

LLAMA = shape("llama", layers=3, hidden=48, inner=100, heads=6, kv_heads=2, vocab=70, positions=32)
LLAMA_MHA = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
OPT = LLAMA_MHA | {"model_type": "opt", "ffn_dim": 100, "word_embed_proj_dim": 48}
GPT2 = {"model_type": "gpt2", "n_layer": 3, "n_embd": 48, "n_head": 6, "vocab_size": 70, "n_positions": 32}

VARIANTS = {
    "llama": LLAMA,
    "llama-mha": LLAMA_MHA,
    "llama-biases-tied": LLAMA | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": LLAMA | {"model_type": "mistral", "sliding_window": None},
    "qwen2-tied": LLAMA | {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": LLAMA | {"model_type": "qwen3", "head_dim": 20},
    "phi3": LLAMA | {"model_type": "phi3", "pad_token_id": 0},
    "gemma-untied": LLAMA | {"model_type": "gemma", "tie_word_embeddings": False},
    "opt": OPT,
    "opt-no-bias": OPT | {"enable_bias": False},
    "opt-norm-after": OPT | {"do_layer_norm_before": False},
    "gpt2": GPT2,
}

MOE = LLAMA | {"num_experts_per_tok": 2, "moe_intermediate_size": 40}
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
QWEN3_MOE = MOE | {"model_type": "qwen3_moe", "num_experts": 8, "head_dim": 20}
QWEN2_MOE = MOE | {"model_type": "qwen2_moe", "num_experts": 8, "shared_expert_intermediate_size": 60}
GPT_OSS = MIXTRAL | {"model_type": "gpt_oss", "head_dim": 16, "sliding_window": 8}
DEEPSEEK = MOE | shape("deepseek_v3", kv_heads=6, kv_lora_rank=12, q_lora_rank=20, qk_rope_head_dim=4)
DEEPSEEK |= {"qk_nope_head_dim": 8, "v_head_dim": 10, "n_routed_experts": 8, "n_shared_experts": 2}
DEEPSEEK |= {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
LLAMA4 = LLAMA | shape("llama4_text", layers=8, head_dim=16, intermediate_size_mlp=120, attention_chunk_size=16)
LLAMA4 |= {"num_local_experts": 4, "num_experts_per_tok": 1}
GEMMA2 = LLAMA | {"model_type": "gemma2", "head_dim": 16, "sliding_window": 8, "num_hidden_layers": 4}
GEMMA3 = LLAMA | {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 8, "num_hidden_layers": 7}
GEMMA4 = GEMMA3 | {"model_type": "gemma4_text", "global_head_dim": 24, "hidden_size_per_layer_input": 0}
SIGLIP = shape("siglip_vision_model", layers=2, hidden=24, inner=50, heads=3, image_size=28, patch_size=7)
SIGLIP |= {"vision_use_head": False}
QWEN3_NEXT = QWEN3_MOE | shape("qwen3_next", layers=8, shared_expert_intermediate_size=30, linear_num_key_heads=2)
QWEN3_NEXT |= {"linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 12, "mamba_n_groups": 2, "mamba_d_state": 6, "mamba_expand": 2}
NEMOTRON_H = LLAMA | shape("nemotron_h", layers=7, hybrid_override_pattern="M-M*-ME", head_dim=16)
NEMOTRON_H |= {"mamba_num_heads": 8, "mamba_head_dim": 12, "ssm_state_size": 6, "n_groups": 2}
NEMOTRON_H |= {"n_routed_experts": 4, "num_experts_per_tok": 2}
NEMOTRON_H |= {"moe_intermediate_size": 40, "moe_shared_expert_intermediate_size": 60}
FALCON_H1 = LLAMA | MAMBA2 | {"model_type": "falcon_h1", "mamba_d_ssm": 96}

VARIANTS |= {
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "gemma3": {"model_type": "gemma3", "text_config": GEMMA3, "vision_config": SIGLIP, "mm_tokens_per_image": 4},
    "glm4": LLAMA | {"model_type": "glm4", "pad_token_id": 0, "head_dim": 16},
    "mixtral": MIXTRAL,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_moe-some-dense": QWEN3_MOE | {"mlp_only_layers": [1]},
    "qwen3_moe-every-second": QWEN3_MOE | {"decoder_sparse_step": 2},
    "qwen2_moe": QWEN2_MOE,
    "gpt_oss": GPT_OSS,
    "deepseek_v3": DEEPSEEK,
    "deepseek_v3-whole-queries": DEEPSEEK | {"q_lora_rank": None},
    "deepseek_v3-dense": DEEPSEEK | {"first_k_dense_replace": 3},
    "deepseek_v2-without-experts": {k: v for k, v in DEEPSEEK.items() if k != "n_routed_experts"}
    | {"model_type": "deepseek_v2", "first_k_dense_replace": 3},
    "deepseek_v2": DEEPSEEK | {"model_type": "deepseek_v2"},
    "deepseek_v2-biases": DEEPSEEK | {"model_type": "deepseek_v2", "attention_bias": True, "mlp_bias": True},
    "glm4_moe": MOE | shape("glm4_moe", n_routed_experts=8, n_shared_experts=1, first_k_dense_replace=1),
    "llama4_text": LLAMA4,
    "llama4_text-every-second": LLAMA4 | {"interleave_moe_layer_step": 2},
    "olmoe": LLAMA | {"model_type": "olmoe", "num_experts": 4, "num_experts_per_tok": 2},
    "qwen3_next": QWEN3_NEXT,
    "qwen3_5_moe_text": QWEN3_NEXT | {"model_type": "qwen3_5_moe_text"},
    "qwen3_5_text": QWEN3_NEXT | {"model_type": "qwen3_5_text", "num_experts": None},
    "nemotron_h": NEMOTRON_H,
    "nemotron_h-latent-experts": NEMOTRON_H | {"moe_latent_size": 24},
    "nemotron_h-biases": NEMOTRON_H | {"use_bias": True, "mlp_bias": True},
    "falcon_h1": FALCON_H1,
    "falcon_h1-norm-biases": FALCON_H1
    | {"mamba_rms_norm": True, "projectors_bias": True, "mamba_proj_bias": True, "mlp_bias": True},
}

DSA = DEEPSEEK | {"index_n_heads": 4, "index_head_dim": 128, "index_topk": 8}
QWEN_VISION = shape(hidden=24, inner=50, depth=2, num_heads=3, patch_size=4, out_hidden_size=48)
QWEN_VISION |= {"num_position_embeddings": 16}


GEMMA4_VISION = shape("gemma4_vision", layers=2, hidden=24, inner=50, heads=3, num_key_value_heads=3, head_dim=8)
GEMMA4_VISION |= {"patch_size": 4, "position_embedding_size": 16}


def with_pictures(kind, text, **vision):
    text = text | {"model_type": f"{kind}_text"}
    return {"model_type": kind, "text_config": text, "vision_config": QWEN_VISION | vision}


VARIANTS |= {
    "deepseek_v32": DSA | {"model_type": "deepseek_v32"},
    "glm_moe_dsa": DSA | {"model_type": "glm_moe_dsa"},
    "glm4_moe_lite": DEEPSEEK | {"model_type": "glm4_moe_lite"},
    "minimax_m2": MIXTRAL | {"model_type": "minimax_m2", "head_dim": 16},
    "gemma4_text": GEMMA4,
    "gemma4": {"model_type": "gemma4", "text_config": GEMMA4, "vision_config": GEMMA4_VISION},
    "gemma4_text-keys-are-values": GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 1},
    "gemma4_text-experts": GEMMA4
    | {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 20},
    "olmo3": LLAMA | {"model_type": "olmo3", "sliding_window": 8, "num_hidden_layers": 8},
    "seed_oss": LLAMA | {"model_type": "seed_oss", "head_dim": 16},
    "smollm3": LLAMA | {"model_type": "smollm3", "pad_token_id": 0},
    "qwen3_5": with_pictures("qwen3_5", QWEN3_NEXT | {"num_experts": None}),
    "qwen3_5_moe": with_pictures("qwen3_5_moe", QWEN3_NEXT),
}

MIMO_V2 = MOE | shape("mimo_v2_flash", head_dim=16, n_routed_experts=8, v_head_dim=10, sliding_window=8)
MIMO_V2 |= {"swa_num_attention_heads": 6, "swa_num_key_value_heads": 4, "swa_head_dim": 16, "swa_v_head_dim": 10}
MIMO_V2 |= {"num_key_value_heads": 1, "swa_num_key_value_heads": 2, "sliding_window_size": 8}
MIMO_V2 |= {"hybrid_layer_pattern": [0, 1, 1], "moe_layer_freq": [0, 1, 1], "add_swa_attention_sink_bias": True}
# As transformers names them.
MIMO_V2 |= {"layer_types": ["full_attention", *["sliding_attention"] * 2]}
STEP3P5 = shape("step3p5", layers=3, hidden=48, inner=100, heads=6, vocab=70, positions=32, head_dim=16)
STEP3P5 |= {"num_attention_groups": 2, "layer_types": ["full_attention", *["sliding_attention"] * 3]}
STEP3P5 |= {"num_nextn_predict_layers": 1, "sliding_window": 8, "use_head_wise_attn_gate": True}
STEP3P5 |= {"moe_num_experts": 8, "moe_top_k": 2, "moe_intermediate_size": 40, "share_expert_dim": 20}
STEP3P5 |= {"moe_layers_enum": "1,2", "attention_other_setting": {"attention_type": "sliding_attention"}}
STEP3P5["attention_other_setting"] |= {"num_attention_heads": 8, "num_attention_groups": 2, "head_dim": 16}
MINIMAX_M3 = MIXTRAL | shape("minimax_m3_vl_text", head_dim=16, dense_intermediate_size=90, n_shared_experts=1)
MINIMAX_M3 |= {"moe_layer_freq": [0, 1, 1], "shared_intermediate_size": 100, "rotary_dim": 8}
MINIMAX_M3["sparse_attention_config"] = {"sparse_attention_freq": [0, 1, 1], "sparse_num_index_heads": 2}
MINIMAX_M3["sparse_attention_config"] |= {"sparse_index_dim": 12, "sparse_topk_blocks": 2, "sparse_block_size": 4}
DEEPSEEK_V4 = shape("deepseek_v4", layers=3, hidden=48, heads=4, kv_heads=1, head_dim=16, vocab=70, positions=32)
DEEPSEEK_V4 |= {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "qk_rope_head_dim": 4}
DEEPSEEK_V4 |= {"q_lora_rank": 12, "o_lora_rank": 10, "o_groups": 2, "hc_mult": 4, "sliding_window": 8}
DEEPSEEK_V4 |= {"compress_ratios": [0, 4, 128], "index_n_heads": 3, "index_head_dim": 8, "n_shared_experts": 1}
KIMI_TOWER = shape("kimi_k25_vision", layers=2, hidden=24, inner=50, heads=3, patch_size=7)
TOWER = shape(layers=2, hidden=24, inner=50, heads=3, image_size=28, patch_size=7)

VARIANTS |= {
    "deepseek_v4": DEEPSEEK_V4,
    "mimo_v2_flash": MIMO_V2,
    "minimax_m3_vl_text": MINIMAX_M3,
    "minimax_m3_vl": {"model_type": "minimax_m3_vl", "text_config": MINIMAX_M3, "vision_config": TOWER},
    "step3p7": {"model_type": "step3p7", "text_config": STEP3P5, "vision_config": TOWER},
    "kimi_k25": {"model_type": "kimi_k25", "text_config": DEEPSEEK, "vision_config": KIMI_TOWER}
    | {"projection_hidden_size": 24, "tie_word_embeddings": False},
}
BY_THE_USUAL_KEYS = ("qwen2", "gemma", "granite", "olmo2", "ministral3")
VARIANTS |= {family: LLAMA | {"model_type": family} for family in BY_THE_USUAL_KEYS}


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


@pytest.mark.parametrize("name", ["llama", "qwen3", "opt", "gpt2", "gemma2", "deepseek_v3-dense"])
def test_matrices_are_the_linear_layers(name):
    torch = pytest.importorskip("torch")
    pytorch_utils = pytest.importorskip("transformers.pytorch_utils")
    model = transformers_model(VARIANTS[name])
    linear = (torch.nn.Linear, pytorch_utils.Conv1D)
    weights = [m.weight.numel() for m in model.modules() if isinstance(m, linear)]
    facts = model_facts(VARIANTS[name])
    assert facts.layer_matmul_parameters + facts.vocab * facts.hidden == sum(weights)


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
        (LLAMA4 | stored("fp8", ignored_layers=["model.layers.0.mlp"]), "attention in chunks"),
        (stored("fp8", kv_cache_scheme={"num_bits": 8, "type": "float"}), "kv_cache_scheme"),
        (stored("gptq", bits=8), "gptq with 8 bits in groups of 128"),
        (DEEPSEEK_V4 | {"compress_ratios": [0, 4]}, "compress_ratios must name 0, 4 or 128 for each layer"),
        (DEEPSEEK_V4 | {"vision_n_layers": 2}, "encoders of pictures"),
        (MIMO_V2 | {"vision_config": {"depth": 2}}, "encoders of pictures or sounds"),
        (MINIMAX_M3 | {"num_key_value_heads": 1}, "another number of heads in the indexer"),
        ({"model_type": "mamba"}, r"'mamba' is not supported; supported: llama, mistral.*opt, gpt2"),
        ({"model_type": "mistral", "sliding_window": "wide"}, "mistral: sliding_window must be a whole number above 0"),
        ({"model_type": "gemma2", "layer_types": ["sliding_attention"] * 3}, "gemma2: missing 'sliding_window'"),
        (DEEPSEEK | {"kv_lora_rank": None}, "deepseek_v3: missing 'kv_lora_rank'"),
        (NEMOTRON_H | {"hybrid_override_pattern": "M?"}, r"hybrid_override_pattern names '\?'; supported: M, "),
        (FALCON_H1 | {"mamba_d_head": 13}, "mamba_d_head 13 x mamba_n_heads 8 must be 96"),
        (DSA | {"model_type": "deepseek_v32", "index_topk": None}, "deepseek_v32: missing 'index_topk'"),
        ({"dtype": "int4"}, "dtype 'int4'"),
        ({"model_type": "gemma4_text"}, "gemma4_text: hidden_size_per_layer_input above 0"),
    ],
)
def test_what_is_not_supported_or_would_be_counted_wrong_is_said(change, message):
    with pytest.raises(ModelFactsError, match=message):
        model_facts(LLAMA | change)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("qwen3_moe", {"mlp_only_layers": ["a"]}, "mlp_only_layers must be a list of whole numbers, but has 'a'"),
        ("qwen3_moe", {"mlp_only_layers": [0, 99]}, "mlp_only_layers names layer 99; there are layers 0 to 2"),
        ("llama", {"num_hidden_layers": 10**7}, "num_hidden_layers must be at most 10000"),
        ("nemotron_h", {"hybrid_override_pattern": None, "layers_block_type": 7}, "layers_block_type must be a list"),
        ("nemotron_h", {"mamba_ssm_cache_dtype": "float12"}, "mamba_ssm_cache_dtype must be one of float32, bfloat16"),
        ("gemma4_text-keys-are-values", {"num_global_key_value_heads": 4}, "num_global_key_value_heads 4 must divide"),
        ("llama", {"quantization_config": "awq"}, "quantization_config must be a mapping of keys to values, not 'awq'"),
    ],
)
def test_a_key_with_a_value_of_the_wrong_kind_is_named(name, change, message):
    for weights in (True, False):
        with pytest.raises(ModelFactsError, match=message) as error:
            model_facts(VARIANTS[name] | change, weights=weights)
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


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
KIMI_K25 = DEEPSEEK | shape("kimi_k2", layers=61, hidden=7168, inner=18432, heads=64, vocab=163840, positions=262144)
KIMI_K25 |= {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
KIMI_K25 |= {"v_head_dim": 128, "n_routed_experts": 384, "n_shared_experts": 1, "moe_intermediate_size": 2048}
KIMI_K25 |= stored(
    "compressed-tensors",
    config_groups={"group_0": {"targets": ["Linear"], "weights": INT4}},
    ignore=[
        *("re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*"),
        *("re:vision_tower.*", "re:mm_projector.*"),
    ],
)
MIMO_V2_FLASH = MIMO_V2 | shape(layers=48, hidden=4096, inner=16384, heads=64, kv_heads=4, head_dim=192, vocab=152576)
MIMO_V2_FLASH |= {"v_head_dim": 128, "swa_num_attention_heads": 64, "swa_num_key_value_heads": 8, "swa_head_dim": 192}
MIMO_V2_FLASH |= {"swa_v_head_dim": 128, "n_routed_experts": 256, "moe_intermediate_size": 2048, "layer_types": None}
MIMO_V2_FLASH |= {"hybrid_layer_pattern": [0, *[1] * 4, *([0] + [1] * 5) * 7, 0], "moe_layer_freq": [0] + [1] * 47}
MIMO_V2_FLASH |= stored("fp8", ignored_layers=[f"model.layers.{n}.self_attn.o_proj" for n in range(48)])
MIMO_V2_FLASH["quantization_config"]["ignored_layers"] += ["model.decoder.self_attn.o_proj"]
STEP_35_FLASH = STEP3P5 | shape(layers=45, hidden=4096, inner=11264, heads=64, vocab=128896, head_dim=128)
STEP_35_FLASH |= {"num_attention_groups": 8, "moe_num_experts": 288, "moe_intermediate_size": 1280}
STEP_35_FLASH |= {"share_expert_dim": 1280, "moe_layers_enum": ",".join(map(str, range(3, 45)))}
STEP_35_FLASH |= {"layer_types": ["full_attention", *["sliding_attention"] * 3] * 12}
STEP_35_FLASH["attention_other_setting"] = {"num_attention_heads": 96, "num_attention_groups": 8, "head_dim": 128}


@pytest.mark.parametrize(
    ("config", "parameters", "gigabytes", "bytes_per_token"),
    [
        # The files of the hub: 595 GB.
        (
            {"model_type": "kimi_k25", "text_config": KIMI_K25}
            | {"vision_config": {"vt_hidden_size": 1152, "vt_intermediate_size": 4304, "vt_num_hidden_layers": 27}},
            1026.9e9,
            595.15,
            61 * 576 * 2,
        ),
        (MIMO_V2_FLASH, 309e9, 311.69, (9 * 4 + 39 * 8) * (192 + 128) * 2),  # published: 309 B
        (STEP_35_FLASH, 196.96e9, 393.9, 45 * 2 * 8 * 128 * 2),  # published: 196.81 B
    ],
)
def test_published_models_of_2026(config, parameters, gigabytes, bytes_per_token):
    facts = model_facts(config, "bfloat16")
    assert facts.parameters == pytest.approx(parameters, rel=1e-3)
    assert facts.weight_bytes / 1e9 == pytest.approx(gigabytes, rel=1e-4)
    assert facts.bytes_per_token() == bytes_per_token


def test_whole_experts_are_as_many_bytes_as_parts_of_all():
    facts = model_facts(MIXTRAL)
    (layer,) = facts.layer_counts
    parts, whole = (
        sum(m.parameters for m in layer.matrices(facts.hidden, 2, whole_experts=each)) for each in (False, True)
    )
    assert parts == whole
    of_three = layer.matrices(facts.hidden, 3, whole_experts=True)  # two of the four experts on a rank
    assert sum(m.parameters for m in of_three if m.role == "experts") == 2 * 3 * 48 * 100


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
    assert (
        facts.request_flops(1, 3) - 2 * facts.request_flops(1, 2) + facts.request_flops(1, 1) == reach.decode_pair_flops
    )


def test_states_have_their_own_types_and_are_split_over_ranks():
    facts = model_facts(NEMOTRON_H | {"dtype": "bfloat16"})
    inputs, recurrent = (96 + 2 * 2 * 6) * 3, 96 * 6
    assert facts.state_bytes() == 3 * (2 * inputs + 4 * recurrent)
    assert facts.state_bytes(tensor=2) == facts.state_bytes() // 2
    # Each of 4 ranks has a copy of the channels of one of the 2 groups.
    assert facts.state_bytes(tensor=4) == 3 * (2 * (96 + 2 * 4 * 6) // 4 * 3 + 4 * recurrent // 4)


def test_any_config_has_a_vocabulary_and_a_context():
    in_text = {"model_type": "y", "text_config": LLAMA}
    for config, positions in ((LLAMA | {"model_type": "x"}, 32), (in_text, 32), (GPT2, 32)):
        assert vocabulary_and_context(config) == (70, positions)
    for config in ({"model_type": "y"}, {"text_config": {"num_hidden_layers": 2}}, {"model_type": "llama"}):
        with pytest.raises(ModelFactsError):
            vocabulary_and_context(config)
    # What a published config leaves out is the family's.
    config = read_config(get_model("gemma-3-27b-it").config)
    assert "vocab_size" not in config | config["text_config"]
    assert vocabulary_and_context(config) == (262208, 131072)
