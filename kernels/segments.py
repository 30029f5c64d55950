"""Equal keys grouped on the device: the base of deduplication, of the fused update and of cache insertion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from foreshard.kernels.device import Device, blocks_for

__all__ = ["DeviceSegments", "position_bits", "segment_keys", "segment_values"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DeviceSegments:
    """Keys sorted stably by `order` [n]; segment s has key `distinct[s]` and is `order[starts[s] : starts[s + 1]]`.

    `count` [1] is the number of segments, on the device: nobody waits for it. `distinct` [n] and `starts` [n + 1] are
    filled that far. `inverse` [n] is the segment of each key.
    """

    order: Any
    distinct: Any
    starts: Any
    count: Any
    inverse: Any | None


def position_bits(count: int, limit: int | None) -> int:
    """Bits of a position, if keys from 0 to `limit` - 1 and `count` positions fit into one int64 together, else 0."""
    bits = max(1, (count - 1).bit_length())
    return bits if limit is not None and (limit - 1).bit_length() + bits <= 63 else 0


def segment_keys(device: Device, keys: Any, *, limit: int | None, inverse: bool = False) -> DeviceSegments:
    """Group equal `keys` (int64 [n], n > 0), which lie from 0 to `limit` - 1, or anywhere if `limit` is None."""
    bits = position_bits(keys.size, limit)
    if not bits:
        return segment_values(device, keys, 0, inverse=inverse)
    values = device.xp.empty(keys.size, dtype=np.int64)
    args = (keys, np.int64(keys.size), np.int32(bits), values)
    device.launch("pack_keys", blocks_for(device, keys.size), args, threads=device.threads)
    return segment_values(device, values, bits, inverse=inverse)


def segment_values(device: Device, values: Any, bits: int, *, inverse: bool = False) -> DeviceSegments:
    """Group equal keys; `values` hold key << bits | position, or with `bits` 0 the keys alone.

    Values with positions are sorted as they are, which is stable by itself; keys alone need a stable argsort.
    """
    xp, count = device.xp, np.int64(values.size)
    order = xp.empty(values.size, dtype=np.int64) if bits else device.stable_argsort(values)
    ordered = xp.sort(values) if bits else values[order]
    heads = xp.empty(values.size, dtype=np.int32)
    grid = blocks_for(device, values.size)
    device.launch("mark_heads", grid, (ordered, np.int32(bits), count, heads), threads=device.threads)
    ranks = xp.cumsum(heads, dtype=np.int64)
    distinct, starts = xp.empty(values.size, dtype=np.int64), xp.empty(values.size + 1, dtype=np.int64)
    back = xp.empty(values.size, dtype=np.int64) if inverse else None
    args = (ordered, np.int32(bits), ranks, count, order, distinct, starts, back)
    device.launch("place_segments", grid, args, threads=device.threads)
    return DeviceSegments(order=order, distinct=distinct, starts=starts, count=ranks[-1:], inverse=back)
