"""Communication codecs in NumPy: fp32 rows to the bytes that travel, and back.

Wire formats of a row of dim elements: fp16, bf16: 2 x dim bytes. int8: dim bytes, then fp32 scale, fp32 bias. fp8: dim
bytes, then fp32 scale. Scales follow the bytes without padding, so a row costs what the simulator prices.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from foreshard.kernels.number_formats import FP8_MAX, Fp8, bf16_from_fp32, fp8_from_fp32, fp8_values, fp32_from_bf16
from foreshard.topologies.errors import InputError

__all__ = ["CODECS", "ROW_OVERHEAD", "Codec", "decode", "encode"]

Codec = Literal["fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8"]
CODECS: tuple[Codec, ...] = ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8")
ROW_OVERHEAD: dict[Codec, int] = {"fp16": 0, "bf16": 0, "fp8_e4m3": 4, "fp8_e5m2": 4, "int8": 8}  # bytes a row

FloatArray = NDArray[np.float32]


def encode(rows: FloatArray, codec: Codec) -> NDArray[Any]:
    """The encoded rows: float16 or uint16 (bf16) [rows, dim], or uint8 [rows, dim + overhead] of a row-wise format.

    int8: scale = (max - min) / 255, bias = min, byte = round((x - bias) / scale). fp8: scale = max |x| / largest fp8
    value, byte = fp8(x / scale). Rows must be finite, of a range below the largest fp32: what becomes of others is not
    defined. Raises InputError for an unknown codec.
    """
    match codec:
        case "fp16":
            with np.errstate(over="ignore"):
                return rows.astype(np.float16)
        case "bf16":
            return bf16_from_fp32(rows)
        case "int8":
            return _encode_int8(rows)
        case "fp8_e4m3":
            return _encode_fp8(rows, "e4m3")
        case "fp8_e5m2":
            return _encode_fp8(rows, "e5m2")
    raise InputError(f"unknown codec {codec!r}: expected one of {', '.join(CODECS)}")


def decode(encoded: NDArray[Any], codec: Codec) -> FloatArray:
    """The fp32 rows [rows, dim] that `encode` made `encoded` from, as exactly as the format allows."""
    match codec:
        case "fp16":
            return encoded.astype(np.float32)
        case "bf16":
            return fp32_from_bf16(encoded)
        case "int8":
            codes, (scale, bias) = _split(encoded, 2)
            return codes.astype(np.float32) * scale + bias
        case "fp8_e4m3":
            codes, (scale,) = _split(encoded, 1)
            return fp8_values("e4m3")[codes] * scale
        case "fp8_e5m2":
            codes, (scale,) = _split(encoded, 1)
            return fp8_values("e5m2")[codes] * scale
    raise InputError(f"unknown codec {codec!r}: expected one of {', '.join(CODECS)}")


def _scaled(rows: FloatArray, scale: FloatArray) -> FloatArray:
    """Rows divided by their scale; zero where the scale is: such a row has no range."""
    return np.divide(rows, scale, out=np.zeros_like(rows), where=scale > 0)


def _encode_int8(rows: FloatArray) -> NDArray[np.uint8]:
    zero = np.float32(0)  # added so that a zero is +0, whichever sign was met first
    bias = np.fmin.reduce(rows, axis=1, keepdims=True) + zero
    scale = (np.fmax.reduce(rows, axis=1, keepdims=True) + zero - bias) / np.float32(255)
    codes = np.clip(np.rint(_scaled(rows - bias, scale)), 0, 255)
    return _join(codes.astype(np.uint8), scale, bias)


def _encode_fp8(rows: FloatArray, form: Fp8) -> NDArray[np.uint8]:
    scale = (np.fmax.reduce(np.abs(rows), axis=1, keepdims=True) / np.float32(FP8_MAX[form])).astype(np.float32)
    return _join(fp8_from_fp32(_scaled(rows, scale), form), scale)


def _join(codes: NDArray[np.uint8], *per_row: FloatArray) -> NDArray[np.uint8]:
    parts = [np.ascontiguousarray(value, dtype="<f4").view(np.uint8) for value in per_row]
    return np.concatenate([codes, *parts], axis=1)


def _split(encoded: NDArray[np.uint8], per_row: int) -> tuple[NDArray[np.uint8], list[FloatArray]]:
    dim = encoded.shape[1] - 4 * per_row
    tail = np.ascontiguousarray(encoded[:, dim:]).view("<f4")
    return encoded[:, :dim], [tail[:, [column]] for column in range(per_row)]
