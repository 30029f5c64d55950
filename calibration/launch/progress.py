"""Where a rank's training loop stands: written by the main thread, read by its watchdog."""

from __future__ import annotations

import time
from typing import Literal, NamedTuple

__all__ = ["Position", "Progress", "State"]

State = Literal["in", "waiting", "after"]


class Position(NamedTuple):
    """Operation `name` of step `step` (counted from 0, warm-up included), the `index`-th of its step, and since when.

    Before the first step `step` is -1, `index` counts the phases and `name` is one, such as "reading the scenario".
    `since_s` is this host's monotonic clock. Positions compare as the loop passes them.
    """

    step: int
    index: int
    state: State
    name: str
    since_s: float

    @property
    def place(self) -> tuple[int, int, bool]:
        """What orders positions: step, operation, and whether the operation is behind the rank."""
        return self.step, self.index, self.state != "in"

    def words(self) -> str:
        """The position as a sentence takes it: "operation 'lookup.row_wise' of step 3"."""
        return self.name if self.step < 0 else f"operation {self.name!r} of step {self.step}"


class Progress:
    """The last position a rank reported. One tuple is swapped for another, so that readers need no lock."""

    def __init__(self) -> None:
        self._step = -1
        self._phases = 0
        self.at = Position(-1, 0, "in", "starting", time.perf_counter())

    def phase(self, name: str) -> None:
        """The rank begins something outside the steps: "building tables". Report it again as it gets on."""
        self._step = -1
        self._phases += 1
        self._set(self._phases, "in", name)

    def step(self, number: int) -> None:
        """The rank begins step `number`."""
        self._step = number
        self._set(-1, "after", "begin")

    def op(self, index: int, name: str) -> None:
        """The rank begins to run or to issue an operation of the step."""
        self._set(index, "in", name)

    def waits(self, index: int, name: str) -> None:
        """The rank waits for the other members of a collective."""
        self._set(index, "waiting", name)

    def passed(self, index: int, name: str) -> None:
        """The rank has an operation behind it."""
        self._set(index, "after", name)

    def _set(self, index: int, state: State, name: str) -> None:
        self.at = Position(self._step, index, state, name, time.perf_counter())
