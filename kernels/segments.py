"""Equal keys grouped on the device: the base of deduplication, of the fused update and of cache insertion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from foreshard.kernels.device import Device, blocks_for

__all__ = ["DeviceSegments", "segment_keys"]


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


def segment_keys(device: Device, keys: Any, *, inverse: bool = False) -> DeviceSegments:
    """Group equal `keys` (int64 [n], n > 0): a stable sort, then one pass that marks heads and one that places them."""
    xp, count = device.xp, np.int64(keys.size)
    order = device.stable_argsort(keys)
    heads = xp.empty(keys.size, dtype=np.int32)
    grid = blocks_for(device, keys.size)
    device.launch("mark_heads", grid, (keys, order, count, heads), threads=device.threads)
    ranks = xp.cumsum(heads, dtype=np.int64)
    distinct, starts = xp.empty(keys.size, dtype=np.int64), xp.empty(keys.size + 1, dtype=np.int64)
    back = xp.empty(keys.size, dtype=np.int64) if inverse else None
    args = (keys, order, ranks, count, distinct, starts, back)
    device.launch("place_segments", grid, args, threads=device.threads)
    return DeviceSegments(order=order, distinct=distinct, starts=starts, count=ranks[-1:], inverse=back)
