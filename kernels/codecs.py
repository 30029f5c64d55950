"""Communication codecs on the device: fp32 rows to the bytes that travel, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from foreshard.kernels.checks import Problems
from foreshard.kernels.cupy_device import cupy_device
from foreshard.kernels.device import Device, blocks_for
from foreshard.kernels.reference_codecs import CODECS, ROW_OVERHEAD, Codec
from foreshard.kernels.tables import lanes_for
from foreshard.topologies.errors import InputError

__all__ = ["decode", "encode"]

_WIRE = {"fp16": "float16", "bf16": "uint16"}  # row-wise formats travel as bytes


def encode(rows: object, codec: Codec, *, device: Device | None = None) -> Any:
    """The encoded rows of float32 [rows, dim]: float16, uint16 (bf16) [rows, dim], or uint8 [rows, dim + overhead].

    Raises InputError for an unknown codec or other input. Formats: `reference_codecs`.
    """
    device = device or cupy_device()
    with device.on(rows):
        taken = device.take(rows, "rows")
        _check(taken, codec, "rows", "float32", smallest=1)
        shape = (taken.shape[0], taken.shape[1] + ROW_OVERHEAD[codec])
        out = device.xp.empty(shape, dtype=_WIRE.get(codec, "uint8"))
        _run(device, "encode", codec, taken, out, full=taken)
        return device.give(out, rows)


def decode(encoded: object, codec: Codec, *, device: Device | None = None) -> Any:
    """The float32 rows [rows, dim] of what `encode` returned. Raises InputError for an unknown codec or other input."""
    device = device or cupy_device()
    with device.on(encoded):
        taken = device.take(encoded, "encoded rows")
        overhead = ROW_OVERHEAD.get(codec, 0)
        _check(taken, codec, "encoded rows", _WIRE.get(codec, "uint8"), smallest=1 + overhead)
        out = device.xp.empty((taken.shape[0], taken.shape[1] - overhead), dtype=np.float32)
        _run(device, "decode", codec, taken, out, full=out)
        return device.give(out, encoded)


def _check(rows: Any, codec: str, what: str, dtype: str, *, smallest: int) -> None:
    if codec not in CODECS:
        raise InputError(f"unknown codec {codec!r}: expected one of {', '.join(CODECS)}")
    problems = Problems(codec)
    problems.dtype(rows, what, (dtype,))
    wide = rows.ndim == 2 and rows.shape[1] >= smallest
    problems.shape(rows, what, f"[rows, dim], of at least {smallest} columns", wide)
    problems.raise_any()


def _run(device: Device, way: str, codec: Codec, source: Any, target: Any, *, full: Any) -> None:
    """Launch over elements (fp16, bf16) or rows; `full` is the fp32 side."""
    rows, dim = (int(size) for size in full.shape)
    if not rows:
        return
    by_element = codec in _WIRE
    divides = rows * dim if by_element else dim
    aligned = all(device.address(array) % (4 * array.dtype.itemsize) == 0 for array in (source, target))
    vector = 4 if divides % 4 == 0 and aligned else 1
    lanes = lanes_for(dim // vector)
    sizes = (np.int64(rows * dim),) if by_element else (np.int64(rows), np.int32(dim))
    shape = (np.int32(vector),) if by_element else (np.int32(vector), np.int32(lanes))
    threads = rows * dim // vector if by_element else rows * lanes
    args = (source, *sizes, *shape, target)
    device.launch(f"{way}_{codec}", blocks_for(device, threads), args, threads=device.threads)
