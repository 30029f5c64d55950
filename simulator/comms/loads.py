"""Flows between ranks and the bytes they put on links."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshard.topologies.cluster import Cluster

__all__ = ["Flows", "Loads", "longest_latency_s"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Cluster.loads takes time for every link of the cluster; following the path of one flow takes as long as so many.
_LINKS_FOR_A_PATH = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """Flows of ranks src[i] -> dst[i] with nbytes[i], three vectors [flows]."""

    src: IntArray
    dst: IntArray
    nbytes: FloatArray

    @classmethod
    def join(cls, *parts: Flows) -> Flows:
        """All flows together."""
        return cls(
            np.concatenate([np.zeros(0, dtype=np.int64), *(part.src for part in parts)]),
            np.concatenate([np.zeros(0, dtype=np.int64), *(part.dst for part in parts)]),
            np.concatenate([np.zeros(0), *(part.nbytes for part in parts)]),
        )

    def times(self, factor: float) -> Flows:
        """The same flows with all bytes times `factor`."""
        return Flows(self.src, self.dst, self.nbytes * factor)


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """Bytes on links of a cluster: distinct `links` [k], `nbytes` [k]."""

    cluster: Cluster
    links: IntArray
    nbytes: FloatArray

    @classmethod
    def of(cls, cluster: Cluster, flows: Flows) -> Loads:
        """What flows put on the links of their routes."""
        if _LINKS_FOR_A_PATH * len(flows.src) < len(cluster.link_usable):
            return cls._along_paths(cluster, flows)
        return cls(cluster, *cluster.loads(flows.src, flows.dst, flows.nbytes))

    @classmethod
    def _along_paths(cls, cluster: Cluster, flows: Flows) -> Loads:
        total: dict[int, float] = {}
        for src, dst, nbytes in zip(flows.src.tolist(), flows.dst.tolist(), flows.nbytes.tolist(), strict=True):
            for path, share in cluster.paths(src, dst):
                for link in path:
                    total[link] = total.get(link, 0.0) + share * nbytes
        links = sorted(link for link, nbytes in total.items() if nbytes > 0)
        return cls(
            cluster, np.array(links, dtype=np.int64), np.array([total[link] for link in links], dtype=np.float64)
        )

    def times(self, factor: float) -> Loads:
        """The same links with all bytes times `factor`."""
        return Loads(self.cluster, self.links, self.nbytes * factor)

    def plus(self, other: Loads) -> Loads:
        """Both loads together."""
        links, inverse = np.unique(np.concatenate([self.links, other.links]), return_inverse=True)
        total = np.bincount(inverse, np.concatenate([self.nbytes, other.nbytes]), len(links)).astype(np.float64)
        return Loads(self.cluster, links, total)

    def only(self, kind: str) -> Loads:
        """The part on links of a kind."""
        chosen = self.cluster.is_kind(kind)[self.links]
        return Loads(self.cluster, self.links[chosen], self.nbytes[chosen])

    def stretch(self, kind: str, share: float) -> FloatArray:
        """How many times its bytes a port takes up of each link that reaches `share` of nominal bandwidth, [k].

        At least 1, and 1 on links of other kinds than `kind`.
        """
        usable, nominal = self.cluster.link_usable[self.links], self.cluster.link_bandwidth[self.links]
        reached = np.minimum(usable, share * nominal)
        return np.where(self.cluster.is_kind(kind)[self.links], usable / reached, 1.0)

    @property
    def transfer_s(self) -> float:
        """Seconds on the busiest link at what links really carry."""
        return float((self.nbytes / self.cluster.link_usable[self.links]).max(initial=0.0))

    @property
    def nominal_s(self) -> float:
        """Seconds on the busiest link at nominal bandwidth."""
        return float((self.nbytes / self.cluster.link_bandwidth[self.links]).max(initial=0.0))

    @property
    def busiest(self) -> int | None:
        """The link that takes longest at nominal bandwidth; None without bytes."""
        if not len(self.links):
            return None
        return int(self.links[(self.nbytes / self.cluster.link_bandwidth[self.links]).argmax()])


def longest_latency_s(cluster: Cluster, flows: Flows) -> float:
    """The longest latency of the flows' routes in seconds, of several paths the worst."""
    if _LINKS_FOR_A_PATH * len(flows.src) < len(cluster.link_usable):
        pairs = zip(flows.src.tolist(), flows.dst.tolist(), strict=True)
        routes = [list(path) for src, dst in pairs for path, _ in cluster.paths(src, dst)]
        return max((float(cluster.link_latency[route].sum()) for route in routes), default=0.0)
    return float(cluster.path_latency(flows.src, flows.dst).max(initial=0.0))
