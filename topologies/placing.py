"""Where everything of a cluster lies: nodes, ranks, domains and the first link of every node, by integer arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshard.topologies.machine import ClusterSpec, NodeSpec
from foreshard.topologies.routes import NodeRoutes, compute_node_routes

__all__ = ["Placing", "place"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Placing:
    """Kinds of node with their routes, and for nodes and ranks where they are.

    kind_of, gpus_of, first_rank, first_link, nics_of, domain_of_node [nodes]; node_of, local_rank, domain_of [ranks].
    """

    kinds: tuple[NodeSpec, ...]
    routes: tuple[NodeRoutes, ...]
    kind_of: IntArray
    gpus_of: IntArray
    nics_of: IntArray
    first_rank: IntArray
    first_link: IntArray
    domain_of_node: IntArray
    node_of: IntArray
    local_rank: IntArray
    domain_of: IntArray
    slots: int
    node_links: int

    def routes_of(self, rank: int) -> NodeRoutes:
        """Routes of the node of a rank."""
        return self.routes[self.kind_of[self.node_of[rank]]]

    def own_slot(self, rank: int, slot: int) -> int:
        """The slot of the rank's own node that carries the cluster's slot."""
        return slot * len(self.routes_of(rank).egress) // self.slots

    def nodes_of_kind(self, kind: int) -> IntArray:
        """Nodes of a kind, ascending."""
        return np.flatnonzero(self.kind_of == kind)

    def unreachable(self) -> Iterator[str]:
        """One sentence for every rank or pair of ranks of a node without a route."""
        several_domains = len(np.unique(self.domain_of_node)) > 1
        shares_domain = len(self.domain_of_node) > len(np.unique(self.domain_of_node))
        for kind, routes in enumerate(self.routes):
            for node in self.nodes_of_kind(kind):
                yield from _missing(routes, int(self.first_rank[node]), several_domains, shares_domain)


def _missing(routes: NodeRoutes, first: int, several_domains: bool, shares_domain: bool) -> Iterator[str]:
    for s, row in enumerate(routes.peer):
        for d, route in enumerate(row):
            if route is None:
                yield f"rank {first + s} has no route to rank {first + d} in its node"
    if shares_domain:
        for g, (up, down) in enumerate(zip(routes.up, routes.down, strict=True)):
            if up is None or down is None:
                yield f"rank {first + g} has no link to the NVSwitch of its domain"
    if several_domains:
        for out, into in zip(routes.egress, routes.ingress, strict=True):
            for g, (a, b) in enumerate(zip(out, into, strict=True)):
                if a is None or b is None:
                    yield f"rank {first + g} has no route to a NIC with a cable, so none to ranks of other nodes"


def place(spec: ClusterSpec) -> Placing:
    """Return where the nodes, ranks and links of a cluster lie."""
    kinds = tuple(group.node for group in spec.groups)
    routes = tuple(compute_node_routes(kind) for kind in kinds)
    kind_of = np.repeat(np.arange(len(kinds)), [group.nodes for group in spec.groups])
    gpus_of = np.array([len(kind.gpus) for kind in kinds], dtype=np.int64)[kind_of]
    links_of = np.array([len(kind.links) for kind in kinds], dtype=np.int64)[kind_of]
    nics_of = np.array([sum(d.startswith("nic") for d in kind.devices) for kind in kinds], dtype=np.int64)[kind_of]
    nodes = np.arange(len(kind_of))
    node_of = np.repeat(nodes, gpus_of)
    first_rank = np.cumsum(gpus_of) - gpus_of
    domain_of_node = nodes // spec.nodes_per_domain
    return Placing(
        kinds=kinds,
        routes=routes,
        kind_of=kind_of,
        gpus_of=gpus_of,
        nics_of=nics_of,
        first_rank=first_rank,
        first_link=np.cumsum(links_of) - links_of,
        domain_of_node=domain_of_node,
        node_of=node_of,
        local_rank=np.arange(len(node_of)) - first_rank[node_of],
        domain_of=domain_of_node[node_of],
        slots=int(np.lcm.reduce([len(r.egress) for r in routes])),
        node_links=int(links_of.sum()),
    )
