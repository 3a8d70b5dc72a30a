"""GPUs that are not in config/gpus.yaml, by the numbers of their data sheet.

A study names its own under `gpus`; tools take one as `--gpu-memory-gib 32 --bandwidth-tb-s 1.79 --tflops 209`. Such a
GPU can be planned and audited. It is taken for a CUDA device of compute capability 9.0 and is never found on a machine.
"""

from argparse import Namespace
from typing import Annotated

from pydantic import Field

from workflow_scripts.catalog.gpus_and_models import CatalogError, Gpu, resolve_one, study_gpus
from workflow_scripts.common.command import above_zero, option
from workflow_scripts.common.records import StrictRecord

# More than any device has, in every unit below.
MOST = 1e6
Number = Annotated[float, Field(gt=0, le=MOST)]
OWN = "own-gpu"


class GpuNumbers(StrictRecord):
    """A GPU by its numbers; what is left out is not predicted."""

    memory_gib: Number = Field(description="memory that programs get, in GiB")
    bandwidth_tb_s: Number | None = Field(None, description="of the memory, in TB/s")
    tflops: Number | None = Field(None, description="of 16-bit dense matrices, in TFLOP/s; of 8-bit ones twice")

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


_number = above_zero(MOST)
GPU_NUMBERS = (
    option("--gpu-memory-gib", type=_number, help="of a GPU that is not in config/gpus.yaml: memory for programs"),
    option("--bandwidth-tb-s", type=_number, help="its memory bandwidth"),
    option("--tflops", type=_number, help="its rate for 16-bit dense matrices"),
)


def own_gpu(args: Namespace) -> Gpu | None:
    """The GPU that `GPU_NUMBERS` describe, named by `--gpu`, if the command has that option; from then on known by
    its name. None if they are not given. Raises CatalogError if the memory is left out."""
    if args.gpu_memory_gib is None:
        if args.bandwidth_tb_s is not None or args.tflops is not None:
            raise CatalogError("--bandwidth-tb-s and --tflops describe a GPU with --gpu-memory-gib")
        return None
    numbers = GpuNumbers(memory_gib=args.gpu_memory_gib, bandwidth_tb_s=args.bandwidth_tb_s, tflops=args.tflops)
    gpu = numbers.gpu(getattr(args, "gpu", None) or OWN)
    study_gpus[gpu.name] = gpu
    return gpu


def asked_gpu(args: Namespace) -> Gpu:
    """The GPU of `GPU_NUMBERS` or of `--gpu`. Raises CatalogError if neither is given, or the name is not known."""
    if (gpu := own_gpu(args)) is not None:
        return gpu
    if args.gpu is None:
        raise CatalogError("give --gpu, a name in config/gpus.yaml, or --gpu-memory-gib")
    return resolve_one(args.gpu)
