"""Measurements of many cells, as the statistics take them: starts of engines, and what they have in common.

Cells of one session were served by one process of an engine, so its deviation is in all of them. A pair of them is
compared within its sessions, where this cancels. In all else they count as one cell, whose starts are the effects of
the sessions, and each adds its own variation within them.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from workflow_scripts.statistics.start_spread import BoolArray, FloatArray, Spread, mean_of, spread
from workflow_scripts.statistics.variation import UNKNOWN, Known, Variation, beside_rounds, dependent, variation

IntArray = npt.NDArray[np.int_]


@dataclass(frozen=True)
class Samples:
    """Measurements of many cells, as natural logarithms.

    Attributes:
        log: mean of each start, shape (..., cells, rounds); NaN if the cell was not started in the round. If cells were
            measured on several cards, a column is a card, because that is then the highest level that varies.
        within: variance of the repeats within a start; NaN if no start has two.
        repeats: mean number of repeats per start.
        group: a number for each cell, the same for all cells of one device and engine.
        between_cards: for each cell whether columns are cards.
        shared: for each cell whether its machine is shared, so that it varies by OCCASION_SD between occasions.
        device: a number for each cell, the same for all cells of one device.
        kind: a number for each cell, the same for all cells of a study that are on the same kind of device.
        known: for each cell what other studies show, with the fields of `variation.Known` along the first axis.
        session: for each start the number of the process of an engine that served it, shape (cells, rounds), -1 if it
            served no other cell; None if none did.
    """

    log: FloatArray
    within: FloatArray
    repeats: FloatArray
    group: IntArray
    between_cards: BoolArray
    shared: BoolArray
    device: IntArray
    kind: IntArray
    known: FloatArray
    session: IntArray | None = None

    @cached_property
    def within_sessions(self) -> "Samples | None":
        """The cells with a column for each session instead of each round; a `group` are cells that share sessions, so
        what a session does to all of its cells is the effect of a round. None if there are no sessions."""
        if self.session is None:
            return None
        group, column = sessions_of_cells(self.session)
        log = np.full((*self.log.shape[:-1], column.max() + 1), np.nan)
        cells, rounds = np.nonzero(~np.isnan(self.log).all(axis=tuple(range(self.log.ndim - 2))))
        log[..., cells, column[cells, rounds]] = self.log[..., cells, rounds]
        known = Known(*self.known)
        # A session has its round's effect and its start's.
        known = known._replace(
            rounds=known.rounds + known.starts, rounds_df=np.minimum(known.rounds_df, known.starts_df)
        )
        return replace(self, log=log, group=group, known=np.array(known), session=None)

    @cached_property
    def _alone(self) -> "tuple[Samples, IntArray]":
        """Samples in which cells that share sessions are one cell, whose starts are the effects of the sessions; and
        its position for each cell."""
        within = self.within_sessions
        if within is None:
            return self, np.arange(len(self.group))
        _, first, of_cell = np.unique(within.group, return_index=True, return_inverse=True)
        column = sessions_of_cells(cast(IntArray, self.session))[1]
        effects = within.spread.rounds[..., np.arange(len(column))[:, None], column]
        effects = np.where(np.isnan(self.log), np.nan, effects)
        together = [of_cell == number for number in range(len(first))]
        alone = Samples(
            log=np.stack([mean_of(effects[..., cells, :], axis=-2) for cells in together], axis=-2),
            within=np.stack([mean_of((self.within / self.repeats)[..., cells]) for cells in together], axis=-1),
            repeats=np.bincount(of_cell).astype(float),
            **{name: getattr(self, name)[first] for name in ("group", "between_cards", "shared", "device", "kind")},
            known=self.known[:, first],
        )
        return alone, of_cell

    @cached_property
    def spread(self) -> Spread:
        """How starts vary; cells that share sessions count as one."""
        alone, of_cell = self._alone
        if alone is self:
            return spread(self.log, self.group)
        parts: list[Any] = [part.take(of_cell, axis=self.log.ndim - 2) for part in alone.spread]
        return Spread(*parts)

    @cached_property
    def variation(self) -> Variation:
        """How much starts vary, by all that is known; cells that share sessions count as one."""
        alone, of_cell = self._alone
        if alone is self:
            return variation(self.spread, self.group, self.kind, self.record, self.within / self.repeats)
        of = Variation(*(part[..., of_cell] for part in alone.variation))
        within = cast(Samples, self.within_sessions)
        # What a cell has beside the mean of its session.
        own = beside_rounds(within.spread.weight, self._within, np.ones(())), within.variation.df
        variance, df = dependent((of.variance, of.df), own)
        total, total_df = dependent((of.total, of.total_df), own)
        weight = of.weight * np.where(variance > 0, of.variance / variance, 1.0)
        return of._replace(variance=variance, df=df, weight=weight, total=total, total_df=total_df)

    @cached_property
    def _within(self) -> FloatArray:
        """Variance of cells within sessions; 0 if no two starts show it, because what other studies show of starts has
        it too."""
        variance = cast(Samples, self.within_sessions).variation.variance
        return np.where((self.starts > 1).any(axis=-1, keepdims=True), variance, 0.0)

    def covariance(self, wider: FloatArray | float = 1.0) -> FloatArray:
        """Covariance of the errors of the cells' means, shape (..., cells, cells); NaN where variation is not known.

        Cells of a device have the effects of their rounds in common, whose standard deviation is taken `wider` times as
        large, and those of a session its start.
        """
        starts, noise = np.maximum(self.starts, 1), self.variation

        def shared(part: FloatArray, log: FloatArray, of: IntArray) -> FloatArray:
            each = np.where(np.isnan(log), 0.0, (np.sqrt(part) / starts)[..., None])
            return np.asarray(each @ each.swapaxes(-1, -2) * (of[:, None] == of))

        own, cov = noise.total - noise.rounds, shared(wider**2 * noise.rounds, self.log, self.device)
        if of := self.within_sessions:
            of_sessions = np.where(of.spread.weight < 1, np.maximum(own - self._within, 0.0), 0.0)
            own, cov = own - of_sessions, cov + shared(of_sessions, of.log, of.group)
        return np.asarray(cov + (own / starts)[..., None] * np.eye(own.shape[-1]))

    @cached_property
    def record(self) -> FloatArray:
        """What `known` says of each cell. Cards vary more than starts on one card, which is all that others show."""
        return np.where(self.between_cards, UNKNOWN.of_cells(len(self.between_cards)), self.known)

    @cached_property
    def starts(self) -> IntArray:
        counted: IntArray = (~np.isnan(self.log)).sum(axis=-1)
        return counted

    @cached_property
    def rounds(self) -> IntArray:
        """How many rounds the device and engine of each cell have had."""
        most = np.zeros_like(self.starts)
        for group in np.unique(self.group):
            of = self.group == group
            most[..., of] = self.starts[..., of].max(axis=-1, keepdims=True)
        return most


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
    of = csgraph.connected_components(coo_array((np.ones(session.size), edges), (nodes, nodes)), directed=False)[1]
    cells = np.unique(of[:count], return_inverse=True)[1]
    column = np.empty_like(session)
    for cell in range(cells.max(initial=-1) + 1):
        column[cells == cell] = np.unique(number[cells == cell], return_inverse=True)[1].reshape(-1, session.shape[1])
    return cells, column
