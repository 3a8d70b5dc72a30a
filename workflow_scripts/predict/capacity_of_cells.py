"""Predict the KV capacity of every cell of a study, before any of them is measured.

    kvsweep predict-capacity --study config/studies/demo.yaml \\
        --out results/demo/prepared/capacity.jsonl

There is one record for each cell of an engine that keeps its KV cache in blocks, and one for each number of blocks in
the tables of published claims that the study names. docs/capacity.md says how a prediction is made and what a record
holds.
"""

import csv
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from workflow_scripts.catalog.gpus_and_models import Gpu, load_gpus, load_models, models_by_repo, resolve
from workflow_scripts.catalog.published import PUBLISHED, Published, PublishedError
from workflow_scripts.common.command import STUDY, command, option, out
from workflow_scripts.common.files import write_jsonl
from workflow_scripts.device.device_check import cpu_here
from workflow_scripts.device.processor import dtype_on
from workflow_scripts.engines.block_sizes import default_block_size, why_block_size_is_refused
from workflow_scripts.engines.hf_engines import HfContinuousKnobs
from workflow_scripts.engines.vllm_engines import VllmKnobs
from workflow_scripts.physics import formulas
from workflow_scripts.physics.model_facts import ModelFacts, ModelFactsError, read_model_facts
from workflow_scripts.predict.compute_capability import why_gpu_is_refused
from workflow_scripts.predict.engine_memory import GIB, CapacityError, EngineSettings, Term
from workflow_scripts.predict.kv_capacity import predict_capacity
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.study_file import load_study

Record = dict[str, Any]

# Field of a record -> term of `predict.kv_capacity`.
TERMS = {
    "device_memory_bytes": "device_memory",
    "budget_bytes": "budget",
    "weights_bytes": "weights",
    "activation_bytes": "activation",
    "cuda_graphs_bytes": "cuda_graphs",
    "other_bytes": "other",
    "kv_cache_bytes": "available_kv_cache",
    "bytes_per_token": "bytes_per_token",
    "bytes_per_block": "bytes_per_block",
    "num_blocks": "num_blocks",
    "kv_cache_tokens": "kv_cache_tokens",
    "max_concurrency": "max_concurrency",
}

DEFAULT_UTILIZATION = 0.92  # vLLM 0.32's own; 0.9 before


def predict_study(cells: Iterable[Cell]) -> Iterator[Record]:
    """One record for each cell whose engine keeps its KV cache in blocks, in the order of the cells."""
    gpus, facts_of = load_gpus(), _facts_reader()

    @cache
    def predicted(gpu: str, model: str, knobs: VllmKnobs | HfContinuousKnobs) -> Record:
        try:
            facts = facts_of(model, gpu, knobs.quantization if isinstance(knobs, VllmKnobs) else None)
            if isinstance(knobs, HfContinuousKnobs):
                assert facts.attention  # raises what is not known
        except ModelFactsError as e:
            return _record({}, unknown=str(e))
        if isinstance(knobs, HfContinuousKnobs):
            record = _record(hf_continuous_terms(knobs, facts), block_size=knobs.page_size)
        else:
            record = predict_vllm(knobs, gpus[gpu], facts)
        return record | {"dtype": facts.dtype}

    for cell in cells:
        if isinstance(cell.knobs, VllmKnobs | HfContinuousKnobs):
            yield {"cell_id": cell.id} | predicted(cell.gpu, cell.model, cell.knobs)


def _facts_reader() -> Callable[[str, str, str | None], ModelFacts]:
    models, gpus = load_models(), load_gpus()

    @cache
    def read(model: str, gpu: str, quantization: str | None) -> ModelFacts:
        dtype = dtype_on(models[model].dtype, gpus[gpu], cpu_here(gpus[gpu]))
        return read_model_facts(models[model].config, dtype, quantization)

    return read


