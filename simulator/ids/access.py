"""How the ids of one table fall on its rows and on the parts that own them, in closed form or drawn at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.ids.zipf import Law, distinct, law_of
from foreshard.simulator.job.hashing import hash_part, scatter_rows, stable_key
from foreshard.simulator.job.histogram import HistogramLaw, histogram_ids
from foreshard.simulator.job.workload import Access, Table

__all__ = ["LOCALITY_WINDOW", "Distribution", "RowParts"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# A repeated id is one of this many ids before it. The expectation depends on the share of repeats, not on the window.
LOCALITY_WINDOW = 1024


@lru_cache(maxsize=4096)  # what-ifs ask for the same tables again and again
def _scattered_head(head_rows: int, num_embeddings: int, key: int) -> IntArray:
    return scatter_rows(np.arange(head_rows), num_embeddings, key)


@lru_cache(maxsize=4096)
def _located_head(access: Access) -> IntArray:
    return histogram_ids(access)


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """The distribution of one table's ids: `law` by popularity, `key` decides at which rows popular ids sit."""

    law: Law | HistogramLaw
    access: Access
    key: int

    @classmethod
    def of(cls, table: Table) -> Distribution:
        """The distribution of a table; two tables of equal size have their popular rows at different places."""
        return cls(law_of(table.num_embeddings, table.access), table.access, stable_key(table.name))

    @property
    def num_embeddings(self) -> int:
        """Rows of the table."""
        return self.law.num_embeddings

    def rows_of(self, ranks: IntArray) -> IntArray:
        """Return the row of each popularity rank (0 is the hottest), as `access.order` or the histogram's ids say.

        A histogram's ids say it for the rows that were looked up; other ranks are refused by an IndexError.
        """
        if self.access.histogram_ids:
            return self._head_rows()[ranks]
        if self.access.order == "by_frequency":
            return np.asarray(ranks, dtype=np.int64)
        if not self.law.head_rows:
            return scatter_rows(ranks, self.num_embeddings, self.key)
        head = self._head_rows()
        rows = head.take(np.minimum(ranks, len(head) - 1))
        behind = np.flatnonzero(ranks >= len(head))
        rows[behind] = scatter_rows(ranks[behind], self.num_embeddings, self.key)
        return rows

    def chance_of(self, row: int) -> float:
        """Return the share of ids that falls on one row; of a cold scattered row the mean over all such rows."""
        place = np.flatnonzero(self._head_rows() == row)
        if self.access.order == "by_frequency" and not self.access.histogram_ids:
            return float(np.diff(self.law.mass_before(np.array([row, row + 1])))[0])
        return float(self.law.head[place[0]]) if len(place) else self.law.tail_mass / self.law.tail_rows

    def _distinct(self, draws: float, streams: int, probability: FloatArray) -> FloatArray:
        return distinct(probability, draws, self.access.locality, streams)

    def distinct_rows(self, draws: float, streams: int = 1) -> float:
        """Return the expected number of different rows among `draws` ids in each of `streams` independent batches.

        Sum over rows of 1 - (1 - p)^n; relative error about 1e-6 (exact below 2,048 rows).
        """
        value = partial(self._distinct, draws, streams)
        return float(value(self.law.head).sum()) + self.law.tail_total(value)

    def _head_rows(self) -> IntArray:
        if self.access.histogram_ids:
            return _located_head(self.access)
        if self.access.order == "by_frequency":
            return np.arange(self.law.head_rows)
        return _scattered_head(self.law.head_rows, self.num_embeddings, self.key)

    def row_ranges(self, bounds: IntArray) -> RowParts:
        """Return the parts that cumulative row bounds [parts + 1] cut the table into."""
        edges = np.asarray(bounds, dtype=np.int64)
        if len(edges) == 2:
            return _whole_table(self.law, self.access)
        key = 0 if self.access.order == "by_frequency" else self.key
        return _range_parts(self.law, self.access, key, edges.tobytes())

    def hash_parts(self, parts: int) -> RowParts:
        """Return the parts that `hash_part` puts the rows in; which tail rows a part has counts as chance."""
        return _hash_parts(self.law, self.access, self.key, parts)

    def parts_by(self, find: Callable[[IntArray], IntArray], shares: FloatArray) -> RowParts:
        """Return the parts that `find` puts rows in; which tail rows a part has counts as chance, in these `shares`."""
        return _ScatteredParts(self, find(self._head_rows()), shares)

    def share_deviation(self, parts: int, *, hashed: bool) -> float:
        """Return the standard deviation of the true share of one of `parts` equal parts around the expected one.

        Rows behind the exact head count as spread evenly; chance put each somewhere, and moves a share by
        sqrt(S x (1 - 1 / parts) / parts). S is the sum of p^2 over those rows with hash parts, whose sizes are chance
        too, and of (p - mean p)^2 with ranges of fixed size. 0 for tables of up to 2,048 rows and rows in order.
        """
        law = self.law
        if self.access.order == "by_frequency" or not law.tail_rows:
            return 0.0
        squares = law.tail_total(np.square) - (0.0 if hashed else law.tail_mass**2 / law.tail_rows)
        return float(np.sqrt(max(0.0, squares) * (1 - 1 / parts) / parts))

    def sample(self, rng: np.random.Generator, count: int) -> IntArray:
        """Return `count` row ids of one stream, drawn with `rng`, with `access.locality` of them repeats, [count].

        A repeat copies the id at a distance uniform in 1 to min(LOCALITY_WINDOW, ids so far).
        """
        ids = self.rows_of(self.law.sample(rng, count))
        return _repeat_recent(ids, self.access.locality, rng) if self.access.locality else ids


