"""The catalogues: which devices (`config/gpus.yaml`) and models (`config/models/`) a study can name.

A GPU's numbers are those of its data sheet, for dense matrices (no 2:4 sparsity), each with its source. What a CPU can
do depends on the machine, so its bandwidth and arithmetic rates are null until they are measured.
"""

import contextlib
import os
import re
from collections import UserDict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from workflow_scripts.catalog.checkpoint import HashedFiles, drafting_layers
from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import read_json
from workflow_scripts.common.records import Record, StrictRecord, read_yaml, validated
from workflow_scripts.common.wording import allowed_names

CONFIG = CHECKOUT / "config"
GPUS = CONFIG / "gpus.yaml"
MODELS = CONFIG / "models"

FlopDtype = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8"]
Dtype = Literal["float32", "bfloat16", "float16"]
LinkType = Literal["nvlink2", "nvlink3", "nvlink4", "nvlink5", "pcie3", "pcie4", "pcie5"]
ModelDtype = Dtype | Literal["native"]
Positive = Annotated[float, Field(gt=0)]

# Arithmetic that may be used for matrices of a dtype: inputs of a float32 product may be rounded to TF32.
_ARITHMETIC: Mapping[str, tuple[FlopDtype, ...]] = {
    "float32": ("fp32", "tf32"),
    "bfloat16": ("bf16",),
    "float16": ("fp16",),
}
_DATASHEET_FIELDS = ("memory_bytes", "usable_memory_bytes", "memory_bandwidth_bytes_per_s", "dense_flop_per_s", "tdp_w")


class CatalogError(InputError):
    """A catalogue that cannot be read, or a name that is not in it; the message names the allowed values."""


class Gpu(Record):
    """One device: a GPU, or the cores of a CPU.

    `nvml_names` are regular expressions, matched against the whole product name that NVML reports.
    `usable_memory_bytes` is what the driver gives to programs (`cudaMemGetInfo`), less than is installed.
    `link`: how the GPUs of a node reach each other as they are usually sold; its rate is in config/calibration.
    """

    name: str
    title: str
    kind: Literal["cuda", "rocm", "cpu"]
    aliases: tuple[str, ...] = ()
    nvml_names: tuple[str, ...] | None = None
    memory_bytes: Positive | None = None
    usable_memory_bytes: Positive | None = None
    memory_bandwidth_bytes_per_s: Positive | None = None
    dense_flop_per_s: dict[FlopDtype, Positive] | None = None
    tdp_w: Positive | None = None
    link: LinkType | None = None
    cpu_cores: Annotated[int, Field(gt=0)] | None = None
    compute_capability: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]$")] | None = None
    sources: dict[str, str] = {}

    @model_validator(mode="after")
    def _numbers_have_sources(self) -> Self:
        given = {field for field in _DATASHEET_FIELDS if getattr(self, field) is not None}
        if given != set(self.sources):
            raise ValueError(f"{self.name}: sources must name exactly the fields with a value: {sorted(given)}")
        if (self.kind == "cuda") != (self.nvml_names is not None):
            raise ValueError(f"{self.name}: nvml_names are allowed only for the kind cuda")
        if (self.kind == "cuda") != (self.compute_capability is not None):
            raise ValueError(f"{self.name}: compute_capability is allowed only for the kind cuda")
        if self.cpu_cores is not None and self.kind != "cpu":
            raise ValueError(f"{self.name}: cpu_cores are allowed only for the kind cpu")
        return self

    def is_called(self, nvml_name: str) -> bool:
        return any(re.fullmatch(pattern, nvml_name) for pattern in self.nvml_names or ())

    def times(self, devices: float) -> "Gpu":
        """As if several of these devices were one, with all their memory and rates."""
        sums = ("memory_bytes", "usable_memory_bytes", "memory_bandwidth_bytes_per_s")
        of_all = {name: value * devices for name in sums if (value := getattr(self, name)) is not None}
        rates = self.dense_flop_per_s and {dtype: rate * devices for dtype, rate in self.dense_flop_per_s.items()}
        return self.model_copy(update={**of_all, "dense_flop_per_s": rates})

    def peak_flop_per_s(self, dtype: str) -> float | None:
        """Highest dense rate of matrix products on inputs of `dtype`; None if no data sheet gives one."""
        rates = self.dense_flop_per_s or {}
        return max((rates[a] for a in _ARITHMETIC.get(dtype, ()) if a in rates), default=None)


