"""Coflows in flight as arrays: thousands of groups of one collective start, share and end in a few NumPy calls."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.comms.lowering import runs

__all__ = ["Coflows"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_FEW = 256  # slots that are kept even if no coflow is in them


def _largest(counts: IntArray, values: FloatArray, empty: float = 0.0) -> FloatArray:
    """Return the largest of each run of counts[i] values, `empty` of a run without values, [runs]."""
    largest = np.full(len(counts), empty)
    filled = counts > 0
    if filled.any():
        starts = (np.cumsum(counts) - counts)[filled]
        largest[filled] = np.maximum.reduceat(values, starts)
    return largest


class _Table:
    """Columns of equal length that grow at the end."""

    def __init__(self, **types: type) -> None:
        self.length = 0
        self._columns: dict[str, NDArray[Any]] = {name: np.empty(16, dtype=kind) for name, kind in types.items()}

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._columns[name][: self.length]

    def extend(self, count: int, **values: NDArray[Any] | float) -> None:
        """Add `count` rows."""
        length = self.length + count
        for name, column in self._columns.items():
            if length > len(column):
                grown = np.empty(max(length, 2 * len(column)), dtype=column.dtype)
                grown[: self.length] = column[: self.length]
                self._columns[name] = column = grown
            column[self.length : length] = values[name]
        self.length = length

    def keep(self, rows: IntArray) -> None:
        """Drop all other rows."""
        for name in self._columns:
            self._columns[name] = self[name][rows]
        self.length = len(rows)


class Coflows:
    """Coflows by slot, in order of their start; one that has ended leaves its slot empty until a tidy-up.

    A coflow takes `size` of its busiest link in all and `remaining` more at its present `rate`, since `since`; it ends
    at `end`. For each unit of that it takes `usage` of each of its links and moves `per_unit` bytes over it. `ceiling`
    times `pace` limits its rate; `component` tells with whom it is connected by shared links.
    """

    def __init__(self) -> None:
        self.keys: list[Hashable] = []
        self._slots = _Table(
            size=float, ceiling=float, pace=float, remaining=float, rate=float, since=float, end=float, component=int,
            first=int, entries=int, alive=bool,
        )  # fmt: skip
        self._entries = _Table(link=int, usage=float, per_unit=float)

    def __getitem__(self, column: str) -> NDArray[Any]:
        """A column by name, [slots]; a view."""
        return self._slots[column]

    def __len__(self) -> int:
        return self._slots.length

    def add(
        self, keys: Sequence[Hashable], counts: IntArray, links: IntArray, taken: FloatArray, nbytes: FloatArray,
        floor_s: FloatArray, now: float,
    ) -> None:  # fmt: skip
        """Add coflows that take `taken` of `links` and move `nbytes` over them, counts[i] entries for the i-th, in no
        less than floor_s[i]."""
        # Without bytes only the floor is left: then `remaining` counts seconds and the rate is one.
        size = _largest(counts, taken)
        size = np.where(size > 0, size, floor_s)
        unit = np.repeat(np.where(size > 0, size, 1.0), counts)
        ceiling = np.divide(size, floor_s, out=np.full(len(size), np.inf), where=floor_s > 0)
        first = self._entries.length + np.cumsum(counts) - counts
        self._entries.extend(len(links), link=links, usage=taken / unit, per_unit=nbytes / unit)
        self._slots.extend(
            len(size), size=size, ceiling=ceiling, pace=1.0, remaining=size, rate=0.0, since=now, end=np.inf,
            component=-1, first=first, entries=counts, alive=True,
        )  # fmt: skip
        self.keys.extend(keys)

    def slot(self, key: Hashable) -> int | None:
        """Where a coflow in flight is; None if none has this key."""
        return next((slot for slot in self.alive.tolist() if self.keys[slot] == key), None)

    def entries(self, slots: IntArray) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
        """(Position in `slots`, link, usage, bytes per unit) of every entry of some coflows, slot by slot."""
        first, counts = self["first"][slots], self["entries"][slots]
        total = int(counts.sum())
        neighbours = len(slots) > 0 and first[-1] + counts[-1] - first[0] == total  # as they start: nothing to copy
        at = slice(int(first[0]), int(first[0]) + total) if neighbours else runs(first, counts)
        table = self._entries
        return np.repeat(np.arange(len(slots)), counts), table["link"][at], table["usage"][at], table["per_unit"][at]

    def set_rates(self, slots: IntArray, rates: FloatArray, now: float) -> None:
        """Move bytes up to `now` at the present rates, then go on at new ones."""
        remaining = self["remaining"][slots] - self["rate"][slots] * (now - self["since"][slots])
        remaining = np.maximum(remaining, 0.0)
        moving = remaining > 0
        self["remaining"][slots], self["since"][slots] = remaining, now
        self["rate"][slots] = np.where(moving, rates, 0.0)
        self["end"][slots] = now + np.divide(remaining, rates, out=np.zeros(len(rates)), where=moving)

    def taken(self, slots: IntArray, now: float) -> FloatArray:
        """What coflows have taken of their busiest link so far, [slots]."""
        size = self["size"][slots]
        taken = size - self["remaining"][slots] + self["rate"][slots] * (now - self["since"][slots])
        return np.asarray(np.minimum(size, taken), dtype=np.float64)

    def end(self, slots: IntArray) -> list[Hashable]:
        """Take coflows out; their keys."""
        self["alive"][slots], self["end"][slots] = False, np.inf
        return [self.keys[slot] for slot in slots.tolist()]

    @property
    def alive(self) -> IntArray:
        """Slots of the coflows in flight."""
        return np.flatnonzero(self["alive"])

    def tidy(self) -> None:
        """Drop empty slots once they are the most."""
        alive = self.alive
        if len(self) < _FEW or 2 * len(alive) > len(self):
            return
        counts = self["entries"][alive]
        self._entries.keep(runs(self["first"][alive], counts))
        self._slots.keep(alive)
        self["first"][:] = np.cumsum(counts) - counts
        self.keys = [self.keys[slot] for slot in alive.tolist()]
