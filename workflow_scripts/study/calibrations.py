"""Calibrations: short series of steps that show how long an engine's steps take on a device.

A calibration belongs to a device, an engine, a model and the settings that choose kernels (`variant`). It consists of
points: groups of requests that are served at once, in several passes. `measure.calibration_run` measures it and writes
a `CalibrationRecord`; `predict.step_fit` fits the costs of steps to it. docs/plan.md says how.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from workflow_scripts.catalog.gpus_and_models import Dtype, load_gpus
from workflow_scripts.common.records import AsRecorded, Record
from workflow_scripts.device.device_record import Device, DeviceRates, LoadByOthers
from workflow_scripts.engines.engine import Effective
from workflow_scripts.engines.knobs import Knobs
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.engines.vllm.knobs import why_block_size_is_refused
from workflow_scripts.physics.model_facts import ModelFacts
from workflow_scripts.study.definition import Definition, cell_definition, resolved_models, without_load
from workflow_scripts.study.grid import Cell
from workflow_scripts.study.study import Study
from workflow_scripts.workloads.arrivals import Load
from workflow_scripts.workloads.workload_kinds import SyntheticWorkload

# Seconds for all passes of a calibration; starting the engine comes on top.
CALIBRATION_S = {"cpu": 20.0, "cuda": 25.0}
# Starts of the engine, because a shared machine is not equally fast at all times. On a GPU one may take a minute.
CALIBRATION_STARTS = {"cpu": 2, "cuda": 1}
# Most prompt tokens of a point on a CPU, so that a few rounds fit into that time; mixtures have half of it.
PROMPT_TOKENS = 1024
SHORT_PROMPT, DECODE_STEPS = 8, 5
LONGEST = 4096  # tokens of a request, if neither the settings nor the workload say
MIXED_POINTS = 4
# Share of predictions whose error the band covers.
COVERAGE = 0.9
# On a GPU: steps that only decode, lengths of single prompts, and what requests of mixtures have. Steps with more than
# 512 tokens are in no captured graph.
GPU_DECODE_STEPS, SUSTAINED_STEPS = 32, 256
GPU_PROMPTS = (60, 250, 600, 900, 2042)
GPU_MIXED_PROMPTS, GPU_MIXED_OUTPUTS = (40, 480), (8, 60)

# A request as (prompt tokens, output tokens).
Lengths = tuple[int, int]


class Pass(Record):
    """One pass over a point; times in seconds of the host's monotonic clock.

    `ttft_s` has one element per request, and `step_ends_s` one per step of the engine; a server does not
    report its steps. `step_tokens` and `step_graphs` have the tokens of each step and how it was launched, if the
    engine reports them. `queued_s` and `scheduled_s` are of earlier versions.
    """

    model_config = ConfigDict(populate_by_name=True, loc_by_alias=False)  # earlier versions wrote the alias

    point: int = Field(validation_alias="rung")
    requests: list[Lengths]
    start_s: float
    end_s: float
    step_ends_s: list[float]
    ttft_s: list[float]
    step_tokens: list[int] | None = None
    step_graphs: list[str] | None = None
    queued_s: list[float] | None = None
    scheduled_s: list[float] | None = None


class CalibrationStart(Record):
    """All passes of an engine that was started once, with the model's number of layers. `phases_s`: what the start, the
    passes and the stop took, as far as it is known."""

    layers: int
    effective: Effective
    phases_s: dict[str, float] = {}
    passes: list[Pass]


class CalibrationRecord(Record):
    """What was measured, with everything that its times depend on. `starts`: of the model itself and, by earlier
    versions, of the same architecture with fewer layers and random weights; none if the engine broke, for the reason in
    `failure`. `rates`: of the device, without their samples, if they had been measured."""

    model_config = ConfigDict(populate_by_name=True, loc_by_alias=False)  # earlier versions wrote the alias

    schema_version: Literal[1] = 1
    gpu: str
    device: Annotated[Device, AsRecorded] = {}
    engine: str
    environment: str = ""
    engine_version: str | None
    model: str
    config_sha256: str
    dtype: Dtype | None = None
    variant: str
    knobs: dict[str, Any]
    protocol: int
    host: str
    host_load: Annotated[LoadByOthers, AsRecorded] = {}
    measured_at: str
    starts: list[CalibrationStart] = Field(default=[], validation_alias="climbs")
    failure: str | None = None
    rates: DeviceRates | None = None


def variant(knobs: Knobs) -> str:
    """Name of the settings that choose kernels."""
    described = {name: knob for name, knob in knobs.described().items() if knob.kernels}
    values = knobs.set_values()
    return knobs.slug_of({name: values[name] for name in described if name in values})


@dataclass(frozen=True)
class Calibration:
    """A calibration to measure: its path below the folder of calibrations, without suffix, and the cell whose settings
    the engine starts with. It has to cover up to `sequences` sequences, and up to `tokens` tokens of a single one."""

    name: str
    cell: Cell
    variant: str
    sequences: int
    tokens: int


def calibrations_of(study: Study, cells: Iterable[Cell]) -> dict[str, Calibration]:
    """The calibrations that cells of a study need, by name; none for what is not predicted, or only by the device's
    rates: an engine that does not say how it forms steps, several ranks, drafts, and a server with users."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        answers_decide = isinstance(cell.knobs, Load) and cell.knobs.users is not None
        unpredicted = cell.knobs.drafts or cell.knobs.why_unpredicted or answers_decide
        if get_engine(cell.engine).predicted and cell.knobs.ranks == 1 and not unpredicted:
            name = f"{cell.gpu}/{cell.engine_at}/{cell.model}/{variant(cell.knobs)}"
            groups.setdefault(name, []).append(cell)
    return {name: _calibration_of(name, study, group) for name, group in groups.items()}


