"""Bytes of every type of KV cache, against vLLM's own sizes of a page and of a packed head."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from workflow_scripts.catalog.gpus_and_models import get_gpu, get_model
from workflow_scripts.engines.vllm.knobs import VllmKnobs
from workflow_scripts.engines.vllm.predictions import why_gpu_is_refused
from workflow_scripts.physics.cache_types import CACHE_TYPES
from workflow_scripts.physics.model_facts import ModelFactsError, read_model_facts

LLAMA = read_model_facts(get_model("llama-3.1-8b-instruct").config, "bfloat16")
DEEPSEEK = read_model_facts(get_model("deepseek-v3").config, "bfloat16")


@pytest.mark.parametrize("name", sorted(CACHE_TYPES.keys() - {"float32", "fp8_ds_mla", "nvfp4_ds_mla"}))
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_a_head_takes_what_vllms_own_page_has(name, head_dim):
    interface: Any = pytest.importorskip("vllm.v1.kv_cache_interface")
    from vllm.model_executor.layers.quantization.turboquant.config import TurboQuantConfig
    from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE, nvfp4_kv_cache_full_dim
    from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
    from vllm.v1.attention.ops.ultraquant.format import slot_size

    dtype, mode = STR_DTYPE_TO_TORCH_DTYPE[name], interface.get_kv_quant_mode(name)
    spec = interface.FullAttentionSpec(
        block_size=16, num_kv_heads=2, head_size=head_dim, dtype=dtype, kv_quant_mode=mode
    )
    if mode.is_turboquant:
        spec = replace(spec, state_content_bytes=TurboQuantConfig.from_cache_dtype(name, head_dim).slot_size_aligned)
    elif mode.is_ultraquant:
        spec = replace(spec, state_content_bytes=slot_size(head_dim))
    elif mode.is_nvfp4:
        spec = replace(spec, num_head_slots=4, state_content_bytes=nvfp4_kv_cache_full_dim(head_dim))
    else:
        spec = TritonAttentionBackend.customize_spec(spec)
    assert CACHE_TYPES[name].head_bytes(head_dim, head_dim) == spec.page_size_bytes / (16 * 2)


def test_layers_at_the_ends_keep_their_own_type_where_vllm_spares_them():
    config: Any = pytest.importorskip("vllm.model_executor.layers.quantization.turboquant.config")

    model = SimpleNamespace(is_hybrid=False, hf_text_config=SimpleNamespace(num_hidden_layers=LLAMA.layers))
    spared = set(map(int, config.TurboQuantConfig.get_boundary_skip_layers(model)))
    packed = {
        i for i in range(LLAMA.layers) if LLAMA.cache_type("turboquant_k8v4", i) == CACHE_TYPES["turboquant_k8v4"]
    }
    assert packed == set(range(LLAMA.layers)) - spared
    assert LLAMA.bytes_per_token("turboquant_k8v4") == 8 * (4 * 512 + 28 * 196)


def test_a_layout_of_latent_vectors_needs_them_and_packed_heads_need_keys_and_values():
    assert DEEPSEEK.bytes_per_token("fp8_ds_mla") == 61 * 656
    for facts, name in ((LLAMA, "fp8_ds_mla"), (DEEPSEEK, "int8_per_token_head"), (DEEPSEEK, "turboquant_k8v4")):
        with pytest.raises(ModelFactsError, match=name):
            facts.bytes_per_token(name)
    with pytest.raises(ModelFactsError, match="unknown KV cache dtype 'fp7'"):
        LLAMA.bytes_per_token("fp7")


@pytest.mark.parametrize(
    ("gpu", "name", "refused"),
    [
        *(("h100-sxm", name, False) for name in ("int4_per_token_head", "nvfp4", "turboquant_3bit_nc")),
        *(("h100-sxm", name, True) for name in ("ultraquant_4bit", "fp8_inc")),
        *(("mi300x", name, name == "nvfp4") for name in ("nvfp4", "ultraquant_4bit", "turboquant_k8v4")),
        *(("cpu-all", name, name != "fp8") for name in ("fp8", "int8_per_token_head", "turboquant_k8v4")),
    ],
)
def test_a_device_whose_backends_do_not_take_a_type_is_told(gpu, name, refused):
    assert (why_gpu_is_refused(get_gpu(gpu), VllmKnobs(kv_cache_dtype=name), LLAMA) is not None) == refused
