"""What vLLM refuses on an NVIDIA GPU because of its compute capability, reported before anything runs.

Source: vLLM 0.32, `check_if_supports_dtype` of `platforms/cuda.py`, `get_min_capability` of its quantization methods,
and its attention backends. fp8 needs no GPU with fp8 arithmetic: Marlin's kernels accept fp8 weights from 7.5 on, and
FlashInfer accepts an fp8 cache from 8.0 on.
"""

from collections.abc import Mapping

from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.engines.vllm_engines import VllmKnobs
from workflow_scripts.physics.model_facts import ModelFacts

_BFLOAT16 = (8, 0)
_FP8_CACHE_OF_FLASHINFER = (8, 0)
_FP8_CACHE_OF_OTHERS = (8, 9)
_BACKENDS: Mapping[str | None, tuple[int, int]] = {"FLASH_ATTN": (8, 0), "FLASHINFER": (8, 0)}
# For weights, by how a model stores them; methods that are not here run on any GPU of the catalogue.
_WEIGHTS: Mapping[str | None, tuple[int, int]] = dict.fromkeys(
    ("awq", "awq_marlin", "fp8", "fp8_per_tensor", "int8"), (7, 5)
)


def why_gpu_is_refused(gpu: Gpu, knobs: VllmKnobs, facts: ModelFacts) -> str | None:
    """Why vLLM does not start on this GPU, with a remedy; None if its compute capability is sufficient.

    >>> from workflow_scripts.catalog.gpus_and_models import get_gpu, get_model
    >>> from workflow_scripts.physics.model_facts import read_model_facts
    >>> llama = read_model_facts(get_model("llama-3.1-8b-instruct").config, "bfloat16")
    >>> why_gpu_is_refused(get_gpu("t4"), VllmKnobs(), llama)
    'bfloat16 needs compute capability 8.0, and t4 has 7.5: set dtype: float16 in the model.yaml of the model'
    >>> why_gpu_is_refused(get_gpu("a10"), VllmKnobs(), llama) is None
    True
    """
    if gpu.compute_capability is None:
        return None
    major, minor = map(int, gpu.compute_capability.split("."))
    has, cache, chosen = (major, minor), knobs.kv_cache_dtype or "auto", knobs.attention_backend

    def lacks(what: str, needed: tuple[int, int], remedy: str) -> str:
        return f"{what} needs compute capability {needed[0]}.{needed[1]}, and {gpu.name} has {major}.{minor}: {remedy}"

    if facts.dtype == "bfloat16" and has < _BFLOAT16:
        return lacks("bfloat16", _BFLOAT16, "set dtype: float16 in the model.yaml of the model")
    if has < (needed := _WEIGHTS.get(facts.quantization, has)):
        return lacks(f"quantization {facts.quantization}", needed, "gptq runs on any GPU from 6.0 on")
    if has < (needed := _BACKENDS.get(chosen, has)):
        return lacks(f"attention_backend {chosen}", needed, "leave attention_backend out")
    if cache == "bfloat16" and has < _BFLOAT16:
        return lacks("kv_cache_dtype bfloat16", _BFLOAT16, "set kv_cache_dtype: float16")
    if cache.startswith("fp8") and has < _FP8_CACHE_OF_FLASHINFER:
        return lacks(f"kv_cache_dtype {cache}", _FP8_CACHE_OF_FLASHINFER, "set kv_cache_dtype: auto")
    if cache.startswith("fp8") and chosen not in (None, "FLASHINFER") and has < _FP8_CACHE_OF_OTHERS:
        return lacks(f"kv_cache_dtype {cache} with {chosen}", _FP8_CACHE_OF_OTHERS, "set attention_backend: FLASHINFER")
    return None
