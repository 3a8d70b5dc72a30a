"""KV memory of vLLM by kind of layer, for models whose layers are of several kinds or keep only a window.

Three layouts are compared for such a model: the pool as vLLM shares it among layers of all kinds, the same without
padding, and one in which all layers with attention keep all tokens. The unit of memory is the token of all layers: the
bytes that one token takes in all layers with attention. docs/fragmentation.md has details.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from workflow_scripts.engines.vllm.kv_groups import kept_tokens, layer_groups, layers_with_memory
from workflow_scripts.physics.layers import Mixer, State
from workflow_scripts.physics.model_facts import ModelFacts
from workflow_scripts.statistics.start_spread import FloatArray
from workflow_scripts.statistics.summary import numbers

POOL, OWN_PAGES, EVERY_TOKEN = "paged", "paged_own_pages", "paged_every_token"


@dataclass(frozen=True)
class KindOfLayer:
    """Layers of one kind: one of them, their number, and their number in the groups of the pool, with padding."""

    mixer: Mixer
    layers: int
    slots: int


def keeps_every_token(facts: ModelFacts) -> bool:
    return all(kept_tokens(mixer)[0] is None for mixer, _ in layers_with_memory(facts.stack))


def kinds_of_layers(facts: ModelFacts) -> tuple[KindOfLayer, ...]:
    """The kinds of layers of a model; empty if it is not known how vLLM shares its pool among them."""
    mixers: dict[str, tuple[Mixer, set[int]]] = {}
    for mixer, number in layers_with_memory(facts.stack):
        mixers.setdefault(mixer.kind, (mixer, set()))[1].add(number)
    if len({mixer.cache_elements() for mixer, _ in mixers.values() if not isinstance(mixer, State)}) != 1:
        return ()
    slots = dict.fromkeys(mixers, 0)
    for group in layer_groups(facts.stack):
        slots[group.kind] += group.slots
    return tuple(KindOfLayer(mixer, len(layers), slots[kind]) for kind, (mixer, layers) in mixers.items())


def _token_bytes(facts: ModelFacts, kv_cache_dtype: str) -> tuple[int, int]:
    """Bytes of a token in one layer with attention, and in all of these layers."""
    attend = [
        (of.mixer.cache_elements(), of.layers) for of in kinds_of_layers(facts) if not isinstance(of.mixer, State)
    ]
    of_token = attend[0][0] * facts.kv_dtype_bytes(kv_cache_dtype)
    return of_token, of_token * sum(layers for _, layers in attend)


def block_in_tokens(facts: ModelFacts, kv_cache_dtype: str, block_size: FloatArray) -> FloatArray:
    """A block of the pool, one page for each layer of a group, in tokens of all layers."""
    of_token, of_all_layers = _token_bytes(facts, kv_cache_dtype)
    states = [facts.bytes_of_state(kind.mixer) for kind in kinds_of_layers(facts) if isinstance(kind.mixer, State)]
    page = np.maximum(block_size * of_token, max(states, default=0))
    return page * next(layer_groups(facts.stack)).slots / of_all_layers


def held_by_layout(t: pd.DataFrame, facts: ModelFacts, kv_cache_dtype: str) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """For each layout and kind of layer, the token-seconds needed (`token_s`) and slot-seconds held (`slot_s`) by row.

    A prompt is computed at once, or in chunks of `max_num_batched_tokens`; blocks behind a window are freed with the
    next step. A token is needed as long as a later one attends to it, and a state as long as its request lives. `t` are
    rows of `fragmentation.timeline`, of one model.
    """
    (of_token, unit), life = _token_bytes(facts, kv_cache_dtype), _steps_of_lives(t)
    for kind in kinds_of_layers(facts):
        needed, own, pool, every = _of_one_layer(kind, life, of_token, facts)
        by_layout = {POOL: kind.slots * pool, OWN_PAGES: kind.layers * own, EVERY_TOKEN: kind.layers * every}
        for layout, bytes_held in by_layout.items():
            held = pd.DataFrame({"token_s": kind.layers * needed / unit, "slot_s": bytes_held / unit})
            integrals = held.mul(life["seconds"], axis="index").groupby(life["row"]).sum(min_count=1)
            yield layout, kind.mixer.kind, integrals


def _of_one_layer(
    kind: KindOfLayer, life: Mapping[str, FloatArray], of_token: int, facts: ModelFacts
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Bytes of one layer in each step: needed; in its own pages; in pages of the pool; if it kept every token."""
    page = life["block_size"] * of_token
    if isinstance(kind.mixer, State):
        state = np.full(len(page), float(facts.bytes_of_state(kind.mixer)))
        return state, state, np.maximum(page, state), state
    tokens, every = life["tokens"], np.ceil(life["tokens"] / life["block_size"]) * page
    reach, chunked = kept_tokens(kind.mixer)
    needed, pages = tokens, every
    if reach is not None:
        needed = (tokens - 1) % reach + 1 if chunked else np.minimum(tokens, reach)
        # Blocks of a prompt that takes several steps are freed between its chunks.
        in_steps = np.minimum(tokens, reach - 1 + life["batched_tokens"])
        given_back = (tokens - 1) // reach * reach if chunked else np.maximum(tokens - reach, 0)
        behind = np.where(life["is_prefill"], tokens - in_steps, given_back)
        pages = every - behind // life["block_size"] * page
    return needed * of_token, pages, pages, every


def _steps_of_lives(t: pd.DataFrame) -> dict[str, FloatArray]:
    """One element for the prefill of each request and for each of its decode steps; `seconds` is its duration."""
    steps = numbers(t["output_tokens"]).astype(int)  # the prefill, and a decode step for each further token
    request = np.repeat(np.arange(len(t)), steps)
    step = np.arange(steps.sum()) - np.repeat(np.cumsum(steps) - steps, steps)
    decode_s = numbers(t["decode_s"]) / np.maximum(steps - 1, 1)
    return {
        "row": numbers(t["row"])[request],
        "tokens": numbers(t["prompt_tokens"])[request] + step,
        "seconds": np.where(step == 0, numbers(t["prefill_s"])[request], decode_s[request]),
        "is_prefill": step == 0,
        "block_size": numbers(t["block_size_effective"])[request],
        "batched_tokens": np.nan_to_num(numbers(t["max_num_batched_tokens_effective"])[request], nan=np.inf),
    }
