"""Which cells of a study this machine has the GPUs for. Only NVML is asked, so a workflow's start stays fast."""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence

from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.wording import plural
from workflow_scripts.device.device_check import nvml_handle
from workflow_scripts.study.grid import Cell, endpoints_of
from workflow_scripts.study.study import Study


def gpus_here() -> list[str]:
    """NVML's names of the GPUs visible to this process, in NVML's order; empty without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    names = []
    with contextlib.suppress(pynvml.NVMLError, IndexError, ValueError):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        for index in range(len(visible.split(",")) if visible else pynvml.nvmlDeviceGetCount()):
            names.append(pynvml.nvmlDeviceGetName(nvml_handle(index)))
    pynvml.nvmlShutdown()
    return names


def cells_without_gpu(study: Study, cells: Sequence[Cell], here: Sequence[str]) -> Iterator[Cell]:
    """The cells that find too few of their GPUs among those `here`; never those on a CPU or a server elsewhere."""
    gpus, endpoints = load_gpus(), endpoints_of(study)
    for cell in cells:
        gpu = gpus[cell.gpu]
        is_elsewhere = cell.endpoint is not None and endpoints[cell.endpoint].base_url is not None
        # A cell takes the first GPUs that are visible, as `device.found_device` does.
        matching = sum(map(gpu.is_called, here[: cell.knobs.ranks]))
        if gpu.kind != "cpu" and not is_elsewhere and matching < cell.knobs.ranks:
            yield cell


def unmeasurable(study: Study, cells: Sequence[Cell]) -> str | None:
    """Which devices of the study no machine can measure, and what that would need; None if all can be measured."""
    without = {cell.gpu for cell in cells_without_gpu(study, cells, ()) if load_gpus()[cell.gpu].nvml_names is None}
    if not without:
        return None
    return (
        f"{', '.join(sorted(without))}: its cells can be planned, but not measured; only NVIDIA's GPUs can. Another"
        " vendor's would need its own library instead of NVML to find and watch the device, and a lock with engines"
        " built for it"
    )


def what_is_left(left: Sequence[Cell], here: Sequence[str]) -> str:
    """Which cells are left out because their GPUs are missing, in words.

    >>> from workflow_scripts.engines.vllm.knobs import VllmKnobs
    >>> cells = [Cell("h200", "e", "m", "w", VllmKnobs(tensor_parallel_size=ranks), ("s",)) for ranks in (1, 2, 2)]
    >>> what_is_left(cells, ["NVIDIA L40S"])
    '3 cells left out, because this machine has NVIDIA L40S: 1 for h200, 2 for 2 h200'
    """
    needs = Counter(cell.gpu if cell.knobs.ranks == 1 else f"{cell.knobs.ranks} {cell.gpu}" for cell in left)
    gpus = ", ".join(f"{count} {name}" if count > 1 else name for name, count in Counter(here).items())
    wanted = ", ".join(f"{count} for {gpu}" for gpu, count in needs.items())
    return f"{plural(len(left), 'cell')} left out, because this machine has {gpus or 'no GPU'}: {wanted}"
