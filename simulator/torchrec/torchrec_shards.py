"""TorchRec's shards of a table, as every one of its formats lists them, and the sharding they amount to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast, get_args

import numpy as np

from foreshard.simulator.job.sharding import ShardingType, TableKernel, TableSharding
from foreshard.simulator.plans.placement import column_bounds, row_bounds

__all__ = ["Shard", "ShardedRow", "group_ranks", "table_sharding"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One shard: its rank, first row, rows, first column and columns."""

    rank: int
    row: int
    rows: int
    column: int
    columns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardedRow:
    """One table of a TorchRec plan. A data_parallel table has ranks and no shards."""

    name: str
    module: str
    sharding: ShardingType
    kernel: str
    ranks: tuple[int, ...] = ()
    shards: tuple[Shard, ...] = ()

    @property
    def size(self) -> tuple[int, int] | None:
        """Rows and columns that the shards reach to; None without shards."""
        if not self.shards:
            return None
        return (
            max(shard.row + shard.rows for shard in self.shards),
            max(shard.column + shard.columns for shard in self.shards),
        )


def group_ranks(rows: Sequence[ShardedRow]) -> tuple[int, ...] | None:
    """Return the global ranks of the one sharding group that the plan is for, or None if its ranks are positions.

    TorchRec's DMPCollection rewrites ranks in place, so a plan dumped after construction holds one group's global
    ranks, as 1, 3, 5, 7. A table on every rank of the group (row_wise, data_parallel) gives them away.
    """
    whole = [
        tuple(sorted({*row.ranks, *(shard.rank for shard in row.shards)}))
        for row in rows
        if row.sharding in ("row_wise", "data_parallel")
    ]
    group = max(whole, key=len, default=())
    named = {shard.rank for row in rows for shard in row.shards}
    steps = set(np.diff(group).tolist())
    is_group = len(group) > 1 and len(steps) == 1 and named <= set(group)
    return group if is_group and group != tuple(range(len(group))) else None


def table_sharding(
    row: ShardedRow, position: dict[int, int], group_size: int, problems: list[str], notes: list[str]
) -> TableSharding | None:
    """Return the sharding that a table's shards amount to, with ranks as positions in the sharding group.

    Adds sentences to `problems` for shards that do not tile their table, to `notes` for what cannot be kept.
    """
    before = len(problems)
    problems += (f"table '{row.name}': {problem}" for problem in _untiled(row))
    if len(problems) > before:
        return None
    if row.sharding == "data_parallel":
        return TableSharding(sharding="data_parallel")
    ordered = sorted(row.shards, key=lambda shard: (shard.column, shard.row, shard.rows))
    ranks = tuple(position.get(shard.rank, shard.rank) for shard in ordered)
    columns = sorted({shard.column for shard in ordered})
    notes += (f"table '{row.name}': {note}" for note in _unequal_columns(row, columns))
    by_row = row.sharding in ("row_wise", "table_row_wise", "grid_shard")
    return TableSharding(
        sharding=row.sharding,
        ranks=None if row.sharding == "row_wise" and ranks == tuple(range(group_size)) else ranks,
        row_splits=_uneven_rows([shard.rows for shard in ordered if shard.column == 0]) if by_row else None,
        column_shards=len(columns) if row.sharding == "grid_shard" else None,
        compute_kernel="fused" if row.kernel not in get_args(TableKernel) else cast("TableKernel", row.kernel),
    )


def _uneven_rows(rows: list[int]) -> tuple[int, ...] | None:
    even = np.diff(row_bounds(sum(rows), len(rows))).tolist()
    return None if rows == even else tuple(rows)


def _unequal_columns(row: ShardedRow, columns: list[int]) -> Iterator[str]:
    _, width = row.size or (0, 0)
    if len(columns) > 1 and columns != column_bounds(width, len(columns))[:-1].tolist():
        yield f"column shards that begin at {columns} are taken as {len(columns)} equal ones"


def _untiled(row: ShardedRow) -> Iterator[str]:
    """Shards must cover rows x columns without gap or overlap, and each kind has its own shape."""
    if row.sharding == "data_parallel":
        return
    if not row.shards:
        yield f"{row.sharding} without shards: the plan is incomplete, was it made by a planner?"
        return
    rows, columns = row.size or (0, 0)
    if min(min(shard.row, shard.rows, shard.column, shard.columns) for shard in row.shards) < 0:
        yield "a shard has a negative offset or size"
    elif sum(shard.rows * shard.columns for shard in row.shards) != rows * columns or not _is_grid(row.shards):
        yield f"its {len(row.shards)} shards do not tile {rows} rows x {columns} columns"
    elif row.sharding == "table_wise" and len(row.shards) != 1:
        yield f"table_wise with {len(row.shards)} shards, expected one"


def _is_grid(shards: Sequence[Shard]) -> bool:
    """Whether every column slice is cut at the same rows, end to end."""
    slices: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for shard in shards:
        slices.setdefault((shard.column, shard.columns), []).append((shard.row, shard.rows))
    cuts = {tuple(sorted(parts)) for parts in slices.values()}
    return len(cuts) == 1 and _end_to_end(sorted(slices)) and _end_to_end(cuts.pop())


def _end_to_end(parts: Sequence[tuple[int, int]]) -> bool:
    ends = np.cumsum([0] + [size for _, size in parts])
    return [start for start, size in parts if size] == [
        int(end) for end, (_, size) in zip(ends, parts, strict=False) if size
    ]