def engine_settings(knobs: VllmKnobs, gpu: Gpu) -> EngineSettings:
    """How the offline engine is started: the knobs, and those defaults of vLLM that a study can change."""
    given_gib = knobs.cpu_kv_cache_gib if gpu.kind == "cpu" else None
    return EngineSettings(
        block_size=knobs.block_size or default_block_size(gpu.kind),
        gpu_memory_utilization=knobs.gpu_memory_utilization or DEFAULT_UTILIZATION,
        max_model_len=knobs.max_model_len,
        tensor_parallel_size=knobs.tensor_parallel_size or 1,
        pipeline_parallel_size=knobs.pipeline_parallel_size or 1,
        kv_cache_dtype=knobs.kv_cache_dtype or "auto",
        max_num_seqs=knobs.max_num_seqs,
        max_num_batched_tokens=knobs.max_num_batched_tokens,
        enable_prefix_caching=knobs.enable_prefix_caching is not False,
        enforce_eager=bool(knobs.enforce_eager),
        kv_cache_memory_bytes=given_gib * GIB if given_gib else None,
        usage="offline",
    )


def predict_vllm(knobs: VllmKnobs, gpu: Gpu, facts: ModelFacts) -> Record:
    """The record of one start of vLLM with these settings, without a cell's id."""
    settings, on_cpu = engine_settings(knobs, gpu), gpu.kind == "cpu"
    refused = (
        why_gpu_is_refused(gpu, knobs, facts)
        or why_block_size_is_refused(gpu.kind, settings.block_size)
        or _too_long(settings, facts)
    )
    if on_cpu and knobs.cpu_kv_cache_gib is None:
        unknown = "without cpu_kv_cache_gib the cache takes a share of the host's memory, which is not known beforehand"
        return _of_settings(settings, {}, infeasible=refused, unknown=unknown)
    if knobs.draft_model:
        unknown = "a draft model has weights and a KV cache of its own, which are not predicted"
        return _of_settings(settings, {}, infeasible=refused, unknown=unknown)
    try:
        terms = predict_capacity(facts, gpu, settings)
    except CapacityError as e:
        return _of_settings(settings, {}, infeasible=refused or str(e))
    except ModelFactsError as e:
        return _of_settings(settings, {}, infeasible=refused, unknown=str(e))
    return _of_settings(settings, terms, infeasible=refused or _too_small(terms))


def _too_long(settings: EngineSettings, facts: ModelFacts) -> str | None:
    if settings.max_model_len is None or settings.max_model_len <= facts.max_positions:
        return None
    return f"max_model_len {settings.max_model_len} is beyond the model's {facts.max_positions} positions"


def _too_small(terms: Mapping[str, Term]) -> str | None:
    if terms["feasible"].value:
        return None
    left = terms["available_kv_cache"].value
    if left < 0:
        budget = terms["budget"].value
        return f"weights and overhead take {(budget - left) / GIB:.2f} GiB of a budget of {budget / GIB:.2f} GiB"
    blocks = int(terms["num_blocks"].value)
    return f"{left / GIB:.2f} GiB are {blocks} blocks, too few: {terms['feasible'].how}"


def hf_continuous_terms(knobs: HfContinuousKnobs, facts: ModelFacts) -> dict[str, Term]:
    """Terms of HuggingFace's paged cache, whose number of blocks is given instead of profiled."""
    per_token = facts.bytes_per_token()
    per_block = formulas.bytes_per_block(knobs.page_size, per_token)
    return {
        "bytes_per_token": Term(per_token, "bytes", "2 x layers x KV heads x elements of a head x bytes of an element"),
        "bytes_per_block": Term(per_block, "bytes", f"bytes_per_token x {knobs.page_size} tokens"),
        "num_blocks": Term(knobs.num_blocks, "blocks", "given: num_blocks"),
        "available_kv_cache": Term(knobs.num_blocks * per_block, "bytes", "num_blocks x bytes_per_block"),
        "kv_cache_tokens": Term(knobs.num_blocks * knobs.page_size, "tokens", "num_blocks x page_size"),
    }


