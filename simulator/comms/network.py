"""The network in simulated time: coflows share directed links by max-min fairness and finish in SimPy.

States of a coflow: `start` -> waiting for the solve of this instant -> active at a rate -> finished. Rates change
only when a coflow of the same connected component starts or finishes; the solve runs once per instant, after every
other event of that instant. One wake-up for the whole network lies in SimPy's queue; an older one is recognised by
its version number and ignored.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import simpy
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from simpy.events import NORMAL, EventPriority

from foreshard.simulator.comms.maxmin import max_min_rates
from foreshard.topologies.errors import InputError, NoRouteError

__all__ = ["Network"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Transfers that end within a picosecond of each other (relative past one second) end at the same instant.
_SAME_INSTANT = 1e-12
_AFTER_ALL_ELSE = EventPriority(2)  # SimPy knows URGENT = 0 and NORMAL = 1; the solve comes after both


@dataclass(kw_only=True, slots=True, eq=False)
class _Coflow:
    """One collective phase in flight; `remaining` is what it still takes of its busiest link, `size` at the start.

    For each unit of that it takes `usage` of each link and moves `bytes_per_unit` over it.
    """

    order: int
    key: Hashable
    links: IntArray
    usage: FloatArray
    bytes_per_unit: FloatArray
    size: float
    ceiling: float
    remaining: float
    rate: float = 0.0
    since: float = 0.0
    component: int = -1
    version: int = 0

    def advance(self, now: float) -> None:
        """Move bytes up to `now` at the present rate."""
        self.remaining = max(0.0, self.remaining - self.rate * (now - self.since))
        self.since = now

    def moved(self, now: float) -> float:
        """What it has taken of its busiest link so far."""
        return min(self.size, self.size - self.remaining + self.rate * (now - self.since))


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


@dataclass(slots=True)
class _Components:
    """Connected components of the active coflows, by shared links."""

    of_link: IntArray
    members: dict[int, list[_Coflow]] = field(default_factory=dict)
    issued: int = 0

    def take(self, ids: Iterable[int]) -> list[_Coflow]:
        """Remove these components and return their coflows in order of start."""
        taken = [coflow for component in ids for coflow in self.members.pop(component)]
        for coflow in taken:
            self.of_link[coflow.links] = -1
        return sorted(taken, key=lambda coflow: coflow.order)

    def touched(self, coflow: _Coflow) -> set[int]:
        """Components that share a link with `coflow`."""
        return set(np.unique(self.of_link[coflow.links]).tolist()) - {-1}

    def put(self, coflows: Sequence[_Coflow], labels: IntArray) -> None:
        """Add coflows whose `labels` are equal where they share links, directly or through others."""
        for coflow, label in zip(coflows, labels.tolist(), strict=True):
            coflow.component = self.issued + label
            self.members.setdefault(coflow.component, []).append(coflow)
            self.of_link[coflow.links] = coflow.component
        self.issued += int(labels.max(initial=-1)) + 1


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
        self._active: dict[int, _Coflow] = {}
        self._components = _Components(np.full(len(self.capacity), -1, dtype=np.int64))
        self._started: list[_Coflow] = []
        self._disturbed: set[int] = set()
        self._finishes: list[tuple[float, int, int]] = []
        self._finished_bytes = np.zeros(len(self.capacity))
        self._orders = 0
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
        links, nbytes, taken = self._checked(key, links, nbytes, floor_s, stretch)
        # Without bytes only the floor is left: then `remaining` counts seconds and the rate is one.
        size = float(taken.max(initial=0.0)) or floor_s
        unit = size or 1.0
        coflow = _Coflow(
            order=self._orders, key=key, links=links, usage=taken / unit, bytes_per_unit=nbytes / unit, size=size,
            ceiling=size / floor_s if floor_s > 0 else np.inf, remaining=size, since=self.env.now,
        )  # fmt: skip
        self._orders += 1
        self._started.append(coflow)
        self._request_solve()

    @property
    def active(self) -> tuple[Hashable, ...]:
        """Keys of the coflows in flight, in order of their start."""
        return tuple(self._active[order].key for order in sorted(self._active))

    @property
    def link_rate(self) -> FloatArray:
        """Bytes/s on each link at this instant, [links]."""
        return self._sum_over_links((coflow, coflow.rate) for coflow in self._active.values() if len(coflow.links))

    @property
    def link_occupancy(self) -> FloatArray:
        """Share of each link in use at this instant, [links]: at most 1, more than bytes alone where they stretch."""
        total = np.zeros(len(self.capacity))
        for coflow in self._active.values():
            np.add.at(total, coflow.links, coflow.usage * coflow.rate / self.capacity[coflow.links])
        return total

    @property
    def link_bytes(self) -> FloatArray:
        """Bytes each link has carried so far, [links]."""
        now = self.env.now
        in_flight = ((coflow, coflow.moved(now)) for coflow in self._active.values() if len(coflow.links))
        return self._finished_bytes + self._sum_over_links(in_flight)

    def _sum_over_links(self, amounts: Iterable[tuple[_Coflow, float]]) -> FloatArray:
        total = np.zeros(len(self.capacity))
        for coflow, amount in amounts:
            np.add.at(total, coflow.links, coflow.bytes_per_unit * amount)
        return total

    def _checked(
        self, key: Hashable, links: IntArray, nbytes: FloatArray, floor_s: float, stretch: FloatArray | float
    ) -> tuple[IntArray, FloatArray, FloatArray]:
        """Links with bytes, the bytes, and what they take of the links."""
        links, nbytes = np.asarray(links, dtype=np.int64), np.asarray(nbytes, dtype=np.float64)
        taken = nbytes * stretch
        if not (np.isfinite(taken).all() and (nbytes >= 0).all() and 0 <= floor_s < np.inf):
            raise InputError(f"transfer {key!r}: bytes and floor_s must be finite and not negative")
        moving = nbytes > 0
        links, nbytes, taken = links[moving], nbytes[moving], taken[moving]
        dead = links[self.capacity[links] <= 0]
        if len(dead):
            raise NoRouteError(f"transfer {key!r} needs link {int(dead[0])}, which has no bandwidth")
        return links, nbytes, taken

    def _request_solve(self) -> None:
        if not self._solve_due:
            self._solve_due = True
            _Callback(self.env, self._solve, 0.0, _AFTER_ALL_ELSE)

    def _solve(self) -> None:
        """Give new rates to every coflow connected with one that started or finished at this instant."""
        self.events += 1
        self._solve_due = False
        touched = self._disturbed.union(*(self._components.touched(coflow) for coflow in self._started))
        affected = self._components.take(sorted(touched)) + self._started
        self._active.update((coflow.order, coflow) for coflow in self._started)
        self._started, self._disturbed = [], set()
        if affected:
            self._share(affected)
        self._schedule_wake()

    def _share(self, coflows: list[_Coflow]) -> None:
        sizes = [len(coflow.links) for coflow in coflows]
        index = np.repeat(np.arange(len(coflows)), sizes)
        link = np.concatenate([coflow.links for coflow in coflows])
        usage = np.concatenate([coflow.usage for coflow in coflows])
        ceiling = np.array([coflow.ceiling for coflow in coflows])
        rates = max_min_rates(self.capacity, index, link, usage, ceiling)
        self._components.put(coflows, _connected(index, link, len(coflows)))
        for coflow, rate in zip(coflows, rates.tolist(), strict=True):
            coflow.advance(self.env.now)
            coflow.rate, coflow.version = rate, coflow.version + 1
            heapq.heappush(self._finishes, (self.env.now + _duration(coflow), coflow.order, coflow.version))

    def _schedule_wake(self) -> None:
        while self._finishes and not self._is_current(self._finishes[0]):
            heapq.heappop(self._finishes)
        self._wake_version += 1
        if self._finishes:
            version = self._wake_version
            delay = max(0.0, self._finishes[0][0] - self.env.now)
            _Callback(self.env, lambda: self._wake(version), delay, NORMAL)

    def _is_current(self, finish: tuple[float, int, int]) -> bool:
        coflow = self._active.get(finish[1])
        return coflow is not None and coflow.version == finish[2]

    def _wake(self, version: int) -> None:
        """Finish every coflow whose time has come, unless a newer solve has moved that time."""
        if version != self._wake_version:
            return
        self.events += 1
        horizon = max(self.env.now, self._finishes[0][0])
        horizon += _SAME_INSTANT * (1 + horizon)
        done: list[_Coflow] = []
        while self._finishes and self._finishes[0][0] <= horizon:
            finish = heapq.heappop(self._finishes)
            if self._is_current(finish):
                done.append(self._active.pop(finish[1]))
        self._retire(done)
        self._request_solve()
        self.on_finish([coflow.key for coflow in sorted(done, key=lambda coflow: coflow.order)])

    def _retire(self, done: list[_Coflow]) -> None:
        for coflow in done:
            np.add.at(self._finished_bytes, coflow.links, coflow.bytes_per_unit * coflow.size)
            self._components.of_link[coflow.links] = -1
            self._components.members[coflow.component].remove(coflow)
            self._disturbed.add(coflow.component)


def _duration(coflow: _Coflow) -> float:
    """Seconds a coflow still takes at its present rate."""
    return coflow.remaining / coflow.rate if coflow.remaining > 0 else 0.0


def _connected(coflow: IntArray, link: IntArray, coflows: int) -> IntArray:
    """Label of the connected component of every coflow, [coflows]."""
    if coflows == 1:
        return np.zeros(1, dtype=np.int64)
    used, link = np.unique(link, return_inverse=True)
    nodes = coflows + len(used)
    graph = coo_array((np.ones(len(link), dtype=np.int8), (coflow, coflows + link)), shape=(nodes, nodes))
    _, labels = connected_components(graph, directed=False)
    return np.asarray(labels[:coflows], dtype=np.int64)
