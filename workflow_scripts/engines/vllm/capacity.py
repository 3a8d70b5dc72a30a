"""Predict how many KV blocks, tokens and requests fit on a GPU.

    kvsweep capacity --model llama-3.1-8b-instruct --gpu h200 \\
        --block-size 16 --gpu-memory-utilization 0.9 --max-model-len 8192

prints the memory of the limiting device as a sum, the KV cache of a token, of a request of `--max-model-len` tokens
and, with `--batch`, of so many requests, and what fits. Each term is predicted from the way in which vLLM profiles
memory, read from an engine's log (`--from-log`), or given.

With `--json`, each term has a value, a unit and how it was found. Sizes are those of the limiting device, the one with
the fewest blocks. If the capacity of such a model cannot be predicted, the field `unknown` says why.
"""

import json
import math
import re
from argparse import BooleanOptionalAction, Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StrictStr

from workflow_scripts.catalog.any_model import ANY_MODEL, find_model
from workflow_scripts.catalog.gpus_and_models import Gpu, resolve_one
from workflow_scripts.common.command import command, option, positive, share
from workflow_scripts.common.files import read_json
from workflow_scripts.common.records import mapping_of, validated
from workflow_scripts.device.device_check import cpu_here
from workflow_scripts.engines.capacity import KvPool, PipelineRank, Term
from workflow_scripts.engines.vllm.kv_groups import kv_cache_tokens, kv_pool
from workflow_scripts.engines.vllm.memory import (
    GIB,
    MIB,
    V1,
    BatchLimits,
    CapacityError,
    EngineSettings,
    batch_of,
    bytes_per_token,
    memory_terms,
    needs_a_block_each,
    split_layers,
)
from workflow_scripts.physics.layers import Attention, CompressedAttention, Experts, State
from workflow_scripts.physics.model_facts import ModelFacts, ModelFactsError, facts_on, read_config
from workflow_scripts.physics.stored_weights import KV_CACHE_DTYPE, QUANTIZATION

# More than any device has.
MOST_GIB = 10**6
_GIB = Annotated[float, Field(strict=True, gt=-MOST_GIB, lt=MOST_GIB)]
_LOG = mapping_of({"engine_version": StrictStr, "available_kv_cache_gib": _GIB}, extra="allow")

# Rows of what is printed: the memory of the limiting device as a sum, and what its last term holds.
_ROWS = {
    "weights": "  weights",
    "activation": "+ peak of activations",
    "cuda_graphs": "+ CUDA graphs",
    "other": "+ outside of torch",
    "available_kv_cache": "+ KV cache",
    "budget": "= usable",
    "bytes_per_token": "KV of a token",
    "bytes_per_request": "KV of a request",
    "bytes_per_batch": "KV of the batch",
    "bytes_per_block": "a KV block",
    "num_blocks": "KV blocks",
}