def _calibration_of(name: str, study: Study, group: Sequence[Cell]) -> Calibration:
    """The calibration of cells that share one: of the first that allows most, if its block size is accepted."""

    def is_accepted(cell: Cell) -> bool:
        size = cell.knobs.set_values().get("block_size")
        return size is None or why_block_size_is_refused(load_gpus()[cell.gpu].kind, size) is None

    def sequences(cell: Cell) -> int:
        most = cell.knobs.max_concurrency
        return min(most, study.workloads[cell.workload].prompts_for(most))

    def context(cell: Cell) -> int:
        workload, allowed = study.workloads[cell.workload], cell.knobs.longest_request or LONGEST
        longest = workload.total_tokens_needed()
        if isinstance(workload, SyntheticWorkload):
            longest = workload.prompt_tokens.maximum + workload.output_tokens.maximum
        return min(allowed, longest or allowed)

    first = max(group, key=lambda cell: (is_accepted(cell), cell.knobs.max_concurrency, context(cell)))
    return Calibration(name, first, variant(first.knobs), max(map(sequences, group)), max(map(context, group)))


def calibrated_definition(study: Study, cell: Cell) -> Definition:
    """How an engine is started and used for the calibration of a cell: for all workloads, so without a load, and its
    tokens are chosen greedily."""
    definition = cell_definition(study, cell, resolved_models(study))
    workload = definition.workload.model_copy(update={"sampling": None, "keep_answers": False})
    return definition.model_copy(update={"knobs": without_load(cell.knobs), "workload": workload, "slo": None})


def points_for(sequences: int, tokens: int, kind: str, sustained: int = 0) -> list[list[Lengths]]:
    """Requests of each point; a point is served at once. Few and many sequences that decode with short and with long
    prompts, single prompts of several lengths, and mixtures in which prompts arrive while other requests decode.
    `sequences`: how many may run at once; `tokens`: of the longest request; `sustained`: tokens of KV at which a GPU's
    steps take a good part of their time to read it; 0 for no such point.

    >>> points_for(2, 60, "cpu")[:5]
    [[(8, 6)], [(8, 6), (8, 6)], [(32, 2)], [(54, 2)], [(54, 6)]]
    >>> [(len(point), point[0]) for point in points_for(256, 4096, "cuda", 85_000)[:7]]
    [(1, (8, 65)), (8, (8, 33)), (64, (8, 33)), (128, (8, 33)), (256, (8, 33)), (256, (76, 257)), (1, (60, 2))]
    """
    made = _on_cpu(sequences, tokens) if kind == "cpu" else _on_gpu(sequences, tokens, sustained)
    return [point for i, point in enumerate(made) if point not in made[:i]]


