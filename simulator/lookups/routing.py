"""Exact routing of one family of tables: which id of a rank's batch goes to which owner, in which order, and back.

A *slot* is one feature looked up in one column part of its table; TorchRec likewise sends an id once for every column
shard. Requests are numbered in slot order: table by table, column part by column part, feature by feature, sample by
sample. They leave bucketised by owner, and within an owner they keep slot order, which is TorchRec's layout of
`input_dist`. All positions are positions in the sharding group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.batches import JaggedBatch, check_ids
from foreshard.simulator.job.permute import bucketise, inverse, owner_dtype, starts_of
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.plans.rows import local_rows, part_finder

__all__ = [
    "Lanes",
    "Route",
    "Slot",
    "count_requests",
    "lanes_of",
    "lengths_sent",
    "requests_by_owner",
    "restore_order",
    "route",
    "slots_of",
    "values_sent",
]

IntArray = NDArray[np.int64]
_BLOCK = 1 << 16  # ids located at once, so that the intermediates of hashing stay in cache


class Slot(NamedTuple):
    """One feature looked up in one column part of `table`; `width` is the part's number of columns."""

    table: ShardedTable
    feature: str
    column: int
    width: int


class Lanes(NamedTuple):
    """(owner, slot) pairs that exchange lengths, owner by owner, then in slot order; both [lanes]."""

    owner: IntArray
    slot: IntArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Route:
    """How the requests of one rank's batch reach the `members` of its sharding group.

    `send` [requests]: the request that leaves k-th. `rows` [requests]: in send order, the local row on the owner's
    shard. `counts` [members, slots]: requests for each owner and slot. `slot_starts` [slots + 1]: where each slot's
    requests begin; `value_starts` [slots]: where its ids begin in the batch's `values`.
    """

    slots: tuple[Slot, ...]
    send: IntArray
    rows: IntArray
    counts: IntArray
    slot_starts: IntArray
    value_starts: IntArray

    @property
    def members(self) -> int:
        """Ranks of the sharding group."""
        return len(self.counts)

    @property
    def requests_by_owner(self) -> IntArray:
        """Requests sent to each member, itself included: the splits of the id all-to-all, [members]."""
        return np.asarray(self.counts.sum(axis=1))


def slots_of(tables: Sequence[ShardedTable]) -> tuple[Slot, ...]:
    """The slots of a family in order: table by table, column part by column part, feature by feature."""
    return tuple(
        Slot(sharded, feature, column, int(width))
        for sharded in tables
        for column, width in enumerate(np.diff(sharded.col_bounds))
        for feature in sharded.table.features
    )


def lanes_of(slots: Sequence[Slot], members: int) -> Lanes:
    """The (owner, slot) pairs that exchange lengths: every owner of any row part of the slot's column part."""
    present = np.zeros((members, len(slots)), dtype=bool)
    for index, slot in enumerate(slots):
        present[slot.table.owners[slot.column], index] = True
    owner, slot_index = np.nonzero(present)
    return Lanes(owner, slot_index)


def route(batch: JaggedBatch, tables: Sequence[ShardedTable], members: int) -> Route:
    """Return the route of one rank's batch to the owners of `tables` (one family, no data_parallel table).

    Raises InputError if a feature is missing or an id lies outside its table.
    """
    check_ids(batch, (sharded.table for sharded in tables))
    slots = slots_of(tables)
    value_starts, sizes = _slot_spans(batch, slots)
    slot_starts = starts_of(sizes)
    owners = np.empty(slot_starts[-1], dtype=owner_dtype(members))
    rows = np.empty(slot_starts[-1], dtype=np.int64)
    counts = np.zeros((members, len(slots)), dtype=np.int64)
    for index, slot in enumerate(slots):
        ids = batch.values[value_starts[index] : value_starts[index] + sizes[index]]
        span = slice(slot_starts[index], slot_starts[index + 1])
        held = _locate_slot(slot, ids, owners[span], rows[span])
        counts[:, index] = np.bincount(slot.table.owners[slot.column], held, members)
    send, rows_sent = bucketise(owners, rows, members)
    return Route(
        slots=slots, send=send, rows=rows_sent, counts=counts, slot_starts=slot_starts, value_starts=value_starts
    )


def _slot_spans(batch: JaggedBatch, slots: Sequence[Slot]) -> tuple[IntArray, IntArray]:
    starts = batch.feature_starts
    index = {feature: position for position, feature in enumerate(batch.features)}
    feature = np.array([index[slot.feature] for slot in slots], dtype=np.int64)
    return starts[feature], np.diff(starts)[feature]


def _locate_slot(slot: Slot, ids: IntArray, owners: NDArray[np.unsignedinteger], rows: IntArray) -> IntArray:
    """Write owner and local row of every id, block by block; return the ids of each row part, [row parts]."""
    find, owner_of_part = part_finder(slot.table), slot.table.owners[slot.column].astype(owners.dtype)
    held = np.zeros(slot.table.row_parts, dtype=np.int64)
    for begin in range(0, len(ids), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        parts = find(ids[block])
        rows[block] = local_rows(slot.table, ids[block], parts)
        owners[block] = owner_of_part[parts]
        held += np.bincount(parts, minlength=len(held))
    return held


def count_requests(batch: JaggedBatch, tables: Sequence[ShardedTable], members: int) -> IntArray:
    """Requests for each owner and slot, [members, slots]: what `route` counts, without its permutation."""
    check_ids(batch, (sharded.table for sharded in tables))
    counts = []
    for sharded in tables:
        find, parts = part_finder(sharded), sharded.row_parts
        held = [np.bincount(find(batch.ids(feature)), minlength=parts) for feature in sharded.table.features]
        counts += [np.bincount(owners, ids, members) for owners in sharded.owners for ids in held]
    return np.array(counts, dtype=np.int64).reshape(-1, members).T


def requests_by_owner(routes: Sequence[Route]) -> IntArray:
    """Requests that member s of the group sends to member d, [members, members]."""
    return np.stack([one.requests_by_owner for one in routes])


def restore_order(one: Route) -> IntArray:
    """The permutation that puts replies back into slot order: `replies[restore_order(route)]`, [requests]."""
    return inverse(one.send)


def values_sent(one: Route) -> IntArray:
    """Position in the batch's `values` (and `weights`) of each request, in send order, [requests]."""
    shift = np.repeat(one.value_starts - one.slot_starts[:-1], np.diff(one.slot_starts))
    return one.send + shift[one.send]


def lengths_sent(one: Route, batch: JaggedBatch) -> NDArray[np.int32]:
    """Ids per sample of every lane, [lanes, samples]: owner by owner, then in slot order, as `input_dist` sends them.

    Every owner of a row part gets a length for every sample of the slot, zeros included.
    """
    lanes = lanes_of(one.slots, one.members)
    feature = {name: position for position, name in enumerate(batch.features)}
    slot_lengths = batch.lengths[[feature[slot.feature] for slot in one.slots]]
    sample = np.repeat(np.tile(np.arange(batch.samples), len(one.slots)), slot_lengths.ravel())
    lane = np.repeat(np.arange(len(lanes.owner)), one.counts[lanes.owner, lanes.slot])
    bag = lane * batch.samples + sample[one.send]
    counts = np.bincount(bag, minlength=len(lanes.owner) * batch.samples)
    return counts.reshape(len(lanes.owner), batch.samples).astype(np.int32)
