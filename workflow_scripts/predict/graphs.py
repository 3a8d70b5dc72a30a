"""Which steps of an engine on a GPU are launched as captured graphs, and which layer by layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workflow_scripts.predict.schedule import IntArray

PIECEWISE, EAGER = "piecewise_layers", "eager_layers"
# By the name of vLLM's mode: how steps without prompts, and steps with prompts, are launched; None is one graph.
MODES = {
    "NONE": (EAGER, EAGER),
    "PIECEWISE": (PIECEWISE, PIECEWISE),
    "FULL": (None, None),
    "FULL_DECODE_ONLY": (None, EAGER),
    "FULL_AND_PIECEWISE": (None, PIECEWISE),
}


@dataclass(frozen=True)
class Graphs:
    """Steps of up to `tokens` tokens are launched by `mode`, one of `MODES`; larger ones kernel by kernel."""

    tokens: int = 0
    mode: str = "FULL_AND_PIECEWISE"

    def as_shown(self, effective: Mapping[str, Any]) -> "Graphs":
        """The same, except for what a running engine shows of its settings."""
        tokens, mode = effective.get("max_cudagraph_capture_size"), effective.get("cudagraph_mode")
        return Graphs(self.tokens if tokens is None else tokens, mode if mode in MODES else self.mode)

    def launched(self, tokens: IntArray, prompts: IntArray, layers: int) -> dict[str, np.ndarray]:
        """Layers that are launched one by one in steps with these tokens and prompts, by kind of launch.

        >>> steps = np.array([4, 4, 600]), np.array([0, 1, 1])
        >>> {kind: found.tolist() for kind, found in Graphs(512).launched(*steps, 32).items()}
        {'piecewise_layers': [0, 32, 0], 'eager_layers': [0, 0, 32]}
        """
        decode, mixed = MODES[self.mode]
        return {
            kind: layers
            * np.where(tokens > self.tokens, kind == EAGER, np.where(prompts > 0, kind == mixed, kind == decode))
            for kind in (PIECEWISE, EAGER)
        }
