"""Bringing the records of all ranks to rank 0, on rank 0's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foreshard.calibration.launch.clocks import ClockOffset, CommonClock, clock_id, measure_offset, shared_offsets
from foreshard.calibration.launch.measured import WorldTimes
from foreshard.calibration.launch.recorder import RankTimes
from foreshard.calibration.launch.world import World

if TYPE_CHECKING:
    import torch

__all__ = ["common_offset", "gather_times"]

FloatArray = NDArray[np.float64]


def common_offset(world: World) -> ClockOffset:
    """Estimate how far this rank's clock is from rank 0's; all ranks call it together."""
    own = measure_offset(world.control, world.rank, world.world_size)
    ids, offsets = zip(*world.everyones((clock_id(), own)), strict=True)
    return shared_offsets(ids, offsets)[world.rank]


def gather_times(world: World, times: RankTimes, clock: CommonClock) -> WorldTimes | None:
    """Return the records of all ranks on rank 0, None on the others; all ranks call it together."""
    import torch
    import torch.distributed as dist

    start, end = clock.to_common(times.start_s), clock.to_common(times.end_s)
    own = torch.from_numpy(np.stack([start, end, times.host_s, times.sent_bytes, times.received_bytes]))
    uncertainty = torch.full((1,), clock.uncertainty_s, dtype=torch.float64)
    dist.reduce(uncertainty, dst=0, op=dist.ReduceOp.MAX, group=world.control)
    if world.rank:
        dist.gather(own, dst=0, group=world.control)
        return None
    parts: list[torch.Tensor] = [torch.empty_like(own) for _ in range(world.world_size)]
    dist.gather(own, parts, dst=0, group=world.control)
    whole = torch.stack(parts, dim=-1).numpy()  # [5, steps, ops, ranks]
    start, end, host, sent, received = whole
    return WorldTimes(
        start_s=start, end_s=end, host_s=host, sent_bytes=sent, received_bytes=received, clock_s=float(uncertainty)
    )
