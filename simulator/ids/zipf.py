"""Popularity of a table's rows: a bounded, shifted Zipf law with heavy hitters, head exact, tail integrated.

Popularity rank j = 0, 1, ... counts from the hottest row. The heavy hitters take their shares; the rest falls on the
other rows with p(i) proportional to (i + shift)^-zipf, i = 1, 2, ... in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foreshard.simulator.job.alias import AliasTable, alias_table
from foreshard.simulator.job.histogram import HistogramLaw, histogram_law
from foreshard.simulator.job.workload import Access
from foreshard.topologies.errors import InputError

__all__ = ["HEAD_ROWS", "Law", "distinct", "law_of"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Rows summed one by one. Behind them Euler-Maclaurin's first neglected term is below 1e-12 of the tail for
# zipf <= 8, and the rows' chance placement moves the share of one of 64 parts by about 1 % at zipf 1.05.
HEAD_ROWS = 2048
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


def distinct(probability: FloatArray, draws: float, locality: float = 0.0, streams: int = 1) -> FloatArray:
    """Return each row's chance of being hit by `draws` ids in each of `streams` independent streams.

    1 - (1 - p)^n. With locality l the first id of a stream is drawn afresh and each later one with chance 1 - l,
    otherwise it repeats an id seen before: 1 - (1 - p)(1 - (1 - l) p)^(n - 1).
    """
    if draws <= 0:
        return np.zeros_like(probability)
    first = min(draws, 1.0) if locality else draws
    with np.errstate(divide="ignore"):
        missed = first * np.log1p(-probability)
        if draws > first:
            missed = missed + (draws - first) * np.log1p(-(1 - locality) * probability)
    return np.asarray(-np.expm1(streams * missed))


def _integral(start: ArrayLike, stop: ArrayLike, exponent: float) -> FloatArray:
    """Integral of y^-exponent, well conditioned also around exponent 1."""
    low = np.asarray(start, dtype=np.float64)
    log_ratio = np.log(np.asarray(stop, dtype=np.float64) / low)
    power = (1 - exponent) * log_ratio
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.where(np.abs(power) < 1e-12, 1 + power / 2, np.expm1(power) / power)
    return np.asarray(low ** (1 - exponent) * log_ratio * relative)


def _power_sum(first: ArrayLike, last: ArrayLike, exponent: float) -> FloatArray:
    """Sum of y^-exponent over y = first, first + 1, ..., last by the midpoint form of Euler-Maclaurin."""
    low, high = np.asarray(first) - 0.5, np.asarray(last) + 0.5
    slope = exponent * (high ** (-exponent - 1) - low ** (-exponent - 1))
    return np.asarray(_integral(low, high, exponent) + slope / 24)


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """Probability of each popularity rank; `head` [head rows] one by one, the tail as scale x (i + shift)^-zipf.

    `first_tail` is the tail's first i + shift.
    """

    num_embeddings: int
    zipf: float
    head: FloatArray
    first_tail: float
    scale: float

    @property
    def head_rows(self) -> int:
        """Rows whose probability is held one by one."""
        return len(self.head)

    @property
    def tail_rows(self) -> int:
        """Rows behind the head."""
        return self.num_embeddings - len(self.head)

    @property
    def tail_mass(self) -> float:
        """Share of all ids that falls behind the head."""
        return float(self._tail_mass_before(np.array([self.tail_rows]))[0])

    def _tail_mass_before(self, rows: IntArray) -> FloatArray:
        """Share of ids on the first `rows` rows of the tail."""
        if not self.tail_rows:
            return np.zeros(len(rows))
        last = self.first_tail + np.maximum(rows, 1) - 1
        return np.where(rows > 0, self.scale * _power_sum(self.first_tail, last, self.zipf), 0.0)

    def mass_before(self, ranks: IntArray) -> FloatArray:
        """Return the share of ids that falls on the `ranks` hottest rows."""
        head = np.concatenate(([0.0], np.cumsum(self.head)))
        return head[np.minimum(ranks, self.head_rows)] + self._tail_mass_before(np.maximum(ranks - self.head_rows, 0))

    def tail_total(self, value: Callable[[FloatArray], FloatArray]) -> float:
        """Return the sum over all tail rows of `value` of their probability."""
        if not self.tail_rows:
            return 0.0
        probability, weights = _tail_nodes(self)
        return float(weights @ value(probability))

    def range_totals(self, value: Callable[[FloatArray], FloatArray], bounds: IntArray) -> FloatArray:
        """Return, range by range of popularity ranks, the sum of `value` of the rows' probabilities, [bounds - 1]."""
        head = np.concatenate(([0.0], np.cumsum(value(self.head))))
        totals = np.diff(head[np.minimum(bounds, self.head_rows)])
        tail = np.maximum(bounds - self.head_rows, 0)
        return totals + self._tail_totals(value, tail) if self.tail_rows else totals

    def _tail_totals(self, value: Callable[[FloatArray], FloatArray], bounds: IntArray) -> FloatArray:
        """Sum of `value` over ranges of the tail's rows, whose `bounds` need not begin with its first row."""
        logs = np.log(self.first_tail - 0.5 + bounds)
        edges = np.union1d(np.arange(logs[0], logs[-1], self._piece), logs)
        probability, weights = self._nodes(edges)
        sums = np.concatenate(([0.0], np.cumsum((weights * value(probability)).sum(axis=1))))
        return np.diff(sums[np.searchsorted(edges, logs)])

    @property
    def _piece(self) -> float:
        """Length in log (i + shift) of a piece that eight nodes integrate, short enough for the steepest law."""
        return 1.0 / max(1.0, self.zipf / 2)

    def _nodes(self, edges: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Gauss-Legendre in log (i + shift) over the pieces between `edges`: probabilities and weights, [pieces, 8]."""
        half = np.diff(edges)[:, None] / 2
        points = np.exp(edges[:-1, None] + half * (1 + _NODES))
        return self.scale * points**-self.zipf, half * _WEIGHTS * points

    def sample(self, rng: np.random.Generator, count: int) -> IntArray:
        """Return `count` popularity ranks, [count]: head by an alias table, tail by inverting its integral."""
        if not self.head_rows:
            return self._tail_rank(rng.random(count))
        ranks = _alias_of(self).draw(rng, count)
        if self.tail_rows:
            behind = np.flatnonzero(ranks == self.head_rows)  # the last outcome stands for the whole tail
            ranks[behind] += self._tail_rank(rng.random(len(behind)))
        return ranks

    def _tail_rank(self, share: FloatArray) -> IntArray:
        """Row of the tail at which the tail's cumulative share reaches `share`: the integral inverted."""
        if not self.zipf:
            return np.minimum((share * self.tail_rows).astype(np.int64), self.tail_rows - 1)
        low, high = self.first_tail - 0.5, self.first_tail + self.tail_rows - 0.5
        target = share * _integral(low, high, self.zipf)
        power = (1 - self.zipf) * target * low ** (self.zipf - 1)
        slope = 1 - self.zipf
        # log(y / low) = log1p(power) / (1 - zipf), whose limit at zipf 1 is the target itself
        log_ratio = target * low ** (self.zipf - 1) if abs(slope) < 1e-9 else np.log1p(np.maximum(power, -1.0)) / slope
        rows = np.floor(low * np.exp(log_ratio) - low)
        return np.asarray(np.clip(rows, 0, self.tail_rows - 1), dtype=np.int64)


@lru_cache(maxsize=4096)
def _alias_of(law: Law) -> AliasTable:
    return alias_table(np.append(law.head, law.tail_mass) if law.tail_rows else law.head)


def _rest_law(rest: float, heavy: FloatArray, rows: int, access: Access) -> tuple[FloatArray, float]:
    """The head's probabilities, heavy hitters first, and the scale of the law for the rows that are not hit heavily."""
    counted = min(rows, max(0, HEAD_ROWS - len(heavy))) if access.zipf or rows <= HEAD_ROWS else 0
    weights = (np.arange(1, counted + 1) + float(access.shift)) ** -float(access.zipf)
    total = float(weights.sum())
    if counted < rows:
        total += float(_power_sum(counted + 1 + access.shift, rows + access.shift, float(access.zipf)))
    scale = rest / total if total > 0 else 0.0
    return np.concatenate((heavy, weights * scale)), scale


@lru_cache(maxsize=4096)
def law_of(num_embeddings: int, access: Access) -> Law | HistogramLaw:
    """Return the popularity law of a table of `num_embeddings` rows.

    A table with no more rows than `heavy_hitters` keeps the largest of them, scaled to one. Raises InputError if the
    heavy hitters together take more than all ids, or the histogram contradicts itself or the table.
    """
    if access.histogram:
        return histogram_law(num_embeddings, access, HEAD_ROWS)
    if sum(access.heavy_hitters) > 1 + 1e-9:
        total = sum(access.heavy_hitters)
        raise InputError(f"heavy_hitters sum to {total:g} of all ids: they are shares and may sum to 1 at most")
    heavy = np.sort(np.array(access.heavy_hitters, dtype=np.float64))[::-1][:num_embeddings]
    rows = num_embeddings - len(heavy)
    if not rows:
        heavy = heavy / heavy.sum()
    head, scale = _rest_law(max(0.0, 1.0 - float(heavy.sum())), heavy, rows, access)
    tail_start = len(head) - len(heavy) + 1 + access.shift
    return Law(num_embeddings, float(access.zipf), head, tail_start, scale)


@lru_cache(maxsize=8192)
def _tail_nodes(law: Law) -> tuple[FloatArray, FloatArray]:
    """Nodes of the whole tail: probabilities and weights, [nodes]."""
    low = law.first_tail - 0.5
    ends = np.log((low, low + law.tail_rows))
    pieces = int((ends[1] - ends[0]) / law._piece) + 1
    probability, weights = law._nodes(np.linspace(ends[0], ends[1], pieces + 1))
    return probability.ravel(), weights.ravel()
