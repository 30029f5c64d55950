"""Count, position by position of a sharding group, the rows, elements and bytes that the group's batches ask for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.ids.access import Distribution, RowParts
from foreshard.simulator.job.demand import LocalDemand
from foreshard.simulator.job.scenario import Optimizer
from foreshard.simulator.job.sharding import ShardedTable, TableKernel
from foreshard.simulator.job.workload import BYTES_PER_ELEMENT, Table
from foreshard.simulator.lookups.host_rows import host_state_bytes, missing_share, row_parts_of
from foreshard.simulator.plans.balance import ROW_READ_FLOOR_BYTES
from foreshard.simulator.plans.rows import rows_held

__all__ = ["Batch", "Tally", "state_elements_per_row"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_LOCAL = (
    "lookups", "lookup_bytes", "outputs", "distinct_rows", "distinct_elements", "distinct_bytes", "tables",
    "host_reads", "host_update_reads", "host_writes",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The batches of one sharding group: `size` samples on each of `ranks` ranks; `replicas` groups do the same.

    Without `count_rows` the distinct rows, which take most of the time, are left out: NaN. With `dedup` a rank asks
    for a row of a table once, and gets its vector.
    """

    size: int
    ranks: int
    replicas: int
    optimizer: Optimizer
    count_rows: bool = True
    dedup: bool = False


def state_elements_per_row(optimizer: Optimizer, columns: int) -> int:
    """Optimizer state elements kept for one row of a shard of `columns` columns."""
    return {"sgd": 0, "rowwise_adagrad": 1, "adagrad": columns, "adam": 2 * columns}[optimizer]


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """One table's row parts, all [parts]: rows that one rank asks for, distinct rows of the group and over replicas.

    `asked` counts each id, or with deduplication each distinct id, of the rank's batch; `rows` are those held, and
    `missing` the share of the group's distinct rows that HBM lacks.
    """

    asked: FloatArray
    distinct: FloatArray
    union: FloatArray
    rows: IntArray
    missing: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class _Slice:
    """One column slice of a table, `columns` wide, whose row parts belong to `owners` [parts]."""

    table: Table
    columns: int
    owners: IntArray
    parts: _Parts
    kernel: TableKernel = "fused"


class Tally:
    """Counts of one family of tables at every position of the group."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._slices: list[_Slice] = []
        self._flat: _Flat | None = None

    def add(self, sharded: ShardedTable) -> None:
        """Count every shard of a table at its owner."""
        parts = self._parts(sharded.table, row_parts_of(sharded), rows_held(sharded))
        if sharded.in_host_memory and self.batch.count_rows:
            parts = replace(parts, missing=missing_share(sharded, *self._streams(sharded.table)))
        bounds = sharded.col_bounds
        for owners, columns in zip(sharded.owners, (bounds[1:] - bounds[:-1]).tolist(), strict=True):
            self._slices.append(_Slice(sharded.table, columns, owners, parts, sharded.compute_kernel))

    def add_whole(self, table: Table) -> None:
        """Count a table that position 0 holds whole."""
        bounds = np.array([0, table.num_embeddings])
        parts = self._parts(table, Distribution.of(table).row_ranges(bounds), np.diff(bounds))
        self._slices.append(_Slice(table, table.embedding_dim, np.zeros(1, dtype=np.int64), parts))

    def _parts(self, table: Table, split: RowParts, rows: IntArray) -> _Parts:
        """A feature's batch on one rank is one stream of ids; the group and its replicas draw many."""
        features = len(table.features)
        draws = self.batch.size * table.ids_per_sample / features
        asked = split.distinct(draws, features) if self.batch.dedup else draws * features * split.mass()
        if not self.batch.count_rows:
            unknown = np.full(len(rows), np.nan)
            return _Parts(asked, unknown, unknown, rows, np.zeros(len(rows)))
        _, streams = self._streams(table)
        union = split.distinct(draws, streams * self.batch.replicas)
        return _Parts(asked, split.distinct(draws, streams), union, rows, np.zeros(len(rows)))

    def _streams(self, table: Table) -> tuple[float, int]:
        """Ids of each stream that the group draws from a table, and the number of streams."""
        features = len(table.features)
        return self.batch.size * table.ids_per_sample / features, self.batch.ranks * features

    def of(self, name: str) -> FloatArray:
        """One quantity, [positions]: see `LocalDemand` and `ReplicaDemand`; `ids`, `lengths` and `vectors` exchanged.

        `ids` and `lengths` are those of one rank's batch, all others those of the whole group's.
        """
        if self._flat is None:
            self._flat = _Flat(self.batch, self._slices)
        values = getattr(self._flat, name)
        return np.bincount(self._flat.owners, weights=values, minlength=self.batch.ranks).astype(np.float64)

    def local(self, position_of: IntArray) -> LocalDemand:
        """The row work of every rank, given each rank's position, [ranks]."""
        return LocalDemand(**{name: self.of(name)[position_of] for name in _LOCAL})


