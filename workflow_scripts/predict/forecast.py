"""Forecast of a study: one record per cell of what it should do, before it is measured.

Cells whose engines make the same decisions share one schedule, on whatever device. docs/plan.md says how a prediction
is made and what a record holds.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from workflow_scripts.catalog.gpus_and_models import Dtype, Gpu, load_gpus, load_models
from workflow_scripts.device.device_check import cpu_here
from workflow_scripts.device.device_rates import DeviceRates, read_device_rates
from workflow_scripts.device.processor import dtype_on
from workflow_scripts.engines.hf_engines import HfContinuousKnobs, HfStaticKnobs
from workflow_scripts.engines.vllm_engines import VllmKnobs
from workflow_scripts.physics.calibration import Speed
from workflow_scripts.physics.layers import Experts
from workflow_scripts.physics.model_facts import ModelFacts, ModelFactsError, read_model_facts
from workflow_scripts.physics.step_time import StepCosts
from workflow_scripts.predict.calibrated import PROJECT_FILES, Wanted, speed_for
from workflow_scripts.predict.capacity_of_cells import engine_settings, predict_vllm
from workflow_scripts.predict.engine_memory import batch_of
from workflow_scripts.predict.request_lengths import lengths_of
from workflow_scripts.predict.schedule import RequestLengths, SchedulerSettings
from workflow_scripts.predict.speed import FIELDS, CellTask, Record, Task, predict_task
from workflow_scripts.study.grid import Cell
from workflow_scripts.study.ladders import variant
from workflow_scripts.study.study_file import Study
from workflow_scripts.workloads.arrivals import Load
from workflow_scripts.workloads.request import WorkloadError


class UnpredictableError(Exception):
    """A cell without a prediction; the message says why."""


def predict_cells(
    study: Study,
    cells: Iterable[Cell],
    prepared: Path | None = None,
    project_files: Path = PROJECT_FILES,
    run: Callable[..., Iterable[list[Record]]] = map,
) -> Iterator[Record]:
    """One record per cell, in no particular order.

    Args:
        study: the study that the cells belong to.
        cells: which of its cells.
        prepared: folder with the records of measured devices (`devices`) and of ladders (`ladders`).
        project_files: folder with ladders that the project holds.
        run: `map`, or a function that does the same in parallel.

    Raises:
        WorkloadError: a workload's requests cannot be determined.
        LadderError: a ladder cannot be read.
    """
    tasks, unpredictable = tasks_of(study, cells, prepared, project_files)
    yield from unpredictable
    for records in run(predict_task, tasks):
        yield from records


def tasks_of(
    study: Study, cells: Iterable[Cell], prepared: Path | None = None, project_files: Path = PROJECT_FILES
) -> tuple[list[Task], list[Record]]:
    """Cells grouped by the schedule that they share, and records of those that have no schedule."""
    known = _Known(study, prepared, project_files)
    groups: dict[Any, list[CellTask]] = {}
    unpredictable = []
    for cell in cells:
        record = _empty(cell)
        try:
            key, task = known.task(cell, record)
        except UnpredictableError as e:
            reason = record["unknown"] or (None if record["infeasible"] else str(e))
            unpredictable.append(record | {"unknown": reason})
        else:
            groups.setdefault(key, []).append(task)
    tasks = [
        Task(known.lengths(workload, count)[0], settings, batch_size, tuple(of_group))
        for (workload, count, settings, batch_size, _), of_group in groups.items()
    ]
    return tasks, unpredictable


def _empty(cell: Cell) -> Record:
    names = {"gpu": cell.gpu, "engine": cell.engine, "model": cell.model, "workload": cell.workload}
    record: Record = dict.fromkeys(FIELDS)
    return record | {"cell_id": cell.id, **names, "knobs": cell.knobs.slug(), "source": "predicted"}


class _Known:
    """What is known of a study's devices, models and workloads, each read once."""

    def __init__(self, study: Study, prepared: Path | None, project_files: Path) -> None:
        self.study = study
        gpus, models = load_gpus(), load_models()

        @cache
        def rates(gpu: str) -> DeviceRates | None:
            path = prepared / "devices" / f"{gpu}.json" if prepared else None
            return read_device_rates(path) if path and path.exists() else None

        def device(gpu: str) -> Mapping[str, Any]:
            measured = rates(gpu)
            return measured.device if measured else cpu_here(gpus[gpu])

        @cache
        def facts(gpu: str, model: str, quantization: str | None) -> ModelFacts:
            return read_model_facts(
                models[model].config, dtype_on(models[model].dtype, gpus[gpu], device(gpu)), quantization
            )

        @cache
        def speed(
            gpu: str, engine: str, model: str, kernels: str, dtype: Dtype, eager_layers: int, ranks: int
        ) -> Speed | None:
            measured = rates(gpu)
            wanted = Wanted(gpus[gpu], device(gpu), measured, engine, model, dtype, kernels, eager_layers, ranks)
            speed = speed_for(wanted, prepared / "ladders" if prepared else None, project_files)
            if speed is None or models[model].dtype != "native":
                return speed
            known_by = "data sheet" if gpus[gpu].kind != "cpu" else "record" if measured else "host that predicts"
            return speed.model_copy(update={"how": f"{speed.how}; {dtype} is what is native by the {known_by}"})

        @cache
        def lengths(workload: str, count: int) -> tuple[RequestLengths, str]:
            return lengths_of(study.workloads[workload], count)

        self.gpus, self.facts, self.speed, self.lengths = gpus, facts, speed, lengths

    def task(self, cell: Cell, record: Record) -> tuple[Any, CellTask]:
        """The cell's task, with the key of those that share its schedule; fills in `record` what is known.

        Raises:
            UnpredictableError: the cell's speed is not predicted.
        """
        gpu, knobs = self.gpus[cell.gpu], cell.knobs
        count = record["num_requests"] = self.study.workloads[cell.workload].prompts_for(knobs.max_concurrency)
        facts = self._facts_of(cell)
        if isinstance(knobs, Load):
            raise UnpredictableError(f"{cell.engine}: the load on a server is not modelled")
        if isinstance(knobs, VllmKnobs):
            settings, num_blocks = _scheduler(knobs, gpu, facts, record)
            batch_size, limit = None, settings.max_model_len
            ranks, kv_cache_dtype = knobs.tensor_parallel_size or 1, knobs.kv_cache_dtype or "auto"
            eager = bool(knobs.enforce_eager)
        elif isinstance(knobs, HfStaticKnobs):
            _check_static(facts)
            settings, num_blocks, limit = None, None, facts.max_positions
            batch_size = record["max_num_seqs"] = knobs.batch_size
            ranks, kv_cache_dtype, eager = 1, "auto", True
        elif isinstance(knobs, HfContinuousKnobs):
            settings, num_blocks = _continuous(knobs, facts, record), knobs.num_blocks
            batch_size, limit = None, facts.max_positions
            ranks, kv_cache_dtype, eager = 1, "auto", True
        else:
            raise UnpredictableError(f"{cell.engine}: there is no schedule of this engine")
        requests = self._requests_of(cell, count, limit, record)
        task = CellTask(
            record=record,
            num_blocks=num_blocks,
            facts=facts,
            kv_cache_dtype=kv_cache_dtype,
            ranks=ranks,
            speed=self._speed_of(cell, facts, eager),
            ceiling=_ceiling(gpu, facts),
            kind=gpu.kind,
            eager=eager,
            repeats=self.study.repeats,
            margin_pct=self.study.equivalence_margin_pct,
            cache=knobs.cache_implementation if isinstance(knobs, HfStaticKnobs) else None,
        )
        # If requests arrive over time, decisions depend on the engine's speed: the cell has a schedule of its own.
        own = cell.id if requests.arrival_s is not None else None
        return (cell.workload, count, settings, batch_size, own), task

    def _facts_of(self, cell: Cell) -> ModelFacts:
        try:
            quantization = cell.knobs.quantization if isinstance(cell.knobs, VllmKnobs) else None
            return self.facts(cell.gpu, cell.model, quantization).uniform()
        except ModelFactsError as e:
            raise UnpredictableError(str(e)) from None

    def _speed_of(self, cell: Cell, facts: ModelFacts, eager: bool) -> Speed | None:
        dtype = cast(Dtype, facts.dtype)
        eager_layers, ranks = facts.layers if eager else 0, cell.knobs.ranks
        return self.speed(cell.gpu, cell.engine, cell.model, variant(cell.knobs), dtype, eager_layers, ranks)

    def _requests_of(self, cell: Cell, count: int, limit: int, record: Record) -> RequestLengths:
        try:
            requests, kind = self.lengths(cell.workload, count)
        except WorkloadError as e:
            raise UnpredictableError(f"workload {cell.workload!r}: {e}") from None
        longest = int((requests.prompt_tokens + requests.output_tokens).max())
        if longest > limit:
            raise UnpredictableError(f"a request of {longest} tokens does not fit a context of {limit}")
        record |= {
            "lengths": kind,
            "prompt_tokens": int(requests.prompt_tokens.sum()),
            "output_tokens": int(requests.output_tokens.sum()),
        }
        return requests


