"""Flat buffers of vectors as they travel: which vectors lie where, encoded and decoded piece by piece.

A *block* is a number of equal rows, each a few vectors side by side: the pooled vectors of a source's samples
(`rows` samples, the widths of the owner's slots), or the vectors of the ids of one lane (`rows` ids, one width).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from foreshard.calibration.ops.device_ops import DeviceOps
from foreshard.kernels.reference_codecs import ROW_OVERHEAD, Codec
from foreshard.simulator.job.program import CollectiveKind
from foreshard.simulator.job.workload import DataType

if TYPE_CHECKING:
    import torch

__all__ = ["Block", "Hop", "codec_of", "decode_blocks", "encode_blocks", "mirrored", "wire_elements"]


class Block(NamedTuple):
    """`rows` rows of vectors of these `widths`."""

    rows: int
    widths: tuple[int, ...]


class Hop(NamedTuple):
    """The buffers of one exchange, block by block for each peer; where a rank gives or gets one part, one peer.

    An all_to_all sends and receives a part for each peer, a reduce_scatter sends one for each and receives its own, an
    all_gather the other way round.
    """

    kind: CollectiveKind
    send: tuple[tuple[Block, ...], ...]
    receive: tuple[tuple[Block, ...], ...]


_MIRROR: dict[CollectiveKind, CollectiveKind] = {"reduce_scatter": "all_gather", "all_gather": "reduce_scatter"}


def mirrored(hop: Hop) -> Hop:
    """The exchange that brings gradients back."""
    return Hop(kind=_MIRROR.get(hop.kind, hop.kind), send=hop.receive, receive=hop.send)


def codec_of(kind: CollectiveKind, precision: DataType, *, backward: bool) -> Codec | None:
    """The codec of an exchange; None for fp32.

    Formats with a scale for each vector cannot be summed on the way: a reduce_scatter carries fp16 instead and the
    all_gather that mirrors it bf16 (see `simulator.job.codecs.carried`). fp8 is e4m3 forward and e5m2 backward, as
    TorchRec has it (meta-pytorch/torchrec distributed/fbgemm_qcomm_codec.py).
    """
    match precision:
        case "fp32":
            return None
        case "fp16" | "bf16":
            return precision
        case "fp8" | "int8" if kind in ("reduce_scatter", "all_gather"):
            return "bf16" if backward else "fp16"
        case "fp8":
            return "fp8_e5m2" if backward else "fp8_e4m3"
        case "int8":
            return "int8"


def wire_elements(blocks: Sequence[Block], codec: Codec | None) -> int:
    """Elements of the blocks in the type that travels; row-wise formats are bytes with their scales among them."""
    overhead = ROW_OVERHEAD[codec] if codec else 0
    return sum(block.rows * (sum(block.widths) + overhead * len(block.widths)) for block in blocks)


def encode_blocks(ops: DeviceOps, flat: torch.Tensor, blocks: Sequence[Block], codec: Codec) -> torch.Tensor:
    """A flat float32 buffer as it travels."""
    if not ROW_OVERHEAD[codec]:
        return ops.encode(flat.view(1, -1), codec).view(-1)
    return _each(flat, blocks, 0, lambda rows, widths: ops.encode(rows, codec, widths))


def decode_blocks(ops: DeviceOps, flat: torch.Tensor, blocks: Sequence[Block], codec: Codec) -> torch.Tensor:
    """The flat float32 buffer that `encode_blocks` was given."""
    if not ROW_OVERHEAD[codec]:
        return ops.decode(flat.view(1, -1), codec).view(-1)
    return _each(flat, blocks, ROW_OVERHEAD[codec], lambda rows, widths: ops.decode(rows, codec, widths))


def _each(flat: torch.Tensor, blocks: Sequence[Block], overhead: int, change) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """Change the vectors block by block; neighbours with the same widths at once."""
    import torch

    parts, at = [], 0
    for widths, same in groupby((block for block in blocks if block.rows), key=lambda block: block.widths):
        rows, columns = sum(block.rows for block in same), sum(widths) + overhead * len(widths)
        if columns:
            parts.append(change(flat[at : at + rows * columns].view(rows, columns), widths).reshape(-1))
        at += rows * columns
    if not parts:
        return change(flat.new_empty((0, 1 + overhead)), (1,)).reshape(-1)
    return parts[0] if len(parts) == 1 else torch.cat(parts)
