"""Popularity of a table's rows as it was counted: an empirical histogram, one row or many equally hot rows a bin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.alias import AliasTable, alias_table
from foreshard.simulator.job.workload import Access
from foreshard.topologies.errors import InputError

__all__ = ["HistogramLaw", "histogram_ids", "histogram_law", "histogram_problems"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class HistogramLaw:
    """Probability of each popularity rank, bin by bin from the hottest: `rows` of a bin and `probability` of each row.

    The last bin holds the rows that were never looked up. `head` [head rows] has the first rows one by one.
    """

    rows: IntArray
    probability: FloatArray
    head: FloatArray

    @property
    def num_embeddings(self) -> int:
        """Rows of the table."""
        return int(self.rows.sum())

    @property
    def head_rows(self) -> int:
        """Rows whose probability is held one by one."""
        return len(self.head)

    @property
    def tail_rows(self) -> int:
        """Rows behind the head."""
        return self.num_embeddings - self.head_rows

    @property
    def tail_mass(self) -> float:
        """Share of all ids that falls behind the head."""
        return self.tail_total(np.array)

    @property
    def _starts(self) -> IntArray:
        """Popularity rank at which each bin begins, and the number of rows at the end, [bins + 1]."""
        return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.rows)))

    def mass_before(self, ranks: IntArray) -> FloatArray:
        """Return the share of ids that falls on the `ranks` hottest rows."""
        return self._before(self.probability, ranks)

    def tail_total(self, value: Callable[[FloatArray], FloatArray]) -> float:
        """Return the sum over all rows behind the head of `value` of their probability."""
        behind = np.diff(np.maximum(self._starts, self.head_rows))
        return float(behind @ value(self.probability))

    def range_totals(self, value: Callable[[FloatArray], FloatArray], bounds: IntArray) -> FloatArray:
        """Return, range by range of popularity ranks, the sum of `value` of the rows' probabilities, [bounds - 1]."""
        return np.diff(self._before(value(self.probability), bounds))

    def _before(self, per_row: FloatArray, ranks: IntArray) -> FloatArray:
        """Sum of a figure that is the same for all rows of a bin over the first `ranks` rows: linear within a bin."""
        sums = np.concatenate(([0.0], np.cumsum(self.rows * per_row)))
        return np.asarray(np.interp(ranks, self._starts, sums))

    def sample(self, rng: np.random.Generator, count: int) -> IntArray:
        """Return `count` popularity ranks, [count]: a bin by an alias table, then one of its rows."""
        bins = _alias_of(self).draw(rng, count)
        ranks = self._starts[bins]
        wide = np.flatnonzero(self.rows[bins] > 1)
        rows = self.rows[bins[wide]]
        ranks[wide] += np.minimum((rng.random(len(wide)) * rows).astype(np.int64), rows - 1)
        return ranks


@lru_cache(maxsize=4096)
def _alias_of(law: HistogramLaw) -> AliasTable:
    return alias_table(law.rows * law.probability)


def histogram_law(num_embeddings: int, access: Access, head_rows: int) -> HistogramLaw:
    """Return the law of `access.histogram` for a table; the first `head_rows` rows one by one, with ids all of them.

    Raises InputError with everything that is wrong with the histogram.
    """
    problems = list(histogram_problems(access, num_embeddings))
    if problems:
        raise InputError(problems, where="access")
    counts, rows = _counts(access), _rows(access)
    each = counts / rows
    order = np.argsort(-each, kind="stable")[: np.count_nonzero(counts)]
    seen = int(rows[order].sum())
    probability = each[order] / counts.sum()
    head = seen if access.histogram_ids else min(seen, head_rows)
    return HistogramLaw(
        rows=np.append(rows[order], num_embeddings - seen),
        probability=np.append(probability, 0.0),
        head=np.repeat(probability, rows[order])[:head] if head == seen else _first(probability, rows[order], head),
    )


def _first(probability: FloatArray, rows: IntArray, head: int) -> FloatArray:
    """The probabilities of the first `head` rows, without writing out the others."""
    ends = np.minimum(np.cumsum(rows), head)
    return np.repeat(probability, np.diff(ends, prepend=0))


def histogram_ids(access: Access) -> IntArray:
    """Row ids of a histogram that names them, by popularity rank, [rows looked up]."""
    counts = _counts(access)
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    return np.array(access.histogram_ids, dtype=np.int64)[order]


def _counts(access: Access) -> FloatArray:
    return np.array(access.histogram, dtype=np.float64)


def _rows(access: Access) -> IntArray:
    if access.histogram_rows:
        return np.array(access.histogram_rows, dtype=np.int64)
    return np.ones(len(access.histogram), dtype=np.int64)


def histogram_problems(access: Access, num_embeddings: int) -> Iterator[str]:
    """Yield what is wrong with the histogram of a table, each with the key it is about; nothing if it has none."""
    bins = len(access.histogram)
    for key in ("histogram_rows", "histogram_ids"):
        given = len(getattr(access, key))
        if given and given != bins:
            yield f"{key} has {given} entries for {bins} of histogram: give one for each"
    if not bins:
        return
    if access.histogram_rows and access.histogram_ids:
        yield "histogram_rows and histogram_ids are both given: a bin has a number of rows, or is one row with an id"
    if access.zipf or access.shift or access.heavy_hitters:
        yield "histogram is given beside zipf, shift or heavy_hitters: keep one law"
    if access.histogram_ids and access.order != "scattered":
        yield f'order = "{access.order}" contradicts histogram_ids, which say where hot rows sit: drop one'
    if not 0 < sum(access.histogram) < float("inf"):
        yield f"histogram sums to {sum(access.histogram):g}: expected at least one lookup, and a finite number"
    yield from _row_problems(access, num_embeddings)


def _row_problems(access: Access, num_embeddings: int) -> Iterator[str]:
    """What is wrong with the rows or ids of the bins."""
    rows = sum(access.histogram_rows) if access.histogram_rows else len(access.histogram)
    if rows > num_embeddings:
        yield f"histogram has {rows} rows but the table has {num_embeddings}: give at most one count for each row"
    outside = [row for row in access.histogram_ids if row >= num_embeddings]
    if outside:
        expected = f"expected 0 to {num_embeddings - 1}"
        yield f"histogram_ids: {len(outside)} lie outside the table (first: {outside[0]}), {expected}"
    repeated = [row for row, times in Counter(access.histogram_ids).items() if times > 1]
    if repeated:
        yield f"histogram_ids names {len(repeated)} rows more than once (first: {repeated[0]}): add their counts up"
