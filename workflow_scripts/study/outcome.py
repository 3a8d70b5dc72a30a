"""The outcome of a cell: the record `outcome.json`."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, Self, TypedDict

from pydantic import AfterValidator, Field, JsonValue, model_validator

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.records import AsRecorded, Record, added
from workflow_scripts.device.device_record import Device, LoadByOthers
from workflow_scripts.engines.engine import Effective

OutcomeKind = Literal["ok", "infeasible", "timeout", "engine_error", "invalid"]
# Outcomes that the next call tries again; the others are results.
FAILED: tuple[OutcomeKind, ...] = ("engine_error", "timeout", "invalid")
WHAT_TO_DO: dict[str, str] = {
    "infeasible": "nothing, it is a result: the engine refuses this setting, model or device",
    "timeout": "if it needs longer, raise `cell_time_limit_s`; the next call tries it again",
    "engine_error": "read the log and mend the cause; the next call tries it again",
    "invalid": "read which check failed; the next call tries it again",
}

# Passes over the workload in one start of an engine.
MOST_REPEATS = 1000


def _is_time(text: str) -> str:
    try:
        datetime.fromisoformat(text).timestamp()
    except OverflowError as e:
        raise ValueError(str(e)) from None
    return text


class Provenance(TypedDict, total=False):
    """Where a number comes from; `measure.provenance` says what the fields hold."""

    kvsweep_version: str
    git_commit: str | None
    git_dirty: bool | None
    versions: dict[str, str]
    engine_version: str | None
    lock: str | None
    lock_sha256: str
    python: str
    kernel: str
    host: str
    processor: str
    job: dict[str, str]
    ended_at: Annotated[str, AfterValidator(_is_time)]


class Repeat(Record):
    """One timed pass over the workload; times in seconds, from the host's clocks."""

    repeat: int = Field(ge=0, lt=2**31)
    start_unix_s: float = Field(ge=0, le=9e9)
    start_monotonic_s: float
    end_monotonic_s: float


class SearchPass(Record):
    """A pass in a search for the highest load: at which rate per s, or with how many users; whether it was within the
    limits without a growing queue; and how many `requests` it sent until that was clear, so many of them `late`."""

    load: float = Field(gt=0, lt=1e9)
    met: bool
    requests: int
    late: int


class LoadSearch(Record):
    """A search for the highest rate, per s, between two others."""

    users: bool = False  # earlier versions also searched the highest number of users
    least: float = Field(gt=0, lt=1e9)
    most: float = Field(gt=0, lt=1e9)
    passes: list[SearchPass] = Field([], max_length=MOST_REPEATS)


class WarmUp(Record):
    """Warm-up passes, which do not count; each served the same number of `requests`, with `tokens` in total. `steady`:
    the last two passes took equally long, within `warmup.TOLERANCE`. `experts` is of earlier versions alone."""

    requests: int
    tokens: int
    passes_s: list[float]
    steady: bool
    experts: dict[str, float] | None = None


class Start(Record):
    """Which engine start of the cell a record is of, and when it was measured among others.

    `start` counts the cell's starts, `round` the rounds of the study in the order of time, both from 1; a round
    measures every cell that needs it once. `position`: place in the order of the round, from 1. `boot_id`: Linux's
    random id of the present boot of the host. `idle_before_s` and `again` are of older evidence; nothing reads them.
    `planned`: how many starts the study then asked for, e.g. `2, or up to 8`; each such number was a look at the
    study's data. `session`: an id common to the starts of all cells that one process of an engine served; None: it
    served this start alone. `place_in_session`: place in the order in which it served them, from 1.
    """

    start: int = 1
    round: int = 1
    position: int | None = None
    idle_before_s: float | None = None
    boot_id: str | None = None
    again: bool = False
    planned: str | None = None
    session: str | None = None
    place_in_session: int | None = Field(None, ge=1)


class Observed(Record):
    """How a start of a cell ended.

    `outcome`: `ok`; `infeasible`: the engine cannot do this (block size refused, KV cache too small, out of memory
    at start); `timeout`; `engine_error`; `invalid`: it ran, but a check on the result failed.
    A cell that searches the highest load has its passes in `search` instead of repeats. `reason` is in the engine's
    own words if it gave any. `phases_s`: the first cell of a session has those that start and warm up its engine.
    """

    outcome: OutcomeKind
    reason: str | None = None
    effective: Effective = {}
    phases_s: dict[str, float] = {}
    warmup: WarmUp | None = None
    repeats: list[Repeat] = Field([], max_length=MOST_REPEATS)
    search: LoadSearch | None = added(None)
    device: Annotated[Device, AsRecorded] = {}
    host_load: Annotated[LoadByOthers, AsRecorded] = {}


class Measured(Observed):
    """What the measuring process observed. `wrong_device`: the cell did not run, because the device was not its own.
    `log_bytes`: of the engine's log, the end of its start and the beginning of this cell. `goes_on`: the engine stays
    up for the next cell."""

    wrong_device: bool = False
    log_bytes: tuple[int, int] = (0, 0)
    goes_on: bool = False


class Outcome(Observed):
    """How a cell ended: what was requested, what took effect, and where it was measured. `definition` is as it was
    recorded: that of another protocol may have other fields."""

    schema_version: Literal[1] = 1
    cell_id: str
    definition: dict[str, JsonValue]
    definition_sha256: str
    start: Start = Start()
    provenance: Annotated[Provenance, AsRecorded]

    @model_validator(mode="after")
    def _one_after_another(self) -> Self:
        times_s = [s for one in self.repeats for s in (one.start_monotonic_s, one.end_monotonic_s)]
        if times_s != sorted(times_s) or any(one.end_monotonic_s == one.start_monotonic_s for one in self.repeats):
            raise ValueError("repeats: one takes no time, or begins before another has ended")
        if len({one.repeat for one in self.repeats}) < len(self.repeats):
            raise ValueError("repeats: two have the same number")
        return self

    @property
    def ended_s(self) -> float:
        """When the start ended (Unix time); 0 if that was not recorded."""
        ended_at = self.provenance.get("ended_at")
        return datetime.fromisoformat(ended_at).timestamp() if ended_at else 0.0


def never_ran(record: Outcome) -> bool:
    """Whether nothing was run, because the cell's environment did not work; the next call tries the cell again."""
    return record.outcome == "invalid" and not record.phases_s


def is_of(record: Outcome, definition_sha256: str) -> bool:
    """Whether a cell's record belongs to this definition, and says how a run ended."""
    return record.definition_sha256 == definition_sha256 and not never_ran(record)


def outcome_of(path: Path, definition_sha256: str) -> Outcome | None:
    """Such a record in a file; None if it has none. A damaged one is none, so its start is measured again."""
    record = outcome_in(path) if path.exists() else None
    return record if record and is_of(record, definition_sha256) else None


def outcome_in(path: Path) -> Outcome | None:
    """The record in a file; None if it is damaged."""
    try:
        return Outcome.read(path)
    except InputError:
        return None
