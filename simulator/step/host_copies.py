"""Copies between host memory and GPUs: what of them starts together in a machine is one transfer over its links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.program import HostCopy
from foreshard.topologies.cluster import Cluster

__all__ = ["CopyInFlight", "HostCopies"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Place = tuple[int, int]  # (node of the program's graph, which of its copies)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CopyInFlight:
    """Copies of some ranks of one machine: `nbytes` [k] on `links` [k]."""

    place: Place
    ranks: IntArray
    links: IntArray
    nbytes: FloatArray
    floor_s: float


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

    def begin(self, at: float) -> Iterator[CopyInFlight]:
        """What starts at an instant, machine by machine."""
        for place, parts in sorted(self._waiting.pop(at).items()):
            copy = parts[0][0]
            ranks = np.sort(np.concatenate([ranks for _, ranks in parts]))
            nodes = self._cluster.node_of[ranks]
            for node, links, nbytes in self._cluster.host_loads(ranks, copy.nbytes[ranks], copy.direction):
                here = ranks[slice(*np.searchsorted(nodes, (node, node + 1)).tolist())]
                yield CopyInFlight(place=place, ranks=here, links=links, nbytes=nbytes, floor_s=copy.floor_s)
