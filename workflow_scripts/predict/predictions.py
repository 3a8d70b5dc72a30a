"""Predictions of a study: one record per cell, before it is measured.

Cells whose engines make the same decisions share one schedule, on any device. docs/plan.md says how a prediction
is made and what a record holds.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from workflow_scripts.catalog.gpus_and_models import load_gpus, load_models
from workflow_scripts.common.command import option
from workflow_scripts.device.device_check import cpu_here
from workflow_scripts.device.device_record import Device, DeviceRates
from workflow_scripts.engines.capacity import Capacity
from workflow_scripts.engines.description import UnpredictableError
from workflow_scripts.engines.knobs import Knobs
from workflow_scripts.engines.registry import capacity_of, get_engine, steps_of
from workflow_scripts.engines.steps import Drafts, EngineSteps, StaticBatches
from workflow_scripts.engines.vllm.knobs import VLLM, VllmKnobs
from workflow_scripts.engines.vllm.memory import MORE_GRAPHS_OF_EXPERTS, EngineSettings
from workflow_scripts.physics.layers import Experts
from workflow_scripts.physics.model_facts import ModelFacts, ModelFactsError, facts_on
from workflow_scripts.physics.step_time import StepCosts
from workflow_scripts.predict.calibrated import PROJECT_FILES, AskedSpeed, Speed, scaled, speed_for
from workflow_scripts.predict.prediction_record import Prediction
from workflow_scripts.predict.public_costs import public_costs
from workflow_scripts.predict.schedule import RequestLengths
from workflow_scripts.predict.speed import CellTask, Task, predict_task
from workflow_scripts.study.calibrations import variant
from workflow_scripts.study.grid import Cell
from workflow_scripts.study.protocol import SEED
from workflow_scripts.study.study import Study
from workflow_scripts.workloads.arrivals import Load
from workflow_scripts.workloads.make_requests import make_requests
from workflow_scripts.workloads.request import Vocabulary, WorkloadError
from workflow_scripts.workloads.workload_kinds import MultiTurnWorkload, Workload

CHARACTERS_PER_TOKEN = 4
# What a prediction with drafts leaves out.
DRAFTED = "each sequence is taken to get the mean of drafted tokens in every step, and to find KV blocks beside them"
VLLM_VERSION = option("--vllm-version", help="of vLLM's cells, such as 0.10.1 (default: of their environment)")


def predict_cells(
    study: Study, cells: Iterable[Cell], prepared: Path | None = None, project_files: Path = PROJECT_FILES
) -> Iterator[Prediction]:
    """One record per cell, in no particular order. Raises WorkloadError if a workload's requests cannot be determined,
    and InputError if a calibration cannot be read. `prepared`: folder with the records of measured devices
    (`devices`) and calibrations (`calibrations`). `project_files`: folder with calibrations that the project holds."""
    tasks, unpredictable = tasks_of(study, cells, prepared, project_files)
    yield from unpredictable
    for task in tasks:
        yield from predict_task(task)


def tasks_of(
    study: Study, cells: Iterable[Cell], prepared: Path | None = None, project_files: Path = PROJECT_FILES
) -> tuple[list[Task], list[Prediction]]:
    """Cells grouped by the schedule that they share, and records of those that have no schedule."""
    cells = list(cells)
    inputs = _Inputs(study, prepared, project_files, cells)
    groups: dict[Any, tuple[RequestLengths, list[CellTask]]] = {}
    unpredictable = []
    for cell in cells:
        result = inputs.task(cell)
        if isinstance(result, Prediction):
            unpredictable.append(result)
        else:
            requests, task = result
            # If requests arrive over time, decisions depend on the engine's speed: the cell has its own schedule.
            own = cell.id if requests.arrival_s is not None else None
            key = (cell.workload, len(requests), task.steps.decides, task.steps.engines, own)
            groups.setdefault(key, (requests, []))[1].append(task)
    tasks = [Task(requests, key[2], tuple(of_group)) for key, (requests, of_group) in groups.items()]
    return tasks, unpredictable


def at_version(cells: Sequence[Cell], version: str | None) -> list[Cell]:
    """The cells, those of vLLM's engines as if they ran this version. Raises CapacityError if it is not a version."""
    if version is None:
        return list(cells)
    EngineSettings(vllm_version=version).version  # noqa: B018 - raises
    of_vllm = [VLLM.name in get_engine(cell.engine).packages for cell in cells]
    return [replace(c, environment=f"vllm-{version}") if vllm else c for c, vllm in zip(cells, of_vllm, strict=True)]


