"""Ladders: short series of steps that show how long an engine's steps take on a device.

A ladder belongs to a device, an engine, a model and the settings that choose kernels (`variant`). `measure.ladder`
climbs it and writes a `LadderRecord`; `predict.step_fit` fits the costs of steps to it. docs/plan.md says how.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from workflow_scripts.catalog.gpus_and_models import Dtype
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_text
from workflow_scripts.common.records import AsRecorded, Record, read_record
from workflow_scripts.device.device_record import Device, LoadByOthers
from workflow_scripts.engines.knobs import Knobs
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.study.grid import Cell
from workflow_scripts.study.outcome import Effective
from workflow_scripts.study.study_file import Study
from workflow_scripts.workloads.arrivals import Load
from workflow_scripts.workloads.workload_kinds import SyntheticWorkload, Workload

# Seconds for all passes of a ladder, its second depth included; starting the engine comes on top.
CLIMB_S = {"cpu": 20.0, "cuda": 40.0, "rocm": 40.0}
# Maximum number of prompt tokens of a rung, so that a few rounds fit into that time; mixtures have half of it.
PROMPT_TOKENS_OF_RUNG = {"cpu": 1024, "cuda": 16_384, "rocm": 16_384}
SHORT_PROMPT, DECODE_STEPS = 8, 5
LONGEST = 4096  # tokens of a request, if neither the settings nor the workload say
MIXED_RUNGS = 4

# A request as (prompt tokens, output tokens).
Lengths = tuple[int, int]


class LadderError(InputError):
    """A ladder's record that cannot be read; the message names the file and what is wrong."""


class Pass(Record):
    """One pass over a rung; times in seconds of the host's monotonic clock.

    `ttft_s` has one element per request, and `step_ends_s` one per step of the engine; a server does not
    report its steps.
    """

    rung: int
    requests: list[Lengths]
    start_s: float
    end_s: float
    step_ends_s: list[float]
    ttft_s: list[float]


class Climb(Record):
    """All passes of an engine that was started once, with the model's number of layers."""

    layers: int
    effective: Effective
    passes: list[Pass]


class LadderRecord(Record):
    """What was measured, with everything that its times depend on.

    `climbs`: the model itself, and the same architecture with fewer layers and random weights; none if the engine
    broke, for the reason in `failure`.
    """

    schema_version: Literal[1] = 1
    gpu: str
    device: Annotated[Device, AsRecorded] = {}
    engine: str
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
    climbs: list[Climb] = []
    failure: str | None = None

    def write(self, path: Path) -> None:
        """Write the record, whole or not at all."""
        write_text(path, self.model_dump_json() + "\n")


def read_ladder(path: Path) -> LadderRecord:
    """Read a ladder's record.

    Raises:
        LadderError: it is missing, or it is no such record.
    """
    return read_record(path, LadderRecord, LadderError)


def variant(knobs: Knobs) -> str:
    """Name of the settings that choose kernels.

    >>> from workflow_scripts.engines.hf_engines import HfContinuousKnobs
    >>> from workflow_scripts.engines.vllm_engines import VllmKnobs
    >>> variant(VllmKnobs(block_size=16, enforce_eager=True, quantization="awq"))
    'quantawq-eager1'
    >>> variant(HfContinuousKnobs(page_size=16, num_blocks=8, max_batch_tokens=64))
    'default'
    """
    described = {name: knob for name, knob in knobs.described().items() if knob.kernels}
    values = knobs.set_values()
    return knobs.slug_of({name: values[name] for name in described if name in values})


def without_load(knobs: Knobs) -> Knobs:
    """The knobs of a server without the load on it: a rung's requests are sent at once.

    >>> from workflow_scripts.engines.vllm_engines import VllmServeKnobs
    >>> without_load(VllmServeKnobs(block_size=32, request_rate_per_s=2.0)).set_values()
    {'block_size': 32}
    """
    return knobs.model_copy(update=dict.fromkeys(Load.model_fields)) if isinstance(knobs, Load) else knobs


@dataclass(frozen=True)
class Ladder:
    """A ladder to climb: its place in the grid, and the cell whose settings the engine starts with.

    The ladder has to cover up to `sequences` sequences, and up to `tokens` tokens of a single one.
    """

    cell: Cell
    variant: str
    sequences: int
    tokens: int

    @property
    def name(self) -> str:
        """Path of its record below the folder of ladders, without suffix."""
        return ladder_name(self.cell)