def predict_capacity(
    facts: ModelFacts, gpu: Gpu, settings: EngineSettings, log_gib: float | None = None
) -> dict[str, Term]:
    """Memory terms of the limiting pipeline rank, the one with the fewest blocks. Its blocks, and the tokens and
    requests that they hold, are those of all data-parallel engines.

    Qwen2-7B if a log leaves 5.01 GiB to the KV cache, in blocks of 16 tokens of 57,344 bytes:

    >>> from workflow_scripts.catalog.gpus_and_models import get_gpu, get_model
    >>> from workflow_scripts.physics.model_facts import read_model_facts
    >>> qwen, a100 = read_model_facts(get_model("qwen2-7b").config), get_gpu("a100-pcie-80gb")
    >>> terms = predict_capacity(qwen, a100, EngineSettings(), log_gib=5.01)
    >>> [terms[name].value for name in ("bytes_per_block", "num_blocks", "kv_cache_tokens")]
    [917504, 5863, 93808]

    `log_gib`: of the KV cache, from an engine's log, instead of a prediction. Raises CapacityError if there is no
    prediction for these settings, and ModelFactsError if there is none for a model with such layers.
    """
    if settings.version < V1:
        raise ModelFactsError("nothing is predicted for vLLM before 0.8")
    batch = batch_of(settings, facts, gpu)
    pool = kv_pool(facts, settings, batch, gpu.kind)
    _check_ranks(facts, settings)
    ranks = split_layers(facts.layers, settings.pipeline_parallel_size)
    of_ranks = [_of_rank(facts, gpu, settings, rank, pool, log_gib) for rank in ranks]
    limiting = min(of_ranks, key=lambda terms: terms["num_blocks"].value)
    blocks, tokens = int(limiting["num_blocks"].value), batch.max_model_len
    needed = pool.blocks_per_request(tokens)
    how = f"num_blocks / {needed} blocks of a request of {tokens} tokens"
    # The engine reserves one block, which stands for "no block" in its tables.
    fitting = Term(blocks > needed, "bool", f"a request of {tokens} tokens fits beside the engine's own block")
    if needs_a_block_each(facts, gpu, settings) and blocks < batch.max_num_seqs:
        lower = f"lower max_num_seqs from {batch.max_num_seqs} to at most {blocks}"
        fitting = Term(False, "bool", f"each sequence needs a block for its state in a captured graph: {lower}")
    of_an_engine = {
        "num_blocks": limiting["num_blocks"],
        "kv_cache_tokens": kv_cache_tokens(pool, blocks, batch, settings),
        "max_concurrency": Term(round(blocks / needed, 4), "requests", how),
    }
    of_a_request = Term(needed * int(limiting["bytes_per_block"].value), "bytes", f"{needed} blocks, on one device")
    engines = settings.data_parallel_size
    of_all = {n: Term(t.value * engines, t.unit, f"{t.how}, x {engines} engines") for n, t in of_an_engine.items()}
    fitted = of_an_engine if engines == 1 else of_all
    return limiting | fitted | {"bytes_per_request": of_a_request, "feasible": fitting}


def _check_ranks(facts: ModelFacts, settings: EngineSettings) -> None:
    tensor, pipeline = settings.tensor_parallel_size, settings.pipeline_parallel_size
    if settings.enable_expert_parallel and not any(facts.of_kind(Experts)):
        raise CapacityError("enable_expert_parallel needs a model with experts; this one has none")
    if tensor % (context := settings.decode_context_parallel_size):
        raise CapacityError(f"decode_context_parallel_size {context} must divide tensor_parallel_size {tensor}")
    divide = f"tensor_parallel_size {tensor} must divide the model's"
    for mixer in facts.mixers:
        if mixer.heads % tensor:
            what = "state" if isinstance(mixer, State) else "attention"
            raise CapacityError(f"{divide} {mixer.heads} {what} heads")
        if isinstance(mixer, CompressedAttention) and mixer.output_groups % tensor:
            raise CapacityError(f"{divide} {mixer.output_groups} groups of attention heads")
        if isinstance(mixer, Attention) and mixer.kv_heads % tensor and tensor % mixer.kv_heads:
            raise CapacityError(f"{divide} {mixer.kv_heads} KV heads or be a multiple of them")
    if pipeline > facts.layers:
        raise CapacityError(f"pipeline_parallel_size {pipeline} must be at most the model's {facts.layers} layers")


def _of_rank(
    facts: ModelFacts,
    gpu: Gpu,
    settings: EngineSettings,
    rank: PipelineRank,
    pool: KvPool,
    log_gib: float | None,
) -> dict[str, Term]:
    per_block = pool.bytes_per_block(rank)
    pages = f"{per_block // pool.page_bytes} layers of a group x pages of {pool.page_bytes:,} bytes"
    if any(group.layer_bytes for group in pool.groups):
        pages = "pages of all layers of a group, which differ in bytes"
    how = f"{pages}, {pool.block_size} tokens in a page of attention; groups: {len(pool.groups)}"
    if given := settings.num_gpu_blocks_override:
        memory = {"available_kv_cache": Term(given * per_block, "bytes", "num_gpu_blocks_override x bytes_per_block")}
    else:
        memory = memory_terms(facts, gpu, settings, rank, log_gib)
    blocks = max(0, math.floor(memory["available_kv_cache"].value / per_block))
    return {
        "pipeline_rank": Term(rank.index, "rank", f"fewest blocks of {settings.pipeline_parallel_size}"),
        **memory,
        "bytes_per_token": bytes_per_token(facts, settings, rank),
        "bytes_per_block": Term(per_block, "bytes", how),
        "tokens_per_block": Term(pool.block_size, "tokens", "in a page of attention"),
        "num_blocks": Term(blocks, "blocks", "available_kv_cache / bytes_per_block, rounded down"),
    }


