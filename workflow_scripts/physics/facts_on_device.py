"""Facts of a model of the catalogue in the type in which a device computes it."""

from workflow_scripts.catalog.gpus_and_models import Gpu, Model
from workflow_scripts.device.device_record import Device
from workflow_scripts.device.processor import dtype_on
from workflow_scripts.physics.model_facts import ModelFacts, read_model_facts


def facts_on(
    model: Model, gpu: Gpu, device: Device, quantization: str | None = None, *, weights: bool = True
) -> ModelFacts:
    """Facts of a model as `gpu` computes it; `device` is what is known of the device at hand.

    `quantization` and `weights` are those of `read_model_facts`.

    Raises:
        ModelFactsError: the model's structure is not known.
    """
    return read_model_facts(model.config, dtype_on(model.dtype, gpu, device), quantization, weights=weights)