class RowParts:
    """A table cut into parts; what was asked of it once is remembered, for what-ifs ask the same again and again."""

    def __init__(self, distribution: Distribution) -> None:
        self._distribution = distribution
        self._distinct: dict[tuple[float, int], FloatArray] = {}

    def mass(self) -> FloatArray:
        """Return the share of ids of each part, [parts]; they sum to one to the last digit."""
        return self._shares

    @cached_property
    def _shares(self) -> FloatArray:
        shares = self._mass()
        return _read_only(shares / shares.sum())

    def distinct(self, draws: float, streams: int = 1) -> FloatArray:
        """Return each part's expected distinct rows among `draws` ids in each of `streams` batches, [parts]."""
        found = self._distinct.get((draws, streams))
        if found is None:
            found = self._distinct[draws, streams] = _read_only(self._total(self._hit(draws, streams)))
        return found

    def missed(self, cached: FloatArray, draws: float, streams: int = 1) -> FloatArray:
        """Return each part's share of its distinct rows that a cache of its `cached` [parts] hottest rows lacks.

        Of the distinct rows that `distinct` expects; 0 where none is expected. Hot is by popularity rank: the cache is
        ideal, no other of the size misses less.
        """
        rows = self.distinct(draws, streams)
        beyond = np.clip(self._beyond(self._hit(draws, streams), cached), 0.0, rows)
        return np.divide(beyond, rows, out=np.zeros(len(rows)), where=rows > 0)

    def _hit(self, draws: float, streams: int) -> Callable[[FloatArray], FloatArray]:
        return partial(self._distribution._distinct, draws, streams)

    def _mass(self) -> FloatArray:
        raise NotImplementedError

    def _total(self, value: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """Sum of `value` of the rows' probabilities, part by part, [parts]."""
        raise NotImplementedError

    def _beyond(self, value: Callable[[FloatArray], FloatArray], cached: FloatArray) -> FloatArray:
        """The same sum without the `cached` [parts] hottest rows of each part, [parts]."""
        raise NotImplementedError

    def _behind_ranks(self, value: Callable[[FloatArray], FloatArray], ranks: IntArray) -> FloatArray:
        """Sum of `value` over the rows of the table behind its `ranks` hottest, one sum for each, [ranks]."""
        law = self._distribution.law
        bounds = np.unique(np.append(ranks, law.num_embeddings))
        totals = np.append(law.range_totals(value, bounds), 0.0)
        return np.cumsum(totals[::-1])[::-1][np.searchsorted(bounds, ranks)]


class _WholeTable(RowParts):
    """One part that holds every row."""

    def _mass(self) -> FloatArray:
        return np.ones(1)

    def _total(self, value: Callable[[FloatArray], FloatArray]) -> FloatArray:
        law = self._distribution.law
        return np.array([float(value(law.head).sum()) + law.tail_total(value)])

    def _beyond(self, value: Callable[[FloatArray], FloatArray], cached: FloatArray) -> FloatArray:
        return self._behind_ranks(value, cached.astype(np.int64))


class _PopularityRanges(RowParts):
    """Row ranges of a table whose rows are in order of popularity: integrated range by range."""

    def __init__(self, distribution: Distribution, bounds: IntArray) -> None:
        super().__init__(distribution)
        self._bounds = bounds

    def _mass(self) -> FloatArray:
        return np.diff(self._distribution.law.mass_before(self._bounds))

    def _total(self, value: Callable[[FloatArray], FloatArray]) -> FloatArray:
        return self._distribution.law.range_totals(value, self._bounds)

    def _beyond(self, value: Callable[[FloatArray], FloatArray], cached: FloatArray) -> FloatArray:
        first = np.minimum(self._bounds[:-1] + cached.astype(np.int64), self._bounds[1:])
        return self._behind_ranks(value, first) - self._behind_ranks(value, self._bounds[1:])


class _ScatteredParts(RowParts):
    """Parts of a scattered table: head rows one by one at their own `part`, the tail spread by `tail_share` [parts]."""

    def __init__(self, distribution: Distribution, part: IntArray, tail_share: FloatArray) -> None:
        super().__init__(distribution)
        self._part = part
        self._tail_share = tail_share

    def _mass(self) -> FloatArray:
        law = self._distribution.law
        return self._spread(law.head, law.tail_mass)

    def _total(self, value: Callable[[FloatArray], FloatArray]) -> FloatArray:
        law = self._distribution.law
        return self._spread(value(law.head), law.tail_total(value))

    def _beyond(self, value: Callable[[FloatArray], FloatArray], cached: FloatArray) -> FloatArray:
        """A part's tail rows are spread over the tail, so a share of the tail's hottest rows is the same share of its.

        The part keeps its head rows first: the k-th of its own is kept if k is below `cached`.
        """
        law, parts = self._distribution.law, len(self._tail_share)
        held = np.bincount(self._part, minlength=parts)
        order = np.argsort(self._part, kind="stable")
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order)) - np.repeat(np.cumsum(held) - held, held)
        missed = np.where(place < cached[self._part], 0.0, value(law.head))
        rows = self._tail_share * law.tail_rows
        kept = np.clip(np.divide(cached - held, rows, out=np.zeros(parts), where=rows > 0), 0.0, 1.0)
        tail = self._behind_ranks(value, law.head_rows + (kept * law.tail_rows).astype(np.int64))
        return np.bincount(self._part, weights=missed, minlength=parts) + tail * self._tail_share

    def _spread(self, head: FloatArray, tail: float) -> FloatArray:
        return np.bincount(self._part, weights=head, minlength=len(self._tail_share)) + tail * self._tail_share


