"""GPUs that are not in config/gpus.yaml, by the numbers of their data sheet.

A study names its own under `gpus`. Such a GPU can be planned. It is taken for a CUDA device of compute capability 9.0
and is never found on a machine.
"""

from typing import Annotated

from pydantic import Field

from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.common.records import StrictRecord

# More than any device has, in every unit below.
MOST = 1e6
Number = Annotated[float, Field(gt=0, le=MOST)]


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
