"""Where a row lives: the row part of every id and its local row on that part's shard."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.hashing import hash_part
from foreshard.simulator.job.permute import starts_of
from foreshard.simulator.job.sharding import ShardedTable

__all__ = [
    "PartFinder",
    "global_rows",
    "hashed_rows",
    "local_rows",
    "part_finder",
    "part_rows",
    "parts_with_rows",
    "rows_are_counted",
    "rows_held",
]

IntArray = NDArray[np.int64]
RowArray = NDArray[np.int32] | NDArray[np.int64]
PartFinder = Callable[[IntArray], IntArray]

_BUCKETS = 1 << 12  # equal buckets of rows in which uneven ranges are looked up before they are compared
_COUNTED = 64  # rows a part up to which hashed rows are counted; beyond, a part is empty with chance e^-64 at most


def part_finder(sharded: ShardedTable) -> PartFinder:
    """The function from ids to row parts: a hash of the id, a division for equal ranges, a search for uneven ones."""
    if sharded.row_parts == 1:
        return lambda ids: np.zeros(len(ids), dtype=np.int64)
    if sharded.owner == "hash":
        return partial(hash_part, parts=sharded.row_parts)
    block = _even_block(sharded.row_bounds)
    if block is not None:
        return lambda ids: ids // block
    return _range_finder(sharded.row_bounds)


def _even_block(bounds: IntArray) -> int | None:
    """Rows of a full part if the ranges are TorchRec's: equal blocks, the last ones short or empty; else None."""
    block = int(bounds[1])
    even = np.minimum(np.arange(len(bounds)) * block, bounds[-1])
    return block if block and np.array_equal(even, bounds) else None


def _range_finder(bounds: IntArray) -> PartFinder:
    """Search by bucket: the part at the bucket's first row, then one comparison for each bound inside a bucket.

    Where bounds crowd into few buckets a binary search is used; it costs two to three times as much.
    """
    shift = max(0, int(bounds[-1] - 1).bit_length() - _BUCKETS.bit_length() + 1)
    first_rows = np.arange(((int(bounds[-1]) - 1) >> shift) + 2) << shift
    first_part = np.searchsorted(bounds[1:], first_rows, side="right")
    steps = int(np.diff(first_part).max())
    if steps > 4:
        return lambda ids: np.searchsorted(bounds[1:], ids, side="right")
    ends = np.append(bounds[1:], np.iinfo(np.int64).max)

    def find(ids: IntArray) -> IntArray:
        parts: IntArray = first_part[ids >> shift]
        for _ in range(steps):
            parts += ids >= ends[parts]
        return parts

    return find


def local_rows(sharded: ShardedTable, ids: IntArray, parts: IntArray) -> RowArray:
    """The local row of every id on the shard of its part, of the ids' shape.

    In a range it counts from the range's start; of hashed rows, the k-th smallest id of a part is its row k.
    """
    if sharded.row_parts == 1:
        return ids
    if sharded.owner == "hash":
        return hashed_rows(sharded.table.num_embeddings, sharded.row_parts).take(ids)
    return ids - sharded.row_bounds[parts]


@lru_cache(maxsize=32)
def hashed_rows(num_embeddings: int, parts: int) -> RowArray:
    """The local row of every id of a hashed table, [num_embeddings]; held in memory, 4 bytes a row below 2^31 rows."""
    part = hash_part(np.arange(num_embeddings), parts)
    order = np.argsort(part.astype(np.uint16) if parts <= 1 << 16 else part, kind="stable")
    counts = np.bincount(part, minlength=parts)
    rows = np.empty(num_embeddings, dtype=np.int64)
    rows[order] = np.arange(num_embeddings) - np.repeat(starts_of(counts)[:-1], counts)
    return rows.astype(np.int32) if num_embeddings < 1 << 31 else rows


def part_rows(sharded: ShardedTable) -> IntArray:
    """Rows that each part really holds, [row parts]; of a hashed table every id is counted."""
    if sharded.owner == "range" or sharded.row_parts == 1:
        return np.diff(sharded.row_bounds)
    return np.bincount(_hash_parts(sharded), minlength=sharded.row_parts)


def rows_held(sharded: ShardedTable) -> IntArray:
    """Rows of each part, [row parts]: true ones of ranges and of small hashed tables, else equal shares of the hash.

    Of a hashed table with more than 64 rows a part the true number lies within about 1 / sqrt(rows a part) of this.
    """
    if sharded.owner == "range" or sharded.row_parts == 1 or not rows_are_counted(sharded):
        return sharded.row_bounds[1:] - sharded.row_bounds[:-1]
    return _counted(sharded.table.num_embeddings, sharded.row_parts)


def parts_with_rows(sharded: ShardedTable) -> NDArray[np.bool_]:
    """Which row parts hold any row, [row parts]; a hash leaves a part empty in tiny tables only."""
    return rows_held(sharded) > 0


def rows_are_counted(sharded: ShardedTable) -> bool:
    """Whether `rows_held` counts the rows of each part of a hashed table, as it does for small ones."""
    return sharded.table.num_embeddings <= _COUNTED * sharded.row_parts


@lru_cache(maxsize=4096)
def _counted(num_embeddings: int, parts: int) -> IntArray:
    counts = np.bincount(hash_part(np.arange(num_embeddings), parts), minlength=parts)
    counts.setflags(write=False)
    return counts


def global_rows(sharded: ShardedTable, part: int) -> IntArray:
    """The ids of the rows that `part` holds, by local row: the inverse of `local_rows`."""
    if sharded.owner == "range" or sharded.row_parts == 1:
        return np.arange(sharded.row_bounds[part], sharded.row_bounds[part + 1])
    return np.flatnonzero(_hash_parts(sharded) == part)


def _hash_parts(sharded: ShardedTable) -> IntArray:
    return hash_part(np.arange(sharded.table.num_embeddings), sharded.row_parts)