def asked_settings(
    model: str, gpu: Gpu, settings: EngineSettings, quantization: str | None, log: Mapping[str, Any]
) -> tuple[ModelFacts, EngineSettings]:
    """The model of a name, and the settings with what follows from it. Raises InputError."""
    # How weights are stored matters only if the size of the KV cache is not given.
    entry, sizes = find_model(model), (settings.kv_cache_memory_bytes, settings.num_gpu_blocks_override)
    weights = not any([*sizes, log.get("available_kv_cache_gib")])
    facts = facts_on(entry, gpu, cpu_here(gpu), quantization, weights=weights)
    stored = read_config(entry.config).get("quantization_config") or {}
    named = next((key for key in ("kv_cache_scheme", "kv_cache_quant_algo") if stored.get(key)), None)
    if named and settings.kv_cache_dtype == "auto" and facts.kv_cache_dtype is None:
        raise CapacityError(f"{entry.config}: {named} names the type of the KV cache: give it as --kv-cache-dtype")
    return facts, replace(settings, enable_prefix_caching=settings.caches_prefixes(facts))


def _read_log(path: Path) -> dict[str, Any]:
    log: dict[str, Any] = validated(_LOG, read_json(path), str(path))
    if log.get("available_kv_cache_gib") is None:
        raise CapacityError(f"{path}: not what `kvsweep log` prints, with available_kv_cache_gib")
    return log


