"""Print the sbatch options that the cells of a study get at a site; nothing is submitted.

    kvsweep sbatch --study config/studies/paged_attention.yaml

It prints one line for each kind of job. GPUs, cores, memory and run time follow from the GPU catalogue, the model and
the cell. Account, partition, GRES names and the like depend on the site and are in one file, `config/site.yaml`.
docs/cluster.md explains both.
"""

import math
import os
import re
import shutil
import subprocess
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from workflow_scripts.catalog.gpus_and_models import CONFIG, load_gpus, load_models
from workflow_scripts.common.checkout import own_or_of_checkout
from workflow_scripts.common.command import STUDY, command, option
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_text
from workflow_scripts.common.records import Record, read_yaml, validated
from workflow_scripts.common.wording import allowed_names
from workflow_scripts.device.device_lock import WAIT
from workflow_scripts.physics.model_facts import ModelFactsError, facts_on
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study

SITE = Path("config/site.yaml")

# Allowances, not measurements: for libraries and engine processes, and for weights that pass through host memory.
_HOST_BASE_MB, _HOST_MB_PER_GPU, _HOST_MB_PER_WEIGHT_MB = 16_000, 4_000, 1.25
_UNKNOWN_WEIGHTS_BYTES = 16e9  # on a device without its own memory
_CORES_BASE, _CORES_PER_GPU = 4, 4
_MB = 1e6
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")

Resources = dict[str, int | str]
_EXECUTOR_NAMES = {"account": "slurm_account", "partition": "slurm_partition", "extra": "slurm_extra"}


class Queue(Record):
    """How a job is queued; what a GPU's entry does not set is taken from `defaults`."""

    account: str | None = Field(None, description="sbatch --account")
    partition: str | None = Field(None, description="sbatch --partition")
    qos: str | None = Field(None, description="sbatch --qos")
    constraint: str | None = Field(None, description="sbatch --constraint, e.g. a100_80gb")
    extra: str | None = Field(None, description="sbatch options that no other key sets, e.g. --exclusive")
    max_minutes: int | None = Field(None, gt=0, description="longest job of the partition; fewer cells share a job")

    @field_validator("extra")
    @classmethod
    def _allowed_by_the_executor(cls, extra: str | None) -> str | None:
        from snakemake_executor_plugin_slurm.validation import get_forbidden_slurm_options

        # It matches options that a space or `=` follows, in its own spelling.
        for pattern, what in get_forbidden_slurm_options().items():
            if found := re.search(pattern, f"{extra or ''} "):
                option = found.group().strip(" =")
                raise ValueError(f"{option} is not allowed here, because Snakemake's Slurm executor sets the {what}")
        if re.search(r"(^|\s)(-a|--array)", extra or ""):
            raise ValueError(
                "--array is not allowed here: each job has cells of its own, and an array would repeat them"
            )
        return extra

    def filled(self, defaults: "Queue") -> Self:
        """What this queue sets, and the rest from `defaults`."""
        own = self.model_dump(exclude_none=True)
        return self.model_copy(update=defaults.model_dump(exclude_none=True) | own)


class GpuQueue(Queue):
    """How one device of the catalogue is requested at this site."""

    ask_by: Literal["gres", "gpus", "gpus_per_node", "nothing"] = Field(
        "gres", description="--gres=gpu:TYPE:N, --gpus=TYPE:N, --gpus-per-node=TYPE:N, or nothing"
    )
    slurm_type: str | None = Field(
        None, pattern=r"^[A-Za-z0-9_.-]+$", description="TYPE, as `sinfo -o %G` prints it; none: untyped"
    )
    cores_per_gpu: int | None = Field(None, gt=0, description="cores that the site bills with one GPU")
    memory_mb: int | None = Field(None, gt=0, description="host memory of a job, instead of the estimate")

    @model_validator(mode="after")
    def _type_that_the_executor_accepts(self) -> "GpuQueue":
        if "-" in (self.slurm_type or "") and self.ask_by in ("gres", "gpus"):
            raise ValueError(f"slurm_type: {self.slurm_type} has a hyphen, which needs `ask_by: gpus_per_node`")
        return self


