"""What is recorded about the device that work ran on, and about the load that others put on its host."""

from typing_extensions import TypedDict

from workflow_scripts.catalog.gpus_and_models import Dtype


class Cache(TypedDict):
    """The data caches of one level: how many the cores use together, how large each is, and how many cores share it."""

    level: int
    size_bytes: int
    cpus: int
    instances: int


class Device(TypedDict, total=False):
    """A device as it was found; a value is null if the driver does not report it. A CPU has its `cores` and what
    `processor.processor_facts` says, a GPU the fields of NVML, and a server elsewhere only its address, `server`."""

    server: str
    cores: list[int]
    memory_total_bytes: int
    name: str
    processor: str
    instruction_sets: list[str]
    native_dtypes: list[Dtype]
    caches: list[Cache]
    uuid: str
    driver_version: str
    power_limit_w: float | None
    mig_mode: int | None
    other_processes: int | None
    throttle_reasons_before: list[str] | None
    temperature_before_c: int | None


class LoadByOthers(TypedDict, total=False):
    """Load on the host while something was timed, in per cent of all cores; empty if nothing was timed."""

    cpu_steal_pct: float
    cpu_others_pct: float


# Above it, what was timed on a CPU may be too slow.
NOISY_PCT = 5.0