def _check_static(facts: ModelFacts) -> None:
    try:
        assert facts.attention
    except ModelFactsError as e:
        raise UnpredictableError(str(e)) from None
    if any(facts.of_kind(Experts)):
        raise UnpredictableError("what HuggingFace's experts read and copy is not modelled")


def _scheduler(knobs: VllmKnobs, gpu: Gpu, facts: ModelFacts, record: Record) -> tuple[SchedulerSettings, int]:
    """Settings of vLLM's scheduler, and its KV blocks; fills in `record` what is known."""
    capacity = predict_vllm(knobs, gpu, facts)
    record |= {name: capacity[name] for name in ("num_blocks", "kv_cache_tokens", "max_concurrency")}
    record |= {"infeasible": capacity["infeasible"], "unknown": capacity["unknown"]}
    if capacity["infeasible"] or capacity["unknown"]:
        raise UnpredictableError("its KV cache is not known")
    if knobs.num_speculative_tokens:
        raise UnpredictableError("speculative decoding: which drafted tokens are accepted is not known beforehand")
    if (knobs.pipeline_parallel_size or 1) > 1:
        raise UnpredictableError("pipeline_parallel_size above 1: batches that take turns are not modelled")
    if (knobs.tensor_parallel_size or 1) > 1 and gpu.kind == "cpu":
        raise UnpredictableError("tensor_parallel_size above 1: ranks that share a CPU are not modelled")
    engine = engine_settings(knobs, gpu)
    batch = batch_of(engine, facts, gpu)
    record |= {"max_num_seqs": batch.max_num_seqs, "max_num_batched_tokens": batch.max_num_batched_tokens}
    settings = SchedulerSettings(
        max_num_seqs=batch.max_num_seqs,
        max_num_batched_tokens=batch.max_num_batched_tokens,
        block_size=engine.block_size,
        max_model_len=batch.max_model_len,
        enable_prefix_caching=knobs.enable_prefix_caching is not False,
        enable_chunked_prefill=knobs.enable_chunked_prefill is not False,
        async_scheduling=gpu.kind != "cpu",  # vLLM turns it off there
    )
    return settings, int(capacity["num_blocks"])


def _continuous(knobs: HfContinuousKnobs, facts: ModelFacts, record: Record) -> SchedulerSettings:
    """Settings of transformers' FIFO scheduler, which decides like vLLM's; fills in `record` what is known."""
    record |= {"num_blocks": knobs.num_blocks, "kv_cache_tokens": knobs.num_blocks * knobs.page_size}
    record |= {"max_num_seqs": knobs.max_concurrency, "max_num_batched_tokens": knobs.max_batch_tokens}
    return SchedulerSettings(
        max_num_seqs=knobs.max_concurrency,
        max_num_batched_tokens=knobs.max_batch_tokens,
        block_size=knobs.page_size,
        max_model_len=facts.max_positions,
        enable_prefix_caching=False,
        async_scheduling=False,
    )


def _ceiling(gpu: Gpu, facts: ModelFacts) -> StepCosts | None:
    """Costs that no engine on the device undercuts; None if they are unknown."""
    flop_per_s = gpu.peak_flop_per_s(facts.dtype)
    if gpu.memory_bandwidth_bytes_per_s is None or flop_per_s is None:
        return None
    return StepCosts.of_rates(gpu.memory_bandwidth_bytes_per_s, flop_per_s, 0.0)
