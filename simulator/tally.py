"""Count, position by position of a sharding group, the rows, elements and bytes that the group's batches ask for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.access import Distribution, RowParts
from foreshard.simulator.balance import ROW_READ_FLOOR_BYTES
from foreshard.simulator.demand import LocalDemand
from foreshard.simulator.rows import rows_held
from foreshard.simulator.scenario import Optimizer
from foreshard.simulator.sharding import ShardedTable
from foreshard.simulator.workload import BYTES_PER_ELEMENT, Table

__all__ = ["Batch", "Tally", "state_elements_per_row"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_LOCAL = (
    "lookups", "lookup_bytes", "outputs", "distinct_rows", "distinct_elements", "distinct_bytes", "tables",
)  # fmt: skip
_NAMES = (
    *_LOCAL, "ids", "lengths", "vectors", "union_rows", "union_elements",
    "weight_elements", "weight_bytes", "state_elements",
)  # fmt: skip
_INDEX = {name: index for index, name in enumerate(_NAMES)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The batches of one sharding group: `size` samples on each of `ranks` ranks; `replicas` groups do the same."""

    size: int
    ranks: int
    replicas: int
    optimizer: Optimizer


def state_elements_per_row(optimizer: Optimizer, columns: int) -> int:
    """Optimizer state elements kept for one row of a shard of `columns` columns."""
    return {"sgd": 0, "rowwise_adagrad": 1, "adagrad": columns, "adam": 2 * columns}[optimizer]


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """One table's row parts: share of ids, distinct rows, distinct rows over replicas and rows held, all [parts]."""

    mass: FloatArray
    distinct: FloatArray
    union: FloatArray
    rows: FloatArray

    @property
    def held(self) -> FloatArray:
        """1 where a part holds any row: an empty shard is neither looked up nor written."""
        return (self.rows > 0).astype(np.float64)


class Tally:
    """Counts of one family of tables, [quantities, positions of the group]."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._counts = np.zeros((len(_NAMES), batch.ranks))

    def of(self, name: str) -> FloatArray:
        """One quantity, [positions]."""
        return np.asarray(self._counts[_INDEX[name]])

    def local(self, position_of: IntArray) -> LocalDemand:
        """The row work of every rank, given each rank's position, [ranks]."""
        return LocalDemand(**{name: self.of(name)[position_of] for name in _LOCAL})

    def add(self, sharded: ShardedTable) -> None:
        """Count every shard of a table at its owner."""
        parts = self._parts(sharded)
        for owners, columns in zip(sharded.owners, np.diff(sharded.col_bounds).tolist(), strict=True):
            self._counts[:, owners] += self._slice(sharded.table, columns, parts)

    def add_whole(self, table: Table) -> None:
        """Count a table that one position holds whole."""
        bounds = np.array([0, table.num_embeddings])
        parts = self._count_parts(table, Distribution.of(table).row_ranges(bounds), np.diff(bounds))
        self._counts[:, [0]] += self._slice(table, table.embedding_dim, parts)

    def _parts(self, sharded: ShardedTable) -> _Parts:
        distribution = Distribution.of(sharded.table)
        hashed = sharded.owner == "hash" and sharded.row_parts > 1
        split = distribution.hash_parts(sharded.row_parts) if hashed else distribution.row_ranges(sharded.row_bounds)
        return self._count_parts(sharded.table, split, rows_held(sharded))

    def _count_parts(self, table: Table, split: RowParts, rows: IntArray) -> _Parts:
        """A feature's batch on one rank is one stream of ids; the group and its replicas draw many."""
        features = len(table.features)
        draws = self.batch.size * table.ids_per_sample / features
        streams = self.batch.ranks * features
        touched = split.distinct(draws, streams)
        union = split.distinct(draws, streams * self.batch.replicas) if self.batch.replicas > 1 else touched
        return _Parts(split.mass(), touched, union, rows.astype(np.float64))

    def _slice(self, table: Table, columns: int, parts: _Parts) -> FloatArray:
        """All quantities of one column slice, [quantities, row parts]."""
        batch, element = self.batch, BYTES_PER_ELEMENT[table.data_type]
        ids = batch.size * table.ids_per_sample * parts.mass
        lookups = batch.ranks * ids
        lengths = batch.size * table.poolings_per_sample
        pooled = lengths * columns * parts.held
        vectors = batch.ranks * (ids * columns if table.pooling == "none" else pooled)
        values = {
            "lookups": lookups,
            "lookup_bytes": lookups * max(ROW_READ_FLOOR_BYTES, columns * element),
            "outputs": vectors,
            "distinct_rows": parts.distinct,
            "distinct_elements": parts.distinct * columns,
            "distinct_bytes": parts.distinct * columns * element,
            "tables": parts.held,
            "ids": ids,
            "lengths": np.full(len(ids), lengths),
            "vectors": vectors,
            "union_rows": parts.union,
            "union_elements": parts.union * columns,
            "weight_elements": parts.rows * columns,
            "weight_bytes": parts.rows * columns * element,
            "state_elements": parts.rows * state_elements_per_row(batch.optimizer, columns),
        }
        return np.stack([values[name] for name in _NAMES])
