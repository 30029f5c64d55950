"""Which leaf switch every NIC is cabled to, and the links between leaf and spine switches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshard.topologies.machine import LEAF, Fabric
from foreshard.topologies.placing import Placing

__all__ = ["Cabling", "cable"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Cabling:
    """Leaf and position on it of each NIC, [nodes, nics]; bandwidth and usable bandwidth between switches, [links]."""

    fabric: Fabric
    leaves: int
    nic_leaf: IntArray
    nic_position: IntArray
    bandwidth: FloatArray
    usable: FloatArray

    @property
    def links(self) -> int:
        """Directed links between leaves and spines; none with a single leaf."""
        return 2 * self.leaves * self.fabric.spines if self.leaves > 1 else 0

    def leaf_of_nic(self, node: int, nic: str) -> int:
        """Leaf switch of a NIC."""
        return int(self.nic_leaf[node, int(nic[3:])])

    def ends(self, link: int) -> tuple[str, str]:
        """Names of the two ends of a link: l * spines + s goes up from leaf l to spine s, the rest come down."""
        down, rest = divmod(link, self.leaves * self.fabric.spines)
        leaf, spine = divmod(rest, self.fabric.spines)
        return (f"spine{spine}", f"leaf{leaf}") if down else (f"leaf{leaf}", f"spine{spine}")


def cable(fabric: Fabric, at: Placing) -> Cabling:
    """Return which NIC is cabled to which leaf."""
    nodes, nics = len(at.kind_of), max(int(at.nics_of.max()), 1)
    node, nic = np.indices((nodes, nics))
    per_leaf = fabric.nodes_per_leaf or nodes
    if fabric.kind == "single_switch":
        leaf, position = np.zeros_like(node), node * nics + nic
    elif fabric.kind == "leaf_spine":
        leaf, position = node // per_leaf, (node % per_leaf) * nics + nic
    else:
        leaf, position = (node // per_leaf) * nics + nic, node % per_leaf
    leaves = int(leaf.max()) + 1
    return Cabling(
        fabric=fabric,
        leaves=leaves,
        nic_leaf=leaf,
        nic_position=position,
        bandwidth=_uplinks(fabric, at, leaf, leaves, "bandwidth"),
        usable=_uplinks(fabric, at, leaf, leaves, "usable"),
    )


def _uplinks(fabric: Fabric, at: Placing, nic_leaf: IntArray, leaves: int, field: str) -> FloatArray:
    """What the NICs of a leaf carry together, divided by the oversubscription and among its uplinks, [links]."""
    if leaves == 1:
        return np.zeros(0)
    total = np.zeros(leaves)
    for kind, spec in enumerate(at.kinds):
        nodes = at.nodes_of_kind(kind)
        for link in spec.links:
            if link.dst == LEAF:
                leaf = nic_leaf[nodes, int(link.src[3:])]
                total += np.bincount(leaf, minlength=leaves) * float(getattr(link, field))
    return np.tile(np.repeat(total / (fabric.oversubscription * fabric.spines), fabric.spines), 2)
