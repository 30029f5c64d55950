"""What owners and batch owners do with vectors: pool, sum partial pools, restore order, join columns; and the backward.

Owners always return sums (weighted sums where the batch has weights); the batch owner turns them into means, because
only it knows how many ids a sample has over all row parts. A *bag* is one sample of one slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.permute import starts_of
from foreshard.simulator.lookups.routing import Lanes, Route, Slot, lanes_of

__all__ = [
    "divide_by_lengths",
    "join_columns",
    "lane_spans",
    "pool",
    "reduce_scatter",
    "restore_sequence",
    "split_columns",
    "spread",
    "sum_lanes",
    "sum_rows",
]

IntArray = NDArray[np.int64]
Vectors = NDArray[Any]  # float32 or float64, [something, columns]; results keep the type


def pool(vectors: Vectors, lengths: NDArray[Any], weights: NDArray[Any] | None = None) -> Vectors:
    """The sum of every bag's vectors, [bags, columns]; `vectors` [ids, columns], `lengths` [bags], `weights` [ids]."""
    out = np.zeros((len(lengths), vectors.shape[1]), dtype=vectors.dtype)
    filled = np.flatnonzero(lengths)
    if weights is not None:
        vectors = vectors * weights[:, None].astype(vectors.dtype)
    if len(filled):
        out[filled] = np.add.reduceat(vectors, starts_of(lengths)[filled], axis=0)
    return out


def spread(gradients: Vectors, lengths: NDArray[Any], weights: NDArray[Any] | None = None) -> Vectors:
    """The gradient of every id's vector, [ids, columns], from those of the bags' sums: the backward of `pool`."""
    per_id = np.repeat(gradients, lengths, axis=0)
    return per_id if weights is None else per_id * weights[:, None].astype(gradients.dtype)


def divide_by_lengths(sums: Vectors, lengths: NDArray[Any]) -> Vectors:
    """Means from sums, or gradients of sums from gradients of means, [bags, columns]; an empty bag stays zero."""
    return np.asarray(sums / np.maximum(lengths, 1)[:, None].astype(sums.dtype))


def sum_rows(rows: IntArray, gradients: Vectors) -> tuple[IntArray, Vectors]:
    """Return (distinct rows [n], their summed gradients [n, columns]): what a fused update writes, each row once."""
    order = np.argsort(rows, kind="stable")
    distinct, first = np.unique(rows[order], return_index=True)
    if not len(distinct):
        return distinct, gradients[:0]
    return distinct, np.add.reduceat(gradients[order], first, axis=0)


def reduce_scatter(partials: Sequence[Vectors], samples: Sequence[int]) -> list[Vectors]:
    """The reduce-scatter form: sums of all owners' partial pools, [samples, columns] for each batch owner.

    Every owner gives its partial pools of all batches one below the other, [all samples, columns], zeros where it
    holds no row of a bag. Owners are added in group order.
    """
    total = partials[0].copy()
    for partial in partials[1:]:
        total += partial
    return np.split(total, np.cumsum(samples)[:-1])


def sum_lanes(replies: Sequence[Vectors], lanes: Lanes, slots: int) -> list[Vectors]:
    """The all-to-all form: partial pools received lane by lane, [samples, columns] each, summed to one for each slot.

    A slot with one owner has one lane, so that this also restores the slot order of table-wise and column-wise kinds.
    """
    sums: list[Vectors | None] = [None] * slots
    for reply, slot in zip(replies, lanes.slot, strict=True):
        held = sums[slot]
        sums[slot] = reply.copy() if held is None else held + reply
    return [one for one in sums if one is not None]


def lane_spans(one: Route) -> list[slice]:
    """Where each lane's requests lie in send order, one slice a lane."""
    lanes = lanes_of(one.slots, one.members)
    starts = starts_of(one.counts[lanes.owner, lanes.slot])
    return [slice(int(begin), int(end)) for begin, end in pairwise(starts)]


def restore_sequence(one: Route, replies: Sequence[Vectors]) -> list[Vectors]:
    """Vectors of every id in the order of the batch, [ids, columns] for each slot, from replies lane by lane."""
    slot_of = lanes_of(one.slots, one.members).slot
    starts, sizes = one.slot_starts[:-1], np.diff(one.slot_starts)
    out = [np.zeros((size, slot.width), dtype=replies[0].dtype) for size, slot in zip(sizes, one.slots, strict=True)]
    for reply, slot, span in zip(replies, slot_of, lane_spans(one), strict=True):
        out[slot][one.send[span] - starts[slot]] = reply
    return out


def join_columns(vectors: Sequence[Vectors], slots: Sequence[Slot]) -> dict[tuple[str, str], Vectors]:
    """Whole vectors [samples or ids, embedding_dim] by (table, feature): column parts side by side."""
    parts: dict[tuple[str, str], list[Vectors]] = {}
    for vector, slot in zip(vectors, slots, strict=True):
        parts.setdefault((slot.table.table.name, slot.feature), []).append(vector)
    return {key: np.concatenate(columns, axis=1) for key, columns in parts.items()}


def split_columns(gradients: dict[tuple[str, str], Vectors], slots: Sequence[Slot]) -> list[Vectors]:
    """Gradients of every slot's columns, [samples or ids, width]: the backward of `join_columns`."""
    return [
        gradients[slot.table.table.name, slot.feature][
            :, slot.table.col_bounds[slot.column] : slot.table.col_bounds[slot.column + 1]
        ]
        for slot in slots
    ]