class Site(Record):
    """The file `config/site.yaml`: everything that differs between clusters."""

    name: str = Field(min_length=1)
    defaults: Queue = Queue()
    prepare: Queue | Literal["login"] = Field(
        Queue(), description="queue of jobs that prepare models and workloads, or `login`"
    )
    attempts: int = Field(3, ge=1, le=10, description="how often a job is tried in one call")
    startup_minutes: int = Field(15, gt=0, description="added to each job's time limit")
    setup: tuple[str, ...] = Field((), description="shell lines before measuring, e.g. module load")
    lock_wait_min: float = Field(60, gt=0, le=1e4, description="how long a job waits for a device that others hold")
    launcher: str = Field("", description="words before the measuring command, e.g. apptainer exec --nv X")
    gpus: dict[str, GpuQueue] = Field(min_length=1)

    @model_validator(mode="after")
    def _known_gpus(self) -> "Site":
        for name in set(self.gpus) - set(catalogue := load_gpus()):
            raise ValueError(f"gpus: {name}: unknown; {allowed_names(name, catalogue)}")
        return self

    @property
    def shell_setup(self) -> str:
        """The shell lines before a job's command. The site's own may use variables that are not set."""
        return "\n".join([f"export {WAIT}={self.lock_wait_min:g}", "set +u", *self.setup, "set -u"])

    def queue_of(self, gpu: str) -> GpuQueue:
        """The entry of a GPU, with the site's defaults filled in."""
        return self.gpus[gpu].filled(self.defaults)

    def queue_to_prepare(self) -> Queue:
        """The queue of jobs that prepare, with the site's defaults filled in."""
        return (self.prepare if isinstance(self.prepare, Queue) else Queue()).filled(self.defaults)


def load_site(path: Path) -> Site:
    """Read and check a site file. Raises InputError if the file is missing, is not YAML, or contains something that is
    not allowed."""
    return validated(Site, read_yaml(path, InputError), str(path), InputError)


def site_files_for(gpus: Iterable[str]) -> list[str]:
    """The shipped site files that have these devices."""
    files = sorted(CONFIG.glob("site*.yaml"))
    return [str(path.relative_to(CONFIG.parent)) for path in files if load_site(path).gpus.keys() >= {*gpus}]


def what_fits(site: Site, file: str, gpus: Iterable[str]) -> str:
    """The devices of a study and of a site, and the command with the shipped site file that has the former, if any."""
    command = "".join(f" Type: snakemake --profile slurm --config site={other}" for other in site_files_for(gpus)[:1])
    return f"{', '.join(gpus)}; {file} has {', '.join(site.gpus)}.{command}"


@dataclass(frozen=True)
class Attempt:
    """The `number`-th of at most `of` attempts, counted from 1."""

    number: int = 1
    of: int = 1

    @property
    def last(self) -> bool:
        return self.number >= self.of

    def time_limit_s(self, cap_s: float) -> float:
        """Time limit of a cell: it doubles with each attempt and is `cap_s` in the last.

        >>> [Attempt(number, of=3).time_limit_s(7200) for number in (1, 2, 3)]
        [1800.0, 3600.0, 7200.0]
        """
        return cap_s / 2.0 ** max(self.of - self.number, 0)


@dataclass(frozen=True)
class Needs:
    """What a cell needs on any cluster; memory is host memory, in MB."""

    gpus: int
    cores: int | None  # None: all cores of a node
    memory_mb: int


def needs_of(cell: Cell) -> Needs:
    """Portable needs of a cell: one GPU per rank of its parallelism, and enough cores and host memory for them."""
    return _needs(cell.gpu, cell.model, cell.knobs.ranks)


