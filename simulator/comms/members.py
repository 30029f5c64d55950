"""The members of a collective as NCCL orders them: node by node, and who is neighbour of whom in ring and tree."""

from __future__ import annotations

from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.comms.loads import Flows, Loads, longest_latency_s
from foreshard.simulator.comms.machine_constants import machine_constant
from foreshard.simulator.comms.nccl import Shape, tables
from foreshard.topologies.cluster import Cluster

__all__ = ["Members"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Members:
    """Ranks of one group on one cluster; `nodes` are its NVLink domains in the order of their first member, each with
    its members sorted: between nodes NCCL's rings follow the ranks, inside a node the topology.

    NCCL treats an NVLink domain of several nodes (MNNVL) as one node, and so does everything here. Loads are those
    of one byte and are computed once.
    """

    def __init__(self, cluster: Cluster, ranks: IntArray) -> None:
        self.cluster = cluster
        self.ranks = np.asarray(ranks, dtype=np.int64)
        domains = cluster.domain_of[self.ranks]
        _, first, domain = np.unique(domains, return_index=True, return_inverse=True)
        node = np.argsort(np.argsort(first))[domain]  # numbered in the order of their first members
        self._sorted = self.ranks[np.lexsort((self.ranks, node))]
        self._sizes = np.bincount(node, minlength=len(first))
        self._starts = np.cumsum(self._sizes) - self._sizes

    @cached_property
    def nodes(self) -> tuple[IntArray, ...]:
        """The ranks of each node."""
        return tuple(np.split(self._sorted, self._starts[1:]))

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return len(self.ranks)

    @property
    def largest(self) -> int:
        """Ranks of the group in the node that has most of them."""
        return int(self._sizes.max())

    def between(self, a: IntArray, b: IntArray) -> Flows:
        """One byte from each node a[i] to node b[i], spread evenly over their members' NICs."""
        lanes = np.maximum(self._sizes[a], self._sizes[b])
        pair = np.repeat(np.arange(len(a)), lanes)
        lane = np.arange(len(pair)) - np.repeat(np.cumsum(lanes) - lanes, lanes)
        src, dst = (self._sorted[self._starts[n] + lane % self._sizes[n]] for n in (a[pair], b[pair]))
        return Flows(src, dst, 1.0 / lanes[pair])

    @cached_property
    def _within(self) -> Flows:
        """One byte out of and into every member, inside its node: to the next one behind a switch, over all direct
        links in proportion to their bandwidth where GPUs are linked pairwise. Members by their place in `_sorted`."""
        known: dict[bytes, Flows] = {}
        alike, local, at = self.cluster.alike, self.cluster.local_rank, self.cluster.node_of
        parts = []
        for node, start in zip(self.nodes, self._starts.tolist(), strict=True):
            if len(node) > 1:
                key = np.concatenate([alike[at[node]], local[node], at[node] - at[node[0]]]).tobytes()
                flows = known.get(key) or known.setdefault(key, self._chain(node))
                parts.append(Flows(start + flows.src, start + flows.dst, flows.nbytes))
        return Flows.join(*parts)

    def _chain(self, node: IntArray) -> Flows:
        """The flows of one node, members by their place in it."""
        places = np.arange(len(node))
        return self._mesh(node) or Flows(places, np.roll(places, -1), np.ones(len(node)))

    def _mesh(self, node: IntArray) -> Flows | None:
        cluster = self.cluster
        if len(cluster.path(int(node[0]), int(node[1]))) > 1 and self.in_switch:
            return None
        src, dst = (np.ravel(grid) for grid in np.indices((len(node), len(node))))
        src, dst = src[src != dst], dst[src != dst]
        paths = [cluster.path(int(node[s]), int(node[d])) for s, d in zip(src, dst, strict=True)]
        width = np.array([cluster.link_bandwidth[path[0]] if len(path) == 1 else 0.0 for path in paths])
        total = np.bincount(src, width, len(node))
        direct = width > 0
        if not (total > 0).all():
            return None
        return Flows(src[direct], dst[direct], width[direct] / total[src[direct]])

    @property
    def ring_hops(self) -> Flows:
        """One byte over every hop between nodes of NCCL's rings, node after node in rank order and back."""
        return self._hops(np.arange(len(self._sizes)))

    def _hops(self, nodes: IntArray) -> Flows:
        return self.between(nodes, np.roll(nodes, -1))

    @cached_property
    def inside(self) -> Loads:
        """One byte out of and into every member, inside its node."""
        flows = self._within
        return Loads.of(self.cluster, Flows(self._sorted[flows.src], self._sorted[flows.dst], flows.nbytes))

    @cached_property
    def ring(self) -> Loads:
        """One byte along NCCL's rings: each channel enters a node by one NIC, visits all its members and leaves by
        one NIC, one channel for each member, so that all NICs of a node share the traffic."""
        if len(self.nodes) == 1:
            return self.inside
        flows, size = self._within, np.repeat(self._sizes, self._sizes)
        chains = flows.nbytes * (1 - 1 / size[flows.src])
        inside = Flows(self._sorted[flows.src], self._sorted[flows.dst], chains)
        return Loads.of(self.cluster, Flows.join(self.ring_hops, inside))

    @cached_property
    def across(self) -> Loads:
        """One byte out of and into every node, spread evenly over its NICs."""
        return Loads.of(self.cluster, self.ring_hops if len(self.nodes) > 1 else Flows.join())

    @cached_property
    def tree(self) -> Loads:
        """What one byte of buffer sends between nodes in NCCL's double binary tree: half up and half down in each."""
        edges = np.array([*_tree_edges(len(self.nodes)), *_mirrored_edges(len(self.nodes))], dtype=np.int64)
        child, parent = edges.reshape(-1, 2).T
        flows = self.between(np.concatenate([child, parent]), np.concatenate([parent, child]))
        return Loads.of(self.cluster, flows.times(0.5))

    @cached_property
    def in_switch(self) -> bool:
        """Whether the members of a node meet at an NVSwitch."""
        node = max(self.nodes, key=len)
        path = self.cluster.path(int(node[0]), int(node[1])) if len(node) > 1 else ()
        return any("nvswitch" in self.cluster.link_name(link) for link in path)

    def _may_reduce(self) -> bool:
        """Whether switches may add up in every node with members."""
        return bool(self.cluster.nvls[self.cluster.node_of[self.ranks]].all())

    @cached_property
    def hop_s(self) -> float:
        """The longest latency of the links between neighbouring nodes, in seconds, whatever the order of the group."""
        if len(self.nodes) == 1:
            return 0.0
        return longest_latency_s(self.cluster, self._hops(np.argsort(self._sorted[self._starts])))

    @cached_property
    def shape(self) -> Shape:
        """What NCCL's tuning sees of the group."""
        cluster, architecture = self.cluster, self.cluster.gpu(int(self.ranks[0])).architecture
        inside = self.inside.links
        return Shape(
            ranks=self.size,
            nodes=len(self.nodes),
            largest=self.largest,
            lanes=self._lanes(),
            port=1 / self.inside.transfer_s if len(inside) else inf,
            architecture=architecture,
            nvlink=bool(cluster.is_kind("nvlink")[inside].all()),
            in_switch=self.in_switch and architecture in tables()["nvls"]["efficiency"] and self._may_reduce(),
            post_s=machine_constant(cluster, "network_overhead_s"),
        )

    def _lanes(self) -> int:
        """NICs that carry the traffic of one node."""
        network = self.cluster.is_kind("network")[self.across.links]
        return max(1, int(network.sum()) // (2 * len(self.nodes)))

    def network_latency_s(self, nic_s: float) -> float:
        """Latency of a network hop in seconds while NICs are busy for `nic_s`.

        Between idle and loaded it grows linearly, and it is loaded once the transfer takes as long as that latency.
        """
        idle = max(machine_constant(self.cluster, "network_latency_s"), self.hop_s)
        full = max(machine_constant(self.cluster, "loaded_network_latency_s"), idle)
        return idle + (full - idle) * min(1.0, nic_s / full) if full > 0 else 0.0


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
