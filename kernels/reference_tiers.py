"""Tiered memory in NumPy: a set-associative least-recently-used cache of rows, and look-ups through it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from foreshard.kernels.number_formats import rows_to_fp32
from foreshard.kernels.reference_routing import hash_part

__all__ = ["EMPTY", "WAYS", "SetAssociativeCache", "copy_rows", "tiered_lookup"]

IntArray = NDArray[np.int64]

WAYS = 32  # ways of a set: one lane of a warp each (FBGEMM's LRU cache has 32 as well)
EMPTY = -1  # no row, no slot


class SetAssociativeCache:
    """Which rows sit in which slots, least recently used first out; it holds no weights.

    `tags` [sets, WAYS] are row ids or EMPTY, `stamps` [sets, WAYS] the step that used a way last (EMPTY: never). Row r
    may sit in the ways of set `hash_part(r, sets)` only; slot = set x WAYS + way.
    """

    def __init__(self, sets: int) -> None:
        self.tags = np.full((sets, WAYS), EMPTY, dtype=np.int64)
        self.stamps = np.full((sets, WAYS), EMPTY, dtype=np.int64)

    def query(self, ids: IntArray, step: int) -> IntArray:
        """The slot of every id, EMPTY where it misses, [ids]; the ways that hit are stamped with `step`."""
        sets = hash_part(ids, len(self.tags))
        hits = self.tags[sets] == ids[:, None]
        ways = np.where(hits.any(axis=1), hits.argmax(axis=1), EMPTY)
        hit = ways >= 0
        self.stamps[sets[hit], ways[hit]] = step
        return np.where(hit, sets.astype(np.int64) * WAYS + ways, EMPTY)

    def insert(self, ids: IntArray, step: int, *, keep_from: int) -> tuple[IntArray, IntArray]:
        """Return (the slot that each id got, the row that it drove out), EMPTY where there is none; each [ids].

        `ids` are distinct and not in the cache. Ids of one set are served in their order; each takes the way used
        longest ago, the lowest of equals. Ways used in step `keep_from` or later stay: an id that finds none gets no
        slot and is read from the host.
        """
        slots, evicted = np.full(len(ids), EMPTY), np.full(len(ids), EMPTY)
        for position, (row, group) in enumerate(zip(ids, hash_part(ids, len(self.tags)), strict=True)):
            way = int(self.stamps[group].argmin())
            if self.stamps[group, way] >= keep_from:
                continue
            evicted[position] = self.tags[group, way]
            self.tags[group, way], self.stamps[group, way] = row, step
            slots[position] = int(group) * WAYS + way
        return slots, evicted


def copy_rows(target: NDArray[Any], target_rows: IntArray, source: NDArray[Any], source_rows: IntArray) -> None:
    """Copy row `source_rows[i]` of `source` to row `target_rows[i]` of `target`, in place, but no pair with EMPTY."""
    both = (target_rows >= 0) & (source_rows >= 0)
    target[target_rows[both]] = source[source_rows[both]]


def tiered_lookup(host: NDArray[Any], cache: NDArray[Any], ids: IntArray, slots: IntArray) -> NDArray[np.float32]:
    """The vector of every id, fp32 [ids, dim]: from its cache slot, or from host memory where `slots` is EMPTY."""
    vectors = rows_to_fp32(host[ids])
    hit = slots >= 0
    vectors[hit] = rows_to_fp32(cache[slots[hit]])
    return vectors
