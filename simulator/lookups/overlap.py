"""Which ranks hold which pieces of the tables in common when sharding groups have different sizes.

Every group cuts a table in its own way, so a shard of one group overlaps shards of another. A *piece* is a set of rows
and columns that no group cuts further: each group has exactly one rank that holds it, and these ranks synchronise it,
row range by row range. Pieces with the same holders travel together; a rank belongs to several such sets of holders,
so they are put into *rounds* in which each rank has at most one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.ids.access import Distribution, RowParts
from foreshard.simulator.job.demand import ReplicaDemand
from foreshard.simulator.job.layout import Groups, ResolvedLayout
from foreshard.simulator.job.scenario import Optimizer
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.job.workload import BYTES_PER_ELEMENT, Table
from foreshard.simulator.lookups.tally import state_elements_per_row
from foreshard.simulator.plans.rows import PartFinder, part_finder, rows_are_counted

__all__ = ["Overlap", "TablePieces"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class TablePieces:
    """The row pieces of one table that plans for several group sizes, `cuts`, make together; all have its columns.

    `parts` [sizes, pieces]: the row part that each piece belongs to, size by size.
    """

    def __init__(self, cuts: Sequence[ShardedTable]) -> None:
        self.cuts = tuple(cuts)
        self._hashed = cuts[0].owner == "hash" and any(cut.row_parts > 1 for cut in cuts)
        self._edges, self._whole = self._hash_edges() if self._hashed else self._row_edges()
        self.parts = np.stack([self._parts_of(cut) for cut in cuts])

    @property
    def table(self) -> Table:
        """The table."""
        return self.cuts[0].table

    @property
    def widths(self) -> IntArray:
        """Columns of each column slice, [column parts]."""
        return np.diff(self.cuts[0].col_bounds)

    def _row_edges(self) -> tuple[IntArray, int]:
        """Where rows are cut, [pieces + 1], and the rows of the table."""
        return np.unique(np.concatenate([cut.row_bounds for cut in self.cuts])), self.table.num_embeddings

    def _hash_edges(self) -> tuple[IntArray, int]:
        """Where the range of hashes is cut, [pieces + 1], in units that divide every cut, and the number of units."""
        whole = lcm(*(cut.row_parts for cut in self.cuts))
        cuts = [np.arange(cut.row_parts + 1, dtype=np.int64) * (whole // cut.row_parts) for cut in self.cuts]
        return np.unique(np.concatenate(cuts)), whole

    def _parts_of(self, cut: ShardedTable) -> IntArray:
        starts = self._edges[:-1]
        if self._hashed:
            return starts * cut.row_parts // self._whole
        return np.searchsorted(cut.row_bounds, starts, side="right") - 1

    @property
    def pieces(self) -> int:
        """Row pieces."""
        return int(self.parts.shape[1])

    @cached_property
    def find(self) -> PartFinder:
        """The function from ids to pieces."""
        if not self._hashed:
            return lambda ids: np.searchsorted(self._edges[1:], ids, side="right")
        # Pieces and parts are in order of hashes, so a row lies in the last piece that one of its parts begins with.
        cuts = tuple(zip(self.cuts, self.parts, strict=True))
        first = [np.searchsorted(part, np.arange(cut.row_parts)) for cut, part in cuts]
        finders = [part_finder(cut) for cut in self.cuts]

        def find(ids: IntArray) -> IntArray:
            begun: list[IntArray] = [piece[finder(ids)] for piece, finder in zip(first, finders, strict=True)]
            return np.asarray(np.maximum.reduce(begun))

        return find

    @property
    def rows(self) -> IntArray:
        """Rows of each piece, [pieces]: true ones, or shares of the hash where counting would take long."""
        rows = self.table.num_embeddings
        if not self._hashed:
            return np.diff(self._edges)
        if any(rows_are_counted(cut) for cut in self.cuts):
            return np.bincount(self.find(np.arange(rows)), minlength=self.pieces)
        return np.diff(self._edges * rows // self._whole)

    @property
    def split(self) -> RowParts:
        """How ids fall on the pieces."""
        distribution = Distribution.of(self.table)
        if self._hashed:
            return distribution.parts_by(self.find, np.diff(self._edges) / self._whole)
        return distribution.row_ranges(self._edges)

    @property
    def holders(self) -> IntArray:
        """Position of the rank that holds each piece, size by size, [sizes, column parts x pieces]."""
        return np.stack([cut.owners[:, part].ravel() for cut, part in zip(self.cuts, self.parts, strict=True)])


@dataclass(frozen=True, slots=True, eq=False)
class _Round:
    """Sets of holders, by number, that synchronise at once, and all ranks in groups: theirs, then every other alone."""

    holders: IntArray
    groups: Groups


class Overlap:
    """All pieces of a job: `plans` [sizes][tables] for the group sizes of `layout.by_size()`, without data_parallel."""

    def __init__(self, plans: Sequence[Sequence[ShardedTable]], layout: ResolvedLayout) -> None:
        self.layout = layout
        self.tables = tuple(TablePieces(cuts) for cuts in zip(*plans, strict=True) if cuts[0].owners.min() >= 0)
        sizes = [part.layout.group_size for part in layout.by_size()]
        self.size_of = np.array([sizes.index(size) for size in layout.sharding.sizes.tolist()])
        holders = [np.zeros((len(sizes), 0), dtype=np.int64), *(table.holders for table in self.tables)]
        # Each column of `_positions` is a set of holders, position by position, `_set` the one of every piece.
        self._positions, self._set = np.unique(np.concatenate(holders, axis=1), axis=1, return_inverse=True)
        self._set = self._set.ravel()

    @property
    def sets(self) -> int:
        """Sets of holders."""
        return int(self._positions.shape[1])

    def total(self, rows: Sequence[FloatArray | IntArray], factor: Callable[[TablePieces, int], float]) -> FloatArray:
        """Sum of rows x factor(table, columns) over the pieces of each set of holders, [sets].

        `rows` [pieces] one array for each table.
        """
        values = [
            np.outer([factor(table, width) for width in table.widths.tolist()], count).ravel()
            for table, count in zip(self.tables, rows, strict=True)
        ]
        flat = np.concatenate([np.zeros(0), *values])
        return np.bincount(self._set, weights=flat, minlength=self.sets).astype(np.float64)

    @cached_property
    def _rounds(self) -> tuple[_Round, ...]:
        """First fit, the largest pieces first, so that those travel together."""
        size = self.total([table.rows for table in self.tables], _elements)
        taken = [np.zeros(int(positions.max(initial=0)) + 1, dtype=object) for positions in self._positions]
        rounds: list[list[int]] = []
        for index in np.argsort(-size, kind="stable").tolist():
            at = self._positions[:, index]
            busy = 0
            for mask, position in zip(taken, at, strict=True):
                busy |= int(mask[position])
            free = (~busy & (busy + 1)).bit_length() - 1  # the lowest round in which none of the holders is busy
            for mask, position in zip(taken, at, strict=True):
                mask[position] |= 1 << free
            if free == len(rounds):
                rounds.append([])
            rounds[free].append(index)
        return tuple(self._round(np.array(held, dtype=np.int64)) for held in rounds)

    def _round(self, holders: IntArray) -> _Round:
        members = [self._members(index) for index in holders.tolist()]
        busy = np.zeros(self.layout.world_size, dtype=bool)
        busy[np.concatenate(members)] = True
        return _Round(holders, Groups([*members, *np.flatnonzero(~busy)[:, None]]))

    def _members(self, index: int) -> IntArray:
        """The ranks of a set of holders, one in each sharding group."""
        positions = self._positions[:, index]
        groups = self.layout.sharding.members
        return np.array([group[positions[size]] for group, size in zip(groups, self.size_of, strict=True)])

    def pieces_of(self, rank: int) -> tuple[tuple[tuple[TablePieces, int, int], ...], ...]:
        """The (table, column part, piece) that a rank holds in common with others, round by round, in their order."""
        places = [
            (table, column, piece)
            for table in self.tables
            for column in range(len(table.widths))
            for piece in range(table.pieces)
        ]
        group = int(self.layout.sharding.group_of[rank])
        position = int(self.layout.sharding.position_of[rank])
        mine = self._positions[self.size_of[group]] == position  # of each set of holders
        return tuple(
            tuple(place for place, held in zip(places, self._set.tolist(), strict=True) if held == index)
            for index in (self._mine(one, mine) for one in self._rounds)
        )

    @staticmethod
    def _mine(one: _Round, mine: NDArray[np.bool_]) -> int:
        """The set of holders of a round that a rank belongs to, -1 for none."""
        return next((index for index in one.holders.tolist() if mine[index]), -1)

    def demand(
        self,
        touched: Sequence[Sequence[FloatArray | IntArray]],
        which: IntArray,
        union: Sequence[FloatArray | IntArray],
        optimizer: Optimizer,
    ) -> tuple[ReplicaDemand, ...]:
        """Return what replicas synchronise, round by round.

        `touched` [counts][tables] holds distinct rows [pieces] of a sharding group's batches, `which` [groups] the
        count that is each group's; `union` [tables] those of all groups together.
        """
        own = [table.rows for table in self.tables]
        held = {
            "shards": self.total([(rows > 0).astype(np.int64) for rows in own], _one),
            "weight_bytes": self.total(own, lambda table, width: width * BYTES_PER_ELEMENT[table.table.data_type]),
            "weight_elements": self.total(own, _elements),
            "state_elements": self.total(own, lambda _, width: state_elements_per_row(optimizer, width)),
            "union_rows": self.total(union, _one),
            "union_elements": self.total(union, _elements),
        }
        by_group = {
            "touched_rows": np.stack([self.total(rows, _one) for rows in touched])[which],
            "touched_elements": np.stack([self.total(rows, _elements) for rows in touched])[which],
        }
        return tuple(self._demand(one, held, by_group) for one in self._rounds)

    def _demand(self, one: _Round, held: dict[str, FloatArray], by_group: dict[str, FloatArray]) -> ReplicaDemand:
        """Put the figures of each set of holders [sets], or [groups, sets], on its ranks."""
        members = np.stack(one.groups.members[: len(one.holders)])
        arrays = {name: np.zeros(self.layout.world_size) for name in (*held, *by_group)}
        for name, values in held.items():
            arrays[name][members] = values[one.holders, None]
        for name, values in by_group.items():
            arrays[name][members] = values[:, one.holders].T
        return ReplicaDemand(groups=one.groups, **arrays)


def _one(table: TablePieces, width: int) -> float:
    return 1.0


def _elements(table: TablePieces, width: int) -> float:
    return float(width)
