"""The links between leaf and spine switches: which leaf a NIC is on, and the bytes that flows put on the spines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshard.topologies.machine import LEAF, ClusterSpec, Fabric
from foreshard.topologies.placing import Placing

__all__ = ["Core", "build_core"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Core:
    """Leaf and spine switches.

    leaf [slots, ranks]: the leaf of each rank's traffic, -1 without a NIC; spine [slots, ranks]: the spine that a
    destination selects. Link l * spines + s goes up from leaf l to spine s, links [leaves * spines:] come down in
    the same order; there are none with a single leaf. alive [2, leaves, spines] tells which of them exist.
    """

    leaves: int
    spines: int
    fabric: Fabric
    bandwidth: FloatArray
    usable: FloatArray
    latency_s: float
    source: str
    leaf: IntArray
    spine: IntArray
    domain_of: IntArray
    nic_leaf: IntArray

    def none(self) -> FloatArray:
        """No bytes on any link, [links]."""
        return np.zeros(len(self.usable))

    def leaf_of_nic(self, node: int, nic: str) -> int:
        """Leaf switch of a NIC."""
        return int(self.nic_leaf[node, int(nic[3:])])

    def ends(self, link: int) -> tuple[str, str]:
        """Names of the two ends of a link."""
        down, rest = divmod(link, self.leaves * self.spines)
        leaf, spine = divmod(rest, self.spines)
        return (f"spine{spine}", f"leaf{leaf}") if down else (f"leaf{leaf}", f"spine{spine}")

    def paths(self, slot: int, src: int, dst: int) -> list[tuple[tuple[int, ...], float]]:
        """Paths between the leaves of two ranks with their shares; one empty path on the same leaf."""
        a, b = int(self.leaf[slot, src]), int(self.leaf[slot, dst])
        if a == b:
            return [((), 1.0)]
        if self.fabric.routing == "by_destination":
            return [(self._over(a, b, int(self.spine[slot, dst])), 1.0)]
        return [(self._over(a, b, s), 1.0 / self.spines) for s in range(self.spines)]

    def _over(self, a: int, b: int, spine: int) -> tuple[int, ...]:
        return (a * self.spines + spine, (self.leaves + b) * self.spines + spine)

    def latency_between(self, src: IntArray, dst: IntArray) -> FloatArray:
        """Latency of up and down links in seconds, [slots, flows]."""
        return np.where(self.leaf[:, src] != self.leaf[:, dst], 2 * self.latency_s, 0.0)

    def loads(self, src: IntArray, dst: IntArray, nbytes: FloatArray) -> FloatArray:
        """Bytes of flows on each link, [links]; nbytes 0 for flows that do not leave their domain."""
        total = self.none()
        if self.leaves == 1:
            return total
        for leaf, spine in zip(self.leaf, self.spine, strict=True):
            a, b = leaf[src], leaf[dst]
            crossing = np.where(a != b, nbytes / len(self.leaf), 0.0)
            if self.fabric.routing == "by_destination":
                over = spine[dst]
                size = self.leaves * self.spines
                up = np.bincount(a * self.spines + over, crossing, minlength=size)
                down = np.bincount(b * self.spines + over, crossing, minlength=size)
                total += np.concatenate([up, down])
            else:
                total += self._spread(*(np.bincount(end, crossing, minlength=self.leaves) for end in (a, b)))
        return total

    def _spread(self, up: FloatArray, down: FloatArray) -> FloatArray:
        """Bytes up and down per leaf spread over all spines, [links]."""
        return np.repeat(np.concatenate([up, down]) / self.spines, self.spines)

    def outer_loads(self, sends: FloatArray, receives: FloatArray) -> FloatArray:
        """Bytes of the flows sends[s] * receives[d] between different domains on each link, [links]."""
        total = self.none()
        if self.leaves == 1:
            return total
        for leaf, spine in zip(self.leaf, self.spine, strict=True):
            if self.fabric.routing == "by_destination":
                total += self._outer_by_destination(leaf, spine, sends, receives)
            else:
                up = np.bincount(leaf, sends * self._elsewhere(leaf, receives), minlength=self.leaves)
                down = np.bincount(leaf, receives * self._elsewhere(leaf, sends), minlength=self.leaves)
                total += self._spread(up, down)
        return total / len(self.leaf)

    def _elsewhere(self, leaf: IntArray, weight: FloatArray) -> FloatArray:
        """Sum of `weight` over the ranks on another leaf and in another domain than each rank, [ranks]."""
        joint = leaf * (int(self.domain_of[-1]) + 1) + self.domain_of
        _, joint = np.unique(joint, return_inverse=True)
        on_leaf, in_domain, both = (np.bincount(key, weight)[key] for key in (leaf, self.domain_of, joint))
        return np.maximum(weight.sum() - on_leaf - in_domain + both, 0.0)

    def _outer_by_destination(
        self, leaf: IntArray, spine: IntArray, sends: FloatArray, receives: FloatArray
    ) -> FloatArray:
        size = self.leaves * self.spines
        down = np.bincount(leaf * self.spines + spine, receives * self._elsewhere(leaf, sends), minlength=size)
        up = np.zeros((self.leaves, self.spines))
        for s in range(self.spines):
            toward = np.where(spine == s, receives, 0.0)
            up[:, s] = np.bincount(leaf, sends * self._elsewhere(leaf, toward), minlength=self.leaves)
        return np.concatenate([up.ravel(), down])


def _nic_leaves(fabric: Fabric, at: Placing) -> tuple[IntArray, IntArray]:
    """Leaf of each NIC and its position on that leaf, [nodes, nics]."""
    nodes, nics = len(at.kind_of), max(int(at.nics_of.max()), 1)
    node, nic = np.indices((nodes, nics))
    per_leaf = fabric.nodes_per_leaf or nodes
    if fabric.kind == "single_switch":
        return np.zeros((nodes, nics), dtype=np.int64), node * nics + nic
    if fabric.kind == "leaf_spine":
        return node // per_leaf, (node % per_leaf) * nics + nic
    return (node // per_leaf) * nics + nic, node % per_leaf


def _attached(at: Placing, nic_leaf: IntArray, leaves: int, field: str) -> FloatArray:
    """What the NICs of each leaf carry together, [leaves]."""
    total = np.zeros(leaves)
    for kind, spec in enumerate(at.kinds):
        nodes = at.nodes_of_kind(kind)
        for link in spec.links:
            if link.dst == LEAF:
                total += np.bincount(nic_leaf[nodes, int(link.src[3:])], minlength=leaves) * getattr(link, field)
    return total


def build_core(spec: ClusterSpec, at: Placing) -> Core:
    """Return the leaf-spine part of a cluster."""
    fabric = spec.fabric
    nic_leaf, position = _nic_leaves(fabric, at)
    leaves = int(nic_leaf.max()) + 1
    spines = fabric.spines
    nic = np.array([np.concatenate([_slot_nics(at, k, slot) for k in at.kind_of]) for slot in range(at.slots)])
    share = 1.0 / (fabric.oversubscription * spines)
    up = [np.repeat(_attached(at, nic_leaf, leaves, f) * share, spines) for f in ("bandwidth", "usable")]
    bandwidth, usable = (np.concatenate([u, u]) if leaves > 1 else np.zeros(0) for u in up)
    return Core(
        leaves=leaves,
        spines=spines,
        fabric=fabric,
        bandwidth=bandwidth,
        usable=usable,
        latency_s=fabric.latency_s,
        source=fabric.source,
        leaf=np.where(nic < 0, -1, nic_leaf[at.node_of, np.maximum(nic, 0)]),
        spine=np.where(nic < 0, 0, position[at.node_of, np.maximum(nic, 0)] % spines),
        domain_of=at.domain_of,
        nic_leaf=nic_leaf,
    )


def _slot_nics(at: Placing, kind: int, slot: int) -> IntArray:
    own = at.routes[kind].nic
    row: IntArray = own[slot * len(own) // at.slots]
    return row
