"""Pools of layers of several kinds: the numbers that vLLM logged for models that are not dense (source: published)."""

import csv
import json
from pathlib import Path

import pytest

from tests.unit.made_models import shape
from workflow_scripts.catalog.gpus_and_models import get_gpu, get_model
from workflow_scripts.engines.description import UnpredictableError
from workflow_scripts.engines.vllm.capacity import predict_capacity
from workflow_scripts.engines.vllm.knobs import VllmKnobs
from workflow_scripts.engines.vllm.kv_groups import kv_pool
from workflow_scripts.engines.vllm.memory import CapacityError, EngineSettings, batch_of, split_layers
from workflow_scripts.engines.vllm.predictions import vllm_capacity, vllm_steps
from workflow_scripts.physics.model_facts import ModelFactsError, model_facts, read_config

FIXTURES = Path(__file__).parents[3] / "fixtures"
LOGS = FIXTURES / "published" / "kv_capacity_of_models.csv"
GPU = get_gpu("h200")
COMMON = shape(vocab=1000, positions=262144, inner=64, dtype="bfloat16")


def published(name):
    """The shape of a model of the catalogue; what its layers are follows from it, and its weights do not count here."""
    config = read_config(get_model(name).config)
    shape = config.get("text_config", config)
    return COMMON | {key: shape[key] for key in shape.keys() - {"layer_types", "quantization_config"}}


