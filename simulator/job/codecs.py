"""Communication codecs: bytes on the wire per element, and what encoding and decoding move through HBM."""

from __future__ import annotations

from foreshard.simulator.job.program import CollectiveKind
from foreshard.simulator.job.workload import BYTES_PER_ELEMENT, DataType

__all__ = ["FULL_BYTES", "carried", "codec_bytes", "wire_bytes"]

FULL_BYTES = 4  # vectors and their gradients are fp32 on the device (TorchRec's output_dtype default)

# Per quantised row: int8 keeps an fp32 scale and an fp32 bias, fp8 an fp32 scale (FBGEMM's row-wise formats).
_ROW_OVERHEAD: dict[DataType, int] = {"int8": 8, "fp8": 4}


def carried(kind: CollectiveKind, precision: DataType) -> DataType:
    """The data type that a collective carries where `precision` is asked for.

    Rows with scales of their own cannot be summed on the way, so a reduce_scatter of vectors and the all_gather that
    mirrors it carry 16 bits instead of fp8 or int8: meta-pytorch/torchrec distributed/fbgemm_qcomm_codec.py falls back
    from fp8 to fp16 forward and bf16 backward, which are equally wide; int8 is treated alike.
    """
    if kind in ("reduce_scatter", "all_gather") and precision in _ROW_OVERHEAD:
        return "fp16"
    return precision


def wire_bytes(data_type: DataType, row_dim: float) -> float:
    """Bytes per element on the wire; row-wise formats carry their scales once a row of `row_dim` elements."""
    return BYTES_PER_ELEMENT[data_type] + _ROW_OVERHEAD.get(data_type, 0) / row_dim


def codec_bytes(data_type: DataType, row_dim: float) -> float:
    """Bytes per element that encoding (or decoding) reads and writes; 0 for fp32, which needs no codec."""
    return 0.0 if data_type == "fp32" else FULL_BYTES + wire_bytes(data_type, row_dim)
