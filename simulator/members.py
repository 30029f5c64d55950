"""The members of a collective as NCCL orders them: node by node, and who is neighbour of whom in a ring."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from foreshard.topologies.cluster import Cluster

__all__ = ["Flows", "Members"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


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


class Members:
    """Ranks of one group on one cluster; `nodes` are its NVLink domains in the order of their first member.

    NCCL treats an NVLink domain of several nodes (MNNVL) as one node, and so does everything here.
    """

    def __init__(self, cluster: Cluster, ranks: IntArray) -> None:
        self.cluster = cluster
        self.ranks = np.asarray(ranks, dtype=np.int64)
        domains = cluster.domain_of[self.ranks]
        _, first = np.unique(domains, return_index=True)
        self.nodes: tuple[IntArray, ...] = tuple(self.ranks[domains == domains[at]] for at in np.sort(first))

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return len(self.ranks)

    @property
    def largest(self) -> int:
        """Ranks of the group in the node that has most of them."""
        return max(len(node) for node in self.nodes)

    def loads(self, flows: Flows) -> tuple[IntArray, FloatArray]:
        """Bytes that flows put on links: (link numbers [k], bytes [k])."""
        return self.cluster.loads(flows.src, flows.dst, flows.nbytes)

    def between(self, a: IntArray, b: IntArray) -> Flows:
        """One byte from node a to node b, spread evenly over their members' NICs."""
        lanes = np.arange(max(len(a), len(b)))
        return Flows(a[lanes % len(a)], b[lanes % len(b)], np.full(len(lanes), 1.0 / len(lanes)))

    def within(self, node: IntArray) -> Flows:
        """One byte out of and into every member of a node: to the next one behind a switch, over all direct links
        in proportion to their bandwidth where GPUs are linked pairwise."""
        if len(node) < 2:
            return Flows.join()
        return self._mesh(node) or Flows(node, np.roll(node, -1), np.ones(len(node)))

    def _mesh(self, node: IntArray) -> Flows | None:
        cluster = self.cluster
        src, dst = (np.ravel(grid) for grid in np.meshgrid(node, node, indexing="ij"))
        src, dst = src[src != dst], dst[src != dst]
        paths = [cluster.path(int(s), int(d)) for s, d in zip(src, dst, strict=True)]
        width = np.array([cluster.link_bandwidth[path[0]] if len(path) == 1 else 0.0 for path in paths])
        total = np.bincount(src, width, int(src.max()) + 1)
        if not (total[node] > 0).all():
            return None
        return Flows(src, dst, width / total[src])

    @cached_property
    def ring(self) -> Flows:
        """One byte along every hop of NCCL's rings: each channel enters a node by one NIC, visits all its members
        and leaves by one NIC, one channel for each member, so that all NICs of a node share the traffic."""
        if len(self.nodes) == 1:
            return self.within(self.nodes[0])
        following = self.nodes[1:] + self.nodes[:1]
        outside = [self.between(a, b) for a, b in zip(self.nodes, following, strict=True)]
        inside = [self.within(node).times(1 - 1 / len(node)) for node in self.nodes]
        return Flows.join(*outside, *inside)

    @cached_property
    def all_nodes_within(self) -> Flows:
        """One byte out of and into every member, inside its node."""
        return Flows.join(*(self.within(node) for node in self.nodes))

    @cached_property
    def tree(self) -> Flows:
        """What one byte of buffer sends over the NICs in NCCL's double binary tree: half up and half down each."""
        edges = [*_tree_edges(len(self.nodes)), *_mirrored_edges(len(self.nodes))]
        flows = []
        for child, parent in edges:
            flows.append(self.between(self.nodes[child], self.nodes[parent]).times(0.5))
            flows.append(self.between(self.nodes[parent], self.nodes[child]).times(0.5))
        return Flows.join(*flows)


def _tree_edges(nodes: int) -> list[tuple[int, int]]:
    """(child, parent) pairs of a binary tree in which every odd node is a leaf.

    Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009): the parent
    of a node clears its lowest set bit and sets the next one, or only clears it where that node does not exist.
    """
    edges = []
    for node in range(1, nodes):
        bit = node & -node
        parent = (node ^ bit) | (bit << 1)
        edges.append((node, parent if parent < nodes else node ^ bit))
    return edges


def _mirrored_edges(nodes: int) -> list[tuple[int, int]]:
    """The second tree, in which leaves and inner nodes change places: mirrored for even, shifted for odd counts."""
    if nodes % 2 == 0:
        return [(nodes - 1 - child, nodes - 1 - parent) for child, parent in _tree_edges(nodes)]
    return [((child + 1) % nodes, (parent + 1) % nodes) for child, parent in _tree_edges(nodes)]