@cache
def _needs(gpu_name: str, model_name: str, count: int) -> Needs:
    gpu, model = load_gpus()[gpu_name], load_models()[model_name]
    try:
        weights_mb = facts_on(model, gpu, {}).weight_bytes / _MB
    except ModelFactsError:  # of an unknown family: as much as its devices can hold
        weights_mb = count * (gpu.memory_bytes or _UNKNOWN_WEIGHTS_BYTES) / _MB
    memory_mb = math.ceil(_HOST_BASE_MB + _HOST_MB_PER_GPU * count + _HOST_MB_PER_WEIGHT_MB * weights_mb)
    if gpu.kind == "cpu":
        return Needs(0, gpu.cpu_cores, memory_mb)
    return Needs(count, _CORES_BASE + _CORES_PER_GPU * count, memory_mb)


def job_resources(
    cells: Sequence[Cell],
    site: Site,
    cap_s: float,
    attempt: Attempt,
    avoid_nodes: Iterable[str] = (),
) -> Resources:
    """Resources of a job that measures `cells` one after another, with the names of Snakemake's Slurm executor. All
    cells are of one GPU type; `cap_s` is the study's time limit of a cell; `avoid_nodes` had the wrong hardware; what
    cannot name a host is left out. The run time is in minutes, memory in MB."""
    queue, needs = site.queue_of(cells[0].gpu), [needs_of(cell) for cell in cells]
    gpus = max(1, *(each.gpus for each in needs))
    cores = gpus * (queue.cores_per_gpu or 0) or max((each.cores for each in needs if each.cores), default=None)
    limit_s = len(cells) * attempt.time_limit_s(cap_s)
    asked_for: dict[str, Resources] = {
        "gres": {"gres": ":".join(filter(None, ["gpu", queue.slurm_type, str(gpus)]))},
        "gpus": {"gpu": gpus, **({"gpu_model": queue.slurm_type} if queue.slurm_type else {})},
        "gpus_per_node": {},
        "nothing": {},
    }
    resources: Resources = {
        "runtime": site.startup_minutes + math.ceil(limit_s / 60),
        "mem_mb": queue.memory_mb or max(n.memory_mb for n in needs),
        "cpus_per_task": cores or -1,  # -1: the executor requests none, neither for the job nor for its step
        # One task per job, however many GPUs it has: engines start their own processes.
        "tasks_per_gpu": 0,
        **asked_for[queue.ask_by],
        **queue_resources(queue),
    }
    extra = [queue.extra or ""]
    if queue.ask_by == "gpus_per_node":
        extra.append("--gpus-per-node=" + ":".join(filter(None, [queue.slurm_type, str(gpus)])))
    if cores is None:
        extra.append("--exclusive")
    # The executor gives them to a shell, and others may have written the files that name them.
    if avoided := ",".join(sorted(filter(_NODE.fullmatch, avoid_nodes))):
        extra.append(f"--exclude={avoided}")
    return resources | ({"slurm_extra": " ".join(filter(None, extra))} if any(extra) else {})


def queue_resources(queue: Queue) -> Resources:
    """Account, partition, QOS, constraint and other options, with the executor's names; only those that are set."""
    own = queue.model_dump(include={*Queue.model_fields} - {"max_minutes"}, exclude_none=True)
    return {_EXECUTOR_NAMES.get(name, name): value for name, value in own.items()}


