"""What vLLM itself says about settings, on a machine without their GPU: its argument parser and its config classes.

Only configurations are built, as at a start; there are no weights, no kernels and no device. For a CUDA device vLLM
sees a fake one: a platform with the memory and the compute capability from the catalogue, and empty modules for the
compiled extensions that a CPU build of vLLM lacks. What kernels accept (block sizes, attention backends on this exact
GPU) is decided later in a start and not checked here; a cell that a kernel refuses ends as `infeasible`.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.common.files import read_json
from workflow_scripts.engines.knobs import Knobs
from workflow_scripts.engines.vllm import versions as vllm_versions
from workflow_scripts.engines.vllm.knobs import VllmKnobs, command_line

_EXTENSIONS = ("vllm._C_stable_libtorch", "vllm.vllm_flash_attn")
# Functions of the extensions that quantization modules call while they are imported.
_QUESTIONS = (
    "cutlass_scaled_mm_supports_fp4",
    "cutlass_scaled_mm_supports_fp8",
    "cutlass_scaled_mm_supports_block_fp8",
    "cutlass_group_gemm_supported",
)
# Operators that modules of compilation passes use by name while they are imported. vLLM's CPU build has them; its CUDA
# build has them in an extension that cannot be loaded without NVIDIA's driver.
_OPERATORS = (
    *("dynamic_per_token_scaled_fp8_quant", "dynamic_scaled_fp8_quant", "fused_add_rms_norm"),
    *("fused_add_rms_norm_static_fp8_quant", "fused_qk_norm_rope", "rms_norm"),
    *("rms_norm_dynamic_per_token_quant", "rms_norm_static_fp8_quant", "rotary_embedding", "silu_and_mul"),
    *("silu_and_mul_per_block_quant", "silu_and_mul_quant", "static_scaled_fp8_quant"),
)
# vLLM's words if the module of a model cannot be imported, for example because the CPU environment has no torchvision.
_NOT_LOADED = "failed to be inspected"
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class Setting:
    """What vLLM would be started with; of a model's folder only `config.json` is needed."""

    gpu: Gpu
    model_dir: Path
    dtype: str
    knobs: Knobs
    draft_dir: Path | None = None
    serves: bool = False


@dataclass(frozen=True)
class Fault:
    """What vLLM refuses, in its own words. `only_here`: this installation could not look at the model, which is no
    fault of the study. `lacks`: this version does not have the knobs, with which the cell ends as infeasible."""

    words: str
    only_here: bool = False
    lacks: bool = False


def vllm_faults(settings: Sequence[Setting]) -> list[Fault | None]:
    """The fault of each setting that vLLM refuses, else None, in the order of `settings`. vLLM keeps one platform for
    the life of a process, so each kind of device is checked in its own process."""
    on_cuda = [setting.gpu.kind == "cuda" for setting in settings]
    faults = {}
    for kind in set(on_cuda):
        of_kind = [setting for setting, cuda in zip(settings, on_cuda, strict=True) if cuda == kind]
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            faults[kind] = iter(process.submit(_faults_of_one_platform, of_kind).result())
    return [next(faults[kind]) for kind in on_cuda]


def _faults_of_one_platform(settings: Sequence[Setting]) -> list[Fault | None]:
    os.environ |= _ENVIRONMENT
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # anything that libraries print while they are imported
        os.dup2(quiet, stream)
    choose_gpu = _use_fake_platform(settings[0].gpu)
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    parser = EngineArgs.add_cli_args(vllm_versions.argument_parser())

    def refusal(setting: Setting, knobs: VllmKnobs) -> str | None:
        choose_gpu(setting.gpu)
        os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)
        os.environ |= knobs.environment()
        model = {"model": str(setting.model_dir), "load_format": "dummy", "dtype": setting.dtype}
        arguments = knobs.engine_arguments(str(setting.draft_dir) if setting.draft_dir else None)
        usage = UsageContext.OPENAI_API_SERVER if setting.serves else UsageContext.LLM_CLASS
        try:
            args = EngineArgs.from_cli_args(parser.parse_args(command_line(model | arguments)))
            args.create_engine_config(usage)
        except (Exception, SystemExit) as e:
            return _words(e)
        return None

    def fault(setting: Setting) -> Fault | None:
        # A server has further knobs besides vLLM's arguments.
        values = setting.knobs.set_values()
        asked = VllmKnobs.model_validate({name: values[name] for name in VllmKnobs.model_fields if name in values})
        arguments = asked.engine_arguments()
        try:
            vllm_versions.check_arguments(arguments)
        except ValueError as e:
            return Fault(str(e), lacks=True)
        words = refusal(setting, asked)
        if words is None:
            return None
        if _NOT_LOADED in words:
            return Fault(_why_not_loaded(setting.model_dir), only_here=True)
        return Fault(words)

    return [fault(setting) for setting in settings]


@cache  # a second import of a module that failed says something else
def _why_not_loaded(model_dir: Path) -> str:
    """What an import of the model's code says, which vLLM only logs."""
    from vllm.model_executor.models.registry import ModelRegistry

    for name in read_json(model_dir / "config.json")["architectures"]:
        try:
            ModelRegistry.models[name].load_model_cls()
        except Exception as e:
            return f"{name}: {_words(e)}"
    return "its code could not be loaded in a process of its own"


def _words(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        faults = [
            ": ".join([*map(str, fault["loc"]), fault["msg"].removeprefix("Value error, ")])
            for fault in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        return " ".join("; ".join(faults).split())
    name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{name}{' '.join(str(error).split())}"


def _use_fake_platform(gpu: Gpu) -> Callable[[Gpu], None]:
    """Put vLLM, not yet imported, on a platform of the device's kind; the returned function changes the device."""
    if gpu.kind != "cuda":
        os.environ["VLLM_TARGET_DEVICE"] = "cpu"  # a build for GPUs would look for one
        return lambda gpu: None
    for extension in _EXTENSIONS:
        sys.modules[extension] = _Absent(extension)
    import torch
    import vllm.platforms
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability

    class CatalogueGpu(CudaPlatformBase):  # type: ignore[misc]  # vLLM has no types
        gpu: Gpu

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            major, _, minor = str(cls.gpu.compute_capability).partition(".")
            return DeviceCapability(int(major), int(minor))

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return cls.gpu.title

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return int(cls.gpu.usable_memory_bytes or cls.gpu.memory_bytes or 0)

        @classmethod
        def device_count(cls) -> int:
            return 1024  # the site decides how many a node has

        @classmethod
        def is_fully_connected(cls, device_ids: list[int]) -> bool:
            return True

        @classmethod
        def is_integrated_gpu(cls, device_id: int = 0) -> bool:
            return False

    CatalogueGpu.gpu = gpu
    for question in _QUESTIONS:
        setattr(torch.ops._C, question, lambda capability: capability >= 90)
    for operator in _OPERATORS:
        if not hasattr(torch.ops._C, operator):
            setattr(torch.ops._C, operator, _Absent(operator))
    vllm.platforms._current_platform = CatalogueGpu()

    def choose(gpu: Gpu) -> None:
        CatalogueGpu.gpu = gpu

    return choose


class _Absent(ModuleType):
    """Replaces a compiled module, so that modules that import it can be imported; nothing in it is ever called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None