def predict_study(cells: Iterable[Cell], prepared: Path | None = None) -> Iterator[Capacity]:
    """The KV capacity of each cell whose engine has blocks (docs/capacity.md), in the order of the cells."""
    capacity = _Known(prepared).capacity
    for cell in (cell for cell in cells if get_engine(cell.engine).capacity):
        of_cell = capacity(cell.engine, cell.gpu, cell.model, cell.knobs, cell.environment)
        yield replace(of_cell, cell_id=cell.id)


class _Known:
    """What is known of devices and models, each read once."""

    def __init__(self, prepared: Path | None) -> None:
        gpus, models = load_gpus(), load_models()

        @cache
        def rates(gpu: str) -> DeviceRates | None:
            path = prepared / "devices" / f"{gpu}.json" if prepared else None
            return DeviceRates.read(path) if path and path.exists() else None

        def device(gpu: str) -> Device:
            return measured.device if (measured := rates(gpu)) else cpu_here(gpus[gpu])

        @cache
        def facts(gpu: str, model: str, quantization: str | None) -> ModelFacts:
            return facts_on(models[model], gpus[gpu], device(gpu), quantization)

        @cache
        def capacity(engine: str, gpu: str, model: str, knobs: Knobs, environment: str) -> Capacity:
            if knobs.why_unpredicted:
                return Capacity({}, unknown=knobs.why_unpredicted)
            try:
                of_model = facts(gpu, model, knobs.quantized_as).with_states_in(knobs.states_in)
                found = capacity_of(get_engine(engine), knobs, gpus[gpu], of_model, environment) or Capacity({})
                return replace(found, dtype=of_model.dtype)
            except ModelFactsError as e:
                return Capacity({}, unknown=str(e))

        self.gpus, self.models, self.rates, self.device = gpus, models, rates, device
        self.facts, self.capacity = facts, capacity


