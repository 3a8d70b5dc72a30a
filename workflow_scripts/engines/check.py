"""What an installed engine is asked: whether it accepts settings."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.engines.knobs import Knobs

KnobsOf = TypeVar("KnobsOf", bound=Knobs)


@dataclass(frozen=True)
class EngineSetting:
    """What an engine would be started with; of a model's folder only `config.json` is needed."""

    gpu: Gpu
    model_dir: Path
    dtype: str
    knobs: Knobs
    draft_dir: Path | None = None
    serves: bool = False


@dataclass(frozen=True)
class Fault:
    """What an engine refuses, in its own words. `knobs`: without any one of them it accepts the setting. `only_here`
    says that this installation of the engine could not look at the model, which is no fault of the study; neither is it
    if the version `lacks` the knobs, with which the cell ends as infeasible."""

    knobs: tuple[str, ...]
    words: str
    only_here: bool = False
    lacks: bool = False


def at_fault(knobs: KnobsOf, refusal: Callable[[KnobsOf], str | None]) -> tuple[str, ...]:
    """The knobs without any one of which there is no refusal; the parts of one argument stay together."""
    values, structures = knobs.set_values(), {name: knob.structure for name, knob in knobs.described().items()}

    def without(name: str) -> KnobsOf:
        dropped = {name} | {other for other in values if structures[name] and structures[other] == structures[name]}
        return knobs.model_validate({other: value for other, value in values.items() if other not in dropped})

    return tuple(name for name in values if refusal(without(name)) is None)
