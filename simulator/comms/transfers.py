"""Lowered collectives on the network's clock: phase after phase, groups that are in step together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import cast

import numpy as np
import simpy
from numpy.typing import NDArray

from foreshard.simulator.comms.lowering import Bundle
from foreshard.simulator.comms.network import Network

__all__ = ["Done", "Transfers"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Place = tuple[Hashable, int]  # whose phases they are, and which of them
Done = list[tuple[Hashable, IntArray]]
"""Whose groups have ended at one instant, and their numbers, ascending."""


class Transfers:
    """What is in flight on links of `capacity` bytes/s [links]; `on_done` is told who has ended at an instant.

    `events` counts instants at which phases begin and the network's own events.
    """

    def __init__(self, env: simpy.Environment, capacity: FloatArray, on_done: Callable[[Done], None]) -> None:
        self._env = env
        self._network = Network(env, capacity, self._finished)
        self._on_done = on_done
        self._phases: dict[Hashable, Sequence[Bundle]] = {}
        self._starts: dict[float, list[tuple[Place, IntArray]]] = {}
        self._begun = 0

    @property
    def events(self) -> int:
        """Events of this simulation so far."""
        return self._begun + self._network.events

    @property
    def now(self) -> float:
        """Seconds since the simulation began."""
        return float(self._env.now)

    @property
    def link_bytes(self) -> FloatArray:
        """Bytes each link has carried so far, [links]."""
        return self._network.link_bytes

    def begin(self, owner: Hashable, phases: Sequence[Bundle], groups: IntArray, times: FloatArray) -> IntArray:
        """Let groups (ascending numbers) run through `phases` from `times` on, seconds not in the past, [groups].

        Returns those that have nothing to run. `owner` names them to `on_done`; it always has the same phases.
        """
        self._phases[owner] = phases
        return self._advance((owner, 0), groups, times)

    def pace(self, owner: Hashable, group: int, pace: float) -> None:
        """Let all phases of an owner's group, whether begun or not, go at most at `pace` times their floors' rate."""
        for phase in range(len(self._phases[owner])):
            self._network.pace(((owner, phase), group), pace)

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Call `action` at a time that is not in the past."""
        event = self._env.timeout(max(0.0, time_s - self._env.now))
        event.callbacks.append(lambda _: action())
        self._begun += 1

    def _advance(self, place: Place, groups: IntArray, times: FloatArray) -> IntArray:
        """Put a phase on the clock after its latency; the groups that do not have it."""
        phases = self._phases[place[0]]
        if place[1] >= len(phases):
            return groups
        bundle = phases[place[1]]
        rows = np.searchsorted(bundle.groups, groups)
        having = bundle.groups[np.minimum(rows, len(bundle.groups) - 1)] == groups
        rows = rows[having]
        starts = times[having] + bundle.latency_s[rows]
        for start in np.unique(starts).tolist():
            if start <= self._env.now:
                self._start(place, rows[starts == start])
                continue
            if start not in self._starts:
                self._starts[start] = []
                self.at(start, partial(self._start_all, start))
            self._starts[start].append((place, rows[starts == start]))
        lacking: IntArray = groups[~having]
        return lacking

    def _start_all(self, time_s: float) -> None:
        for place, rows in self._starts.pop(time_s):
            self._start(place, rows)

    def _start(self, place: Place, rows: IntArray) -> None:
        bundle = self._phases[place[0]][place[1]].take(rows)
        self._network.start_all([(place, group) for group in bundle.groups.tolist()], bundle)

    def _finished(self, keys: list[Hashable]) -> None:
        """Transfers have ended: begin their next phases, and tell of the groups that have none."""
        ended: dict[Place, list[int]] = defaultdict(list)
        for place, group in cast(list[tuple[Place, int]], keys):
            ended[place].append(group)
        done: Done = []
        for (owner, phase), numbers in ended.items():
            groups = np.sort(np.array(numbers))
            over = self._advance((owner, phase + 1), groups, np.full(len(groups), self._env.now))
            if len(over):
                done.append((owner, over))
        self._on_done(done)