class _Inputs(_Known):
    """The same, and the speed of a study's devices and its requests."""

    def __init__(self, study: Study, prepared: Path | None, project_files: Path, cells: Sequence[Cell]) -> None:
        super().__init__(prepared)
        self.study = study
        gpus, rates, devices = self.gpus, self.rates, dict.fromkeys(cell.gpu for cell in cells)

        @cache
        def speed(gpu: str, *wanted: Any) -> Speed | None:
            asked = AskedSpeed(gpus[gpu], self.device(gpu), rates(gpu), *wanted)
            speed = speed_for(asked, prepared / "calibrations" if prepared else None, project_files)
            if speed is None or self.models[asked.model].dtype != "native":
                return speed
            return speed.model_copy(update={"how": f"{speed.how}; the native type is {asked.dtype}"})

        @cache
        def scaled_to(gpu: str, *wanted: Any) -> tuple[StepCosts, ...]:
            """Costs by calibrations of the study's other devices of its kind, if the rates of both were measured."""
            here, costs = rates(gpu), []
            for other in [name for name in devices if name != gpu and gpus[name].kind == gpus[gpu].kind]:
                there, fitted = rates(other), speed(other, *wanted)
                if here and there and fitted and fitted.error_pct is not None and not fitted.band_group:
                    costs.append(scaled(fitted.costs, there, here, wanted[2], (gpus[other], gpus[gpu])))
            return tuple(costs)

        @cache
        def lengths(workload: str, count: int) -> tuple[RequestLengths, str]:
            return lengths_of(study.workloads[workload], count)

        @cache
        def requests(workload: str, load: Load | None, count: int) -> tuple[RequestLengths, str, int]:
            """As they arrive, all at once without a load; what their lengths are; and the tokens of the longest."""
            try:
                made, kind = lengths(workload, count)
            except WorkloadError as e:
                raise UnpredictableError(f"workload {workload!r}: {e}") from None
            of_workload = [0.0] * len(made) if made.arrival_s is None else made.arrival_s.tolist()
            arrival_s = np.array(load.arrivals_s(of_workload, SEED)) if load else np.zeros(0)
            made = replace(made, arrival_s=arrival_s if arrival_s.any() else None)
            return made, kind, int((made.prompt_tokens + made.output_tokens).max())

        self.speed, self.scaled_to, self.requests = speed, scaled_to, requests

    def task(self, cell: Cell) -> tuple[RequestLengths, CellTask] | Prediction:
        """The cell's requests and its task; or its record if it cannot be predicted."""
        gpu, knobs, workload = self.gpus[cell.gpu], cell.knobs, self.study.workloads[cell.workload]
        load = knobs if isinstance(knobs, Load) else Load()
        count = workload.prompts_for(knobs.max_concurrency)
        names = (cell.id, cell.gpu, cell.engine_at, cell.model, cell.workload, knobs.slug())
        found: dict[str, Any] = {"num_requests": count}
        try:
            capacity = self.capacity(cell.engine, cell.gpu, cell.model, knobs, cell.environment)
            blocks = capacity.value("num_blocks")
            kv_error_pct = None
            if capacity.gpu_memory_utilization is not None and gpu.kind != "cpu":
                kv_error_pct = public_costs().kv_error_pct
                graphs, kind_of = capacity.value("cuda_graphs"), (cell.gpu, cell.model, knobs.quantized_as)
                if graphs and any(self.facts(*kind_of).of_kind(Experts)):
                    kv_error_pct += 100 * MORE_GRAPHS_OF_EXPERTS / (capacity.value("available_kv_cache") or math.inf)
            found |= {
                "infeasible": capacity.infeasible,
                "unknown": capacity.unknown,
                "num_blocks": None if blocks is None else int(blocks),
                "kv_cache_tokens": capacity.value("kv_cache_tokens"),
                "max_concurrency": capacity.value("max_concurrency"),
                "kv_error_pct": kv_error_pct,
            }
            if capacity.unknown and knobs.drafts:  # perhaps only for what a draft model or layers that draft take
                plain = knobs.model_copy(update={"num_speculative_tokens": 0})
                capacity = self.capacity(cell.engine, cell.gpu, cell.model, plain, cell.environment)
            if found["infeasible"] or capacity.infeasible or capacity.unknown:
                return Prediction(*names, **found)
            found["unknown"] = None
            facts = self.facts(cell.gpu, cell.model, knobs.quantized_as).with_states_in(knobs.states_in)
            if load.find:
                raise UnpredictableError(f"find: {load.find} is searched; the plan predicts a request_rate_per_s")
            accepts = _right_about_itself(knobs, cell.model) if workload.sampling is None else knobs
            steps = _under_load(steps_of(get_engine(cell.engine), accepts, gpu, facts, cell.environment), load)
            found |= {name: getattr(steps.decides, name) for name in ("max_num_seqs", "max_num_batched_tokens")}
            found["graph_sizes"] = (steps.graphs and " ".join(map(str, steps.graphs.sizes))) or None
            requests, kind, longest = self.requests(cell.workload, load if isinstance(knobs, Load) else None, count)
            if longest > steps.longest_request:
                fault = f"a request of {longest} tokens does not fit a context of {steps.longest_request}"
                raise UnpredictableError(fault)
        except (UnpredictableError, ModelFactsError) as e:
            return Prediction(*names, **found | {"unknown": str(e)})
        prompts, outputs = int(requests.prompt_tokens.sum()), int(requests.output_tokens.sum())
        record = Prediction(*names, **found, lengths=kind, prompt_tokens=prompts, output_tokens=outputs)
        ahead = steps.decides.async_scheduling or VLLM.name in get_engine(cell.engine).packages
        # The rest of `AskedSpeed`.
        ranks = knobs.ranks // steps.engines
        wanted = (cell.engine, cell.model, facts.dtype, variant(knobs), ahead, ranks, cell.environment, facts)
        # What a prediction leaves out, so that it has no band.
        unmodelled = ["engines are assumed to take turns with equal requests"] if steps.engines > 1 else []
        unmodelled += ["users' pauses between answers are not modelled"] if load.users else []
        if steps.drafts:
            steps = replace(steps, drafts=_with_further_tokens(steps, requests))
            unmodelled += [DRAFTED]
        if isinstance(workload, MultiTurnWorkload) and workload.answers == "real":
            unmodelled += ["prompts that wait for answers, and answers found in the prefix cache, are not modelled"]
        # By the data sheet, which no engine on the device can undercut.
        bytes_per_s, flop_per_s = gpu.memory_bandwidth_bytes_per_s, gpu.peak_flop_per_s(facts.dtype)
        task = CellTask(
            record=record,
            facts=facts,
            steps=steps,
            ranks=ranks,
            speed=self.speed(cell.gpu, *wanted),
            scaled=self.scaled_to(cell.gpu, *wanted),
            ceiling=StepCosts.of_rates(bytes_per_s, flop_per_s, 0.0) if bytes_per_s and flop_per_s else None,
            kind=gpu.kind,
            users=load.users if requests.arrival_s is None else None,
            unmodelled="; ".join(unmodelled),
            repeats=self.study.repeats,
        )
        return requests[:: steps.engines], task