def sustained_tokens(facts: ModelFacts, memory_bytes: float) -> int:
    """Tokens of KV that are 0.7 times as large as the weights, or as fit into 0.8 of the memory beside them. Reading
    them then takes a fifth of a step with many sequences, of which about half is neither weights nor KV."""
    free_bytes = 0.8 * max(0.0, memory_bytes - facts.weight_bytes)
    return int(min(0.7 * facts.weight_bytes, free_bytes) // max(1, facts.bytes_per_token()))


def _on_gpu(sequences: int, tokens: int, sustained: int) -> list[list[Lengths]]:
    """Some 6 s for an 8B model: steps are short, so passes need many of them."""
    draw, longest = random.Random(0), max(SHORT_PROMPT, tokens - SUSTAINED_STEPS - 1)

    def cut(prompt: int, output: int) -> Lengths:
        prompt = min(prompt, max(1, tokens - 2))
        return prompt, max(2, min(output, tokens - prompt))

    counts = sorted({min(sequences, 8), max(1, sequences // 4), max(1, sequences // 2), sequences} - {1})
    made = [
        [cut(SHORT_PROMPT, 2 * GPU_DECODE_STEPS + 1)],
        *([cut(SHORT_PROMPT, GPU_DECODE_STEPS + 1)] * count for count in counts),
    ]
    if sustained:
        prompt = max(SHORT_PROMPT, min(longest, sustained // sequences - SUSTAINED_STEPS))
        made.append([cut(prompt, SUSTAINED_STEPS + 1)] * sequences)
    made += [[cut(prompt, 2)] for prompt in GPU_PROMPTS]
    made += [[cut(256, DECODE_STEPS + 1)] * max(1, sequences // 4)]
    # The last ones wait until others are done, so their prompts come while others decode: one in each step, of which
    # half fit into a captured graph, or several at once.
    for in_turn in (True, False):
        late = [draw.randint(*GPU_MIXED_PROMPTS) for _ in range(max(2, sequences // 6))]
        prompts, (least, most) = [SHORT_PROMPT] * sequences + late, GPU_MIXED_OUTPUTS
        outputs = [least + min(i, len(late)) if in_turn else draw.randint(least, most) for i in range(len(prompts))]
        made.append(list(map(cut, prompts, outputs)))
    return made


def _on_cpu(sequences: int, tokens: int) -> list[list[Lengths]]:
    draw = random.Random(0)
    longest = min(PROMPT_TOKENS, max(SHORT_PROMPT, tokens - DECODE_STEPS - 1))
    counts = sorted({*(2**i for i in range(sequences.bit_length())), sequences})
    lengths = sorted({min(longest, SHORT_PROMPT * 4**i) for i in range(1, 8)})
    made: list[list[Lengths]] = [[(SHORT_PROMPT, DECODE_STEPS + 1)] * count for count in counts]
    made += [[(length, 2)] for length in lengths]
    for count in sorted({1, max(1, sequences // 4), sequences}):
        made.append([(min(longest, max(SHORT_PROMPT, PROMPT_TOKENS // count)), DECODE_STEPS + 1)] * count)
    for _ in range(MIXED_POINTS):
        count = sequences + draw.randint(1, max(2, sequences // 4))
        usual = max(SHORT_PROMPT, PROMPT_TOKENS // 2 // count)
        drawn = [round(usual * draw.lognormvariate(-0.2, 0.6)) for _ in range(count)]
        prompts = [min(longest, max(SHORT_PROMPT // 2, prompt)) for prompt in drawn]
        made.append([(prompt, draw.randint(2, 2 * DECODE_STEPS)) for prompt in prompts])
    return made


def identity(device: Device) -> dict[str, object]:
    """What distinguishes a device from others: a GPU's UUID and driver, a CPU's processor and number of cores.

    >>> identity({"name": "CPU", "processor": "CPU (X 6-1): avx2", "cores": [2, 3], "memory_total_bytes": 1})
    {'processor': 'CPU (X 6-1): avx2', 'cores': 2}
    """
    names = ("name", "uuid", "driver_version") if "uuid" in device else ("processor",)
    fields: dict[str, object] = {name: value for name, value in device.items() if name in names}
    return fields | ({"cores": len(device["cores"])} if device.get("cores") else {})
