"""Communication codecs: bytes on the wire per element, and what encoding and decoding move through HBM."""

from __future__ import annotations

from foreshard.simulator.workload import BYTES_PER_ELEMENT, DataType

__all__ = ["FULL_BYTES", "codec_bytes", "wire_bytes"]

FULL_BYTES = 4  # vectors and their gradients are fp32 on the device (TorchRec's output_dtype default)

# Per quantised row: int8 keeps an fp32 scale and an fp32 bias, fp8 an fp32 scale (FBGEMM's row-wise formats).
_ROW_OVERHEAD: dict[DataType, int] = {"int8": 8, "fp8": 4}


def wire_bytes(data_type: DataType, row_dim: float) -> float:
    """Bytes per element on the wire; row-wise formats carry their scales once a row of `row_dim` elements."""
    return BYTES_PER_ELEMENT[data_type] + _ROW_OVERHEAD.get(data_type, 0) / row_dim


def codec_bytes(data_type: DataType, row_dim: float) -> float:
    """Bytes per element that encoding (or decoding) reads and writes; 0 for fp32, which needs no codec."""
    return 0.0 if data_type == "fp32" else FULL_BYTES + wire_bytes(data_type, row_dim)
