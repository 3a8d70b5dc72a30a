"""Forecast of a study: one record per cell of what it should do, before it is measured.

Cells whose engines make the same decisions share one schedule, on any device. docs/plan.md says how a prediction
is made and what a record holds.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from workflow_scripts.catalog.gpus_and_models import Dtype, Gpu, load_gpus, load_models
from workflow_scripts.device.device_check import cpu_here
from workflow_scripts.device.device_rates import DeviceRates, read_device_rates
from workflow_scripts.device.device_record import Device
from workflow_scripts.engines.description import named
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.physics.calibration import Speed, scaled
from workflow_scripts.physics.facts_on_device import facts_on
from workflow_scripts.physics.model_facts import ModelFacts, ModelFactsError
from workflow_scripts.physics.step_time import StepCosts
from workflow_scripts.predict.calibrated import PROJECT_FILES, Wanted, speed_for
from workflow_scripts.predict.capacity_record import Capacity
from workflow_scripts.predict.engine_steps import CapacityBy, Decides, EngineSteps, StepsBy, UnpredictableError
from workflow_scripts.predict.prediction_record import Prediction
from workflow_scripts.predict.request_lengths import lengths_of
from workflow_scripts.predict.schedule import RequestLengths
from workflow_scripts.predict.speed import CellTask, Task, predict_task
from workflow_scripts.predict.static_batches import StaticBatches, batch_that_fits
from workflow_scripts.study.grid import Cell
from workflow_scripts.study.ladders import variant
from workflow_scripts.study.protocol import SEED
from workflow_scripts.study.study_file import Study
from workflow_scripts.workloads.arrivals import Load
from workflow_scripts.workloads.request import WorkloadError


def predict_cells(
    study: Study,
    cells: Iterable[Cell],
    prepared: Path | None = None,
    project_files: Path = PROJECT_FILES,
    run: Callable[..., Iterable[list[Prediction]]] = map,
) -> Iterator[Prediction]:
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
) -> tuple[list[Task], list[Prediction]]:
    """Cells grouped by the schedule that they share, and records of those that have no schedule."""
    cells = list(cells)
    known = _Known(study, prepared, project_files, tuple(dict.fromkeys(cell.gpu for cell in cells)))
    groups: dict[Any, tuple[RequestLengths, list[CellTask]]] = {}
    unpredictable = []
    for cell in cells:
        found = known.task(cell)
        if isinstance(found, Prediction):
            unpredictable.append(found)
        else:
            decides, requests, task = found
            # If requests arrive over time, decisions depend on the engine's speed: the cell has its own schedule.
            own = cell.id if requests.arrival_s is not None else None
            key = (cell.workload, len(requests), decides, own)
            groups.setdefault(key, (requests, []))[1].append(task)
    tasks = [Task(requests, key[2], tuple(of_group)) for key, (requests, of_group) in groups.items()]
    return tasks, unpredictable


class _Known:
    """What is known of a study's devices, models and workloads, each read once."""

    def __init__(self, study: Study, prepared: Path | None, project_files: Path, devices: Sequence[str]) -> None:
        self.study = study
        gpus, models = load_gpus(), load_models()

        @cache
        def rates(gpu: str) -> DeviceRates | None:
            path = prepared / "devices" / f"{gpu}.json" if prepared else None
            return read_device_rates(path) if path and path.exists() else None

        def device(gpu: str) -> Device:
            measured = rates(gpu)
            return measured.device if measured else cpu_here(gpus[gpu])

        @cache
        def facts(gpu: str, model: str, quantization: str | None) -> ModelFacts:
            return facts_on(models[model], gpus[gpu], device(gpu), quantization)

        @cache
        def speed(
            gpu: str, engine: str, model: str, kernels: str, dtype: Dtype, ahead: bool, ranks: int
        ) -> Speed | None:
            measured = rates(gpu)
            wanted = Wanted(gpus[gpu], device(gpu), measured, engine, model, dtype, kernels, ahead, ranks)
            speed = speed_for(wanted, prepared / "ladders" if prepared else None, project_files)
            if speed is None or models[model].dtype != "native":
                return speed
            known_by = "data sheet" if gpus[gpu].kind != "cpu" else "record" if measured else "host that predicts"
            return speed.model_copy(update={"how": f"{speed.how}; {dtype} is the native type by the {known_by}"})

        @cache
        def scaled_to(gpu: str, *wanted: Any) -> tuple[StepCosts, ...]:
            """Costs from the ladders of the study's other devices of its kind, if the rates of both were measured."""
            here, found = rates(gpu), []
            for other in [name for name in devices if name != gpu and gpus[name].kind == gpus[gpu].kind]:
                there, fitted = rates(other), speed(other, *wanted)
                if here and there and fitted and fitted.error_pct is not None:
                    found.append(scaled(fitted.costs, there, here, wanted[3], (gpus[other], gpus[gpu])))
            return tuple(found)

        @cache
        def lengths(workload: str, count: int) -> tuple[RequestLengths, str]:
            return lengths_of(study.workloads[workload], count)

        self.gpus, self.facts, self.speed, self.lengths = gpus, facts, speed, lengths
        self.scaled_to = scaled_to

    def task(self, cell: Cell) -> tuple[Decides, RequestLengths, CellTask] | Prediction:
        """What decides the cell's schedule, its requests, and its task; or its record if it cannot be predicted."""
        gpu, knobs = self.gpus[cell.gpu], cell.knobs
        count = self.study.workloads[cell.workload].prompts_for(knobs.max_concurrency)
        place = (cell.id, cell.gpu, cell.engine, cell.model, cell.workload, knobs.slug())
        record = Prediction(*place, num_requests=count)
        try:
            facts = self._facts_of(cell)
            record = _with_capacity(record, _capacity(cell, gpu, facts))
            if record.infeasible or record.unknown:
                return record
            steps = _steps_of(cell, gpu, facts)
            record = replace(
                record, max_num_seqs=steps.decides.max_num_seqs, max_num_batched_tokens=steps.max_num_batched_tokens
            )
            requests, kind = self._requests_of(cell, count, steps.longest_request)
        except UnpredictableError as e:
            return replace(record, unknown=str(e))
        decides = steps.decides
        if isinstance(decides, StaticBatches):
            decides = replace(decides, batch_size=batch_that_fits(requests, decides, facts))
            if not decides.batch_size:
                return replace(record, infeasible="not even one request fits into the memory beside the model")
        record = replace(
            record,
            lengths=kind,
            prompt_tokens=int(requests.prompt_tokens.sum()),
            output_tokens=int(requests.output_tokens.sum()),
        )
        ahead = getattr(decides, "async_scheduling", False)
        wanted = (cell.engine, cell.model, variant(knobs), cast(Dtype, facts.dtype), ahead, knobs.ranks)
        task = CellTask(
            record=record,
            num_blocks=record.num_blocks,
            facts=facts,
            kv_cache_dtype=steps.kv_cache_dtype,
            ranks=knobs.ranks,
            speed=self.speed(cell.gpu, *wanted),
            scaled=self.scaled_to(cell.gpu, *wanted),
            ceiling=_ceiling(gpu, facts),
            kind=gpu.kind,
            eager=steps.eager,
            one_mask=steps.one_mask,
            graphs=steps.graphs,
            closed_loop=steps.closed_loop,
            repeats=self.study.repeats,
            margin_pct=self.study.equivalence_margin_pct,
        )
        return decides, requests, task

    def _facts_of(self, cell: Cell) -> ModelFacts:
        try:
            return self.facts(cell.gpu, cell.model, cell.knobs.quantized_as)
        except ModelFactsError as e:
            raise UnpredictableError(str(e)) from None

    def _requests_of(self, cell: Cell, count: int, limit: int) -> tuple[RequestLengths, str]:
        try:
            requests, kind = self.lengths(cell.workload, count)
        except WorkloadError as e:
            raise UnpredictableError(f"workload {cell.workload!r}: {e}") from None
        longest = int((requests.prompt_tokens + requests.output_tokens).max())
        if longest > limit:
            raise UnpredictableError(f"a request of {longest} tokens does not fit a context of {limit}")
        return (_as_sent(requests, cell.knobs) if isinstance(cell.knobs, Load) else requests), kind


