"""Which rank owns more than its share of the ids that are sent for a table, and of which table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.ids.access import Distribution
from foreshard.simulator.job.batches import JaggedBatch
from foreshard.simulator.job.hashing import hash_part
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.lookups.dedup import distinct_ids, ids_of

__all__ = ["CountedOwners", "HotOwner", "hot_owners"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class HotOwner(NamedTuple):
    """The busiest row shard of one table: its owner's position in the sharding group and its share of ids sent.

    `factor` compares the share with an equal one (1 / row shards); `excess` is the ids per sample above an equal
    share. With `distinct` ranks send each id of their batch once.
    """

    table: str
    position: int
    share: float
    factor: float
    excess: float
    distinct: bool = False


def hot_owners(
    sharded: Sequence[ShardedTable], batch_size: int, top: int = 5, *, dedup: bool = False
) -> tuple[HotOwner, ...]:
    """Return the expected busiest owner of each table with several row shards, most excess ids first, at most `top`."""
    found = [_hottest(item, _expected(item, batch_size, dedup), 1, batch_size, dedup) for item in _cut(sharded)]
    return _first(found, top)


class CountedOwners:
    """What `hot_owners` expects, counted id by id in the very batches of a sharding group's ranks."""

    def __init__(self, sharded: Sequence[ShardedTable], *, dedup: bool = False) -> None:
        self._cut = _cut(sharded)
        self._dedup = dedup
        self._sent = [np.zeros(item.row_parts) for item in self._cut]
        self._ranks = self._samples = 0

    def add(self, batch: JaggedBatch) -> None:
        """Count the batch of one more rank."""
        self._ranks, self._samples = self._ranks + 1, batch.samples
        for counts, item in zip(self._sent, self._cut, strict=True):
            ids = ids_of(batch, item.table)
            ids = distinct_ids(ids, item.table.num_embeddings) if self._dedup else ids
            counts += np.bincount(_part(item, ids), minlength=item.row_parts)

    def hottest(self, top: int = 5) -> tuple[HotOwner, ...]:
        """The busiest owner of each table with several row shards, most excess ids first, at most `top`."""
        found = (
            _hottest(item, sent, self._ranks, self._samples, self._dedup)
            for item, sent in zip(self._cut, self._sent, strict=True)
        )
        return _first(found, top)


def _cut(sharded: Sequence[ShardedTable]) -> list[ShardedTable]:
    return [item for item in sharded if item.row_parts > 1]


def _first(found: Iterable[HotOwner], top: int) -> tuple[HotOwner, ...]:
    return tuple(sorted(found, key=lambda hot: (-hot.excess, hot.table))[:top])


def _expected(item: ShardedTable, batch_size: int, dedup: bool) -> FloatArray:
    """Expected ids of one rank's batch that go to each row part, [parts]; each feature is a stream of its own."""
    this = Distribution.of(item.table)
    split = this.hash_parts(item.row_parts) if item.owner == "hash" else this.row_ranges(item.row_bounds)
    ids, features = batch_size * item.table.ids_per_sample, len(item.table.features)
    return split.distinct(ids / features, features) if dedup else ids * split.mass()


def _part(item: ShardedTable, ids: IntArray) -> IntArray:
    """The row part of every id, [ids]; empty parts have none."""
    if item.owner == "hash":
        return hash_part(ids, item.row_parts)
    return np.searchsorted(item.row_bounds, ids, side="right") - 1


def _hottest(item: ShardedTable, sent: FloatArray, ranks: int, samples: int, dedup: bool) -> HotOwner:
    """The part that most of the ids `sent` [parts] by so many ranks of so many samples go to."""
    part, total = int(np.argmax(sent)), float(sent.sum())
    equal = 1.0 / item.row_parts
    share = float(sent[part]) / total if total else equal
    return HotOwner(
        table=item.table.name,
        position=int(item.owners[0, part]),
        share=share,
        factor=share / equal,
        excess=(share - equal) * total / max(1, ranks * samples),
        distinct=dedup,
    )
