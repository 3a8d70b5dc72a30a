"""One way to start an engine, as it is checked before a study is queued, and what the engine refuses of it."""

from dataclasses import dataclass
from pathlib import Path

from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.engines.knobs import Knobs


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
