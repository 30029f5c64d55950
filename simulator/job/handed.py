"""What every rank hands to a collective and gets from it, its own part included."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.program import Collective
from foreshard.simulator.job.traffic import PairBytes

__all__ = ["given", "received"]

FloatArray = NDArray[np.float64]


def given(collective: Collective) -> FloatArray:
    """Bytes (or elements) in each rank's send buffer, [ranks]."""
    if collective.kind == "all_to_all":
        return _per_rank(collective, lambda pairs: pairs.bytes_out() + pairs.diagonal())
    return _share(collective, whole=collective.kind in ("reduce_scatter", "all_reduce", "broadcast"))


def received(collective: Collective) -> FloatArray:
    """Bytes (or elements) in each rank's receive buffer, [ranks]."""
    if collective.kind == "all_to_all":
        return _per_rank(collective, lambda pairs: pairs.bytes_in() + pairs.diagonal())
    return _share(collective, whole=collective.kind in ("all_gather", "all_reduce", "broadcast"))


def _share(collective: Collective, *, whole: bool) -> FloatArray:
    groups = collective.groups
    sizes = np.array([collective.nbytes_of(group) for group in range(len(groups))])
    return (sizes if whole else sizes / groups.sizes)[groups.group_of]


def _per_rank(collective: Collective, of: Callable[[PairBytes], FloatArray]) -> FloatArray:
    """A per-member figure of an all_to_all's traffic on the ranks of the world."""
    groups = collective.groups
    values = np.zeros(groups.world_size)
    shared = of(collective.traffic[0]) if len(collective.traffic) == 1 else None
    for index, members in enumerate(groups.members):
        values[members] = shared if shared is not None else of(collective.traffic[index])
    return values