class _Flat:
    """All shards of a family side by side: one entry for each row part of each column slice, all [entries]."""

    def __init__(self, batch: Batch, slices: Sequence[_Slice]) -> None:
        tables = [item.table for item in slices]
        self._ranks = batch.ranks
        self._slices = slices
        self._entries = [len(item.owners) for item in slices]
        self.owners = self._joined(item.owners for item in slices).astype(np.int64)
        self.rows = self._joined(item.parts.rows for item in slices)
        self.tables = (self.rows > 0).astype(np.float64)  # an empty shard is neither looked up nor written
        self._columns = self._each(item.columns for item in slices)
        self._element = self._each(BYTES_PER_ELEMENT[table.data_type] for table in tables)
        self._state = self._each(state_elements_per_row(batch.optimizer, item.columns) for item in slices)
        self._unpooled = self._each(batch.dedup or table.pooling == "none" for table in tables)
        self._uncached = self._each(item.kernel == "fused_uvm" for item in slices)
        self._host_state = self._each(
            host_state_bytes(batch.optimizer, item.columns) if item.kernel != "fused" else 0.0 for item in slices
        )
        self.lengths = batch.size * self._each(table.poolings_per_sample for table in tables)
        self.ids = self._joined(item.parts.asked for item in slices)
        self.lookups = batch.ranks * self.ids

    def _each(self, values: Iterable[float]) -> FloatArray:
        """A figure of each slice, repeated for its row parts."""
        return np.repeat(np.array(list(values), dtype=np.float64), self._entries)

    @staticmethod
    def _joined(values: Iterable[FloatArray | IntArray]) -> FloatArray:
        return np.concatenate([np.zeros(0), *values])

    @property
    def lookup_bytes(self) -> FloatArray:
        return self.lookups * np.maximum(ROW_READ_FLOOR_BYTES, self._columns * self._element)

    @property
    def vectors(self) -> FloatArray:
        pooled = self.lengths * self.tables
        return self._ranks * np.where(self._unpooled, self.ids, pooled) * self._columns

    outputs = vectors

    @cached_property
    def distinct_rows(self) -> FloatArray:
        return self._joined(item.parts.distinct for item in self._slices)

    @property
    def distinct_elements(self) -> FloatArray:
        return self.distinct_rows * self._columns

    @property
    def distinct_bytes(self) -> FloatArray:
        return self.distinct_elements * self._element

    @cached_property
    def _missing_bytes(self) -> FloatArray:
        """Weight bytes of the distinct rows that HBM lacks; without such tables 0, even if rows are not counted."""
        missing = self._joined(item.parts.missing for item in self._slices)
        return np.where(missing > 0, self.distinct_bytes * missing, 0.0)

    @property
    def _state_bytes(self) -> FloatArray:
        return np.where(self._host_state > 0, self.distinct_rows * self._host_state, 0.0)

    @property
    def host_reads(self) -> FloatArray:
        """Every lookup of fused_uvm crosses the link; with a cache each distinct row that misses, once."""
        each = self.lookups * self._columns * self._element
        return np.where(self._uncached > 0, each, self._missing_bytes)

    @property
    def host_update_reads(self) -> FloatArray:
        """Without a cache rows are read once more to be updated; optimizer state in host memory is never cached."""
        return np.where(self._uncached > 0, self._missing_bytes, 0.0) + self._state_bytes

    @property
    def host_writes(self) -> FloatArray:
        return self._missing_bytes + self._state_bytes

    @cached_property
    def union_rows(self) -> FloatArray:
        return self._joined(item.parts.union for item in self._slices)

    @property
    def union_elements(self) -> FloatArray:
        return self.union_rows * self._columns

    @property
    def weight_elements(self) -> FloatArray:
        return self.rows * self._columns

    @property
    def weight_bytes(self) -> FloatArray:
        return self.weight_elements * self._element

    @property
    def state_elements(self) -> FloatArray:
        return self.rows * self._state
