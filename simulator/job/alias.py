"""Draws from a list of weights in constant time per draw: Walker's alias method (1977), built as Vose (1991) does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["AliasTable", "alias_table"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_BLOCK = 1 << 14  # draws made at once, so that the intermediates stay in a core's L2 cache


@dataclass(frozen=True, slots=True, eq=False)
class AliasTable:
    """Equally likely cells, one an outcome: cell i gives i with chance `own[i]`, else `other[i]`; both [outcomes]."""

    own: FloatArray
    other: IntArray

    def draw(self, rng: np.random.Generator, count: int) -> IntArray:
        """Return `count` outcomes, [count]; each takes one uniform number, whose whole part chooses the cell."""
        out = np.empty(count, dtype=np.int64)
        uniform = np.empty(min(count, _BLOCK))
        for begin in range(0, count, _BLOCK):
            block = out[begin : begin + _BLOCK]
            self._draw_block(rng, uniform[: len(block)], block)
        return out

    def _draw_block(self, rng: np.random.Generator, uniform: FloatArray, block: IntArray) -> None:
        rng.random(out=uniform)
        uniform *= np.nextafter(len(self.own), 0)  # the product would otherwise round up to the number of cells
        cell = uniform.astype(np.int64)
        uniform -= cell
        block[:] = np.where(uniform < self.own.take(cell), cell, self.other.take(cell))


def alias_table(weights: FloatArray) -> AliasTable:
    """Return the table for outcomes 0, 1, ... with chances in proportion to `weights` (at least one above 0)."""
    scaled = (weights / weights.sum() * len(weights)).tolist()
    own, other = np.ones(len(scaled)), np.arange(len(scaled))
    poor = [index for index, chance in enumerate(scaled) if chance < 1]
    rich = [index for index, chance in enumerate(scaled) if chance >= 1]
    while poor and rich:
        giver, taker = rich[-1], poor.pop()
        own[taker], other[taker] = scaled[taker], giver
        scaled[giver] -= 1 - scaled[taker]
        if scaled[giver] < 1:
            poor.append(rich.pop())
    return AliasTable(own, other)
