"""Which rank of a sharding group owns which rows and columns of which table: plans, as written and resolved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from foreshard.simulator.job.workload import Table

__all__ = [
    "CACHE_LOAD_FACTOR",
    "ComputeKernel",
    "Owner",
    "Plan",
    "ShardedTable",
    "ShardingType",
    "TableKernel",
    "TableSharding",
    "mean_vector_width",
]

ShardingType = Literal[
    "data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise", "grid_shard"
]
Owner = Literal["range", "hash"]
ComputeKernel = Literal["dense", "fused", "fused_uvm", "fused_uvm_caching"]
TableKernel = Literal["fused", "fused_uvm", "fused_uvm_caching"]

# Share of a table's rows that FBGEMM caches in HBM unless told otherwise:
# pytorch/FBGEMM, SplitTableBatchedEmbeddingBagsCodegen, cache_load_factor.
CACHE_LOAD_FACTOR = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSharding:
    """How one table is sharded. `ranks` are positions in the sharding group, 0 to L - 1; None lets foreshard place.

    `owner` chooses the owner function of row-wise kinds: equal ranges (TorchRec's) or a hash of the id.
    `row_splits` gives uneven ranges (rows of each row shard); `column_shards` the number of column slices.
    `compute_kernel` says where rows live: "fused" in HBM, "fused_uvm" in host memory, read over the host link, and
    "fused_uvm_caching" in host memory with a cache in HBM for `cache_load_factor` of each shard's rows.
    """

    sharding: ShardingType
    ranks: tuple[Annotated[int, Ge(0)], ...] | None = None
    owner: Owner = "range"
    row_splits: tuple[Annotated[int, Ge(0)], ...] | None = None
    column_shards: Annotated[int, Ge(1)] | None = None
    compute_kernel: TableKernel = "fused"
    cache_load_factor: Annotated[float, Gt(0), Le(1)] = CACHE_LOAD_FACTOR


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The sharding of every table: `default`, and exceptions by table name (pairs, so that a plan is hashable)."""

    default: TableSharding = field(default_factory=lambda: TableSharding(sharding="row_wise"))
    tables: tuple[tuple[str, TableSharding], ...] = ()

    def of(self, table: str) -> TableSharding:
        """The sharding of the table of that name."""
        return dict(self.tables).get(table, self.default)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ShardedTable:
    """A table cut into row parts x column parts, each with one owner in the sharding group.

    `owners` [column parts, row parts] holds positions in the group; `row_bounds` [row parts + 1] and `col_bounds`
    [column parts + 1] are cumulative. With owner "hash" a row's part is `hash_part(id, row parts)` and `row_bounds`
    holds the expected share. A data_parallel table has `owners` [1, 1] = -1: every rank holds it whole.
    `compute_kernel` and `cache_load_factor` are those of `TableSharding`.
    """

    table: Table
    sharding: ShardingType
    owner: Owner
    owners: NDArray[np.int64]
    row_bounds: NDArray[np.int64]
    col_bounds: NDArray[np.int64]
    compute_kernel: TableKernel = "fused"
    cache_load_factor: float = CACHE_LOAD_FACTOR

    @property
    def in_host_memory(self) -> bool:
        """Whether the rows live in host memory, with or without a cache in HBM."""
        return self.compute_kernel != "fused"

    @property
    def row_parts(self) -> int:
        """Row shards."""
        return int(self.owners.shape[1])

    @property
    def col_parts(self) -> int:
        """Column shards."""
        return int(self.owners.shape[0])


def mean_vector_width(sharded: Iterable[ShardedTable], sharding: ShardingType, *, pooled: bool) -> float:
    """Mean elements of a vector that the tables of one sharding kind return; a column slice is a vector of its own."""
    vectors = elements = 0.0
    for part in sharded:
        if part.sharding == sharding and (part.table.pooling != "none") == pooled:
            vectors += part.table.vectors_per_sample * part.col_parts
            elements += part.table.vectors_per_sample * part.table.embedding_dim
    return elements / vectors