@command(
    "capacity",
    option("--model", required=True, help=ANY_MODEL),
    option("--gpu", required=True, help="name in config/gpus.yaml"),
    option("--block-size", type=positive, required=True, help="tokens per block"),
    option("--gpu-memory-utilization", type=share, required=True, help="share of the device's memory for the engine"),
    option("--max-model-len", type=positive, required=True, help="tokens of the longest request"),
    option("--batch", type=positive, help="requests of this length whose KV cache is printed as a sum"),
    option("--tensor-parallel-size", type=positive, default=1),
    option("--pipeline-parallel-size", type=positive, default=1),
    option("--data-parallel-size", type=positive, default=1, help="engines, each with devices and a cache of its own"),
    option("--decode-context-parallel-size", type=positive, default=1, help="ranks that share a request's tokens"),
    option("--enable-expert-parallel", action="store_true", help="whole experts on each tensor rank"),
    option("--num-speculative-tokens", type=positive, default=0, help="tokens drafted per step"),
    option("--draft-layers", type=positive, default=0, help="layers of the model that draft (multi-token prediction)"),
    KV_CACHE_DTYPE,
    QUANTIZATION,
    option("--max-num-seqs", type=positive, help="default: vLLM's on this GPU"),
    option("--max-num-batched-tokens", type=positive, help="default: vLLM's on this GPU"),
    option("--enable-prefix-caching", action=BooleanOptionalAction, help="matters for states (default: the version's)"),
    option("--enforce-eager", action="store_true", help="no CUDA graphs"),
    option("--kv-cache-memory-bytes", type=positive, help="of the KV cache, instead of profiled; needed for CPUs"),
    option("--num-gpu-blocks-override", type=positive, help="blocks of the KV cache, given instead of profiled"),
    option("--vllm-version", help=f"default: the log's, otherwise {EngineSettings.vllm_version}"),
    option("--usage", choices=["server", "offline"], default="server", help="for default batch sizes (%(default)s)"),
    option("--from-log", type=Path, metavar="FILE", help="facts as `kvsweep log` prints them"),
    option("--json", action="store_true", help="print JSON"),
)
def main(args: Namespace) -> None:
    gpu = resolve_one(args.gpu)
    log = _read_log(args.from_log) if args.from_log else {}
    report: dict[str, Any] = {"source": "predicted", "model": args.model, "gpu": gpu.name}
    try:
        given = {name: value for name, value in vars(args).items() if name in EngineSettings.__dataclass_fields__}
        given["vllm_version"] = args.vllm_version or log.get("engine_version") or EngineSettings.vllm_version
        facts, settings = asked_settings(args.model, gpu, EngineSettings(**given), args.quantization, log)
        terms = predict_capacity(facts, gpu, settings, log.get("available_kv_cache_gib"))
    except ModelFactsError as e:
        print(json.dumps(report | {"unknown": str(e)}, indent=2) if args.json else f"unknown: {e}")
        return
    if args.batch:
        of_batch = args.batch * int(terms["bytes_per_request"].value)
        terms["bytes_per_batch"] = Term(of_batch, "bytes", f"{args.batch} requests, none of which share blocks")
    batch = batch_of(settings, facts, gpu)
    if args.json:
        report |= {"quantization": facts.quantization, "settings": asdict(settings) | asdict(batch), **terms}
        print(json.dumps(report, indent=2, default=asdict))
        return
    # Here, because rich takes longer to import than JSON takes to print.
    from rich.table import Table

    from workflow_scripts.common.terminal import Terminal

    stages = settings.pipeline_parallel_size
    devices = settings.tensor_parallel_size * stages * settings.data_parallel_size
    table = Table(box=None, pad_edge=False)
    table.add_column("memory")
    each = f"each of rank {terms['pipeline_rank'].value:.0f}" if stages > 1 else "each device"
    table.add_column(each, justify="right", no_wrap=True)
    table.add_column("how")
    for name in (name for name in _ROWS if name in terms):
        table.add_row(_ROWS[name], _size(terms[name]), terms[name].how)
    title = f"{args.model} on {devices} x {gpu.name}, vLLM {settings.vllm_version}, predicted"
    named = re.search(r"estimated maximum model length is (\d{1,9})", str(log.get("error")))
    terminal = Terminal()
    for part in (title, "", table, "", *_what_fits(terms, batch, named and named[1])):
        terminal.print(part)


def _size(term: Term) -> str:
    """A size in its usual unit, or a count.

    >>> [_size(Term(value, "bytes", "")) for value in (2**29, 2**21, 131072)], _size(Term(1000, "blocks", ""))
    (['0.50 GiB', '2 MiB', '131,072 B'], '1,000')
    """
    if term.unit != "bytes" or abs(term.value) < MIB:
        return f"{term.value:,.0f}{' B' if term.unit == 'bytes' else ''}"
    return f"{term.value / GIB:,.2f} GiB" if abs(term.value) >= GIB / 10 else f"{term.value / MIB:.3g} MiB"


def _what_fits(terms: Mapping[str, Term], batch: BatchLimits, fitting_len: str | None) -> Iterator[str]:
    """What fits, and the length that would, if the log names one."""
    blocks, tokens, of_block = (terms[name].value for name in ("num_blocks", "kv_cache_tokens", "tokens_per_block"))
    yield f"KV cache: {blocks:,.0f} blocks of {of_block:,.0f} tokens, {tokens:,.0f} tokens in all."
    length, concurrency = f"{batch.max_model_len:,} tokens", terms["max_concurrency"].value
    if terms["feasible"].value:
        yield f"{math.floor(concurrency):,} requests of {length} fit at once (maximum concurrency {concurrency:.2f})."
        return
    if (left := terms["available_kv_cache"]).value < 0:
        yield f"It does not fit: each device lacks {_size(replace(left, value=-left.value))} for all but the KV cache."
    elif concurrency > 1:
        yield f"vLLM refuses to start: {terms['feasible'].how}."
    else:
        yield f"It does not fit: a request of {length} needs more blocks (maximum concurrency {concurrency:.2f})."
    if fitting_len:
        yield f"It would fit with --max-model-len {fitting_len}, says the log."
