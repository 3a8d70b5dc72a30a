"""Devices, models and a published table of the catalogue, as the page's calculator and audit need them."""

import math
from typing import Any, get_args

from workflow_scripts.catalog.gpus_and_models import CatalogError, Dtype, Gpu, Model, load_gpus, load_models
from workflow_scripts.catalog.published import PUBLISHED, Published
from workflow_scripts.catalog.rate_columns import PATTERNS
from workflow_scripts.physics.formulas import decode_step_flops, prefill_flops
from workflow_scripts.physics.model_facts import DTYPE_BYTES, ModelFactsError, read_model_facts

# Types of weights that the page offers; None is the model's own.
QUANTIZATIONS: tuple[str | None, ...] = (None, "fp8", "awq", "gptq")


def request_flops(
    layer_parameters: float,
    lm_head_parameters: float,
    attention_width: float,
    prompt_tokens: float,
    output_tokens: float,
) -> float:
    """Operations of a whole request of a model with full attention alone, as `ModelFacts.request_flops` counts them."""
    further = output_tokens - 1
    prompt = prefill_flops(layer_parameters, lm_head_parameters, prompt_tokens, attention_width)
    kv_tokens = further * (prompt_tokens + (further + 1) / 2)
    return prompt + decode_step_flops(layer_parameters + lm_head_parameters, further, kv_tokens, attention_width)


def catalog() -> dict[str, Any]:
    """All devices with data-sheet rates, all models whose facts can be read, and the first published table of rates.

    `columns` has the patterns by which the columns of a table of rates are known.
    """
    models, shapes = load_models(), []
    for name in models:
        try:
            shapes.append(_shape(models[name]))
        except (CatalogError, ModelFactsError):
            continue  # these formulas do not apply to the model; the report of a study with it says why
    published = next(claim for claim in Published(PUBLISHED).claims if claim.table and claim.model)
    return {
        "devices": [_device(gpu) for gpu in load_gpus().values() if not gpu.simulated],
        "models": shapes,
        "columns": PATTERNS,
        "published": {
            "source": published.source,
            "model": published.model,
            "table": (PUBLISHED / str(published.table)).read_text(encoding="utf-8"),
        },
    }


def _device(gpu: Gpu) -> dict[str, Any]:
    """One device; null is not known. `flop_per_s` has the dense rate by dtype, `highest_flop_per_s` that of any."""
    rates = gpu.dense_flop_per_s or {}
    memory = None if gpu.memory_bytes is None else max(gpu.memory_bytes, gpu.usable_memory_bytes or 0)
    return {
        "name": gpu.name,
        "names": [gpu.name, gpu.title, *gpu.aliases],
        "memory_bytes": memory,
        "memory_bandwidth_bytes_per_s": gpu.memory_bandwidth_bytes_per_s,
        "flop_per_s": {dtype: gpu.peak_flop_per_s(dtype) for dtype in get_args(Dtype)},
        "highest_flop_per_s": max(rates.values(), default=None),
    }


def _shape(model: Model) -> dict[str, Any]:
    """The facts of a model that determine its memory and operations.

    `weights` has by type, "" for the model's own, the bytes of all and of those that a decode step reads.
    """
    facts = read_model_facts(model.config, model.fixed_dtype).uniform()
    weights = {}
    for quantization in QUANTIZATIONS:
        if quantization and facts.quantization:
            continue  # the checkpoint has its own
        of = read_model_facts(model.config, model.fixed_dtype, quantization) if quantization else facts
        weights[quantization or ""] = {"weight_bytes": of.weight_bytes, "decode_weight_bytes": of.decode_weight_bytes}
    layer, head, width = facts.layer_matmul_parameters, facts.vocab * facts.hidden, facts.attention_width
    # The page computes a request's operations from these three; models for which that is wrong are left out.
    if not math.isclose(request_flops(layer, head, width, 10, 5), facts.request_flops(10, 5)):
        raise ModelFactsError(f"{model.name}: its operations do not follow from its matrices and attention alone")
    return {
        "name": model.name,
        "dtype": facts.dtype,
        "quantization": facts.quantization,
        "max_positions": facts.max_positions,
        "weights": weights,
        "kv_bytes_per_token": {kind: facts.bytes_per_token(kind) for kind in ("auto", *DTYPE_BYTES)},
        "layer_parameters": layer,
        "lm_head_parameters": head,
        "attention_width": width,
    }
