"""Permutations of jagged data: stable bucketising by owner, inverses, and segments moved as wholes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["bucketise", "inverse", "owner_dtype", "segment_order", "starts_of"]

IntArray = NDArray[np.int64]

# Requests sorted at once: keys, order and rows of a block stay in a core's L2 cache (measured best of 2^14 .. 2^20).
_BLOCK = 1 << 16


def owner_dtype(members: int) -> type[np.unsignedinteger]:
    """The smallest unsigned type that holds a position among `members`; NumPy's stable sort is radix up to 16 bits."""
    if members <= 1 << 8:
        return np.uint8
    return np.uint16 if members <= 1 << 16 else np.uint32


def starts_of(counts: IntArray) -> IntArray:
    """Exclusive prefix sum of `counts` with the total at the end, [n + 1]."""
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def bucketise(owners: NDArray[np.unsignedinteger], rows: IntArray, members: int) -> tuple[IntArray, IntArray]:
    """Return (send [n], rows in send order [n]): a stable counting sort of requests by owner.

    `send[k]` is the request that leaves k-th. Blocks are sorted in cache and their runs copied to the place that the
    counts of all blocks leave them, so the cost per request does not grow with n.
    """
    blocks = [slice(begin, min(begin + _BLOCK, len(owners))) for begin in range(0, len(owners), _BLOCK)]
    counts = np.array([np.bincount(owners[block], minlength=members) for block in blocks], dtype=np.int64)
    counts = counts.reshape(len(blocks), members)
    run_starts = starts_of(counts.T.ravel())[:-1].reshape(members, len(blocks)).T
    send, sorted_rows = np.empty(len(owners), dtype=np.int64), np.empty(len(owners), dtype=np.int64)
    for block, count, run_start in zip(blocks, counts, run_starts, strict=True):
        order = np.argsort(owners[block], kind="stable")
        target = np.repeat(run_start - starts_of(count)[:-1], count)
        target += np.arange(len(target))
        sorted_rows[target] = rows[block][order]
        order += block.start
        send[target] = order
    return send, sorted_rows


def inverse(permutation: IntArray) -> IntArray:
    """The permutation that undoes `permutation`: `x[permutation][inverse(permutation)] == x`."""
    out = np.empty_like(permutation)
    out[permutation] = np.arange(len(permutation))
    return out


def segment_order(lengths: IntArray, order: IntArray) -> IntArray:
    """The permutation that moves whole segments: segment `order[0]` first, then `order[1]`, ... [sum of lengths].

    Segment i holds `lengths[i]` consecutive elements. TorchRec calls this a jagged permute (recat).
    """
    begin = starts_of(lengths)[:-1][order]
    size = lengths[order]
    return np.repeat(begin - starts_of(size)[:-1], size) + np.arange(int(size.sum()))
