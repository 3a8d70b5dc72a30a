"""What is recorded about the device that work ran on, its rates, and the load that others put on its host."""

from typing import Annotated, Literal

from pydantic import ConfigDict
from typing_extensions import TypedDict

from workflow_scripts.catalog.gpus_and_models import Dtype, FlopDtype
from workflow_scripts.common.records import AsRecorded, Record


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


class DeviceRates(Record):
    """Rates of one device, in bytes/s and operations/s: `prepared/devices/NAME.json`. Each is from the fastest run,
    because it serves as a ceiling.

    `matmul_flop_per_s` has an entry for each measured arithmetic, under its name in `config/gpus.yaml`.
    `last_level_cache_bytes` is null if the system does not report it. `read_bytes_per_s_by_size` has the rates at
    which a CPU reads that many bytes repeatedly; small sets come from its caches.
    """

    model_config = ConfigDict(extra="ignore")  # records of earlier versions have more

    schema_version: Literal[1] = 1
    gpu: str
    copy_bytes_per_s: float
    read_bytes_per_s: float
    read_bytes_per_s_by_size: dict[int, float] = {}
    matmul_flop_per_s: dict[FlopDtype, float]
    last_level_cache_bytes: int | None
    device: Annotated[Device, AsRecorded]
    threads: int | None
    host: str
    host_load: Annotated[LoadByOthers, AsRecorded]
    measured_at: str

    @property
    def memory_bytes_per_s(self) -> float:
        """The highest measured rate at which its memory moves bytes."""
        return max(self.copy_bytes_per_s, self.read_bytes_per_s)

    def rereading_bytes_per_s(self, set_bytes: float) -> float | None:
        """The highest rate at which this many bytes, read repeatedly, can come from caches and memory. Larger sets are
        not read faster, so it is the highest rate of the next smaller measured set and of all larger ones; None if no
        smaller set was measured."""
        smaller = [size for size in self.read_bytes_per_s_by_size if size <= set_bytes]
        if not smaller:
            return None
        rates = [rate for size, rate in self.read_bytes_per_s_by_size.items() if size >= max(smaller)]
        return max(self.memory_bytes_per_s, *rates)

    @property
    def load_pct(self) -> float:
        """Load by other programs and by the hypervisor during the measurement, in per cent of all cores."""
        return self.host_load.get("cpu_others_pct", 0.0) + self.host_load.get("cpu_steal_pct", 0.0)

    @property
    def disturbed(self) -> bool:
        """Whether others used the CPU while it was measured, so that it can do more than what was measured."""
        return self.threads is not None and self.load_pct > NOISY_PCT
