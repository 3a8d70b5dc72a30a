"""Engine knobs that a study may set: typed, validated and part of a cell's path.

Field names are the engines' own argument names. A knob that a study leaves out keeps the engine's default and
does not appear in the slug. Everything else that the pipeline knows about a knob is in the `Knob` of its field.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import Field, JsonValue, create_model

from workflow_scripts.common.knob import Knob
from workflow_scripts.common.records import StrictRecord
from workflow_scripts.workloads.arrivals import Load

Positive = Annotated[int, Field(ge=1)]
# The knob that holds any other arguments of an engine.
ENGINE_ARGS = "engine_args"


class Knobs(StrictRecord):
    """Settings of one engine in one cell. What means the same has one name in all engines."""

    engine_args: Annotated[
        Annotated[dict[str, JsonValue], Field(description="any other arguments of the engine, by their own names")]
        | None,
        Knob(""),
    ] = None

    @classmethod
    @cache
    def described(cls) -> Mapping[str, Knob]:
        """The description of each knob by name, in the order of the slug: the load on a server comes last. Raises
        TypeError if a field has no `Knob`."""
        knobs = {name: [k for k in field.metadata if isinstance(k, Knob)] for name, field in cls.model_fields.items()}
        if bare := [name for name, of_field in knobs.items() if not of_field]:
            raise TypeError(f"{cls.__name__}: give {', '.join(bare)} a Knob(...) in Annotated[...]")
        return {name: knobs[name][0] for name in sorted(knobs, key=lambda name: name in Load.model_fields)}

    def slug(self) -> str:
        """Canonical name of the settings; `default` if nothing is set.

        >>> class Some(Knobs):
        ...     block_size: Annotated[int | None, Knob("bs")] = None
        ...     enable_prefix_caching: Annotated[bool | None, Knob("pc")] = None
        >>> Some(enable_prefix_caching=False, block_size=16).slug(), Some().slug()
        ('bs16-pc0', 'default')
        """
        return self.slug_of(self.set_values())

    @classmethod
    def slug_of(cls, values: Mapping[str, Any]) -> str:
        """The same for some of the settings."""
        own = {knob.code: values[name] for name, knob in cls.described().items() if name in values and knob.code}
        words = [f"{name}{_text(value)}" for name, value in (own | (values.get(ENGINE_ARGS) or {})).items()]
        return "-".join(words) or "default"

    @classmethod
    @cache
    def in_part(cls) -> type[StrictRecord]:
        """The same settings, none of which has to be given, nor to fit to others."""
        fields: dict[str, Any] = {
            name: (Annotated[field.annotation, *field.metadata] | None, None)
            for name, field in cls.model_fields.items()
        }
        return create_model(cls.__name__, __base__=StrictRecord, **fields)

    def __hash__(self) -> int:
        return hash((type(self), *(repr(v) if isinstance(v, dict) else v for v in self.__dict__.values())))

    def set_values(self) -> dict[str, Any]:
        """What the study sets, by argument name; knobs left at the engine's default are left out."""
        return self.model_dump(exclude_none=True)

    def other_arguments(self) -> dict[str, Any]:
        """The engine's own arguments that are no knobs, by name."""
        return dict(self.engine_args or {})

    @property
    def why_unpredicted(self) -> str | None:
        """Why nothing is predicted with these settings; None if it may be."""
        return f"not predicted: {', '.join(self.engine_args)}" if self.engine_args else None

    @property
    def max_concurrency(self) -> int:
        """Maximum number of sequences that these settings let run at once."""
        raise NotImplementedError

    @property
    def ranks(self) -> int:
        """Parts of the model that run in parallel, each on its own GPU; on a CPU they share its cores.

        >>> from workflow_scripts.engines.vllm.knobs import VllmKnobs
        >>> VllmKnobs(tensor_parallel_size=4, pipeline_parallel_size=2, data_parallel_size=2).ranks, VllmKnobs().ranks
        (16, 1)
        """
        sizes = (f"{how}_parallel_size" for how in ("tensor", "pipeline", "data"))
        return math.prod(getattr(self, size, None) or 1 for size in sizes)

    @property
    def draft_model(self) -> str | None:
        """Name of the draft model that the engine loads beside the cell's own model; usually None."""
        return getattr(self, "speculative_model", None) if self.drafts else None

    @property
    def drafts(self) -> bool:
        """Whether tokens are drafted, by whatever method (speculative decoding)."""
        return bool(getattr(self, "num_speculative_tokens", None))

    @property
    def longest_request(self) -> int | None:
        """Maximum number of tokens of a request, prompt and answer together; None if only the model limits it."""
        return getattr(self, "max_model_len", None)

    @property
    def quantized_as(self) -> str | None:
        """How the engine quantizes the weights; None if they stay as they are stored."""
        return getattr(self, "quantization", None)

    @property
    def states_in(self) -> str:
        """The type of recurrent states; `auto` is that of the model."""
        return getattr(self, "mamba_ssm_cache_dtype", None) or "auto"


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the engine's own arguments among them, as columns of tables hold them.

    >>> flat({"block_size": 16, "engine_args": {"watermark": 0.1, "cudagraph_capture_sizes": [1, 2]}})
    {'block_size': 16, 'watermark': 0.1, 'cudagraph_capture_sizes': '[1, 2]'}
    """
    own = {name: value for name, value in values.items() if name != ENGINE_ARGS}
    others = (values.get(ENGINE_ARGS) or {}).items()
    return own | {name: json.dumps(value) if isinstance(value, (list, dict)) else value for name, value in others}


def _text(value: Any) -> str:
    if isinstance(value, int):  # also a switch: 0 or 1
        return str(int(value))
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    # A name that a path may hold, or a hash of it.
    text = value if isinstance(value, str) else json.dumps(value)
    return text if re.fullmatch(r"[\w.+-]+", text) else hashlib.sha256(text.encode()).hexdigest()[:8]
