"""What the pipeline knows about an engine's knob besides its type; it is given at the knob's field."""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Knob:
    """One knob, in the `Annotated[...]` of its field.

    Args:
        code: short name in the ids of cells.
        settles: other effective settings that follow from the knob. They may differ in a comparison of this knob.
        neutral: only for a knob that changes what is computed, in how many steps or on how many devices: the values
            with which it changes nothing. The first is what applies if a study leaves the knob out.
        limits: how many sequences run at once, if the knob limits them.
        reserves: the knob sets the memory for the KV cache, as an amount or as a share of the device's.
        pinned: `vllm serve` has another default than the offline engine, so recommendations give the effective value.
        only_on: the kind of device on which the knob has a meaning; None for all.
        kernels: the knob selects kernels, so the same step takes another time.
        argument: the engine's name for the knob, if it differs; `whole.part` for a part of a structured argument.
        variable: the environment variable that sets it, if no argument does.
        wording: how the report words a value, with {} in its place; for a switch, the words for on and for off. Without
            it, the report gives name and value.
    """

    code: str
    settles: tuple[str, ...] = ()
    neutral: tuple[Any, ...] | None = None
    limits: Literal["sequences"] | None = None
    reserves: Literal["amount", "share"] | None = None
    pinned: bool = False
    only_on: Literal["cpu", "cuda", "rocm"] | None = None
    kernels: bool = False
    argument: str | None = None
    variable: str | None = None
    wording: str | tuple[str, str] | None = None
