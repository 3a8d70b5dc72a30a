"""How the engines choose the next token: greedily, unless a workload says otherwise."""

from typing import Self

from pydantic import Field, model_validator

from workflow_scripts.common.records import StrictRecord, added


class Sampling(StrictRecord):
    """Settings of sampling, under the names of the OpenAI API; a setting that is left out changes nothing. Lengths stay
    fixed: end tokens are ignored in any case."""

    temperature: float = Field(0.0, ge=0, le=100, description="0: greedy, the most probable token")
    top_p: float | None = added(None, "only the most probable tokens that have this probability", gt=0, le=1)
    repetition_penalty: float | None = added(
        None, "above 1: tokens that occurred before become less probable", gt=0, le=100
    )
    seed: int | None = added(
        None, "seed of the first request, each further one has the next; without it, engines choose", ge=0, lt=2**31
    )
    thinking_token_budget: int | None = added(
        None, "after so many tokens of reasoning, a server with a reasoning parser ends it", ge=0
    )

    @model_validator(mode="after")
    def _has_an_effect(self) -> Self:
        if self.is_greedy and (drawing := {"top_p", "seed"} & self.names()):
            raise ValueError(f"{', '.join(sorted(drawing))}: without effect unless temperature is above 0")
        if not self.names():
            raise ValueError("it sets nothing: give temperature above 0 or repetition_penalty, or leave sampling out")
        return self

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    def names(self) -> set[str]:
        """The settings that have an effect.

        >>> sorted(Sampling(temperature=0.7, seed=1).names()), Sampling(repetition_penalty=1.1).names()
        (['seed', 'temperature'], {'repetition_penalty'})
        """
        return set(self.model_dump()) - ({"temperature"} if self.is_greedy else set())


def in_words(sampling: Sampling | None) -> str:
    """How tokens are chosen, in words.

    >>> in_words(None), in_words(Sampling(temperature=0.7, top_p=0.9))
    ('greedily', 'temperature 0.7, top_p 0.9')
    """
    return "greedily" if sampling is None else ", ".join(f"{name} {x:g}" for name, x in sampling.model_dump().items())


SETTINGS = frozenset(Sampling.model_fields)
THINKING = "thinking_token_budget"


def settings_of_request(sampling: Sampling | None, index: int) -> dict[str, float | int]:
    """The settings of the request at an index of the workload, as fields of the OpenAI API.

    >>> settings_of_request(None, 3), settings_of_request(Sampling(temperature=0.7, seed=5), 2)
    ({'temperature': 0.0}, {'temperature': 0.7, 'seed': 7})
    """
    values = {"temperature": 0.0} if sampling is None else sampling.model_dump()
    return values | ({"seed": values["seed"] + index} if "seed" in values else {})
