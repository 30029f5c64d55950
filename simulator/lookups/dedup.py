"""Distinct ids of one rank's batch: each (rank, owner, table) exchanges an id and its vector once.

Ids are made distinct table by table, over all features of a table, before they are routed. Since a row has one owner,
this is the same as distinct ids for each owner. Sequence tables: as TorchRec's EmbeddingCollectionSharder does with
use_index_dedup (meta-pytorch/torchrec distributed/embedding.py): distinct ids leave under as many lengths as before,
and the vectors that return are expanded by the reverse index. Pooled tables: TorchRec has no such option, for owners
cannot pool what they no longer know the bags of. Here distinct vectors return unpooled and the batch owner pools
them, the order of TensorFlow's embedding_lookup_sparse (unique ids, look-up, segment sum). That is less traffic where
samples repeat ids more often than a bag has ids, and more where they do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.batches import JaggedBatch, check_ids
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.job.workload import Table

__all__ = ["Deduplicated", "deduplicate", "distinct_ids", "distinct_requests", "distinct_with_inverse", "ids_of"]

IntArray = NDArray[np.int64]

_MARK_FACTOR = 8  # rows of a table per id up to which marking every row is faster than sorting the ids


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Deduplicated:
    """A batch of distinct ids, its tables, and the way back.

    `batch` has one feature a table, named as the table, and one sample that holds the table's distinct ids in
    ascending order. `tables` are the same shards, looked up by that feature. `inverse[t]` [ids of table t]: for every
    id of the table's features, one feature after the other, its place among the distinct ids.
    """

    batch: JaggedBatch
    tables: tuple[ShardedTable, ...]
    inverse: tuple[IntArray, ...]


def distinct_ids(ids: IntArray, num_embeddings: int) -> IntArray:
    """The distinct ids in ascending order; rows of small tables are marked, ids of large ones sorted."""
    if num_embeddings > _MARK_FACTOR * len(ids):
        narrow = np.int32 if num_embeddings <= 1 << 31 else np.int64  # half as wide, sorted twice as fast
        ordered = ids.astype(narrow)
        ordered.sort()  # np.unique hashes from NumPy 2.3 on, which is many times slower on these sizes
        return ordered[_changes(ordered)].astype(np.int64)
    return np.flatnonzero(_marked(ids, num_embeddings))


def _changes(ordered: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a value differs from the one before it, [values]; the first always does."""
    first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return first


def distinct_with_inverse(ids: IntArray, num_embeddings: int) -> tuple[IntArray, IntArray]:
    """Return (distinct ids in ascending order, index of every id among them)."""
    if num_embeddings > _MARK_FACTOR * len(ids):
        distinct, index = np.unique(ids, return_inverse=True)
        return distinct, index.reshape(-1)
    seen = _marked(ids, num_embeddings)
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[ids]


def _marked(ids: IntArray, num_embeddings: int) -> NDArray[np.bool_]:
    seen = np.zeros(num_embeddings, dtype=bool)
    seen[ids] = True
    return seen


def deduplicate(batch: JaggedBatch, tables: Sequence[ShardedTable]) -> Deduplicated:
    """Return the distinct ids of every table, with the tables to route them by and the way back.

    Raises InputError if a feature is missing or an id lies outside its table.
    """
    check_ids(batch, (sharded.table for sharded in tables))
    pairs = [distinct_with_inverse(ids_of(batch, one.table), one.table.num_embeddings) for one in tables]
    distinct, own = _distinct_batch(tables, [ids for ids, _ in pairs])
    return Deduplicated(batch=distinct, tables=own, inverse=tuple(index for _, index in pairs))


def distinct_requests(
    batch: JaggedBatch, tables: Sequence[ShardedTable]
) -> tuple[JaggedBatch, tuple[ShardedTable, ...]]:
    """Return what `deduplicate` does but for the way back, which costs most of its time: (batch, tables)."""
    check_ids(batch, (sharded.table for sharded in tables))
    return _distinct_batch(tables, [distinct_ids(ids_of(batch, one.table), one.table.num_embeddings) for one in tables])


def ids_of(batch: JaggedBatch, table: Table) -> IntArray:
    """The ids of all features of a table, one feature after the other."""
    return np.concatenate([batch.ids(feature) for feature in table.features])


def _distinct_batch(
    tables: Sequence[ShardedTable], distinct: Sequence[IntArray]
) -> tuple[JaggedBatch, tuple[ShardedTable, ...]]:
    own = tuple(replace(sharded, table=_one_sequence(sharded.table)) for sharded in tables)
    batch = JaggedBatch(
        features=tuple(sharded.table.name for sharded in own),
        lengths=np.array([[len(ids)] for ids in distinct], dtype=np.int64).reshape(len(own), 1),
        values=np.concatenate([np.empty(0, dtype=np.int64), *distinct]),
    )
    return batch, own


def _one_sequence(table: Table) -> Table:
    return replace(table, feature_names=(), pooling="none", pooling_factor=1.0, num_poolings=1.0)
