"""Exact counts of one step: requests, vectors and distinct rows of recorded or sampled batches, rank by rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.batches import JaggedBatch
from foreshard.simulator.job.layout import ResolvedLayout
from foreshard.simulator.job.scenario import Optimizer
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.job.workload import BYTES_PER_ELEMENT
from foreshard.simulator.lookups.dedup import distinct_ids, distinct_requests, ids_of
from foreshard.simulator.lookups.host_rows import host_state_bytes
from foreshard.simulator.lookups.routing import Slot, count_requests, slots_of
from foreshard.simulator.plans.balance import ROW_READ_FLOOR_BYTES
from foreshard.simulator.plans.rows import part_finder, parts_with_rows

__all__ = ["FamilyCounts", "TouchedRows", "shards_at_owners", "shards_held", "union_of"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def _read_bytes(slot: Slot) -> int:
    """Bytes that one row read of the slot moves: its columns, at least a DRAM sector group."""
    return max(ROW_READ_FLOOR_BYTES, slot.width * BYTES_PER_ELEMENT[slot.table.table.data_type])


def _host_bytes(slot: Slot) -> int:
    """Bytes that one lookup of the slot brings over the host link: its columns where there is no cache."""
    return slot.width * BYTES_PER_ELEMENT[slot.table.table.data_type] * (slot.table.compute_kernel == "fused_uvm")


class FamilyCounts:
    """What the batches of all ranks ask of one family (one sharding kind, pooled or sequence).

    `ids`, `lengths` and `vectors` [ranks, members]: ids and lengths that a rank sends to each owner of its group, and
    elements that it gets back from it. `lookups`, `lookup_bytes` and `outputs` [ranks] count at the owners;
    `host_lookup_bytes` [ranks] are those of lookups that go to host memory past any cache. With
    `dedup` a rank asks for an id of a table once, under as many lengths as before, and gets its vector instead of
    pools; `own` [3, ranks] are then its ids, elements gathered and elements written (see `BatchOwnerDemand`).
    """

    def __init__(self, tables: Sequence[ShardedTable], layout: ResolvedLayout, *, dedup: bool) -> None:
        self.tables = tuple(tables)
        self.dedup = dedup
        self._layout = layout
        pairs = (layout.world_size, layout.group_size)
        self.ids, self.lengths, self.vectors = np.zeros(pairs), np.zeros(pairs), np.zeros(pairs)
        self.lookups, self.lookup_bytes, self.outputs = (np.zeros(layout.world_size) for _ in range(3))
        self.host_lookup_bytes = np.zeros(layout.world_size)
        self.samples = np.zeros(layout.world_size)
        self.own = np.zeros((3, layout.world_size))

    def add(self, rank: int, batch: JaggedBatch) -> None:
        """Count the batch of one rank. Raises InputError for missing features and ids outside their table."""
        tables, members = self.tables, self._layout.group_size
        self.samples[rank] = batch.samples
        slots = slots_of(tables)
        self.lengths[rank] = _lanes(slots, members, empty=True) @ _bags(slots, batch.samples)
        if self.dedup:
            self._count_own(rank, batch)
            batch, tables = distinct_requests(batch, tables)
        self._count(rank, batch.samples, slots_of(tables), count_requests(batch, tables, members))

    def _count_own(self, rank: int, batch: JaggedBatch) -> None:
        """Add what the rank does for its own batch: the ids of every table, their vectors, and its bags or vectors."""
        for table in (sharded.table for sharded in self.tables):
            ids = len(ids_of(batch, table))
            vectors = ids if table.pooling == "none" else batch.samples * table.poolings_per_sample
            self.own[:, rank] += ids, ids * table.embedding_dim, vectors * table.embedding_dim

    def _count(self, rank: int, samples: int, slots: Sequence[Slot], requests: IntArray) -> None:
        """Add `requests` [members, slots] of one rank; every owner returns a vector for every bag of a pooled slot."""
        members = self._layout.sharding.members[self._layout.sharding.group_of[rank]]
        width = np.array([slot.width for slot in slots], dtype=np.float64)
        pooled = np.array([slot.table.table.pooling != "none" for slot in slots], dtype=bool)
        bags = _bags(slots, samples)
        vectors = np.where(pooled, bags * _lanes(slots, len(members), empty=False), requests)
        self.ids[rank] = requests.sum(axis=1)
        self.vectors[rank] = vectors @ width
        self.lookups[members] += self.ids[rank]
        self.lookup_bytes[members] += requests @ np.array([_read_bytes(slot) for slot in slots], dtype=np.float64)
        self.host_lookup_bytes[members] += requests @ np.array(list(map(_host_bytes, slots)), dtype=np.float64)
        self.outputs[members] += self.vectors[rank]


def _bags(slots: Sequence[Slot], samples: int) -> FloatArray:
    """Bags that a batch has in each slot, [slots]."""
    return samples * np.array([slot.table.table.num_poolings for slot in slots], dtype=np.float64)


def _lanes(slots: Sequence[Slot], members: int, *, empty: bool) -> FloatArray:
    """1 where a member holds a row part of a slot's column part, [members, slots]; parts without rows if `empty`."""
    held = np.zeros((members, len(slots)))
    for index, slot in enumerate(slots):
        owners = slot.table.owners[slot.column]
        held[owners if empty else owners[parts_with_rows(slot.table)], index] = 1.0
    return held


