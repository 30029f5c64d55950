"""Resolve a plan: cut every table into shards and give each shard one owner in the sharding group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.layout import ResolvedLayout
from foreshard.simulator.job.sharding import Plan, ShardedTable, TableSharding
from foreshard.simulator.job.workload import Table
from foreshard.simulator.plans.balance import Balance, shard_costs
from foreshard.simulator.plans.plan_checks import check_plan, check_plan_by_size, check_replicated_kernels
from foreshard.topologies.errors import InputError

__all__ = [
    "MIN_COLUMNS",
    "column_bounds",
    "default_column_shards",
    "resolve_plan",
    "resolve_plan_by_size",
    "row_bounds",
]

IntArray = NDArray[np.int64]

MIN_COLUMNS = 128  # narrowest column shard the planner makes: meta-pytorch/torchrec planner/constants.py, MIN_CW_DIM


def default_column_shards(embedding_dim: int) -> int:
    """Return how many column shards a table gets unless the plan says: one for every 128 columns, at least one.

    A table narrower than 256 columns thus stays whole, as in TorchRec, whose planner makes no shard below 128.
    """
    return max(1, embedding_dim // MIN_COLUMNS)


def column_bounds(embedding_dim: int, shards: int) -> IntArray:
    """Return cumulative column bounds of `shards` nearly equal slices, [shards + 1].

    Slices are multiples of four columns where the dim allows: the alignment FBGEMM's kernels need.
    """
    unit = 4 if embedding_dim % 4 == 0 and embedding_dim // 4 >= shards else 1
    return -(-np.arange(shards + 1) * (embedding_dim // unit) // shards) * unit


def row_bounds(num_embeddings: int, parts: int, splits: Sequence[int] | None = None) -> IntArray:
    """Return cumulative row bounds of contiguous blocks, [parts + 1].

    TorchRec's blocks of ceil(rows / parts) rows, of which the last are short or empty; or the given uneven `splits`.
    """
    if splits is not None:
        return np.concatenate(([0], np.cumsum(splits, dtype=np.int64)))
    block = -(-num_embeddings // parts)
    return np.minimum(np.arange(parts + 1, dtype=np.int64) * block, num_embeddings)


def resolve_plan(
    plan: Plan, tables: tuple[Table, ...], group_size: int, local_group_size: int
) -> tuple[ShardedTable, ...]:
    """Return every table cut into owned shards, in the order of `tables`.

    Owners are positions 0 to `group_size` - 1 in the sharding group; `local_group_size` neighbouring positions share
    a node. Shards whose `ranks` the plan leaves open are placed one by one, the costliest first, each on the least
    loaded rank (or node), see `balance`. Raises InputError with every contradiction of plan and tables.
    """
    problems = check_plan(plan, tables, group_size, local_group_size)
    if problems:
        raise InputError(problems, where="plan")
    shardings = dict(plan.tables)
    chosen = [shardings.get(table.name, plan.default) for table in tables]
    cut = [_cut(table, sharding, group_size, local_group_size) for table, sharding in zip(tables, chosen, strict=True)]
    _place(cut, chosen, group_size, local_group_size)
    return tuple(cut)


def resolve_plan_by_size(
    plan: Plan, tables: tuple[Table, ...], layout: ResolvedLayout, node_of: IntArray
) -> tuple[tuple[ShardedTable, ...], ...]:
    """Return the tables cut for sharding groups of each size, sizes in the order of `layout.by_size()`.

    `node_of` [ranks] is each rank's node. Raises InputError with every contradiction of plan, tables and layout.
    """
    shapes = layout.group_shapes(node_of)
    replicated = check_replicated_kernels(plan, tables) if layout.replicas > 1 else []
    problems = check_plan_by_size(plan, tables, shapes) if len(shapes) > 1 or replicated else []
    problems += replicated
    if problems:
        raise InputError(problems, where="plan")
    return tuple(resolve_plan(plan, tables, size, local) for size, local in shapes)


def _cut(table: Table, how: TableSharding, group_size: int, local: int) -> ShardedTable:
    """The table's shards; owners the plan leaves open are -1 until placed."""
    match how.sharding:
        case "row_wise":
            parts = len(how.ranks or range(group_size))
        case "table_row_wise" | "grid_shard":
            parts = local
        case _:
            parts = 1
    columns = _column_shards(table, how, parts)
    return ShardedTable(
        table=table,
        sharding=how.sharding,
        owner=how.owner,
        owners=_given_owners(how, columns, parts),
        row_bounds=_row_bounds(table, how, parts),
        col_bounds=column_bounds(table.embedding_dim, columns),
        compute_kernel=how.compute_kernel,
        cache_load_factor=how.cache_load_factor,
    )


def _row_bounds(table: Table, how: TableSharding, parts: int) -> IntArray:
    if how.owner == "hash":
        return np.arange(parts + 1, dtype=np.int64) * table.num_embeddings // parts
    return row_bounds(table.num_embeddings, parts, how.row_splits)


def _column_shards(table: Table, how: TableSharding, row_parts: int) -> int:
    if how.sharding not in ("column_wise", "table_column_wise", "grid_shard"):
        return 1
    if how.column_shards is not None:
        return how.column_shards
    return len(how.ranks) // row_parts if how.ranks else default_column_shards(table.embedding_dim)


def _given_owners(how: TableSharding, columns: int, parts: int) -> IntArray:
    """Owners [columns, parts] that the plan names; row_wise without ranks takes the whole group in order."""
    if how.ranks is not None:
        return np.array(how.ranks, dtype=np.int64).reshape(columns, parts)
    if how.sharding == "row_wise":
        return np.arange(parts, dtype=np.int64).reshape(1, parts)
    return np.full((columns, parts), -1, dtype=np.int64)


def _place(cut: Sequence[ShardedTable], chosen: Sequence[TableSharding], group_size: int, local: int) -> None:
    """Fill the owners left open, in place (the arrays are not shared with anyone yet)."""
    balance = Balance(shard_costs(cut), group_size, local)
    waiting = []
    for index, sharded in enumerate(cut):
        if sharded.sharding == "data_parallel":
            continue
        if sharded.owners.min() >= 0:
            balance.add_given(index, sharded.owners)
        else:
            waiting.append(index)
    for index, columns in balance.costliest_first(cut, waiting):
        cut[index].owners[columns] = balance.place(index, cut[index], columns)
