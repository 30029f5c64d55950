"""Integer hashing that is the same in every process and on every platform: owner hash and row scattering."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["hash_part", "mix64", "scatter_rows", "stable_key"]

UintArray = NDArray[np.uint64]

# Finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014;
# the constants are David Stafford's variant 13). A bijection on 64 bits in which each input bit flips half the output.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_BLOCK = 1 << 16  # ids hashed at once, so that the intermediates stay in cache
_ROUNDS = 4  # Luby and Rackoff (1988): a Feistel cipher of four random rounds is a strong pseudorandom permutation


@lru_cache(maxsize=1 << 16)
def stable_key(text: str) -> int:
    """Return a 64-bit key of `text`; unlike `hash()` it does not depend on the process."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _to_uint64(ids: ArrayLike) -> UintArray:
    values = np.asarray(ids)
    return values if values.dtype == np.uint64 else values.astype(np.int64).view(np.uint64)


def mix64(ids: ArrayLike, key: int = 0) -> UintArray:
    """Return 64 well mixed bits of every id, uint64 of the ids' shape; total: negative ids have a hash too."""
    offset = np.uint64((int(_GAMMA) * (key + 1)) & 0xFFFFFFFFFFFFFFFF)
    bits = np.array(_to_uint64(ids))  # worked on in place: fetching memory for intermediates costs more than the mixing
    shifted = np.empty_like(bits)
    with np.errstate(over="ignore"):
        bits += offset
        bits ^= np.right_shift(bits, np.uint64(30), out=shifted)
        bits *= _FIRST
        bits ^= np.right_shift(bits, np.uint64(27), out=shifted)
        bits *= _SECOND
        bits ^= np.right_shift(bits, np.uint64(31), out=shifted)
    return bits


def hash_part(ids: ArrayLike, parts: int) -> NDArray[np.int64]:
    """Return the part, 0 to `parts` - 1, of every id: the upper 32 hash bits scaled to `parts` (below 2**32)."""
    upper = mix64(ids)
    upper >>= np.uint64(32)
    upper *= np.uint64(parts)
    upper >>= np.uint64(32)
    return upper.view(np.int64)


@lru_cache(maxsize=4096)
def _round_keys(key: int) -> tuple[np.uint64, ...]:
    return tuple(mix64(np.arange(_ROUNDS), key))


def _feistel(values: UintArray, bits: int, key: int) -> UintArray:
    """A keyed bijection on [0, 2**bits): the two halves, of unequal width where `bits` is odd, take turns."""
    width, other = bits // 2, bits - bits // 2
    left, right = values >> np.uint64(other), values & np.uint64((1 << other) - 1)
    for round_key in _round_keys(key):
        if width:
            scrambled = right + round_key
            scrambled *= _FIRST
            scrambled ^= scrambled >> np.uint64(32)
            scrambled *= _SECOND
            scrambled >>= np.uint64(64 - width)
            left ^= scrambled
        left, right = right, left
        width, other = other, width
    return np.asarray((left << np.uint64(other)) | right, dtype=np.uint64)


def scatter_rows(ranks: ArrayLike, num_embeddings: int, key: int) -> NDArray[np.int64]:
    """Return the row at which each popularity rank 0 to `num_embeddings` - 1 sits: a keyed bijection.

    A Feistel cipher on the next power of two, walked until it falls inside the table (cycle walking, Black and
    Rogaway 2002), at most two steps on average.
    """
    given = _to_uint64(ranks)
    if given.size <= _BLOCK:
        return _scattered(given, num_embeddings, key)
    blocks = [given[begin : begin + _BLOCK] for begin in range(0, given.size, _BLOCK)]
    return np.concatenate([_scattered(block, num_embeddings, key) for block in blocks])


def _scattered(ranks: UintArray, num_embeddings: int, key: int) -> NDArray[np.int64]:
    bits, limit = int(num_embeddings - 1).bit_length(), np.uint64(num_embeddings)
    rows = _feistel(ranks, bits, key)
    outside = np.flatnonzero(rows >= limit)
    while outside.size:
        again = _feistel(rows[outside], bits, key)
        rows[outside] = again
        outside = outside[again >= limit]
    return rows.view(np.int64)