def _right_about_itself(knobs: Knobs, model: str) -> Knobs:
    """The knobs with the acceptance of a model that drafts for itself greedily, so that all drafts are right."""
    if not (isinstance(knobs, VllmKnobs) and knobs.speculative_method == "draft_model" and knobs.draft_model == model):
        return knobs
    all_tokens = 1.0 + (knobs.num_speculative_tokens or 0)
    return knobs.model_copy(update={"synthetic_acceptance_length": knobs.synthetic_acceptance_length or all_tokens})


def _with_further_tokens(steps: EngineSteps, requests: RequestLengths) -> Drafts:
    """The drafts with the mean KV tokens that accepted drafts add to a sequence, over all steps of all requests."""
    assert steps.drafts
    assert not isinstance(steps.decides, StaticBatches)
    made = steps.decides.tokens_per_step
    of_each = np.ceil((requests.output_tokens - 1) / made)
    further = (made - 1) * float((of_each * (of_each - 1) / 2).sum()) / max(float(of_each.sum()), 1.0)
    return replace(steps.drafts, further_kv_tokens=further)


def _under_load(steps: EngineSteps, load: Load) -> EngineSteps:
    """The steps with no more requests in progress than users. Users who send the next request at once when the last one
    is answered keep as many in progress as there are users, so it is the schedule of requests that all wait from the
    start, with that limit. Raises UnpredictableError for users with a rate."""
    if load.users is None or isinstance(steps.decides, StaticBatches):
        return steps
    if load.request_rate_per_s is not None:
        raise UnpredictableError("users and a rate: which request waits depends on answers, which is not modelled")
    slots = min(-(-load.users // steps.engines), steps.decides.max_num_seqs)
    return replace(steps, decides=replace(steps.decides, max_num_seqs=slots))


class _LengthsOnly(Vocabulary):
    def random_ids(self, rng: np.random.Generator, count: int) -> list[int]:
        return [0] * count


def _guess(text: str) -> list[int]:
    return [0] * math.ceil(len(text) / CHARACTERS_PER_TOKEN)


def lengths_of(spec: Workload, count: int) -> tuple[RequestLengths, str]:
    """The lengths of the first `count` requests of a workload, and what they really are: the requests that are
    measured, except for texts of a file, whose tokens are estimated from characters. Raises WorkloadError if the
    workload's file is missing or wrong, or has fewer requests."""
    vocabulary = _LengthsOnly(
        np.zeros(1, dtype=np.int64), _guess, lambda chat: _guess("".join(msg["role"] + msg["content"] for msg in chat))
    )
    kind = spec.actual_kind
    if kind in ("sharegpt", "prompts"):
        kind = f"{kind}, a token for every {CHARACTERS_PER_TOKEN} characters"
    return RequestLengths.of(make_requests(spec, vocabulary, count)), kind
