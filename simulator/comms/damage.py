"""What damaged links do to a collective of its own: how long it takes without the damage or, if no longer, why not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from foreshard.simulator.comms.collectives import lower
from foreshard.simulator.comms.single import CollectiveResult, ranks_of, run_one, uniform_collective
from foreshard.simulator.job.program import AllToAll
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.units import format_bytes, format_us

__all__ = ["CollectiveDamage", "damage_of_collective"]

_SAME = 1e-9  # of a time: a smaller change is rounding


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
                reason=_reason(before, result, factor) if carried[links].any() else "unused: no bytes of it cross them",
            )


def _reason(before: CollectiveResult, now: CollectiveResult, factor: float) -> str:
    detour = "" if factor else "its bytes go another way; "
    if abs(now.time_s - before.time_s) > _SAME * before.time_s:
        return f"{detour}takes {format_us(now.time_s)} instead of {format_us(before.time_s)}"
    return f"{detour}no change, they are not the bottleneck: it is bound by {now.bottleneck or 'latency'}"
