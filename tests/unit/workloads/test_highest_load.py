"""The searched load and its interval, on servers whose highest load is known from many more passes, or by hand."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from workflow_scripts.workloads.highest_load import MEET, MOST_PASSES, NARROW, Search, queue_grows

SEEDS = 200


@dataclass
class Server:
    """A queue before `slots` that serve one request each: passes of requests with random gaps and times to serve. A
    pass is within the limits if enough of its requests wait no longer than `most_wait_s`; in some passes, the host
    stops for longer than that."""

    slots: int
    serve_s: float
    spread: float
    most_wait_s: float
    requests: int
    share: float = 0.99
    hiccups: float = 0.0

    @property
    def capacity_per_s(self) -> float:
        return self.slots / self.serve_s

    def met(self, rng: np.random.Generator, rate_per_s: float, passes: int) -> np.ndarray:
        wait_s = self.waits(rng, rate_per_s, passes)[1]
        within = (wait_s <= self.most_wait_s).sum(axis=1)
        return (within >= self.share * self.requests) & (rng.random(passes) >= self.hiccups)

    def waits(self, rng: np.random.Generator, rate_per_s: float, passes: int) -> tuple[np.ndarray, np.ndarray]:
        gaps = rng.exponential(size=(passes, self.requests))
        arrival_s = np.cumsum(gaps / gaps.mean(axis=1, keepdims=True) / rate_per_s, axis=1)
        serve_s = rng.lognormal(math.log(self.serve_s) - self.spread**2 / 2, self.spread, gaps.shape)
        free_s, wait_s = np.zeros((passes, self.slots)), np.empty(gaps.shape)
        for i in range(self.requests):
            begin_s = np.maximum(arrival_s[:, i], free_s[:, 0])
            wait_s[:, i] = begin_s - arrival_s[:, i]
            free_s[:, 0] = begin_s + serve_s[:, i]
            free_s.sort(axis=1)
        return arrival_s, wait_s

    def highest_per_s(self) -> float:
        """The rate at which four of five of 1,000 passes without hiccups are within the limits."""
        rates = self.capacity_per_s * np.geomspace(0.2, 2, 60)
        quiet, rng = Server(**{**vars(self), "hiccups": 0.0}), np.random.default_rng(0)
        return float(np.interp(1 - MEET, [1 - quiet.met(rng, rate, 1000).mean() for rate in rates], rates))


@pytest.mark.parametrize(
    "server",
    [
        Server(slots=4, serve_s=0.5, spread=0.5, most_wait_s=0.5, requests=100, hiccups=0.02),
        Server(slots=32, serve_s=3.0, spread=0.3, most_wait_s=0.2, requests=200),
        Server(slots=8, serve_s=1.0, spread=0.3, most_wait_s=0.5, requests=24),
        Server(slots=1, serve_s=0.2, spread=1.0, most_wait_s=1.0, requests=60, share=0.9),
    ],
)
def test_the_interval_holds_the_known_load_in_93_percent_of_searches(server):
    known, held, widths = server.highest_per_s(), [], []
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed + 1)
        search = Search(server.capacity_per_s * rng.uniform(0.1, 1.5), 0.01 * server.capacity_per_s, 1000.0)
        while (rate := search.next()) is not None:
            search.passes.append((rate, bool(server.met(rng, rate, 1)[0])))
        load, low, high = search.highest()
        assert load is not None
        assert low < load < high
        held.append(low <= known <= high)
        widths.append(high / low)
    assert np.mean(held) >= 0.93
    assert np.median(widths) < 2.1


@pytest.mark.parametrize(("slots", "requests", "sustained"), [(256, 1000, 1.0), (16, 240, 0.7)])
def test_the_load_of_short_passes_is_near_what_the_server_sustains(slots, requests, sustained):
    """In the long run 1 % of requests wait longer than the limit at this share of the slots' rate."""
    server, found = Server(slots, 1.0, 0.5, 0.5, requests), []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        search = Search(slots * rng.uniform(0.3, 1), 0.01 * slots, 16.0 * slots)
        while (rate := search.next()) is not None:
            (arrival_s,), (wait_s,) = server.waits(rng, rate, 1)
            met = (wait_s <= server.most_wait_s).mean() >= server.share and not queue_grows(arrival_s, wait_s)
            search.passes.append((rate, bool(met)))
        found.append(search.highest().load)
    assert np.mean(found) == pytest.approx(sustained * slots, rel=0.12)


def searched(first: float, limit: float, *ends: float) -> Search:
    """A search on a server that is within the limits up to exactly this load."""
    search = Search(first, *ends)
    while (load := search.next()) is not None:
        search.passes.append((load, load <= limit))
    return search


def test_a_search_without_chance_ends_before_all_passes():
    found = searched(4.0, 90.0, 0.1, 1000.0)
    load, low, high = found.highest()
    assert low <= 90 <= high <= NARROW * low
    assert load == pytest.approx(90, rel=0.1)
    assert len(found.passes) < MOST_PASSES
    assert found.passes[0] == (pytest.approx(4, rel=0.01), True)


@pytest.mark.parametrize(("limit", "expected"), [(1e9, (None, 100.0, None)), (1e-9, (None, None, 0.1))])
def test_of_a_load_beyond_all_that_are_tried_the_end_is_told(limit, expected):
    found = searched(4.0, limit, 0.1, 100.0)
    assert found.highest() == expected
    assert len(found.passes) <= 12
