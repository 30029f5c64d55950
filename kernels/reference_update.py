"""The backward with a fused optimizer in NumPy: gradients summed once per distinct row, then one step for that row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foreshard.kernels.number_formats import rows_from_fp32, rows_to_fp32
from foreshard.kernels.reference_lookup import turns
from foreshard.topologies.errors import InputError

__all__ = ["LONG_SEGMENT", "RowWiseAdagrad", "Segments", "Sgd", "segment", "sum_segments", "update_rows"]

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]

# Gradients of one row that are added one after the other; the sums of such chunks are then added in turn. It is part
# of what "the sum" means: fp32 addition is not associative, and the kernels give the same bits whatever the schedule.
LONG_SEGMENT = 512


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Segments:
    """Look-ups grouped by row: `order` [ids] sorts them stably, segment s is `order[starts[s]:starts[s + 1]]`.

    `rows` [segments] are the distinct rows, ascending; `starts` [segments + 1].
    """

    order: IntArray
    rows: IntArray
    starts: IntArray


def segment(ids: IntArray) -> Segments:
    """Group look-ups by row; within a row they keep their order."""
    order = np.argsort(ids, kind="stable")
    rows, first = np.unique(ids[order], return_index=True)
    return Segments(order=order, rows=rows, starts=np.append(first, len(ids)).astype(np.int64))


def sum_segments(segments: Segments, gradients: FloatArray, *, chunk: int = LONG_SEGMENT) -> FloatArray:
    """The gradient of every distinct row, fp32 [segments, dim]: chunk by chunk in order, then the chunks in order."""
    lengths = np.diff(segments.starts)
    pieces = -(-lengths // chunk)
    piece_starts = np.concatenate([[0], np.cumsum(pieces)])
    turn_in_segment = np.arange(piece_starts[-1]) - np.repeat(piece_starts[:-1], pieces)
    begins = np.repeat(segments.starts[:-1], pieces) + chunk * turn_in_segment
    chunks = np.zeros((len(begins), gradients.shape[1]), dtype=np.float32)
    for bags, positions in turns(np.append(begins, len(segments.order))):
        chunks[bags] += gradients[segments.order[positions]]
    sums = np.zeros((len(lengths), gradients.shape[1]), dtype=np.float32)
    for bags, positions in turns(piece_starts):
        sums[bags] += chunks[positions]
    return sums


@dataclass(frozen=True, kw_only=True, slots=True)
class Sgd:
    """Row <- row - learning_rate x gradient."""

    learning_rate: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RowWiseAdagrad:
    """v <- v + mean(gradient^2), one v a row; row <- row - learning_rate / (sqrt(v / replicas) + eps) x gradient.

    eps stands outside the root, as in FBGEMM (pytorch/FBGEMM fbgemm_gpu/codegen/genscript/optimizers.py,
    rowwise_adagrad) and so in TorchRec. `replicas` are those of a 2D layout that step by their own batch's gradients
    and are averaged: gradients over a smaller batch make v too large by that factor (Meta, "Two-dimensional sparse
    parallelism for large scale deep learning recommendation model training", arXiv 2508.03854, whose eps stands under
    the root: eta / sqrt(v / c + eps)). Exact: duplicates are summed before they are squared.
    """

    learning_rate: float
    eps: float = 1e-8
    replicas: int = 1


def update_rows(
    rows: NDArray[Any],
    momentum: FloatArray | None,
    ids: IntArray,
    gradients: FloatArray,
    optimizer: Sgd | RowWiseAdagrad,
    *,
    chunk: int = LONG_SEGMENT,
) -> tuple[NDArray[Any], FloatArray | None]:
    """Return (rows, momentum) after the step; `gradients` [ids, dim] are those of the looked-up vectors.

    `rows` [num_embeddings, dim] float32, float16 or uint16 (bf16) keep their type; `momentum` [num_embeddings] is fp32
    and None for SGD. Neither is changed in place. Raises InputError where AdaGrad has no momentum.
    """
    segments = segment(ids)
    sums = sum_segments(segments, gradients, chunk=chunk)
    steps = np.full(len(sums), optimizer.learning_rate, dtype=np.float32)
    if isinstance(optimizer, RowWiseAdagrad):
        if momentum is None:
            raise InputError("row-wise AdaGrad needs momentum: give one float32 accumulator a row")
        momentum = momentum.copy()
        momentum[segments.rows] += _mean_square(sums)
        scaled = momentum[segments.rows] / np.float32(optimizer.replicas)
        steps /= np.sqrt(scaled) + np.float32(optimizer.eps)
    out = rows.copy()
    out[segments.rows] = rows_from_fp32(rows_to_fp32(rows[segments.rows]) - steps[:, None] * sums, rows.dtype)
    return out, momentum


def _mean_square(sums: FloatArray) -> FloatArray:
    """Mean of squares of each row, summed in fp64 so that no order of fp32 additions is preferred."""
    return np.asarray(np.square(sums, dtype=np.float64).mean(axis=1), dtype=np.float32)
