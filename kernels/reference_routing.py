"""Routing in NumPy: the owner of every id, counts, the stable permutation that groups ids by owner, distinct ids."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "FIRST_MULTIPLIER",
    "GAMMA",
    "SECOND_MULTIPLIER",
    "bucketise",
    "deduplicate",
    "hash_part",
    "inverse_permutation",
    "mix64",
    "owner_counts",
    "range_part",
]

IntArray = NDArray[np.int64]

# SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) with David Stafford's variant 13, as the simulator's owner hash.
GAMMA = 0x9E3779B97F4A7C15
FIRST_MULTIPLIER = 0xBF58476D1CE4E5B9
SECOND_MULTIPLIER = 0x94D049BB133111EB


def mix64(ids: ArrayLike) -> NDArray[np.uint64]:
    """64 well mixed bits of every id, uint64 of the ids' shape; negative ids have a hash too."""
    bits = np.asarray(ids).astype(np.int64).view(np.uint64)
    with np.errstate(over="ignore"):
        bits = bits + np.uint64(GAMMA)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(FIRST_MULTIPLIER)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(SECOND_MULTIPLIER)
        return np.asarray(bits ^ (bits >> np.uint64(31)), dtype=np.uint64)


def hash_part(ids: ArrayLike, parts: int) -> NDArray[np.int32]:
    """The part, 0 to `parts` - 1, of every id: the upper 32 hash bits scaled to `parts`."""
    return (((mix64(ids) >> np.uint64(32)) * np.uint64(parts)) >> np.uint64(32)).astype(np.int32)


def range_part(ids: ArrayLike, bounds: IntArray) -> NDArray[np.int32]:
    """The part of every id; part p holds ids `bounds[p]` to `bounds[p + 1]` - 1, or none. `bounds` [parts + 1]."""
    return np.searchsorted(bounds[1:], np.asarray(ids), side="right").astype(np.int32)


def owner_counts(owners: NDArray[Any], members: int) -> IntArray:
    """Ids of every owner, [members]."""
    return np.bincount(owners, minlength=members).astype(np.int64)


def bucketise(owners: NDArray[Any]) -> IntArray:
    """The stable permutation that groups ids by owner, [ids]: `ids[permutation]` is the order of sending."""
    return np.argsort(owners, kind="stable").astype(np.int64)


def inverse_permutation(permutation: IntArray) -> IntArray:
    """The permutation that undoes `permutation`: `x[permutation][inverse] == x`."""
    inverse = np.empty_like(permutation)
    inverse[permutation] = np.arange(len(permutation))
    return inverse


def deduplicate(ids: IntArray) -> tuple[IntArray, IntArray]:
    """Return (distinct ids, ascending; the place of every id among them): `distinct[inverse] == ids`."""
    distinct, inverse = np.unique(ids, return_inverse=True)
    return distinct, inverse.reshape(-1).astype(np.int64)
