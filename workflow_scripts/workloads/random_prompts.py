"""Workloads of random tokens: each request depends only on the seed and its own index."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from workflow_scripts.workloads.request import Request, Vocabulary
from workflow_scripts.workloads.workload_kinds import (
    FixedWorkload,
    LengthDistribution,
    MultiTurnWorkload,
    SharedTextWorkload,
    SyntheticWorkload,
)

_REQUEST, TEXT_STREAM, _LENGTHS = range(3)


def fixed(spec: FixedWorkload, vocabulary: Vocabulary, count: int) -> Iterator[Request]:
    prompts = (vocabulary.random_ids(rng, spec.prompt_tokens) for rng in generators(spec.seed))
    return (Request(prompt, spec.output_tokens) for prompt in prompts)


def synthetic(spec: SyntheticWorkload, vocabulary: Vocabulary, count: int) -> Iterator[Request]:
    both = (spec.prompt_tokens, spec.output_tokens)
    of_requests: Iterator[tuple[np.random.Generator, Sequence[int]]]
    if spec.lengths == "drawn" or spec.max_total_tokens is not None:
        of_requests = ((rng, [draw_length(each, rng) for each in both]) for rng in generators(spec.seed))
    else:
        order = np.random.default_rng([spec.seed, _LENGTHS])
        stratified = np.column_stack([order.permutation(strata(each, count)) for each in both]).tolist()
        of_requests = zip(generators(spec.seed), stratified, strict=False)
    return (Request(vocabulary.random_ids(rng, prompt), output) for rng, (prompt, output) in of_requests)


def sharing(spec: SharedTextWorkload, vocabulary: Vocabulary, seed: int) -> Iterator[Request]:
    """Requests, some of which begin with the same text. The others begin with as many tokens of their own, so that
    sharing changes no length."""

    def request(index: int, rng: np.random.Generator) -> Request:
        own = vocabulary.random_ids(rng, spec.tokens_of_prompt(index))
        shared = spec.shared_text(index)
        if shared is None:
            return Request(own, spec.output_tokens)
        # However many of a text's tokens are drawn, the first ones are the same.
        text = vocabulary.random_ids(np.random.default_rng([seed, TEXT_STREAM, shared.id]), shared.tokens)
        prompt = text + own[shared.tokens :]
        made = Request(prompt, spec.output_tokens, prefix_tokens=shared.tokens, prefix_id=shared.id)
        if not isinstance(spec, MultiTurnWorkload) or spec.answers != "real":
            return made
        answers = spec.answers_in(index)
        think_s = round(rng.exponential(spec.think_s), 6) if answers else 0.0
        return replace(made, session=spec.place(index)[0], answers=answers, think_s=think_s)

    return itertools.starmap(request, enumerate(generators(seed)))


def as_long_as(requests: Sequence[Request], vocabulary: Vocabulary, seed: int) -> Iterator[Request]:
    """Requests of the same lengths in the same order, repeated without end, with prompts of random tokens."""
    for like, rng in zip(itertools.cycle(requests), generators(seed), strict=False):
        yield Request(vocabulary.random_ids(rng, len(like.prompt_token_ids)), like.output_tokens)


def generators(seed: int) -> Iterator[np.random.Generator]:
    """A random generator for each request, which depends only on the seed and the request's index."""
    for index in itertools.count():
        yield np.random.default_rng([seed, _REQUEST, index])


def draw_length(distribution: LengthDistribution, rng: np.random.Generator) -> int:
    """A token count from the lognormal distribution that is truncated to [minimum, maximum].

    Values outside are drawn again rather than moved to the bound (by inverting the distribution function between the
    bounds, so that one draw is enough). If the bounds are far from the median, the result is the nearer bound.

    >>> draw_length(LengthDistribution(median=100, sigma=0, maximum=64), np.random.default_rng(0))
    64
    """
    from scipy.special import ndtr, ndtri  # takes as long as a small prediction, and fixed lengths do not need it

    below, above = ndtr(_bounds(distribution))
    # If the distribution leaves nothing between the bounds, the median decides which bound is used.
    deviations = ndtri(rng.uniform(below, above)) if below < above else 0.0
    tokens = np.rint(distribution.median * np.exp(distribution.sigma * deviations))
    return int(np.clip(tokens, distribution.minimum, distribution.maximum))


def strata(distribution: LengthDistribution, count: int) -> NDArray[np.int64]:
    """Token counts, ascending, whose mean is that of the truncated lognormal distribution to one token in all.

    The distribution is divided into `count` parts of equal probability, and each count is the mean of its part.

    >>> strata(LengthDistribution(median=100, sigma=0, maximum=64), 3).tolist()
    [64, 64, 64]
    """
    from scipy.special import ndtr, ndtri

    bounds, sigma = _bounds(distribution), distribution.sigma
    below, above = ndtr(bounds)
    edges = np.clip(ndtri(np.linspace(below, above, count + 1)), *bounds)
    probability = np.diff(ndtr(edges))
    if not (probability > 0).all():
        means = np.full(count, distribution.median)
    else:
        means = distribution.median * np.exp(sigma**2 / 2) * np.diff(ndtr(edges - sigma)) / probability
    low, high = distribution.minimum, distribution.maximum
    # What one count loses to rounding, the next one gets.
    return np.clip(np.diff(np.rint(np.cumsum(np.clip(means, low, high))), prepend=0), low, high).astype(np.int64)


def _bounds(distribution: LengthDistribution) -> NDArray[np.float64]:
    """The bounds as deviations of a standard normal distribution: half a token on either side, so that rounding treats
    them like all other counts."""
    ends = np.array([distribution.minimum - 0.5, distribution.maximum + 0.5])
    return np.log(ends / distribution.median) / max(distribution.sigma, 1e-9)
