"""Measurements of many cells, as the statistics take them: starts of engines, and what they have in common.

Cells of one session were served by one process of an engine, so its deviation is in all of them, and cancels in the
ratio of two of them.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from workflow_scripts.statistics.errors import BoolArray, Error, FloatArray, IntArray, each
from workflow_scripts.statistics.variation import (
    Known,
    Variation,
    around_mean,
    known_elsewhere,
    mean_of,
    posterior,
    variation,
)

# Two engines on one device, or on two CPUs of one host, share half of the variance of the effects of their rounds.
_APART_IN_A_ROUND = 0.5


class Sessions(NamedTuple):
    """Cells that share sessions have the same `group`; `column` is the number of each start's session among those of
    these cells; `starts` is how much starts vary within sessions."""

    group: IntArray
    column: IntArray
    starts: Variation


@dataclass(frozen=True)
class Samples:
    """Measurements of many cells, as natural logarithms.

    Attributes:
        log: mean of each start, shape (..., cells, rounds); NaN if the cell was not started in the round. If cells were
            measured on several cards, a column is a card, because that is then the highest level that varies.
        within, within_df: variance of the repeats within a start, with its degrees of freedom; NaN if they are 0.
        repeats: mean number of repeats per start.
        group: a number for each cell, the same for all cells of one device and engine.
        between_cards: for each cell whether columns are cards.
        shared: for each cell whether it is on a CPU, which others may use, so that it varies much between occasions.
        device: a number for each cell, the same for all cells of one device.
        kind: a number for each cell, the same for all cells of a study that are on the same kind of device.
        session: for each start the number of the process of an engine that served it, shape (cells, rounds), -1 if it
            served no other cell; None if none did.
    """

    log: FloatArray
    within: FloatArray
    within_df: FloatArray
    repeats: FloatArray
    group: IntArray
    between_cards: BoolArray
    shared: BoolArray
    device: IntArray
    kind: IntArray
    session: IntArray | None = None

    @cached_property
    def starts(self) -> IntArray:
        counted: IntArray = (~np.isnan(self.log)).sum(axis=-1)
        return counted

    @cached_property
    def rounds(self) -> IntArray:
        """How many rounds the device and engine of each cell have had."""
        most = np.zeros_like(self.starts)
        for group in np.unique(self.group):
            cells = self.group == group
            most[..., cells] = self.starts[..., cells].max(axis=-1, keepdims=True)
        return most

    @cached_property
    def known(self) -> Known:
        """What other studies show of each cell's kind of device."""
        return known_elsewhere(self.shared)

    @cached_property
    def of_repeats(self) -> Error:
        """The part of a start's variance that its repeats explain."""
        squares = np.nan_to_num(self.within) * self.within_df
        of_one = posterior(self.known.repeats, self.known.repeats_differ, squares, self.within_df)
        return of_one.times(1 / np.nan_to_num(self.repeats, nan=1.0))

    @cached_property
    def sessions(self) -> Sessions | None:
        """What cells share by their sessions; None if there are none. A cell alone is a group of its own."""
        if self.session is None:
            return None
        group, column = sessions_of_cells(self.session)
        log = np.full((*self.log.shape[:-1], column.max() + 1), np.nan)
        cells, rounds = np.nonzero(~np.isnan(self.log).all(axis=tuple(range(self.log.ndim - 2))))
        log[..., cells, column[cells, rounds]] = self.log[..., cells, rounds]
        return Sessions(group, column, variation(log, group, self.kind, self.known, self.of_repeats))

    @cached_property
    def variation(self) -> Variation:
        """How much starts vary; cells that share sessions count as one, whose starts are the sessions' effects."""
        if self.sessions is None:
            return variation(self.log, self.group, self.kind, self.known, self.of_repeats)
        group, column, within = self.sessions
        _, first, of_cell = np.unique(group, return_index=True, return_inverse=True)
        effects = within.effects[..., np.arange(len(column))[:, None], column]
        effects = np.where(np.isnan(self.log), np.nan, effects)
        log = np.stack([mean_of(effects[..., of_cell == n, :], axis=-2) for n in range(len(first))], axis=-2)
        alone, repeats = ~self.in_session[first], self.of_repeats.of(first)
        error = Error(
            np.where(alone, repeats.variance, within.effects_error[..., first]), np.where(alone, repeats.df, np.inf)
        )
        known = each(self.known, lambda part: part[first])
        found = variation(log, self.group[first], self.kind[first], known, error)
        return each(found, lambda part: part.take(of_cell, axis=self.log.ndim - 2))

    @cached_property
    def in_session(self) -> BoolArray:
        """Whether each cell shares sessions with others."""
        group = np.arange(len(self.group)) if self.sessions is None else self.sessions.group
        return np.asarray(np.bincount(group)[group] > 1)

    @cached_property
    def one_start(self) -> Variation:
        """How much one start of each cell varies, without what it shares with other cells by its round or session."""
        if self.sessions is None:
            return self.variation
        both = zip(self.sessions.starts[:3], self.variation[:3], strict=True)
        mean, square, weight = (np.where(self.in_session[:, None], within, own) for within, own in both)
        return self.variation._replace(mean=mean, square=square, weight=weight)

    @cached_property
    def of_sessions(self) -> Error:
        """The variance of the effects of sessions; 0 for cells that share none."""
        return self.variation.starts.times(self.in_session)

    def apart_in_a_round(self, a: IntArray, b: IntArray) -> Error:
        """What a round does to the difference of the groups of cells `a` and `b`, by the differences that were seen."""
        _, first, group = np.unique(self.group, return_index=True, return_inverse=True)
        pairs, of_pair = np.unique(np.stack([group[a], group[b]]), axis=1, return_inverse=True)
        seen, (x, y) = self.variation, first[pairs]
        median, differ = self.known.rounds[x] * np.sqrt(_APART_IN_A_ROUND), self.known.others_differ[x]
        squares, df = around_mean(seen.effects[..., x, :] - seen.effects[..., y, :])
        error = seen.effects_error[..., x] + seen.effects_error[..., y]
        return posterior(median, differ, squares, df, error).of(of_pair)


def sessions_of_cells(session: IntArray) -> tuple[IntArray, IntArray]:
    """A number for each cell, the same for cells that share sessions, directly or by others; and the number of each
    start's session among those of these cells, where a start without one has its own.

    >>> cells, sessions = sessions_of_cells(np.array([[7, 8], [7, -1], [-1, -1]]))
    >>> cells.tolist(), sessions.tolist()
    ([0, 0, 1], [[0, 1], [0, 2], [0, 1]])
    """
    from scipy.sparse import coo_array, csgraph  # only studies with sessions need it

    count = len(session)
    number = np.where(session >= 0, session, session.max() + 1 + np.arange(session.size).reshape(session.shape))
    nodes = count + int(number.max(initial=-1)) + 1
    edges = np.repeat(np.arange(count), session.shape[1]), count + number.ravel()
    joined = csgraph.connected_components(coo_array((np.ones(session.size), edges), (nodes, nodes)), directed=False)[1]
    cells = np.unique(joined[:count], return_inverse=True)[1]
    column = np.empty_like(session)
    for cell in range(cells.max(initial=-1) + 1):
        column[cells == cell] = np.unique(number[cells == cell], return_inverse=True)[1].reshape(-1, session.shape[1])
    return cells, column
