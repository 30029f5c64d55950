"""Look-ups in NumPy: pooled bags and sequences, summed in fp32 in the order of the ids, as the CUDA kernels sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from foreshard.kernels.number_formats import rows_to_fp32

__all__ = ["Mode", "bag_of_each_id", "pooled_lookup", "pooled_tables", "sequence_lookup", "spread_gradients", "turns"]

Mode = Literal["sum", "mean"]
FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]


def turns(offsets: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield (bags that have a k-th element, positions of these elements) for k = 0, 1, ...; `offsets` [bags + 1]."""
    lengths = np.diff(offsets)
    for turn in range(int(lengths.max(initial=0))):
        bags = np.flatnonzero(lengths > turn)
        yield bags, offsets[bags] + turn


def pooled_lookup(
    rows: NDArray[Any], ids: IntArray, offsets: IntArray, *, mode: Mode = "sum", weights: FloatArray | None = None
) -> FloatArray:
    """The pooled vector of every bag, fp32 [bags, dim]; bag b holds `ids[offsets[b]:offsets[b + 1]]`, none gives zeros.

    `rows` [num_embeddings, dim] are float32, float16 or uint16 (bf16); `weights` [ids] multiply the vectors. A mean
    divides by the number of ids, not by the sum of weights.
    """
    pooled = np.zeros((len(offsets) - 1, rows.shape[1]), dtype=np.float32)
    for bags, positions in turns(np.asarray(offsets, dtype=np.int64)):
        vectors = rows_to_fp32(rows[ids[positions]])
        pooled[bags] += vectors if weights is None else vectors * weights[positions][:, None]
    return pooled if mode == "sum" else pooled / _divisors(offsets)


def _divisors(offsets: IntArray) -> FloatArray:
    return np.maximum(np.diff(offsets), 1).astype(np.float32)[:, None]


def pooled_tables(
    tables: Sequence[NDArray[Any]],
    feature_tables: Sequence[int],
    ids: IntArray,
    offsets: IntArray,
    *,
    mode: Mode = "sum",
    weights: FloatArray | None = None,
) -> FloatArray:
    """The pooled vectors of many features side by side, fp32 [batch, sum of the features' dims].

    `offsets` [features x batch + 1]: the bags of feature 0, then of feature 1, ...; `feature_tables[f]` is its table.
    """
    batch = (len(offsets) - 1) // len(feature_tables)
    spans = [offsets[f * batch : (f + 1) * batch + 1] for f in range(len(feature_tables))]
    pairs = zip(feature_tables, spans, strict=True)
    return np.concatenate(
        [pooled_lookup(tables[table], ids, span, mode=mode, weights=weights) for table, span in pairs], axis=1
    )


def sequence_lookup(rows: NDArray[Any], ids: IntArray) -> FloatArray:
    """The vector of every id, fp32 [ids, dim]."""
    return rows_to_fp32(rows[ids])


def bag_of_each_id(offsets: IntArray) -> IntArray:
    """The bag of every id, [ids]."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def spread_gradients(
    gradients: FloatArray, offsets: IntArray, *, mode: Mode = "sum", weights: FloatArray | None = None
) -> FloatArray:
    """The gradient of every id's vector, fp32 [ids, dim], from the gradients [bags, dim]: the backward of pooling."""
    if mode == "mean":
        gradients = gradients / _divisors(offsets)
    per_id = gradients[bag_of_each_id(offsets)]
    return per_id if weights is None else per_id * weights[:, None]