class TouchedRows:
    """Distinct rows of every table in the batches added since the last `take`."""

    def __init__(self, tables: Sequence[ShardedTable]) -> None:
        self.tables = tuple(tables)
        self._found: list[list[IntArray]] = [[] for _ in self.tables]

    def add(self, batch: JaggedBatch) -> None:
        """Remember the distinct ids of one rank's batch."""
        for sharded, found in zip(self.tables, self._found, strict=True):
            ids = [batch.ids(feature) for feature in sharded.table.features]
            found.append(union_of(ids, sharded.table.num_embeddings))

    def take(self) -> list[IntArray]:
        """Return the distinct rows of every table over all batches added, and forget them."""
        taken = [
            union_of(found, sharded.table.num_embeddings)
            for sharded, found in zip(self.tables, self._found, strict=True)
        ]
        self._found = [[] for _ in self.tables]
        return taken

    def host_at_owners(
        self, rows: Sequence[IntArray], members: int, shares: Sequence[FloatArray], optimizer: Optimizer
    ) -> FloatArray:
        """Bytes at every position that (lookups with a cache read, updates read, updates write), [3, members].

        `shares` [tables] of each table's distinct rows, [row parts], miss HBM: expected, for which rows a cache holds
        of an exact batch depends on batches before it.
        """
        total = np.zeros((3, members))
        for sharded, ids, share in zip(self.tables, rows, shares, strict=True):
            if sharded.in_host_memory:
                parts = np.bincount(part_finder(sharded)(ids), minlength=sharded.row_parts)
                total += _host_bytes_at_owners(sharded, parts, share, members, optimizer)
        return total

    def at_owners(self, rows: Sequence[IntArray], members: int) -> FloatArray:
        """(Rows, elements, weight bytes) at every position of the group, [3, members], given each table's `rows`."""
        total = np.zeros((3, members))
        for sharded, ids in zip(self.tables, rows, strict=True):
            parts = np.bincount(part_finder(sharded)(ids), minlength=sharded.row_parts)
            total += shards_at_owners(sharded, parts, members)
        return total


def _host_bytes_at_owners(
    sharded: ShardedTable, rows: IntArray, share: FloatArray, members: int, optimizer: Optimizer
) -> FloatArray:
    out = np.zeros((3, members))
    uncached = sharded.compute_kernel == "fused_uvm"
    element = BYTES_PER_ELEMENT[sharded.table.data_type]
    for owners, width in zip(sharded.owners, np.diff(sharded.col_bounds).tolist(), strict=True):
        missed = np.bincount(owners, weights=rows * share, minlength=members) * width * element
        state = np.bincount(owners, weights=rows, minlength=members) * host_state_bytes(optimizer, width)
        out += np.stack((missed * (not uncached), missed * uncached + state, missed + state))
    return out


def union_of(ids: Sequence[IntArray], num_embeddings: int) -> IntArray:
    """The distinct rows among all `ids` of one table, ascending."""
    return distinct_ids(np.concatenate([np.empty(0, dtype=np.int64), *ids]), num_embeddings)


def shards_at_owners(sharded: ShardedTable, rows: NDArray[np.int64], members: int) -> FloatArray:
    """(Rows, elements, weight bytes) at every position, of `rows` [row parts] in each column part, [3, members]."""
    out = np.zeros((3, members))
    element = BYTES_PER_ELEMENT[sharded.table.data_type]
    for owners, width in zip(sharded.owners, np.diff(sharded.col_bounds).tolist(), strict=True):
        held = np.bincount(owners, weights=rows, minlength=members)
        out += np.outer((1.0, width, width * element), held)
    return out


def shards_held(sharded: ShardedTable, members: int) -> FloatArray:
    """Shards with rows at every position, [members]."""
    rows = parts_with_rows(sharded).astype(np.float64)
    held = [np.bincount(owners, weights=rows, minlength=members) for owners in sharded.owners]
    return np.asarray(np.sum(held, axis=0))
