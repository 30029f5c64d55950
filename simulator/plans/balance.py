"""Where shards go that the plan leaves open: the costliest first, each on the rank or node with the least load.

The load of a rank has two parts, each a share of the whole group's: bytes of weights, and bytes of row reads and
pooled vectors per sample. A shard goes where the sum of all squared loads grows least, which evens out both parts
wherever both can be; among equals to the lowest rank. So a plan depends on nothing but the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.job.workload import BYTES_PER_ELEMENT, Table

__all__ = ["ROW_READ_FLOOR_BYTES", "ROW_READ_SOURCE", "Balance", "shard_costs", "work_bytes"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

ROW_READ_FLOOR_BYTES = 128
ROW_READ_SOURCE = "FBGEMM benchmark of 4 tables over dims 4 to 1024: below 128 B a row costs as much as 128 B"


def work_bytes(table: Table, columns: int) -> float:
    """Bytes that the lookup of a shard of `columns` columns reads and writes per sample: rows, and fp32 vectors."""
    row = max(ROW_READ_FLOOR_BYTES, columns * BYTES_PER_ELEMENT[table.data_type])
    return table.ids_per_sample * row + table.vectors_per_sample * columns * 4


def shard_costs(cut: Sequence[ShardedTable]) -> list[FloatArray]:
    """Cost of every column slice of every table, [column parts, 2]: bytes of weights, bytes of lookup work."""
    return [_column_costs(sharded) for sharded in cut]


def _column_costs(sharded: ShardedTable) -> FloatArray:
    table = sharded.table
    widths = np.diff(sharded.col_bounds)
    weights = table.num_embeddings * widths * BYTES_PER_ELEMENT[table.data_type]
    return np.array([(float(size), work_bytes(table, int(width))) for size, width in zip(weights, widths, strict=True)])


class Balance:
    """The load of every rank of the group while shards are handed out, [ranks, 2]."""

    def __init__(self, costs: list[FloatArray], group_size: int, local_group_size: int) -> None:
        total = np.sum([cost.sum(axis=0) for cost in costs], axis=0) if costs else np.ones(2)
        self.costs = [cost / np.where(total > 0, total, 1.0) for cost in costs]
        self.local = local_group_size
        self.load = np.zeros((group_size, 2))

    def add_given(self, index: int, owners: IntArray) -> None:
        """Count the shards of a table whose owners the plan names, row parts as equal."""
        for cost, row_owners in zip(self.costs[index], owners, strict=True):
            np.add.at(self.load, row_owners, cost / len(row_owners))

    def costliest_first(self, cut: Sequence[ShardedTable], waiting: Sequence[int]) -> Iterator[tuple[int, slice]]:
        """(table, column slices) to place together, largest cost first, ties in the order of the tables.

        The columns of a table_column_wise table stay on one node and are placed at once, others one by one.
        """
        items = [(index, columns) for index in waiting for columns in _units(cut[index])]
        yield from sorted(items, key=lambda item: -float(self.costs[item[0]][item[1]].sum(axis=0).max()))

    def place(self, index: int, sharded: ShardedTable, columns: slice) -> IntArray:
        """Choose and count the owners of these column slices, [column slices, row parts]."""
        costs = self.costs[index][columns]
        match sharded.sharding:
            case "table_row_wise" | "grid_shard":
                return self._whole_node(costs[0])
            case "table_column_wise":
                node = self._least_node(costs.sum(axis=0))
                return np.array([[self._one_rank(cost, node)] for cost in costs])
            case _:
                return np.array([[self._one_rank(costs[0], slice(0, len(self.load)))]])

    def _one_rank(self, cost: FloatArray, among: slice) -> int:
        rank = int(among.start) + _least(self.load[among], cost)
        self.load[rank] += cost
        return rank

    def _least_node(self, cost: FloatArray) -> slice:
        nodes = self.load.reshape(-1, self.local, 2).sum(axis=1)
        first = _least(nodes, cost) * self.local
        return slice(first, first + self.local)

    def _whole_node(self, cost: FloatArray) -> IntArray:
        node = self._least_node(cost)
        self.load[node] += cost / self.local
        return np.arange(node.start, node.stop, dtype=np.int64)[None, :]


def _units(sharded: ShardedTable) -> list[slice]:
    if sharded.sharding == "table_column_wise":
        return [slice(0, sharded.col_parts)]
    return [slice(column, column + 1) for column in range(sharded.col_parts)]


def _least(load: FloatArray, cost: FloatArray) -> int:
    """Candidate of `load` [candidates, 2] whose square grows least when `cost` is added."""
    return int(np.argmin(load @ cost))