# At most more than any device has, in every unit below.
_Number = Annotated[float, Field(gt=0, le=1e6)]


class GpuNumbers(StrictRecord):
    """A GPU of a study, by its numbers; what is left out is not predicted. It can only be planned, as a CUDA device of
    compute capability 9.0, and is never found on a machine."""

    memory_gib: _Number = Field(description="memory that programs get, in GiB")
    bandwidth_tb_s: _Number | None = Field(None, description="of the memory, in TB/s")
    tflops: _Number | None = Field(None, description="of 16-bit dense matrices, in TFLOP/s; of 8-bit ones twice")

    def gpu(self, name: str) -> Gpu:
        """The device of this name.

        >>> card = GpuNumbers(memory_gib=32, bandwidth_tb_s=1.79, tflops=209).gpu("mine")
        >>> card.memory_bytes == 32 * 2**30, card.memory_bandwidth_bytes_per_s, card.peak_flop_per_s("bfloat16")
        (True, 1790000000000.0, 209000000000000.0)
        """
        flops = self.tflops and self.tflops * 1e12
        numbers = {
            "memory_bytes": self.memory_gib * 2**30,
            "memory_bandwidth_bytes_per_s": self.bandwidth_tb_s and self.bandwidth_tb_s * 1e12,
            "dense_flop_per_s": flops and {"bf16": flops, "fp16": flops, "fp8": 2 * flops, "int8": 2 * flops},
        }
        given = {field: value for field, value in numbers.items() if value is not None}
        sources = dict.fromkeys(given, "given by the user")
        fields = {"kind": "cuda", "compute_capability": "9.0", "nvml_names": (), **given, "sources": sources}
        return Gpu.model_validate({"name": name, "title": name, **fields})


class Model(Record):
    """One model: where its weights come from and in which type they are computed. `load_format` is `hub` (weights of
    `hub_repo` at `revision`) or `dummy` (random weights from the config alone). `files`: the tokenizer and the weights
    beside the config of a folder that a study names. The dtype `native` is decided by the
    device that measures; see `processor.dtype_on`."""

    name: str
    hub_repo: str | None = None
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None
    dtype: ModelDtype
    licence: str
    load_format: Literal["hub", "dummy"]
    config: Path
    files: HashedFiles | None = None

    @model_validator(mode="after")
    def _hub_has_a_repo(self) -> Self:
        if self.load_format == "hub" and self.hub_repo is None:
            raise ValueError(f"{self.name}: load_format hub needs hub_repo")
        return self

    @property
    def fixed_dtype(self) -> Dtype | None:
        """Its dtype if that does not depend on the device; None stands for the one in its config.json."""
        return None if self.dtype == "native" else self.dtype

    @property
    def has_drafting_layers(self) -> bool:
        """Whether the model has layers that draft (multi-token prediction)."""
        return drafting_layers(read_json(self.config)) > 0

    def pinned(self) -> tuple[str, str]:
        """Hub repository and commit to fetch; without a commit two runs could load different weights. Raises
        CatalogError if the entry names no repository or no commit."""
        if self.hub_repo is None or self.revision is None:
            missing = "hub_repo" if self.hub_repo is None else "revision (a 40-digit commit)"
            raise CatalogError(
                f"model {self.name!r}: set {missing} in {self.config.parent / 'model.yaml'} to use the hub"
            )
        return self.hub_repo, self.revision


def load_gpus(path: Path | None = None) -> Mapping[str, Gpu]:
    """All devices of the catalogue by name, in its order, and those that a study has added. Raises
    CatalogError if the file or an entry is not valid."""
    path = path or Path(os.environ.get("KVSWEEP_GPUS", GPUS))
    gpus = _gpus(path, path.stat().st_mtime_ns if path.exists() else 0)
    return MappingProxyType({**gpus, **study_gpus}) if study_gpus else gpus


# GPUs of studies that this process has read, by name.
study_gpus: dict[str, Gpu] = {}