QWEN3_MOE, DEEPSEEK = published("qwen3-30b-a3b"), published("deepseek-v3")
GPT_OSS, GEMMA_3 = published("gpt-oss-120b"), published("gemma-3-27b-it")
EXPERTS_OF_QWEN3_6 = {"num_experts": 256, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}
STATES_OF_QWEN3_6 = {
    **{"linear_num_key_heads": 16, "linear_num_value_heads": 32},
    **{"linear_key_head_dim": 128, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32"},
}
QWEN3_6 = QWEN3_MOE | shape("qwen3_5_moe_text", layers=40, heads=16, kv_heads=2, head_dim=256)
QWEN3_6 |= EXPERTS_OF_QWEN3_6 | STATES_OF_QWEN3_6
QWEN3_5_27B = QWEN3_6 | shape("qwen3_5_text", layers=64, heads=24, kv_heads=4, num_experts=None)
QWEN3_5_27B |= {"linear_num_value_heads": 48}
QWEN3_NEXT = QWEN3_6 | shape("qwen3_next", layers=48, num_experts=512, num_experts_per_tok=10, mamba_ssm_dtype=None)
NEMOTRON = COMMON | shape("nemotron_h", hidden=3136, heads=40, kv_heads=8, head_dim=128)
NEMOTRON |= {"hybrid_override_pattern": "M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-"}
NEMOTRON |= {"mamba_num_heads": 96, "mamba_head_dim": 80, "ssm_state_size": 128, "n_groups": 8}
NEMOTRON |= {"mamba_ssm_cache_dtype": "float16"}  # the log's blocks of 992 tokens tell it
NEMOTRON_3 = NEMOTRON | shape(hidden=2688, heads=32, kv_heads=2, mamba_num_heads=64, mamba_head_dim=64)
NEMOTRON_3 |= {
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    **{"n_routed_experts": 128, "num_experts_per_tok": 6, "mamba_ssm_cache_dtype": "float32"},
    **{"moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712},
}
STATES_IN_FLOAT32 = QWEN3_5_27B | {"dtype": "float32"}
MINIMAX_M2 = COMMON | shape("minimax_m2", layers=62, hidden=3072, heads=48, kv_heads=8)
MINIMAX_M2 |= {"num_local_experts": 256, "num_experts_per_tok": 8}
FALCON_H1 = COMMON | shape("falcon_h1", layers=32, hidden=2560, heads=10, kv_heads=2, head_dim=128)
FALCON_H1 |= {"mamba_d_ssm": 4096, "mamba_n_heads": 32, "mamba_d_head": 128, "mamba_d_state": 256}
INDEXER = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
GLM_5 = DEEPSEEK | shape("glm_moe_dsa", layers=78, hidden=6144, heads=64) | INDEXER | {"index_n_heads": 32}
GLM_5 |= {"q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256}
MINIMAX_M3 = COMMON | shape("minimax_m3_text", layers=60, hidden=6144, heads=64, kv_heads=4, head_dim=128)
MINIMAX_M3 |= {"num_local_experts": 128, "num_experts_per_tok": 4, "dense_intermediate_size": 64}
MINIMAX_M3 |= {"moe_layer_freq": [0] * 3 + [1] * 57}
MINIMAX_M3["sparse_attention_config"] = {"sparse_attention_freq": [0] * 3 + [1] * 57, "sparse_block_size": 128}
MINIMAX_M3["sparse_attention_config"] |= {"sparse_index_dim": 128, "sparse_num_index_heads": 4}
MINIMAX_M3["sparse_attention_config"] |= {"sparse_topk_blocks": 16}
DEEPSEEK_V4 = DEEPSEEK | shape("deepseek_v4", layers=43, heads=64, head_dim=512, vocab=1000)
DEEPSEEK_V4 |= {"q_lora_rank": 1024, "o_lora_rank": 1024, "o_groups": 8, "hc_mult": 4, "sliding_window": 128}
DEEPSEEK_V4 |= {"index_n_heads": 64, "index_head_dim": 128, "max_position_embeddings": 2**20}
DEEPSEEK_V4 |= {"compress_ratios": [0, 0, *[4, 128] * 20, 4]}
DEEPSEEK_V4_PRO = DEEPSEEK_V4 | shape(layers=61, heads=128, compress_ratios=[128, 128, *[4, 128] * 29, 4])
OF_7_LAYERS = DEEPSEEK_V4 | shape(layers=7, compress_ratios=[0, 4, 4, 128, 4, 128, 0])
OF_8_LAYERS = DEEPSEEK_V4 | shape(layers=8, compress_ratios=[4, 128] * 4)
GEMMA_3_1B = GEMMA_3 | shape(layers=26, hidden=1152, heads=4, kv_heads=1, head_dim=256, sliding_window=512)
GEMMA_4 = GEMMA_3 | shape("gemma4_text", layers=60, head_dim=256, hidden_size_per_layer_input=0)
GEMMA_4 |= {"num_global_key_value_heads": 4, "attention_k_eq_v": True}
MINISTRAL_3 = COMMON | shape("ministral3", layers=40, hidden=5120, heads=32, kv_heads=8, head_dim=128)
# Case of the table -> the model. Case 22 does not say which model it is.
MODELS = {
    **dict.fromkeys(("02", "03", "39", "40"), QWEN3_MOE),
    **dict.fromkeys(("18", "19", "24", "30"), QWEN3_6),
    **dict.fromkeys(("25", "31", "32", "33", "34", "35"), QWEN3_5_27B),
    **dict.fromkeys(("14", "36"), GPT_OSS),
    "05": QWEN3_MOE | {"num_hidden_layers": 94, "num_attention_heads": 64},
    "08": DEEPSEEK | {"model_type": "deepseek_v2", "num_hidden_layers": 27, "num_attention_heads": 16},
    "37": GPT_OSS | {"num_hidden_layers": 24, "num_local_experts": 32},
    **{"09": DEEPSEEK, "15": GEMMA_3, "23": NEMOTRON, "26": GLM_5, "27": FALCON_H1, "28": QWEN3_NEXT},
    **{"29": NEMOTRON_3, "38": GEMMA_3_1B, "41": MINISTRAL_3},
}
# Where a log does not give the version: one whose line about tokens means what the log's line means.
VERSIONS = {"25": "0.28", "03": "0.10", "05": "0.10", "08": "0.10", "14": "0.10", "18": "0.19"} | {
    **{"29": "0.21", "30": "0.21", "33": "0.28", "34": "0.21", "35": "0.21", "36": "0.12", "37": "0.11", "38": "0.13"},
    **{"39": "0.28", "40": "0.28", "41": "0.12"},
}


def terms_of(config, gpu=GPU, log_gib=None, **given):
    return predict_capacity(model_facts(config), gpu, EngineSettings(**given), log_gib)


def predicted(row):
    given = {
        "max_model_len": int(row["max_model_len"] or 4096),
        "tensor_parallel_size": int(row["tensor_parallel_size"] or 1),
        "pipeline_parallel_size": int(row["pipeline_parallel_size"] or 1),
        "max_num_batched_tokens": int(row["max_num_batched_tokens"] or 8192),
        "enable_prefix_caching": row["enable_prefix_caching"] != "False",
        "kv_cache_dtype": "fp8" if row["kv_cache_dtype"].startswith("fp8") else "auto",
        "vllm_version": row["vllm_version"] or VERSIONS[row["case"]],
    }
    if row["speculative"]:  # the model's own layer drafts so many tokens
        given |= {"num_speculative_tokens": int(row["speculative"].removeprefix("mtp ")), "draft_layers": 1}
    return terms_of(MODELS[row["case"]], log_gib=float(row["available_kv_cache_gib"]), **given)


ROWS = {row["case"]: row for row in csv.DictReader(LOGS.open()) if row["case"] in MODELS}


@pytest.mark.parametrize("case", ROWS)
def test_capacity_is_what_vllm_logged(case):
    # A log gives the memory in hundredths of a GiB, so a block more or less may fit.
    row = ROWS[case]
    terms = predicted(row)
    printed = 0.006 / float(row["available_kv_cache_gib"]) + 1 / terms["num_blocks"].value
    assert terms["kv_cache_tokens"].value == pytest.approx(int(row["kv_cache_tokens"]), rel=printed)
    if row["max_concurrency"]:
        logged = float(row["max_concurrency"])
        assert terms["max_concurrency"].value == pytest.approx(logged, abs=0.005 + printed * logged)
    if row["num_gpu_blocks"]:
        assert terms["num_blocks"].value == pytest.approx(int(row["num_gpu_blocks"]), rel=printed)
    if row["block_size"]:
        assert f"{row['block_size']} tokens in a page" in terms["bytes_per_block"].how


def of_blocks(config, blocks, **given):
    return {name: term.value for name, term in terms_of(config, num_gpu_blocks_override=blocks, **given).items()}


# What vLLM plans for small models, on no device; tests/integration/test_kv_groups_against_vllm.py makes the plans anew.
PLANS = json.loads((FIXTURES / "vllm_plans.json").read_text(encoding="utf-8"))
# vLLM counts as parameters what transformers has as buffers: a bias of each routed expert.
MORE_PARAMETERS = {"glm4_moe": 3 * 4, "mimo_v2_flash": 11 * 4, "step3p5": 9 * 4}


@pytest.mark.parametrize("name", PLANS["models"])
def test_pools_are_those_that_vllm_plans(name):
    config, plan = PLANS["models"][name]["config"], PLANS["models"][name]["plan"]
    terms = terms_of(config, get_gpu("cpu-1core"), **PLANS["settings"], usage="offline")
    assert terms["num_blocks"].value == plan["num_blocks"]
    assert terms["kv_cache_tokens"].value == plan["kv_cache_tokens"]
    assert terms["max_concurrency"].value == round(plan["max_concurrency"], 4)
    assert model_facts(config).parameters + MORE_PARAMETERS.get(name, 0) == plan["parameters"]


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({}, True),
        ({"max_num_seqs": 856}, False),
        ({"max_num_seqs": 857}, True),
        ({"enforce_eager": True}, False),
        ({"vllm_version": "0.19.1"}, False),
        ({"gpu": get_gpu("cpu-1core"), "kv_cache_memory_bytes": 2**40, "config": STATES_IN_FLOAT32}, False),
        ({"config": GPT_OSS, "max_model_len": 2048, "max_num_batched_tokens": 1024}, False),
    ],
)
def test_a_captured_graph_needs_a_block_for_the_state_of_each_sequence(changes, refused):
    # vllm-project/recipes#551: Qwen3.6-27B-FP8 on an H100, "lower max_num_seqs to at most 856".
    given = {"config": QWEN3_5_27B, "max_model_len": 32768, "num_gpu_blocks_override": 856, "vllm_version": "0.24.0"}
    terms = terms_of(**given | changes)
    assert terms["feasible"].value is not refused
    assert ("at most 856" in terms["feasible"].how) is refused


def test_numbers_of_logs_that_do_not_say_the_memory():
    # vllm-project/vllm#40691: Qwen3.5-27B, vLLM 0.19.0, 290,864 tokens and 33.04x; the log does not say the memory.
    given = {"max_model_len": 32768, "max_num_seqs": 16, "max_num_batched_tokens": 16384, "vllm_version": "0.19.0"}
    terms = of_blocks(QWEN3_5_27B, 1487, **given)
    assert terms["kv_cache_tokens"] == 290_864
    assert round(terms["max_concurrency"], 2) == 33.04
    # The version caches no prefixes of such models unless it is told to.
    assert of_blocks(QWEN3_5_27B, 1487, **given, enable_prefix_caching=True)["max_concurrency"] < 31
    now = given | {"vllm_version": "0.32.0"}
    assert of_blocks(QWEN3_5_27B, 1487, **now) == of_blocks(QWEN3_5_27B, 1487, **now, enable_prefix_caching=True)
    # vllm-project/vllm#26646: Qwen3-Next, vLLM 0.11, fp8, 90,048 tokens and 1.66x; the log does not say the memory.
    given = {"max_model_len": 215_040, "kv_cache_dtype": "fp8", "vllm_version": "0.11.0"}
    terms = of_blocks(QWEN3_NEXT, 339, **given)
    assert (terms["kv_cache_tokens"], round(terms["max_concurrency"], 2)) == (90_048, 1.66)


def test_whole_experts_need_experts_and_a_log_of_minimax_has_them_beside_full_attention():
    # eugr/spark-vllm-docker#396: vLLM 0.29.1rc1, two ranks, 28.74 GiB, 240,816 tokens; each rank has its own memory.
    asked = {"max_model_len": 196608, "tensor_parallel_size": 2, "vllm_version": "0.29.1"}
    terms = terms_of(MINIMAX_M2, log_gib=28.74, **asked)
    assert terms["kv_cache_tokens"].value == pytest.approx(240_816, rel=0.02)
    # The engine said that it needs 23.25 GiB for a request of full length.
    assert round(196608 * terms["bytes_per_token"].value / 2**30, 2) == 23.25
    with pytest.raises(CapacityError, match="needs a model with experts"):
        terms_of(MINIMAX_M2 | {"model_type": "mistral"}, enable_expert_parallel=True)
    # Engines side by side share the experts, with or without whole ones, and each has the rest of the weights.
    engines = [terms_of(MINIMAX_M2, data_parallel_size=n)["weights"].value for n in (1, 2, 4)]
    assert engines[1] - engines[2] == pytest.approx((engines[0] - engines[1]) / 2, rel=1e-3)
    assert engines[2] > engines[0] / 4
    whole = terms_of(MINIMAX_M2, data_parallel_size=4, enable_expert_parallel=True)["weights"].value
    assert whole == pytest.approx(engines[2], rel=1e-3)
    # 48 ranks hold 6 of 256 experts each, so more than a 48th of them.
    asked = {"enable_expert_parallel": True}
    few, many = (terms_of(MINIMAX_M2, tensor_parallel_size=n, **asked)["weights"].value for n in (4, 48))
    assert many > few / 12


def test_tokens_of_fewer_bytes_share_pages_with_others_as_a_log_of_gemma_4_shows():
    pool = pool_of(GEMMA_4)
    assert [(len(group.layers), group.stretch) for group in pool.groups] == [(10, 1)] * 5 + [(10, 2)]
    assert (pool.page_bytes, pool.blocks_of_group(pool.groups[-1], 4096)) == (16 * 2 * 16 * 256 * 2, 4096 // 32)
    # No whole number of tokens of 4 x 512 elements fills a page of those of 16 x 320, so it is padded.
    assert {group.stretch for group in pool_of(GEMMA_4 | {"head_dim": 320}).groups} == {1}
    # A public repository's log of a branch of vLLM 0.21 that drafts: 2 ranks, 10.12 GiB, 169,314 tokens, 1.03x.
    given = {"tensor_parallel_size": 2, "max_model_len": 163840, "max_num_batched_tokens": 8192}
    terms = terms_of(GEMMA_4, log_gib=10.12, vllm_version="0.21", **given)
    assert terms["kv_cache_tokens"].value == pytest.approx(169_314, rel=0.003)
    with pytest.raises(UnpredictableError, match="gemma4_text: groups with blocks"):
        vllm_steps(VllmKnobs(), GPU, model_facts(GEMMA_4))


def test_ranks_that_share_tokens_hold_more_of_them():
    given = {"tensor_parallel_size": 8, "max_model_len": 8192}
    for version in ("0.11.2", "0.32.0"):
        one, four = (
            of_blocks(DEEPSEEK, 1000, **given, vllm_version=version, decode_context_parallel_size=n) for n in (1, 4)
        )
        assert four["kv_cache_tokens"] == 4 * one["kv_cache_tokens"] == 4 * 16000
        assert four["max_concurrency"] == pytest.approx(4 * one["max_concurrency"], abs=2e-4)
    with pytest.raises(CapacityError, match="size 3 must divide tensor_parallel_size 8"):
        of_blocks(DEEPSEEK, 1000, **given, decode_context_parallel_size=3)
    with pytest.raises(ModelFactsError, match="gpt_oss: decode_context_parallel_size with windows"):
        of_blocks(GPT_OSS, 1000, **given, decode_context_parallel_size=2)


@pytest.mark.parametrize(
    ("config", "planned"),
    [
        # Every fourth layer has an indexer, and the first three.
        (GLM_5 | {"index_topk_freq": 4, "index_skip_topk_offset": 3}, (64, 7244, 463_616, 14.1484)),
        (MINIMAX_M3, (128, 2440, 312_320, 9.5312)),
    ],
)
def test_layers_of_different_bytes_that_keep_all_tokens_are_one_group(config, planned):
    """As vLLM 0.32 plans the caches that the layers of these models ask for (`UniformTypeKVCacheSpecs`)."""
    terms = terms_of(config, kv_cache_memory_bytes=40 * 2**30, max_model_len=32768)
    found = [terms[name].value for name in ("tokens_per_block", "num_blocks", "kv_cache_tokens", "max_concurrency")]
    assert tuple(found) == planned
    blocks = [pool_of(config).bytes_per_block(rank) for rank in split_layers(len(model_facts(config).stack), 2)]
    assert sum(blocks) == terms["bytes_per_block"].value


@pytest.mark.parametrize(
    ("config", "length", "batched", "gib", "stages", "planned"),
    [
        (DEEPSEEK_V4, 2**20, 8192, 80, 1, (85_707, 8_338_309, 7.952)),
        (DEEPSEEK_V4, 32_768, 8192, 10, 1, (10_713, 51_548, 1.5731)),
        (DEEPSEEK_V4, 4096, 512, 3, 2, (6145, 37_792, 9.2267)),
        (DEEPSEEK_V4_PRO, 2**20, 16_384, 40, 1, (29_909, 1_798_890, 1.7156)),
        (DEEPSEEK_V4_PRO, 131_072, 2048, 20, 3, (40_970, 1_389_037, 10.5975)),
        (OF_7_LAYERS, 8192, 2048, 1, 1, (7577, 34_695, 4.2353)),
        (OF_8_LAYERS, 65_536, 4096, 2, 1, (11_229, 203_851, 3.1105)),
    ],
)
def test_caches_of_a_layer_lie_side_by_side(config, length, batched, gib, stages, planned):
    """As vLLM 0.32 plans them (`get_kv_cache_configs` with the caches that its classes ask for)."""
    given = {"kv_cache_memory_bytes": gib * 2**30, "pipeline_parallel_size": stages}
    terms = terms_of(config, max_model_len=length, max_num_batched_tokens=batched, **given)
    assert terms["feasible"].value
    assert planned == tuple(terms[name].value for name in ("num_blocks", "kv_cache_tokens", "max_concurrency"))


def test_compressed_attention_has_one_kind_of_cache():
    refused = terms_of(DEEPSEEK_V4, max_model_len=131_072, kv_cache_memory_bytes=6 * 2**30)
    assert not refused["feasible"].value
    assert round(refused["bytes_per_request"].value / 2**30, 2) == 6.71  # as vLLM's error says
    assert refused["tokens_per_block"].value == 256
    for changes, why in (({"vllm_version": "0.31"}, "before vLLM 0.32"), ({"kv_cache_dtype": "bfloat16"}, "in 8 bits")):
        with pytest.raises(ModelFactsError, match=why):
            pool_of(DEEPSEEK_V4, **changes)
    with pytest.raises(CapacityError, match="must divide the model's 8 groups"):
        terms_of(DEEPSEEK_V4, tensor_parallel_size=16)
    knobs = VllmKnobs(max_model_len=32_768, kv_cache_memory_bytes=10 * 2**30, max_num_batched_tokens=8192)
    facts = model_facts(DEEPSEEK_V4)
    assert vllm_capacity(knobs, GPU, facts).value("num_blocks") == 10_713
    assert "needs compute capability 9.0" in vllm_capacity(knobs, get_gpu("a100-pcie-80gb"), facts).infeasible
    with pytest.raises(UnpredictableError, match="blocks of unequal length"):
        vllm_steps(knobs, GPU, facts)


def test_drafted_tokens_and_indexers_take_pages_and_states():
    sparse = DEEPSEEK | {"model_type": "deepseek_v32"} | INDEXER
    pool = pool_of(sparse)
    assert (len(pool.groups), pool.block_size, pool.page_bytes) == (1, 64, 64 * (576 * 2 + 132))
    with pytest.raises(ModelFactsError, match=r"the GPU decides .* in 8 bits"):
        pool_of(sparse, kv_cache_dtype="fp8")
    plain, looked_up = pool_of(QWEN3_6), pool_of(QWEN3_6, num_speculative_tokens=2)
    assert (plain.state_blocks, looked_up.state_blocks) == (2, 4)
    # Two more inputs of the convolution: 2,146,304 + 2 x 8,192 x 2 bytes of a state / 2,048 = 1,064 tokens.
    assert looked_up.block_size == 1072
    drafts = pool_of(QWEN3_6, num_speculative_tokens=2, draft_layers=1)
    assert [len(group.layers) for group in drafts.groups] == [10, 10, 10, 11]
    assert [drafts.bytes_per_block(rank) // drafts.page_bytes for rank in split_layers(40, 2)] == [5, 6]
    with pytest.raises(ModelFactsError, match="layers that draft have"):
        terms_of(QWEN3_6, num_speculative_tokens=2, draft_layers=1)


def pool_of(config, kind="cuda", **given):
    asked = EngineSettings(**{"max_model_len": 4096, "max_num_batched_tokens": 8192} | given)
    facts = model_facts(config)
    return kv_pool(facts, asked, batch_of(asked, facts, GPU), kind)


def test_windows_keep_what_each_version_keeps():
    def blocks(version, kind="cuda"):
        windows = GPT_OSS | {"layer_types": ["sliding_attention"] * 36}
        pool = pool_of(windows, kind, max_model_len=40960, max_num_batched_tokens=2048, vllm_version=version)
        return pool.blocks_per_request(40960)

    assert blocks("0.25") == blocks("0.32", "cpu") == -(-(127 + 2048) // 16) + 1
    assert blocks("0.32") == -(-(127 + 2 * 2048) // 16) + 1


def test_blocks_and_pages_of_states():
    with_caching, without = pool_of(QWEN3_6), pool_of(QWEN3_6, enable_prefix_caching=False)
    assert with_caching.blocks_per_request(4096) - without.blocks_per_request(4096) == 3
    assert pool_of(NEMOTRON, vllm_version="0.30").state_blocks == 2
    assert pool_of(NEMOTRON).state_blocks == 3  # and one made within a prefill
    assert pool_of(QWEN3_6).block_size == 1056  # 2,146,304 bytes of a state / 2,048 bytes of a token = 1,048
    assert pool_of(QWEN3_6, block_size=512).block_size == 1536
    # Half of the state and of the KV heads on each of two ranks.
    assert pool_of(QWEN3_6, tensor_parallel_size=2).block_size == 1056


def test_what_is_not_known_is_refused():
    for config, decided in ((DEEPSEEK, "the block size of latent"), (NEMOTRON, "keeps states in float32")):
        with pytest.raises(ModelFactsError, match=f"the processor decides .*{decided}"):
            pool_of(config, "cpu")
    with pytest.raises(ModelFactsError, match="nemotron_h: no layer with attention"):
        pool_of(NEMOTRON | {"hybrid_override_pattern": "M-M-"})
    with pytest.raises(CapacityError, match="the model's 96 state heads"):
        terms_of(NEMOTRON | {"num_key_value_heads": 40}, tensor_parallel_size=5)