def ladder_name(cell: Cell) -> str:
    """Path of a cell's ladder below the folder of ladders, without suffix."""
    return f"{cell.gpu}/{cell.engine}/{cell.model}/{variant(cell.knobs)}"


def ladders_of(study: Study, cells: Iterable[Cell]) -> dict[str, Ladder]:
    """The ladders that cells of a study need, by name.

    There is none for what is not predicted, or only by the device's rates: an engine whose description does not say how
    it forms steps, several ranks, speculative decoding, and a server with a number of users.
    """
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        answers_decide = isinstance(cell.knobs, Load) and cell.knobs.users is not None
        if get_engine(cell.engine).steps_by and cell.knobs.ranks == 1 and not cell.knobs.drafts and not answers_decide:
            groups.setdefault(ladder_name(cell), []).append(cell)
    return {name: _ladder(study, group) for name, group in groups.items()}


def _ladder(study: Study, group: list[Cell]) -> Ladder:
    def sequences(cell: Cell) -> int:
        most = cell.knobs.max_concurrency
        return min(most, study.workloads[cell.workload].prompts_for(most))

    def context(cell: Cell) -> int:
        allowed = cell.knobs.longest_request or LONGEST
        return min(allowed, _longest(study.workloads[cell.workload]) or allowed)

    first = max(group, key=lambda cell: (cell.knobs.max_concurrency, context(cell), cell.id))
    return Ladder(first, variant(first.knobs), max(map(sequences, group)), max(map(context, group)))


def _longest(workload: Workload) -> int | None:
    """Tokens of the longest request; None if a file decides."""
    if isinstance(workload, SyntheticWorkload):
        return workload.prompt_tokens.maximum + workload.output_tokens.maximum
    return workload.total_tokens_needed()


def rungs_for(sequences: int, tokens: int, kind: str) -> list[list[Lengths]]:
    """Requests of each rung; a rung is served at once.

    Few and many sequences that decode with short and with long prompts, single prompts of several lengths, and
    mixtures in which prompts arrive while other requests decode.

    Args:
        sequences: how many may run at once.
        tokens: of the longest request.
        kind: of the device; a CPU gets fewer tokens.

    >>> rungs_for(2, 60, "cpu")[:5]
    [[(8, 6)], [(8, 6), (8, 6)], [(32, 2)], [(54, 2)], [(54, 6)]]
    """
    draw, most = random.Random(0), PROMPT_TOKENS_OF_RUNG[kind]
    longest = min(most, max(SHORT_PROMPT, tokens - DECODE_STEPS - 1))
    counts = sorted({*(2**i for i in range(sequences.bit_length())), sequences})
    lengths = sorted({min(longest, SHORT_PROMPT * 4**i) for i in range(1, 8)})
    made: list[list[Lengths]] = [[(SHORT_PROMPT, DECODE_STEPS + 1)] * count for count in counts]
    made += [[(length, 2)] for length in lengths]
    for count in sorted({1, max(1, sequences // 4), sequences}):
        made.append([(min(longest, max(SHORT_PROMPT, most // count)), DECODE_STEPS + 1)] * count)
    for _ in range(MIXED_RUNGS):
        count = sequences + draw.randint(1, max(2, sequences // 4))
        usual = max(SHORT_PROMPT, most // 2 // count)
        drawn = [round(usual * draw.lognormvariate(-0.2, 0.6)) for _ in range(count)]
        prompts = [min(longest, max(SHORT_PROMPT // 2, prompt)) for prompt in drawn]
        made.append([(prompt, draw.randint(2, 2 * DECODE_STEPS)) for prompt in prompts])
    return [rung for i, rung in enumerate(made) if rung not in made[:i]]


def identity(device: Device) -> dict[str, object]:
    """What distinguishes a device from others: a GPU's UUID and driver, a CPU's processor and number of cores.

    >>> identity({"name": "CPU", "processor": "CPU (X 6-1): avx2", "cores": [2, 3], "memory_total_bytes": 1})
    {'processor': 'CPU (X 6-1): avx2', 'cores': 2}
    """
    names = ("name", "uuid", "driver_version") if "uuid" in device else ("processor",)
    known: dict[str, object] = {name: value for name, value in device.items() if name in names}
    return known | ({"cores": len(device["cores"])} if device.get("cores") else {})