@cache
def _gpus(path: Path, changed_ns: int) -> Mapping[str, Gpu]:
    # Reading takes 25 ms, and most commands ask several times.
    content = validated(dict[str, dict[str, Any]], read_yaml(path, CatalogError), str(path), CatalogError)
    entries = {name: {"name": name, **entry} for name, entry in content.items()}
    return MappingProxyType(validated(dict[str, Gpu], entries, str(path), CatalogError))


def get_gpu(name: str) -> Gpu:
    """The device with exactly this name. Raises CatalogError if there is none."""
    gpus = load_gpus()
    if name not in gpus:
        raise CatalogError(f"unknown GPU {name!r}; {allowed_names(name, gpus)}")
    return gpus[name]


def resolve(name: str) -> tuple[Gpu, ...]:
    """Every device that `name` may mean as tables write it: `A100 PCIe` is a 40 GB or an 80 GB card.

    >>> [gpu.name for gpu in resolve("A100 PCIe")]
    ['a100-pcie-40gb', 'a100-pcie-80gb']
    >>> [gpu.name for name in ("H200", "1x NVIDIA H100 80GB SXM") for gpu in resolve(name)]
    ['h200', 'h100-sxm']

    Raises CatalogError if no device has this name or alias.
    """
    gpus, wanted = load_gpus(), _words(name)
    matches = tuple(g for g in gpus.values() if _means(wanted, [_words(n) for n in (g.name, g.title, *g.aliases)]))
    if not matches:
        names = dict.fromkeys(n for g in gpus.values() for n in (g.name, *g.aliases))
        raise CatalogError(f"unknown GPU {name!r}; {allowed_names(name, names)}")
    return matches


def resolve_one(name: str) -> Gpu:
    """The device that `name` means. Raises CatalogError if no device has this name or alias, or several have."""
    candidates = resolve(name)
    if len(candidates) > 1:
        raise CatalogError(f"GPU {name!r} may be any of {', '.join(gpu.name for gpu in candidates)}: name one")
    return candidates[0]


def _words(name: str) -> frozenset[str]:
    words = re.split(r"[\s_-]+", re.sub(r"^1 ?x ?|\bhbm\d\w?|(?<=\dg)b?\b", "", name.strip().lower()))
    return frozenset(words) - {"nvidia", "amd", ""}


def _means(wanted: frozenset[str], names: Sequence[frozenset[str]]) -> bool:
    """Whether the words are those of one name of a device, perhaps with words of its other names."""
    return any(name <= wanted for name in names) and wanted <= frozenset[str]().union(*names)


# Models that this process has entered besides those of the catalogue, by name (`catalog.any_model`).
study_models: dict[str, Model] = {}


class _Models(UserDict[str, Any]):
    """Models by name. Each is read when it is needed, so an unused broken entry never makes a study fail."""

    def __getitem__(self, name: str) -> Model:
        if isinstance(self.data[name], Path):
            self.data[name] = _read_model(self.data[name])
        model: Model = self.data[name]
        return model


def _read_model(path: Path) -> Model:
    config = path.parent / "config.json"
    if not config.is_file():
        raise CatalogError(f"{config}: missing; a model needs model.yaml and config.json")
    written = validated(dict[str, Any], read_yaml(path, CatalogError), str(path), CatalogError)
    content = {"name": path.parent.name, "config": config, **written}
    return validated(Model, content, str(path), CatalogError)


def load_models(folder: Path = MODELS) -> Mapping[str, Model]:
    """All models by name, with those that a study or a tool has added. An entry that is not valid raises CatalogError
    when it is needed."""
    entries = {path.parent.name: path for path in sorted(folder.glob("*/model.yaml"))}
    return _Models({**entries, **study_models})


def readable_models() -> Mapping[str, Model]:
    """The models of the catalogue by name, without those whose entry is not valid: a study may not need them."""
    models, readable = load_models(), {}
    for name in models:
        with contextlib.suppress(CatalogError):
            readable[name] = models[name]
    return readable


def get_model(name: str) -> Model:
    """The model with exactly this name. Raises CatalogError if there is none."""
    models = load_models()
    if name not in models:
        raise CatalogError(f"unknown model {name!r}; {allowed_names(name, models)}")
    return models[name]