def _read_only(values: FloatArray) -> FloatArray:
    values.setflags(write=False)
    return values


# A scattered table's parts depend on its name, whose key says where popular rows sit; a whole table's do not.
@lru_cache(maxsize=8192)
def _whole_table(law: Law | HistogramLaw, access: Access) -> RowParts:
    return _WholeTable(Distribution(law, access, 0))


@lru_cache(maxsize=8192)
def _range_parts(law: Law | HistogramLaw, access: Access, key: int, bounds: bytes) -> RowParts:
    this, edges = Distribution(law, access, key), np.frombuffer(bounds, dtype=np.int64)
    if access.order == "by_frequency":
        return _PopularityRanges(this, edges)
    part = np.searchsorted(edges, this._head_rows(), side="right") - 1
    free = np.diff(edges) - np.bincount(part, minlength=len(edges) - 1)
    return _ScatteredParts(this, part, free / max(1, law.tail_rows))


@lru_cache(maxsize=8192)
def _hash_parts(law: Law | HistogramLaw, access: Access, key: int, parts: int) -> RowParts:
    this = Distribution(law, access, key)
    return _ScatteredParts(this, hash_part(this._head_rows(), parts), np.full(parts, 1.0 / parts))


def _repeat_recent(ids: IntArray, locality: float, rng: np.random.Generator) -> IntArray:
    """Replace a share of `ids` by an id a short distance before; chains of repeats are followed to their origin."""
    position = np.arange(len(ids))
    back = 1 + (rng.random(len(ids)) * np.minimum(position, LOCALITY_WINDOW)).astype(np.int64)
    repeats = (rng.random(len(ids)) < locality) & (position > 0)
    origin = np.where(repeats, position - back, position)
    while True:
        further = origin[origin]
        if np.array_equal(further, origin):
            return ids[origin]
        origin = further
