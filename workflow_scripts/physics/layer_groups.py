"""Groups of layers that share a block table: layers of one kind, in groups of equal size (vLLM 0.11 and later)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workflow_scripts.physics.layers import Attention, Layer, Mixer, State


@dataclass(frozen=True)
class KvGroup:
    """Layers of one kind that share a block table, by their numbers; `slots` counts padding too. `reach`: tokens that a
    layer looks back over, None for all; 0 for a state, which has no tokens. `chunked`: it looks back only within chunks
    of `reach` tokens. `stretch`: how many times the pool's usual number of tokens a page holds."""

    kind: str
    layers: tuple[int, ...]
    slots: int
    reach: int | None
    chunked: bool = False
    stretch: int = 1


def layers_with_memory(stack: Sequence[Layer]) -> Iterator[tuple[Mixer, int]]:
    """Each attention or state of the layers, with the number of its layer."""
    for number, layer in enumerate(stack):
        yield from ((mixer, number) for mixer in layer.mixers)


def kept_tokens(mixer: Mixer, frees_chunks: bool = True) -> tuple[int | None, bool]:
    """How many tokens vLLM keeps for a layer (None for all), and whether only those of the current chunk."""
    if isinstance(mixer, State):
        return 0, False
    if isinstance(mixer, Attention) and mixer.chunk is not None:
        return (mixer.chunk, True) if frees_chunks else (None, False)
    return mixer.reach, False


def layer_groups(stack: Sequence[Layer], frees_chunks: bool = True) -> Iterator[KvGroup]:
    """The groups of a model (vllm/v1/core/kv_cache_utils.py, `get_kv_cache_groups`): six layers with a window and two
    that keep all tokens are four groups of two. `frees_chunks`: whether layers with chunks keep only the current one.
    """
    of_kind: dict[tuple[int | None, bool], list[tuple[Mixer, int]]] = {}
    for mixer, number in layers_with_memory(stack):
        of_kind.setdefault(kept_tokens(mixer, frees_chunks), []).append((mixer, number))
    sizes = [len(members) for members in of_kind.values()]
    # The smallest kind gives the size, unless the largest is hardly larger: then padding costs less than more groups.
    size = max(sizes) if max(sizes) < 1.5 * min(sizes) else min(sizes)
    for (reach, chunked), members in of_kind.items():
        count = math.ceil(len(members) / size)
        for first in range(count):
            # Every `count`-th layer, so that each stage of a pipeline has layers of each group.
            own = members[first::count]
            yield KvGroup(own[0][0].kind, tuple(number for _, number in own), size, reach, chunked)
