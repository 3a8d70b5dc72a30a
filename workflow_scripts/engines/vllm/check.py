"""What vLLM itself says about settings, without running them: its argument parser and its config classes.

Every setting goes through the parser. Those of a device of the kind that this vLLM is built for, and that this host
has, also go through the config classes, as at a start; there are no weights and no kernels. What is decided later in a
start is not checked here; a cell that is refused then ends as `infeasible`.
"""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.common.faults import InputError
from workflow_scripts.engines.knobs import Knobs
from workflow_scripts.engines.vllm import versions as vllm_versions
from workflow_scripts.engines.vllm.knobs import VllmKnobs, command_line

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
    """What vLLM refuses, in its own words. Not `refused`: this installation could not look at the model, or this
    version does not have the knobs, so that the cell ends as infeasible."""

    words: str
    refused: bool = True


def vllm_faults(settings: Sequence[Setting]) -> list[Fault | None]:
    """The fault of each setting that vLLM refuses, else None, in the order of `settings`. vLLM is asked in a process of
    its own, which prints nothing."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        try:
            return process.submit(_faults, settings).result()
        except (ImportError, RuntimeError) as e:
            raise InputError(f"the vllm of this environment cannot be asked: {type(e).__name__}: {e}") from None


def _faults(settings: Sequence[Setting]) -> list[Fault | None]:
    os.environ |= _ENVIRONMENT
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # anything that libraries print while they are imported
        os.dup2(quiet, stream)
    import torch

    if not torch.cuda.is_available():  # a build for GPUs would look for one
        os.environ["VLLM_TARGET_DEVICE"] = "cpu"
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.usage.usage_lib import UsageContext

    parser = EngineArgs.add_cli_args(vllm_versions.argument_parser())

    def refusal(setting: Setting, knobs: VllmKnobs) -> str | None:
        os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)
        os.environ |= knobs.environment()
        model = {"model": str(setting.model_dir), "load_format": "dummy", "dtype": setting.dtype}
        arguments = knobs.engine_arguments(str(setting.draft_dir) if setting.draft_dir else None)
        usage = UsageContext.OPENAI_API_SERVER if setting.serves else UsageContext.LLM_CLASS
        try:
            args = EngineArgs.from_cli_args(parser.parse_args(command_line(model | arguments)))
            if current_platform.device_type == setting.gpu.engine_kind:
                args.create_engine_config(usage)
        except (Exception, SystemExit) as e:
            return _words(e)
        return None

    def fault(setting: Setting) -> Fault | None:
        # A server has further knobs besides vLLM's arguments.
        values = setting.knobs.set_values()
        asked = VllmKnobs.model_validate({name: values[name] for name in VllmKnobs.model_fields if name in values})
        try:
            vllm_versions.check_arguments(asked.engine_arguments())
        except ValueError as e:
            return Fault(str(e), refused=False)
        words = refusal(setting, asked)
        return None if words is None else Fault(words, refused=_NOT_LOADED not in words)

    return [fault(setting) for setting in settings]


def _words(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        faults = [
            ": ".join([*map(str, fault["loc"]), fault["msg"].removeprefix("Value error, ")])
            for fault in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        return " ".join("; ".join(faults).split())
    name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{name}{' '.join(str(error).split())}"
