"""Workloads of random tokens: each request depends on the seed and its own index alone."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
from scipy.special import ndtr, ndtri

from workflow_scripts.prepare.request import Request, RequestStream
from workflow_scripts.prepare.tokenizer import Vocabulary
from workflow_scripts.workloads import FixedWorkload, LengthDistribution, SharedPrefixWorkload, SyntheticWorkload

_REQUEST, _PREFIX = range(2)


def fixed(spec: FixedWorkload, vocabulary: Vocabulary, seed: int) -> RequestStream:
    """Requests that all have the same lengths."""
    return RequestStream(
        "fixed",
        (Request(vocabulary.random_ids(rng, spec.prompt_tokens), spec.output_tokens) for rng in _generators(seed)),
    )


def synthetic(spec: SyntheticWorkload, vocabulary: Vocabulary, seed: int) -> RequestStream:
    """Requests whose lengths follow two independent lognormal distributions."""

    def request(rng: np.random.Generator) -> Request:
        prompt_tokens = draw_length(spec.prompt_tokens, rng)
        output_tokens = draw_length(spec.output_tokens, rng)
        return Request(vocabulary.random_ids(rng, prompt_tokens), output_tokens)

    return RequestStream("synthetic", map(request, _generators(seed)))


def shared_prefix(spec: SharedPrefixWorkload, vocabulary: Vocabulary, seed: int) -> RequestStream:
    """Requests of which a share begins with one prefix.

    The others begin with as many tokens of their own, so that `share` changes what can be shared and no length.
    """
    prefix = vocabulary.random_ids(np.random.default_rng([seed, _PREFIX]), spec.prefix_tokens)

    def request(index: int, rng: np.random.Generator) -> Request:
        own = vocabulary.random_ids(rng, spec.prefix_tokens + spec.prompt_tokens)
        if not _is_chosen(index, spec.share):
            return Request(own, spec.output_tokens)
        return Request(prefix + own[spec.prefix_tokens :], spec.output_tokens, prefix_tokens=spec.prefix_tokens)

    return RequestStream("shared_prefix", itertools.starmap(request, enumerate(_generators(seed))))


def _generators(seed: int) -> Iterator[np.random.Generator]:
    for index in itertools.count():
        yield np.random.default_rng([seed, _REQUEST, index])


def _is_chosen(index: int, share: float) -> bool:
    """Whether the request at `index` is one of a share that is spread evenly, the first one included.

    >>> [_is_chosen(i, 0.25) for i in range(5)]
    [True, False, False, False, True]
    """
    return math.ceil((index + 1) * share) > math.ceil(index * share)


def draw_length(distribution: LengthDistribution, rng: np.random.Generator) -> int:
    """A token count from the lognormal distribution that is truncated to [minimum, maximum].

    What lies outside is drawn again rather than moved to the bound (by inverting the distribution function between
    the bounds, so one draw is enough); bounds far off the median give the nearer bound.

    >>> draw_length(LengthDistribution(median=100, sigma=0, maximum=64), np.random.default_rng(0))
    64
    """
    low, high, median = distribution.minimum, distribution.maximum, distribution.median
    # Half a token on either side, so that rounding treats the bounds as it treats all other counts.
    bounds = np.log(np.array([low - 0.5, high + 0.5]) / median) / max(distribution.sigma, 1e-9)
    below, above = ndtr(bounds)
    # Where the distribution leaves nothing between the bounds, the median decides for one.
    deviations = ndtri(rng.uniform(below, above)) if below < above else 0.0
    return int(np.clip(np.rint(median * np.exp(distribution.sigma * deviations)), low, high))
