"""What damaged links do to a collective of its own: how long it takes without the damage or, if no longer, why not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from foreshard.simulator.comms.collectives import lower
from foreshard.simulator.comms.single import CollectiveResult, ranks_of, run_one, uniform_collective
from foreshard.simulator.job.program import AllToAll
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.units import format_bytes

__all__ = ["SAME", "UNDAMAGED", "CollectiveDamage", "apart", "damage_of_collective"]

SAME = 1e-5  # of a time: a smaller change is none, 0.1 us of 10 ms
UNDAMAGED = "a factor of 1: nothing is damaged"
_DECIMALS = {"us": 1, "ms": 3}  # where fewer do not matter
_SCALES = {"us": 1e6, "ms": 1e3}


def apart(unit: Literal["us", "ms"], *seconds: float) -> list[str]:
    """Return times in a unit, with as many decimals as tell them apart, and a single one from zero."""
    scale, others = _SCALES[unit], seconds if len(seconds) > 1 else (*seconds, 0.0)
    for decimals in range(_DECIMALS[unit], 15):
        told = [f"{each * scale:.{decimals}f} {unit}" for each in others]
        if len(set(told)) == len(told):
            break
    return told[: len(seconds)]


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveDamage:
    """Links that match `pattern` have `factor` of their bandwidth left: a collective of `nbytes` takes `time_s`, and
    `whole_time_s` without this damage, when the busiest of these links carries `link_bytes`."""

    pattern: str
    factor: float
    nbytes: float
    link_bytes: float
    whole_time_s: float
    time_s: float
    reason: str

    def sentence(self) -> str:
        """What the damage does, in words."""
        left = f"x {self.factor:g}" if self.factor else "missing"
        return f"{self.pattern} {left}, {format_bytes(self.nbytes)}: {self.reason}"


def damage_of_collective(
    cluster: Cluster,
    results: list[CollectiveResult],
    all_to_all: AllToAll = "pairwise",
    ranks_per_node: int | None = None,
) -> Iterator[CollectiveDamage]:
    """Yield what each pattern of damaged links of a cluster does to collectives that `run_one` predicted on it."""
    for pattern, factor in cluster.spec.degrade.items():
        whole, links = cluster.mended(pattern), cluster.links_named(pattern)
        names = {cluster.link_name(link) for link in links.tolist()}
        for result in results:
            before = run_one(whole, result.kind, result.nbytes, all_to_all, ranks_per_node)
            ranks = ranks_of(whole, ranks_per_node)
            lowered = lower(whole, uniform_collective(result.kind, ranks.tolist(), result.nbytes, all_to_all))
            carried = np.zeros(len(whole.link_usable))
            for bundle in lowered.phases:
                np.add.at(carried, bundle.links, bundle.nbytes)
            yield CollectiveDamage(
                pattern=pattern,
                factor=factor,
                nbytes=result.nbytes,
                link_bytes=float(carried[links].max()),
                whole_time_s=before.time_s,
                time_s=result.time_s,
                reason=_reason(before, result, factor, names) if carried[links].any() else _UNUSED,
            )


_UNUSED = "unused: no bytes of it cross them"


def _reason(before: CollectiveResult, now: CollectiveResult, factor: float, names: set[str]) -> str:
    if factor == 1:
        return UNDAMAGED
    detour = "" if factor else "its bytes go another way; "
    if abs(now.time_s - before.time_s) > SAME * before.time_s:
        times = apart("us", now.time_s, before.time_s)
        return f"{detour}takes {times[0]} instead of {times[1]}"
    if now.bottleneck in names:
        return f"{detour}no change: what is left of them is more than it takes"
    return f"{detour}no change, they are not the bottleneck: it is bound by {now.bottleneck or 'latency'}"