def cells_per_job(site: Site, study: Study, asked: int) -> int:
    """How many cells may share a job so that it fits `max_minutes` in its last attempt; at most as many as asked.
    Raises InputError if one cell alone may take longer."""
    limit_s, fitting = study.cell_time_limit_s, asked
    for gpu in {gpu for sweep in study.sweeps for gpu in sweep.gpu} & {*site.gpus}:
        if (most := site.queue_of(gpu).max_minutes) is not None:
            fitting = min(fitting, int((most - site.startup_minutes) * 60 // limit_s))
            if fitting < 1:
                raise InputError(
                    f"gpus: {gpu}: max_minutes {most} is less than startup_minutes {site.startup_minutes} and the"
                    f" study's cell_time_limit_s {limit_s:g}; allowed: a shorter limit, or another partition"
                )
    return fitting


def partition_faults(site: Site, minutes: Mapping[str, int]) -> Iterator[str]:
    """A warning for each partition that allows less than the `minutes` of a job on a device, as scontrol says here."""
    if not shutil.which("scontrol"):
        return
    for gpu, asked in minutes.items():
        if (partition := site.queue_of(gpu).partition) is None:
            continue
        done = subprocess.run(["scontrol", "show", "partition", partition], capture_output=True, text=True, timeout=10)
        if "not found" in done.stdout + done.stderr:
            yield f"note: Slurm has no partition {partition}, which {gpu} asks for"
        elif (found := re.search(r"\bMaxTime=(\S+)", done.stdout)) and (most := _minutes(found[1])) < asked:
            yield f"note: partition {partition} allows {most:g} minutes, and jobs on {gpu} ask for {asked}"


def _minutes(text: str) -> float:
    """A time limit as Slurm prints it, in minutes.

    >>> _minutes("UNLIMITED"), _minutes("1-02:30:00"), _minutes("00:10:00")
    (inf, 1590.0, 10.0)
    """
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in parts):
        return math.inf
    hours, minutes, seconds = map(int, (["0"] * 3 + parts)[-3:])
    return int(days or 0) * 1440 + hours * 60 + minutes + seconds / 60


def sbatch_options(resources: Resources) -> str:
    """The sbatch options of a job with these resources, as the executor itself writes them."""
    from snakemake.iocontainers import ResourceList
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string

    job = SimpleNamespace(resources=ResourceList(fromdict=resources), threads=1)
    # Options that the executor looks up on the cluster or counts itself are left out.
    params = {"run_uuid": "-", "slurm_logfile": "-", "comment_str": "-", "workdir": None}
    account, partition = resources.get("slurm_account"), resources.get("slurm_partition")
    params["account"] = f"-A {account}" if account else ""
    params["partition"] = f"-p {partition}" if partition else ""
    command: str = get_submit_command(job, params) + set_gres_string(job)
    return " ".join(command.partition("--comment -")[2].split())


def _lines(study: Study, site: Site, cells: Sequence[Cell], cells_per_job: int) -> Iterator[str]:
    """Options, with the cells that they are for, and warnings; cells with the same options share one line. No job has
    more cells than there are of its GPU."""
    of_gpu = Counter(cell.gpu for cell in cells)
    kinds: dict[str, list[str]] = {}
    minutes: dict[str, int] = {}
    for cell in cells:
        if cell.gpu in site.gpus:
            job, first = [cell] * min(cells_per_job, of_gpu[cell.gpu]), Attempt(1, site.attempts)
            resources = job_resources(job, site, study.cell_time_limit_s, first)
            minutes[cell.gpu] = int(resources["runtime"])
            kinds.setdefault(f"sbatch {sbatch_options(resources)}", []).append(cell.id)
        else:
            others = "".join(f"; --site {path}" for path in site_files_for([cell.gpu]))
            kinds.setdefault(f"{cell.gpu} is not in the site file{others}", []).append(cell.id)
    for options, ids in kinds.items():
        yield f"{options}    # {ids[0]}" + (f" and {len(ids) - 1} more cells" if len(ids) > 1 else "")
    yield from partition_faults(site, minutes)


@command(
    "sbatch",
    STUDY,
    option("--site", type=own_or_of_checkout, default=str(SITE), help="the site file (%(default)s)"),
)
def main(args: Namespace) -> None:
    study, site = load_study(args.study), load_site(args.site)
    settings = read_yaml(own_or_of_checkout("slurm/config.yaml"), InputError)["set-scatter"]
    # The largest job has half as many more cells than the profile says (rules/batches.smk).
    of_profile = next(setting.partition("=")[2] for setting in settings if setting.startswith("cells_per_job="))
    together = cells_per_job(site, study, 3 * int(of_profile) // 2)
    print("\n".join(_lines(study, site, expand(study), together)))


def note_wrong_node(folder: Path, reason: str) -> None:
    """Tell the next attempts which node of a cluster to avoid."""
    if node := os.environ.get("SLURMD_NODENAME"):
        write_text(folder / node, f"{reason}\n")
