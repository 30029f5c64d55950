"""Copies between host memory and GPUs: what of them starts together in a machine is one transfer over its links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.comms.lowering import Bundle
from foreshard.simulator.job.program import HostCopy
from foreshard.topologies.cluster import Cluster

__all__ = ["CopiesInFlight", "HostCopies"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Place = tuple[int, int]  # (node of the program's graph, which of its copies)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CopiesInFlight:
    """Copies of `ranks`, ascending, that begin together; the groups of `bundle` are the machine's nodes they are in."""

    place: Place
    ranks: IntArray
    bundle: Bundle


class HostCopies:
    """Who copies what from when on. The ranks of one machine that start at the same instant end together."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._reach = {
            "to_device": cluster.host_to_device_bytes_per_s > 0,
            "from_device": cluster.device_to_host_bytes_per_s > 0,
        }
        self._waiting: dict[float, dict[Place, list[tuple[HostCopy, IntArray]]]] = {}

    def moving(self, copy: HostCopy, ranks: IntArray) -> NDArray[np.bool_]:
        """Whether each of `ranks` has bytes to copy and a way to host memory, [ranks]."""
        moves: NDArray[np.bool_] = (copy.nbytes[ranks] > 0) & self._reach[copy.direction][ranks]
        return moves

    def wait(self, place: Place, copy: HostCopy, ranks: IntArray, times: FloatArray) -> Iterator[float]:
        """Note that `ranks` start at `times` [ranks] in seconds; yields the instants that nothing waited for yet."""
        for at in np.unique(times).tolist():
            if at not in self._waiting:
                self._waiting[at] = defaultdict(list)
                yield at
            self._waiting[at][place].append((copy, ranks[times == at]))

    def begin(self, at: float) -> Iterator[CopiesInFlight]:
        """What starts at an instant, operation by operation."""
        for place, parts in sorted(self._waiting.pop(at).items()):
            copy = parts[0][0]
            ranks = np.sort(np.concatenate([ranks for _, ranks in parts]))
            loads = self._cluster.host_loads(ranks, copy.nbytes[ranks], copy.direction)
            bundle = Bundle(
                groups=loads.nodes,
                latency_s=np.zeros(len(loads.nodes)),
                floor_s=np.full(len(loads.nodes), copy.floor_s),
                first=loads.first,
                links=loads.links,
                nbytes=loads.nbytes,
                stretch=np.ones(len(loads.links)),
            )
            yield CopiesInFlight(place=place, ranks=ranks, bundle=bundle)

    def of_nodes(self, copies: CopiesInFlight, nodes: IntArray) -> IntArray:
        """Those of the copying ranks that are in some nodes of the machine."""
        here: IntArray = copies.ranks[np.isin(self._cluster.node_of[copies.ranks], nodes)]
        return here
