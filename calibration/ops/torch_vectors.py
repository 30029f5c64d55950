"""Vectors with torch on any device: side by side or by source, means, and the formats that travel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch

from foreshard.kernels.number_formats import FP8_MAX, Fp8
from foreshard.kernels.reference_codecs import CODECS, ROW_OVERHEAD, Codec
from foreshard.topologies.errors import InputError

__all__ = ["by_vector", "decode", "encode", "join", "mean", "split"]

Widths = Sequence[Sequence[int]]


def _starts(sizes: Sequence[int]) -> list[int]:
    return [0, *accumulate(sizes)]


# -- by source, side by side ------------------------------------------------------------------------------------------


def _blocks(flat: torch.Tensor, samples: int, widths: Widths) -> list[torch.Tensor]:
    """The columns of each source, [samples, width] views of `flat`."""
    columns = [sum(own) for own in widths]
    ends = pairwise(_starts([samples * width for width in columns]))
    return [flat[begin:end].view(samples, width) for width, (begin, end) in zip(columns, ends, strict=True)]


def join(received: torch.Tensor, samples: int, widths: Widths, order: Sequence[int] | None) -> torch.Tensor:
    """`DeviceOps.join`."""
    blocks = _blocks(received, samples, widths)
    if order is None:
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1)
    pieces = [
        block[:, begin:end] for block, own in zip(blocks, widths, strict=True) for begin, end in pairwise(_starts(own))
    ]
    return torch.cat([pieces[number] for number in order], dim=1)


def split(vectors: torch.Tensor, widths: Widths, order: Sequence[int] | None) -> torch.Tensor:
    """`DeviceOps.split`."""
    samples, sizes = len(vectors), [width for own in widths for width in own]
    numbers = range(len(sizes)) if order is None else order
    columns = _starts([sizes[number] for number in numbers])
    piece = {number: vectors[:, columns[at] : columns[at + 1]] for at, number in enumerate(numbers)}
    out = torch.empty(vectors.numel(), dtype=vectors.dtype, device=vectors.device)
    firsts = _starts([len(own) for own in widths])
    for block, (first, last) in zip(_blocks(out, samples, widths), pairwise(firsts), strict=True):
        if block.numel():
            torch.cat([piece[number] for number in range(first, last)], dim=1, out=block)
    return out


def mean(vectors: torch.Tensor, lengths: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
    """`DeviceOps.mean`."""
    divisors = lengths.clamp(min=1).T.to(torch.float32)
    if len(set(widths)) == 1:
        return (vectors.reshape(*divisors.shape, widths[0]) / divisors[:, :, None]).view(vectors.shape)
    repeats = torch.tensor(widths, device=vectors.device)
    return vectors / torch.repeat_interleave(divisors, repeats, dim=1, output_size=vectors.shape[1])


# -- the wire ---------------------------------------------------------------------------------------------------------

_FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def encode(rows: torch.Tensor, codec: Codec, widths: Sequence[int] | None) -> torch.Tensor:
    """`DeviceOps.encode`; formats and rounding are those of `kernels.reference_codecs`."""
    match codec:
        case "fp16":
            return rows.to(torch.float16)
        case "bf16":
            return rows.to(torch.bfloat16)
        case "int8":
            return by_vector(rows, widths, 0, _encode_int8)
        case "fp8_e4m3":
            return by_vector(rows, widths, 0, lambda part: _encode_fp8(part, "e4m3"))
        case "fp8_e5m2":
            return by_vector(rows, widths, 0, lambda part: _encode_fp8(part, "e5m2"))
    raise InputError(f"unknown codec {codec!r}: expected one of {', '.join(CODECS)}")


def decode(encoded: torch.Tensor, codec: Codec, widths: Sequence[int] | None) -> torch.Tensor:
    """`DeviceOps.decode`."""
    match codec:
        case "fp16" | "bf16":
            return encoded.to(torch.float32)
        case "int8":
            return by_vector(encoded, widths, ROW_OVERHEAD[codec], _decode_int8)
        case "fp8_e4m3":
            return by_vector(encoded, widths, ROW_OVERHEAD[codec], lambda part: _decode_fp8(part, "e4m3"))
        case "fp8_e5m2":
            return by_vector(encoded, widths, ROW_OVERHEAD[codec], lambda part: _decode_fp8(part, "e5m2"))
    raise InputError(f"unknown codec {codec!r}: expected one of {', '.join(CODECS)}")


def by_vector(
    rows: torch.Tensor,
    widths: Sequence[int] | None,
    overhead: int,
    change: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Change every vector of a row by itself; vectors of one width at once."""
    if widths is None or len(widths) == 1:
        return change(rows)
    if len(set(widths)) == 1:
        one = change(rows.reshape(len(rows) * len(widths), widths[0] + overhead))
        return one.view(len(rows), len(widths) * one.shape[1])
    return torch.cat([change(part) for part in rows.split([width + overhead for width in widths], dim=1)], dim=1)


def _scaled(rows: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Rows divided by their scale; zero where the scale is: such a row has no range."""
    return torch.where(scale > 0, rows / scale, 0.0)


def _encode_int8(rows: torch.Tensor) -> torch.Tensor:
    low, high = torch.aminmax(rows, dim=1, keepdim=True)
    bias = low + 0.0  # a zero is +0, whichever sign was met first
    scale = (high + 0.0 - bias) / 255
    codes = _scaled(rows - bias, scale).round_().clamp_(0, 255)
    return _with_scales(codes.to(torch.uint8), scale, bias)


def _decode_int8(encoded: torch.Tensor) -> torch.Tensor:
    codes, scales = _without_scales(encoded, 2)
    return codes.to(torch.float32).mul_(scales[:, :1]).add_(scales[:, 1:])


def _encode_fp8(rows: torch.Tensor, form: Fp8) -> torch.Tensor:
    scale = rows.abs().amax(dim=1, keepdim=True) / FP8_MAX[form]
    scaled = _scaled(rows, scale).clamp_(-FP8_MAX[form], FP8_MAX[form])
    return _with_scales(scaled.to(_FP8[form]).view(torch.uint8), scale)


def _decode_fp8(encoded: torch.Tensor, form: Fp8) -> torch.Tensor:
    codes, scale = _without_scales(encoded, 1)
    return codes.contiguous().view(_FP8[form]).to(torch.float32).mul_(scale)


def _with_scales(codes: torch.Tensor, *per_row: torch.Tensor) -> torch.Tensor:
    return torch.cat([codes, torch.cat(per_row, dim=1).view(torch.uint8)], dim=1)


def _without_scales(encoded: torch.Tensor, per_row: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (codes uint8 [rows, dim], scales float32 [rows, per_row])."""
    dim = encoded.shape[1] - 4 * per_row
    scales = encoded[:, dim:].clone(memory_format=torch.contiguous_format)  # aligned for fp32, which a view is not
    return encoded[:, :dim], scales.view(torch.float32)
