"""Ranks on CPUs share cores with the threads that carry their collectives: work and collectives slow each other down.

A collective in flight goes on at the measured rate where no rank of its nodes computes, at the rate measured beside
work where all compute, and in proportion of their times in between. What a rank computes takes `slows` times as long
while a collective with members in its node is in flight: the largest where there are several.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.comms.lowering import Lowered
from foreshard.simulator.comms.transfers import Transfers
from foreshard.topologies.cluster import Cluster

__all__ = ["SharedCores"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_IDLE = -1
_SAME_INSTANT = 1e-12  # work that ends within a picosecond (relative past one second) ends at the same instant


@dataclass(frozen=True, slots=True, eq=False)
class _Flight:
    """A collective of one group in flight: the ranks of its nodes, and what it and their work suffer."""

    ranks: IntArray
    beside: float
    slows: float


class SharedCores:
    """Work of a cluster's ranks in simulated time, one operation each; `on_done` is told what ended, on which ranks."""

    def __init__(self, cluster: Cluster, transfers: Transfers, on_done: Callable[[int, IntArray], None]) -> None:
        self._cluster = cluster
        self._transfers = transfers
        self._on_done = on_done
        self._node = np.full(cluster.size, _IDLE, dtype=np.int64)
        self._left = np.zeros(cluster.size)
        self._slowness = np.ones(cluster.size)
        self._since = 0.0
        self._flights: dict[tuple[int, int], _Flight] = {}
        self._version = 0

    def begin(self, node: int, ranks: IntArray, times: FloatArray, seconds: FloatArray) -> None:
        """`ranks` compute operation `node` from `times` on, for so many seconds if nothing is beside it, [ranks]."""
        for at in np.unique(times).tolist():
            here = times == at
            self._at(at, partial(self._begin, node, ranks[here], seconds[here]))

    def collective(self, owner: int, group: int, at: float, lowered: Lowered, members: IntArray) -> None:
        """A group's collective is in flight from a time on."""
        if lowered.beside > 1 or lowered.slows > 1:
            nodes = self._cluster.node_of
            flight = _Flight(np.flatnonzero(np.isin(nodes, nodes[members])), lowered.beside, lowered.slows)
            self._at(at, partial(self._take_off, (owner, group), flight))

    def ended(self, owner: int, groups: IntArray) -> None:
        """Collectives of some groups have ended now."""
        known = [key for key in ((owner, group) for group in groups.tolist()) if key in self._flights]
        for key in known:
            del self._flights[key]
        if known:
            self._changed()

    def _at(self, at: float, action: Callable[[], None]) -> None:
        if at <= self._transfers.now:
            action()
        else:
            self._transfers.at(at, action)

    def _begin(self, node: int, ranks: IntArray, seconds: FloatArray) -> None:
        self._advance()
        self._node[ranks], self._left[ranks] = node, seconds
        self._changed()

    def _take_off(self, key: tuple[int, int], flight: _Flight) -> None:
        self._flights[key] = flight
        self._changed()

    def _advance(self) -> None:
        """Count what was done up to now."""
        now = self._transfers.now
        busy = self._node != _IDLE
        self._left[busy] -= (now - self._since) / self._slowness[busy]
        self._since = now

    def _changed(self) -> None:
        """Other work or other collectives from now on: new rates for all, and a new time at which work ends first."""
        self._advance()
        busy = self._node != _IDLE
        self._slowness[:] = 1.0
        for (owner, group), flight in self._flights.items():
            computing = float(busy[flight.ranks].mean())
            self._transfers.pace(owner, group, 1 / (1 + computing * (flight.beside - 1)))
            self._slowness[flight.ranks] = np.maximum(self._slowness[flight.ranks], flight.slows)
        self._version += 1
        if busy.any():
            first = max(0.0, float((self._left * self._slowness)[busy].min()))
            self._transfers.at(self._since + first, partial(self._wake, self._version))

    def _wake(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        over = (self._node != _IDLE) & (self._left <= _SAME_INSTANT * (1 + self._since))
        done = np.flatnonzero(over)
        nodes = self._node[done]
        self._node[done] = _IDLE
        self._changed()
        for node in np.unique(nodes).tolist():
            self._on_done(node, done[nodes == node])
