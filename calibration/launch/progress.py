"""Where a rank's training loop stands: written by the main thread, read by its watchdog."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, NamedTuple

__all__ = ["Position", "Progress", "State"]

State = Literal["in", "talking", "after", "waiting"]

_ORDER: dict[str, int] = {"in": 0, "talking": 0, "after": 1, "waiting": 2}


class Position(NamedTuple):
    """What a rank does: operation `name` of step `step` (from 0, warm-up included), and since when.

    `index` counts the operations of the step that the rank has begun: it may wait for an earlier one. Outside of steps
    `name` is a phase, such as "reading the scenario", and `step` the last one, -1 before the first. "in": the rank
    computes; "talking": it issues a collective or is in a phase that needs others; "waiting": for the other members of
    a collective; "after": it is between operations. `since_s` is the host's monotonic clock.
    """

    step: int
    index: int
    state: State
    name: str
    in_step: bool
    since_s: float

    @property
    def order(self) -> tuple[int, int, int]:
        """How far the rank is; a rank that waits is further than one that works on the same operation."""
        return self.step, self.index, _ORDER[self.state]

    @property
    def needs_others(self) -> bool:
        """Whether an error here may well be another rank's fault."""
        return self.state in ("talking", "waiting")

    def words(self) -> str:
        """The position as a sentence takes it: "operation 'lookup.row_wise' of step 3"."""
        return f"operation {self.name!r} of step {self.step}" if self.in_step else self.name


class Progress:
    """The last position a rank reported. One tuple is swapped for another, so that readers need no lock.

    `report` is called with every position.
    """

    def __init__(self, report: Callable[[Position], None] | None = None) -> None:
        self._report = report
        self._step = -1
        self._index = 0
        self._in_step = False
        self._set("in", "starting")

    def phase(self, name: str, *, talking: bool = False) -> None:
        """The rank begins something outside the steps: "building tables". Report it again as it gets on."""
        self._index, self._in_step = self._index + 1, False
        self._set("talking" if talking else "in", name)

    def step(self, number: int) -> None:
        """The rank begins step `number`."""
        self._step, self._index, self._in_step = number, -1, True
        self._set("after", "the beginning")

    def compute(self, index: int, name: str) -> None:
        """The rank begins to compute an operation of the step."""
        self._index = index
        self._set("in", name)

    def issues(self, index: int, name: str) -> None:
        """The rank begins to issue a collective of the step."""
        self._index = index
        self._set("talking", name)

    def waits(self, name: str) -> None:
        """The rank waits for the other members of a collective."""
        self._set("waiting", name)

    def passed(self, name: str) -> None:
        """The rank is done with computing, issuing or waiting for an operation."""
        self._set("after", name)

    def _set(self, state: State, name: str) -> None:
        self.at = Position(self._step, self._index, state, name, self._in_step, time.perf_counter())
        if self._report is not None:
            self._report(self.at)
