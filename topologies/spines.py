"""The bytes that flows put on the links between leaf and spine switches."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from foreshard.topologies.cabling import Cabling
from foreshard.topologies.errors import InputError
from foreshard.topologies.placing import Placing

__all__ = ["Spines", "only_where"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
_MOST_CELLS = 1 << 26


class Spines:
    """Loads on the links between leaves and spines; `alive` [links] tells which of them exist."""

    def __init__(self, cabling: Cabling, at: Placing, alive: NDArray[np.bool_]) -> None:
        self.leaves, self.spines, self.links = cabling.leaves, cabling.fabric.spines, cabling.links
        self.latency_s = cabling.fabric.latency_s
        self.by_destination = cabling.fabric.routing == "by_destination"
        self.domain_of = at.domain_of
        nic = np.array([np.concatenate([at.slot_nics(kind, slot) for kind in at.kind_of]) for slot in range(at.slots)])
        self.leaf: IntArray = np.where(nic < 0, 0, cabling.nic_leaf[at.node_of, np.maximum(nic, 0)])
        position = cabling.nic_position[at.node_of, np.maximum(nic, 0)]
        # The spine that a destination selects; the even spread knows no such choice.
        self.spine: IntArray = position % self.spines if self.by_destination else np.zeros_like(position)
        self.choices = self.spines if self.by_destination else 1
        self.alive = alive.reshape(2, self.leaves, self.spines) if self.links else None
        self.whole = bool(alive.all())
        cells = self.leaves**2 * self.spines
        if cells > _MOST_CELLS and (self.by_destination or not self.whole):
            raise InputError(
                f"fabric: {self.leaves:,} leaves and {self.spines:,} spines are too many for routing by destination or "
                "missing uplinks, which are followed leaf by leaf: use routing 'even', fewer spines or larger leaves"
            )

    @cached_property
    def _open(self) -> NDArray[np.bool_]:
        """Whether leaf a reaches leaf b over spine s, [leaves, leaves, spines]."""
        assert self.alive is not None
        up, down = self.alive
        return np.logical_and(up[:, None, :], down[None, :, :])

    @cached_property
    def _taken(self) -> IntArray:
        """The spine taken from leaf a to leaf b by a destination that selects spine s: s, or the next that is open."""
        shifted = [np.roll(self._open, -s, axis=2).argmax(axis=2) for s in range(self.spines)]
        return (np.stack(shifted, axis=2) + np.arange(self.spines)) % self.spines

    def cut_off(self) -> list[tuple[int, int]]:
        """Pairs of different leaves with NICs between which no spine is open."""
        if self.whole or not self.links:
            return []
        used = np.zeros(self.leaves, dtype=bool)
        used[self.leaf.ravel()] = True
        closed = ~self._open.any(axis=2) & used[:, None] & used[None, :] & ~np.eye(self.leaves, dtype=bool)
        return [(int(a), int(b)) for a, b in np.argwhere(closed)]

    def paths(self, slot: int, src: int, dst: int) -> list[tuple[tuple[int, ...], float]]:
        """Paths between the leaves of two ranks with their shares; one empty path on the same leaf."""
        a, b = int(self.leaf[slot, src]), int(self.leaf[slot, dst])
        if a == b:
            return [((), 1.0)]
        if self.by_destination:
            spine = int(self.spine[slot, dst])
            return [(self._over(a, b, spine if self.whole else int(self._taken[a, b, spine])), 1.0)]
        spines = range(self.spines) if self.whole else np.flatnonzero(self._open[a, b]).tolist()
        return [(self._over(a, b, s), 1.0 / len(spines)) for s in spines]

    def _over(self, a: int, b: int, spine: int) -> tuple[int, ...]:
        return (a * self.spines + spine, (self.leaves + b) * self.spines + spine)

    def latency_between(self, src: IntArray, dst: IntArray) -> FloatArray:
        """Latency of up and down link together in seconds, [slots, flows]."""
        return np.where(self.leaf[:, src] != self.leaf[:, dst], 2 * self.latency_s, 0.0)

    def none(self) -> FloatArray:
        """No bytes on any link, [links]."""
        return np.zeros(self.links)

    def loads(self, src: IntArray, dst: IntArray, nbytes: FloatArray) -> FloatArray:
        """Bytes of flows on each link, [links]; nbytes is 0 for flows that do not leave their domain."""
        total = self.none()
        if not self.links:
            return total
        for leaf, spine in zip(self.leaf, self.spine, strict=True):
            a, b = leaf[src], leaf[dst]
            crossing = np.where(a != b, nbytes, 0.0)
            if self.whole and not self.by_destination:
                total += self._spread(_sums(a, crossing, self.leaves), _sums(b, crossing, self.leaves))
            else:
                cell = (a * self.leaves + b) * self.choices + spine[dst]
                total += self._placed(_sums(cell, crossing, self.leaves**2 * self.choices))
        return total / len(self.leaf)

    def _spread(self, up: FloatArray, down: FloatArray) -> FloatArray:
        """Bytes up and down per leaf spread over all spines, [links]."""
        return np.repeat(np.concatenate([up, down]) / self.spines, self.spines)

    def _placed(self, cells: FloatArray) -> FloatArray:
        """Bytes from leaf a to leaf b by selected spine, [leaves * leaves * choices], put on the links, [links]."""
        between = cells.reshape(self.leaves, self.leaves, self.choices)
        if not self.by_destination:
            over = between * self._open / np.maximum(self._open.sum(axis=2, keepdims=True), 1)
            return np.concatenate([over.sum(axis=1).ravel(), over.sum(axis=0).ravel()])
        a, b, _ = np.indices(between.shape)
        size = self.leaves * self.spines
        up, down = (_sums((leaf * self.spines + self._taken).ravel(), between.ravel(), size) for leaf in (a, b))
        return np.concatenate([up, down])

    def outer_loads(self, sends: FloatArray, receives: FloatArray) -> FloatArray:
        """Bytes of the flows sends[s] * receives[d] between different domains on each link, [links]."""
        total = self.none()
        if not self.links:
            return total
        for leaf, spine in zip(self.leaf, self.spine, strict=True):
            if self.whole and not self.by_destination:
                up = _sums(leaf, sends * self._elsewhere(leaf, receives), self.leaves)
                down = _sums(leaf, receives * self._elsewhere(leaf, sends), self.leaves)
                total += self._spread(up, down)
            else:
                total += self._placed(self._outer_cells(leaf, spine, sends, receives))
        return total / len(self.leaf)

    def _elsewhere(self, leaf: IntArray, weight: FloatArray) -> FloatArray:
        """Sum of `weight` over the ranks on another leaf and in another domain than each rank, [ranks]."""
        _, joint = np.unique(leaf * (int(self.domain_of[-1]) + 1) + self.domain_of, return_inverse=True)

        def outside(values: FloatArray) -> FloatArray:
            on_leaf, in_domain, both = (np.bincount(key, values)[key] for key in (leaf, self.domain_of, joint))
            total: FloatArray = values.sum() - on_leaf - in_domain + both
            return total

        return only_where(outside(np.sign(weight)), outside(weight))

    def _outer_cells(self, leaf: IntArray, spine: IntArray, sends: FloatArray, receives: FloatArray) -> FloatArray:
        """Bytes from leaf a to leaf b by selected spine, [leaves * leaves * choices]."""
        domains = int(self.domain_of[-1]) + 1
        from_key, to_key = (key * domains + self.domain_of for key in (leaf, leaf * self.choices + spine))

        def between(out: FloatArray, into: FloatArray) -> FloatArray:
            rows = _sums(from_key, out, self.leaves * domains).reshape(-1, domains)
            columns = _sums(to_key, into, self.leaves * self.choices * domains).reshape(-1, domains)
            return np.outer(rows.sum(axis=1), columns.sum(axis=1)) - rows @ columns.T

        cells = only_where(between(np.sign(sends), np.sign(receives)), between(sends, receives))
        cells = cells.reshape(self.leaves, self.leaves, self.choices)
        cells[np.arange(self.leaves), np.arange(self.leaves)] = 0.0
        return cells.ravel()


def only_where(count: FloatArray, values: FloatArray) -> FloatArray:
    """`values` where `count` is above 0: a difference of sums over no rank at all is rounding, not bytes."""
    kept: FloatArray = np.where(count > 0.5, np.maximum(values, 0.0), 0.0)
    return kept


def _sums(where: IntArray, weights: FloatArray, size: int) -> FloatArray:
    return np.bincount(where, weights, minlength=size).astype(np.float64, copy=False)
