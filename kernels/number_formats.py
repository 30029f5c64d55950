"""Bit patterns of bf16 and fp8, which NumPy has no types for: conversions from and to fp32, rounded to nearest even.

bf16 rows are held as uint16, fp8 as uint8. fp8 is OCP's "8-bit floating point specification" 1.0 (2023): e4m3 has no
infinity and ends at 448, e5m2 ends at 57344; conversion saturates, as quantisation wants it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from foreshard.topologies.errors import InputError

__all__ = [
    "FP8_MAX",
    "Fp8",
    "bf16_from_fp32",
    "fp8_from_fp32",
    "fp8_values",
    "fp32_from_bf16",
    "rows_from_fp32",
    "rows_to_fp32",
]

Fp8 = Literal["e4m3", "e5m2"]
FloatArray = NDArray[np.float32]

FP8_MAX: dict[Fp8, float] = {"e4m3": 448.0, "e5m2": 57344.0}  # OCP FP8 1.0, table 1
_MANTISSA_BITS: dict[Fp8, int] = {"e4m3": 3, "e5m2": 2}
_BIAS: dict[Fp8, int] = {"e4m3": 7, "e5m2": 15}
_NAN = 0x7F


def fp32_from_bf16(bits: NDArray[np.uint16]) -> FloatArray:
    """The values of bf16 bit patterns, fp32 of the same shape: bf16 is the upper half of an fp32."""
    return (np.asarray(bits, dtype=np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def bf16_from_fp32(values: FloatArray) -> NDArray[np.uint16]:
    """The nearest bf16 bit patterns, ties to even, uint16 of the same shape; NaN stays NaN, overflow is infinity."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    quiet = bits | np.uint32(0x0040_0000)
    return (np.where(np.isnan(values), quiet, rounded) >> np.uint32(16)).astype(np.uint16)


@cache
def fp8_values(form: Fp8) -> FloatArray:
    """The value of every fp8 code, fp32 [256]."""
    codes = np.arange(256)
    mantissa_bits = _MANTISSA_BITS[form]
    exponent = (codes & 0x7F) >> mantissa_bits
    fraction = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    normal = (1 + fraction) * 2.0 ** (exponent - _BIAS[form])
    magnitude = np.where(exponent == 0, fraction * 2.0 ** (1 - _BIAS[form]), normal)
    magnitude[(codes & 0x7F) > _top_code(form)] = np.nan
    if form == "e5m2":
        magnitude[(codes & 0x7F) == 0x7C] = np.inf
    return np.where(codes >= 0x80, -magnitude, magnitude).astype(np.float32)


def _top_code(form: Fp8) -> int:
    """The code of the largest finite value."""
    return 0x7E if form == "e4m3" else 0x7B


def fp8_from_fp32(values: FloatArray, form: Fp8) -> NDArray[np.uint8]:
    """The nearest fp8 codes, ties to the even code, uint8 of the same shape; values past the largest are clipped to it.

    A search among all values: slow, and plain to see that it is right.
    """
    values = np.asarray(values, dtype=np.float32)
    finite = fp8_values(form)[: _top_code(form) + 1].astype(np.float64)
    middles = (finite[1:] + finite[:-1]) / 2
    magnitude = np.abs(values).astype(np.float64)
    code = np.searchsorted(middles, magnitude, side="left")
    tie = (code < len(middles)) & (middles[np.minimum(code, len(middles) - 1)] == magnitude)
    code += tie & (code % 2 == 1)
    code = np.where(np.isnan(values), _NAN, code)
    return (code | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def rows_to_fp32(rows: NDArray[Any]) -> FloatArray:
    """Rows as fp32, of the same shape; float32, float16 and, as bf16, uint16 are read. Raises InputError for others."""
    match rows.dtype:
        case np.float32:
            return rows
        case np.float16:
            return rows.astype(np.float32)
        case np.uint16:
            return fp32_from_bf16(rows)
    raise InputError(f"rows have dtype {rows.dtype}: expected float32, float16 or uint16 (the bits of bf16)")


def rows_from_fp32(values: FloatArray, dtype: np.dtype[Any]) -> NDArray[Any]:
    """fp32 values rounded to the dtype of rows: float32, float16 or, as bf16, uint16. Raises InputError for others."""
    match dtype:
        case np.float32:
            return values
        case np.float16:
            with np.errstate(over="ignore"):
                return values.astype(np.float16)
        case np.uint16:
            return bf16_from_fp32(values)
    raise InputError(f"rows have dtype {dtype}: expected float32, float16 or uint16 (the bits of bf16)")