def _as_sent(requests: RequestLengths, load: Load) -> RequestLengths:
    """The requests at the moments at which the client sends them."""
    of_workload = np.zeros(len(requests)) if requests.arrival_s is None else requests.arrival_s
    arrival_s = np.array(load.arrivals_s(of_workload.tolist(), SEED))
    return replace(requests, arrival_s=arrival_s if arrival_s.any() else None)


def _capacity(cell: Cell, gpu: Gpu, facts: ModelFacts) -> Capacity:
    """The KV cache of a cell, empty if its engine has no paged one.

    Raises:
        UnpredictableError: the engine's steps, or the model, are not modelled.
    """
    engine = get_engine(cell.engine)
    if engine.steps_by is None:
        raise UnpredictableError(f"{cell.engine}: there is no schedule of this engine")
    if engine.capacity_by is None:
        return Capacity({})
    capacity_by: CapacityBy = named(engine.capacity_by)
    try:
        return capacity_by(cell.knobs, gpu, facts)
    except ModelFactsError as e:
        raise UnpredictableError(str(e)) from None


def _with_capacity(record: Prediction, capacity: Capacity) -> Prediction:
    blocks = capacity.value("num_blocks")
    return replace(
        record,
        infeasible=capacity.infeasible,
        unknown=capacity.unknown,
        num_blocks=None if blocks is None else int(blocks),
        kv_cache_tokens=capacity.value("kv_cache_tokens"),
        max_concurrency=capacity.value("max_concurrency"),
    )


def _steps_of(cell: Cell, gpu: Gpu, facts: ModelFacts) -> EngineSteps:
    steps_by: StepsBy = named(cast(str, get_engine(cell.engine).steps_by))
    return steps_by(cell.knobs, gpu, facts)


def _ceiling(gpu: Gpu, facts: ModelFacts) -> StepCosts | None:
    """Costs by the data sheet, which no engine on the device can undercut; None without data-sheet rates."""
    flop_per_s = gpu.peak_flop_per_s(facts.dtype)
    if gpu.memory_bandwidth_bytes_per_s is None or flop_per_s is None:
        return None
    return StepCosts.of_rates(gpu.memory_bandwidth_bytes_per_s, flop_per_s, 0.0)
