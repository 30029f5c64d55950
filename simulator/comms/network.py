"""The network in simulated time: coflows share directed links by max-min fairness and finish in SimPy.

States of a coflow: `start` -> waiting for the solve of this instant -> active at a rate -> finished. Rates change
only when a coflow of the same connected component starts or finishes; the solve runs once per instant, after every
other event of that instant. One wake-up for the whole network lies in SimPy's queue; an older one is recognised by
its version number and ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import simpy
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from simpy.events import NORMAL, EventPriority

from foreshard.simulator.comms.coflows import Coflows
from foreshard.simulator.comms.lowering import Bundle
from foreshard.simulator.comms.maxmin import max_min_rates, numbered
from foreshard.topologies.errors import InputError, NoRouteError

__all__ = ["Network"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Transfers that end within a picosecond of each other (relative past one second) end at the same instant.
_SAME_INSTANT = 1e-12
_AFTER_ALL_ELSE = EventPriority(2)  # SimPy knows URGENT = 0 and NORMAL = 1; the solve comes after both


class _Callback(simpy.Event):
    """A SimPy event that calls `action` after `delay`, at a priority of its own."""

    def __init__(
        self, env: simpy.Environment, action: Callable[[], None], delay: float, priority: EventPriority
    ) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        self.callbacks.append(lambda _: action())
        env.schedule(self, priority=priority, delay=delay)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """Coflows that start at this instant: what they take of links and the bytes they move, counts[i] entries each."""

    keys: Sequence[Hashable]
    counts: IntArray
    links: IntArray
    taken: FloatArray
    nbytes: FloatArray
    floor_s: FloatArray


class Network:
    """Directed links of `capacity` bytes/s [links] shared by coflows; `on_finish` gets all keys of an instant.

    Keys of one call come in order of their start. `events` counts solves and wake-ups.
    """

    def __init__(
        self, env: simpy.Environment, capacity: FloatArray, on_finish: Callable[[list[Hashable]], None]
    ) -> None:
        self.env = env
        self.capacity = np.asarray(capacity, dtype=np.float64)
        self.on_finish = on_finish
        self.events = 0
        self._coflows = Coflows()
        self._component_of_link = np.full(len(self.capacity), -1, dtype=np.int64)
        self._components = 0
        self._paces: dict[Hashable, float] = {}
        self._started: list[_Waiting] = []
        self._disturbed: list[IntArray] = []
        self._finished_bytes = np.zeros(len(self.capacity))
        self._solve_due = False
        self._wake_version = 0

    def start(
        self,
        key: Hashable,
        links: IntArray,
        nbytes: FloatArray,
        floor_s: float = 0.0,
        stretch: FloatArray | float = 1.0,
    ) -> None:
        """Start a coflow now: nbytes[k] on links[k], all progressing together, not done before `floor_s` seconds.

        `floor_s` is the shortest possible transfer, the limit of a protocol that is nobody else's. Each byte takes
        `stretch` >= 1 bytes of what the link carries, [k] or one for all. Raises NoRouteError for a link without
        capacity and InputError for sizes or times that are negative or not finite.
        """
        links, nbytes = np.asarray(links, dtype=np.int64), np.asarray(nbytes, dtype=np.float64)
        stretches = np.broadcast_to(np.asarray(stretch, dtype=np.float64), nbytes.shape)
        floors, first = np.array([floor_s], dtype=np.float64), np.array([0, len(links)])
        self._wait([key], first, links, nbytes, stretches, floors)

    def start_all(self, keys: Sequence[Hashable], bundle: Bundle) -> None:
        """Start one coflow for each group of a bundle now, as `start` does; its latencies have passed."""
        self._wait(keys, bundle.first, bundle.links, bundle.nbytes, bundle.stretch, bundle.floor_s)

    def pace(self, key: Hashable, pace: float) -> None:
        """Let a coflow, in flight or started later, go at most at `pace` times the rate that `floor_s` allows."""
        self._paces[key] = pace
        slot = self._coflows.slot(key)
        if slot is not None:
            self._coflows["pace"][slot] = pace
            self._disturbed.append(self._coflows["component"][[slot]])
            self._request_solve()

    @property
    def active(self) -> tuple[Hashable, ...]:
        """Keys of the coflows in flight, in order of their start."""
        return tuple(self._coflows.keys[slot] for slot in self._coflows.alive.tolist())

    @property
    def link_rate(self) -> FloatArray:
        """Bytes/s on each link at this instant, [links]."""
        slots = self._coflows.alive
        owner, link, _, per_unit = self._coflows.entries(slots)
        return self._sum_over_links(link, per_unit * self._coflows["rate"][slots][owner])

    @property
    def link_occupancy(self) -> FloatArray:
        """Share of each link in use at this instant, [links]: at most 1, more than bytes alone where they stretch."""
        slots = self._coflows.alive
        owner, link, usage, _ = self._coflows.entries(slots)
        return self._sum_over_links(link, usage * self._coflows["rate"][slots][owner] / self.capacity[link])

    @property
    def link_bytes(self) -> FloatArray:
        """Bytes each link has carried so far, [links]."""
        slots = self._coflows.alive
        owner, link, _, per_unit = self._coflows.entries(slots)
        moved = self._coflows.taken(slots, self.env.now)
        return self._finished_bytes + self._sum_over_links(link, per_unit * moved[owner])

    def _sum_over_links(self, links: IntArray, amounts: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(links, amounts, len(self.capacity)), dtype=np.float64)

    def _wait(
        self,
        keys: Sequence[Hashable],
        first: IntArray,
        links: IntArray,
        nbytes: FloatArray,
        stretch: FloatArray,
        floor_s: FloatArray,
    ) -> None:
        """Check what starts and let it wait for the solve of this instant; links without bytes are left out."""
        taken = nbytes * stretch
        if not (np.isfinite(taken).all() and (nbytes >= 0).all() and ((floor_s >= 0) & (floor_s < np.inf)).all()):
            raise InputError(f"transfer {keys[0]!r}: bytes and floor_s must be finite and not negative")
        counts, moving = np.diff(first), nbytes > 0
        if not moving.all():
            counts = np.bincount(np.repeat(np.arange(len(keys)), counts)[moving], minlength=len(keys))
            links, nbytes, taken = links[moving], nbytes[moving], taken[moving]
        dead = links[self.capacity[links] <= 0]
        if len(dead):
            raise NoRouteError(f"transfer {keys[0]!r} needs link {int(dead[0])}, which has no bandwidth")
        self._started.append(_Waiting(keys, counts, links, taken, nbytes, floor_s))
        self._request_solve()

    def _request_solve(self) -> None:
        if not self._solve_due:
            self._solve_due = True
            _Callback(self.env, self._solve, 0.0, _AFTER_ALL_ELSE)

    def _solve(self) -> None:
        """Give new rates to every coflow connected with one that started or finished at this instant."""
        self.events += 1
        self._solve_due = False
        self._coflows.tidy()
        before = len(self._coflows)
        touched = np.zeros(self._components + 1, dtype=bool)  # the last is that of links nobody uses, -1
        for components in self._disturbed:
            touched[components] = True
        for new in self._started:
            self._coflows.add(new.keys, new.counts, new.links, new.taken, new.nbytes, new.floor_s, self.env.now)
            touched[self._component_of_link[new.links]] = True
        if self._paces:
            self._coflows["pace"][before:] = [self._paces.get(key, 1.0) for key in self._coflows.keys[before:]]
        self._started, self._disturbed = [], []
        affected = self._coflows["alive"] & touched[self._coflows["component"]]
        affected[before:] = True
        if affected.any():
            self._share(np.flatnonzero(affected))
        self._schedule_wake()

    def _share(self, slots: IntArray) -> None:
        owner, link, usage, _ = self._coflows.entries(slots)
        ceiling = self._coflows["ceiling"][slots] * self._coflows["pace"][slots]
        rates = max_min_rates(self.capacity, owner, link, usage, ceiling)
        components = self._components + _connected(owner, link, len(slots), len(self.capacity))
        self._components = int(components.max()) + 1
        self._component_of_link[link] = components[owner]
        self._coflows["component"][slots] = components
        self._coflows.set_rates(slots, rates, self.env.now)

    def _schedule_wake(self) -> None:
        self._wake_version += 1
        following = float(self._coflows["end"].min(initial=np.inf))
        if following < np.inf:
            version = self._wake_version
            _Callback(self.env, lambda: self._wake(version, following), max(0.0, following - self.env.now), NORMAL)

    def _wake(self, version: int, following: float) -> None:
        """Finish every coflow whose time has come, unless a newer solve has moved that time."""
        if version != self._wake_version:
            return
        self.events += 1
        horizon = max(self.env.now, following)
        horizon += _SAME_INSTANT * (1 + horizon)
        done = np.flatnonzero(self._coflows["end"] <= horizon)
        self._retire(done)
        self._request_solve()
        self.on_finish(self._coflows.end(done))

    def _retire(self, done: IntArray) -> None:
        owner, link, _, per_unit = self._coflows.entries(done)
        np.add.at(self._finished_bytes, link, per_unit * self._coflows["size"][done][owner])
        self._component_of_link[link] = -1
        self._disturbed.append(self._coflows["component"][done])


def _connected(coflow: IntArray, link: IntArray, coflows: int, links: int) -> IntArray:
    """Label of the connected component of every coflow, [coflows]; `link` are numbers below `links`."""
    if coflows == 1:
        return np.zeros(1, dtype=np.int64)
    used, link = numbered(link, links)
    if len(used) == len(link):  # no link is anybody else's
        return np.arange(coflows)
    nodes = coflows + len(used)
    graph = coo_array((np.ones(len(link), dtype=np.int8), (coflow, coflows + link)), shape=(nodes, nodes))
    _, labels = connected_components(graph, directed=False)
    return np.asarray(labels[:coflows], dtype=np.int64)