def _of_settings(
    settings: EngineSettings, terms: Mapping[str, Term], *, infeasible: str | None = None, unknown: str | None = None
) -> Record:
    record = _record(terms, block_size=settings.block_size, infeasible=infeasible, unknown=unknown)
    if settings.kv_cache_memory_bytes is None:
        record["gpu_memory_utilization"] = settings.gpu_memory_utilization
    return record | {"vllm_version": settings.vllm_version}


def _record(
    terms: Mapping[str, Term],
    *,
    block_size: int | None = None,
    infeasible: str | None = None,
    unknown: str | None = None,
) -> Record:
    """All fields except the id; null if nothing is predicted. `how` says for each term how it was found."""
    return {
        "source": "predicted",
        "dtype": None,
        "vllm_version": None,
        "gpu_memory_utilization": None,
        "block_size": block_size,
        **{field: terms[term].value if term in terms else None for field, term in TERMS.items()},
        "infeasible": infeasible,
        "unknown": unknown,
        "how": {field: terms[term].how for field, term in TERMS.items() if term in terms},
    }


def predict_published(published: Published, claims: Iterable[str]) -> Iterator[Record]:
    """One record for each number of blocks in the tables of these claims; `published` holds what was published.

    Such a table is `kv_blocks_*.csv`, with the columns gpu, model (its name on the hub), vllm_version,
    gpu_memory_utilization, max_model_len, block_size, num_gpu_blocks, kv_cache_tokens and max_concurrency.

    Raises:
        PublishedError: no such claim or table, a table without one of the columns, or a row with a value that is not a
            number or a device that no catalogue entry names.
    """
    tables = {claim.table for claim in map(published.claim, claims) if claim.table is not None}
    for path in sorted(published.folder / table for table in tables if table.startswith("kv_blocks_")):
        with path.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines, restval=""))
        for number, row in enumerate(rows, start=1):
            try:
                if row["num_gpu_blocks"]:
                    yield {"cell_id": f"published/{path.stem}/{number}"} | _predict_row(row)
            except KeyError as e:
                raise PublishedError(f"{path}: there is no column {e}") from None
            except ValueError as e:
                raise PublishedError(f"{path}: row {number}: {e}") from None


def _predict_row(row: Mapping[str, str]) -> Record:
    settings = EngineSettings(
        block_size=int(row["block_size"]),
        gpu_memory_utilization=float(row["gpu_memory_utilization"]),
        max_model_len=int(row["max_model_len"]),
        vllm_version=row["vllm_version"],
        usage="offline",
    )
    gpus = resolve(row["gpu"])
    model = models_by_repo().get(row["model"])
    if len(gpus) > 1:
        which = ", ".join(gpu.name for gpu in gpus)
        record = _of_settings(settings, {}, unknown=f"{row['gpu']} may be any of {which}")
    elif model is None:
        record = _of_settings(settings, {}, unknown=f"{row['model']} is no model of config/models")
    else:
        facts = _facts_reader()(model.name, gpus[0].name, None)
        record = _of_settings(settings, predict_capacity(facts, gpus[0], settings))
    published = {
        "gpu": row["gpu"],
        "model": row["model"],
        "num_blocks": int(row["num_gpu_blocks"]),
        "kv_cache_tokens": int(row["kv_cache_tokens"]) if row["kv_cache_tokens"] else None,
        "max_concurrency": float(row["max_concurrency"]) if row["max_concurrency"] else None,
    }
    return record | {"published": published}


@command(
    "predict-capacity",
    STUDY,
    option("--published", type=Path, default=PUBLISHED, help="folder with claims.yaml and its tables (%(default)s)"),
    out("capacity.jsonl to write"),
)
def main(args: Namespace) -> None:
    """Write the predictions of a study."""
    study = load_study(args.study)
    published = predict_published(Published(args.published), study.claims)
    write_jsonl(args.out, [*predict_study(expand(study)), *published])
