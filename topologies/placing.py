"""Where everything of a cluster lies: nodes, ranks, domains and the first link of every node, by integer arithmetic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from foreshard.topologies.machine import ClusterSpec, NodeSpec
from foreshard.topologies.routes import NodeRoutes, compute_node_routes

__all__ = ["Placing", "place"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Placing:
    """Kinds of node with their routes, and for nodes and ranks where they are.

    kind_of, gpus_of, nics_of, first_rank, first_link, domain_of_node [nodes]; node_of, local_rank, domain_of [ranks].
    A rank spreads its traffic to other domains evenly over `slots`.
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
        kind: int = self.kind_of[self.node_of[rank]]
        return self.routes[kind]

    def own_slot(self, kind: int, slot: int) -> int:
        """The slot of a kind of node that serves the cluster's slot."""
        return slot * len(self.routes[kind].egress) // self.slots

    def slot_nics(self, kind: int, slot: int) -> IntArray:
        """NIC of each GPU of a kind of node in a slot of the cluster, -1 for none, [gpus]."""
        row: IntArray = self.routes[kind].nic[self.own_slot(kind, slot)]
        return row

    def nodes_of_kind(self, kind: int) -> IntArray:
        """Nodes of a kind, ascending."""
        return np.flatnonzero(self.kind_of == kind)

    def node_and_local(self, link: int) -> tuple[int, int]:
        """Node of a link and its number among the node's links."""
        node = int(np.searchsorted(self.first_link, link, side="right")) - 1
        return node, link - int(self.first_link[node])

    def unreachable(self) -> Iterator[str]:
        """One sentence for every reason why some ranks have no route to others."""
        several_domains, shares_domain = self._needs()
        cut: dict[str, list[int]] = defaultdict(list)
        for kind, routes in enumerate(self.routes):
            for gpu, reason in _missing(routes, several_domains, shares_domain):
                cut[reason].extend((self.first_rank[self.nodes_of_kind(kind)] + gpu).tolist())
        inside = [reason for reason in cut if reason.startswith(_INSIDE)]
        if len(inside) > _FEW:  # one cut through a node separates many pairs: it is told once
            ranks = name_ranks([rank for reason in inside for rank in cut.pop(reason)])
            yield f"{ranks}: {_INSIDE} to some or all of the node's other GPUs: every link or path to them is missing"
        for reason, few in cut.items():
            yield f"{name_ranks(few)}: {reason}"

    def _needs(self) -> tuple[bool, bool]:
        domains = len(np.unique(self.domain_of_node))
        return domains > 1, domains < len(self.domain_of_node)


_INSIDE = "no route inside the node"
_FEW = 3


def name_ranks(ranks: list[int]) -> str:
    """Return ranks as people write them, "ranks 0, 4-7"."""
    parts: list[str] = []
    ordered = sorted(set(ranks))
    for start in (r for r in ordered if r - 1 not in set(ordered)):
        end = start
        while end + 1 in set(ordered):
            end += 1
        parts.append(str(start) if end == start else f"{start}-{end}")
    return ("rank " if len(ordered) == 1 else "ranks ") + ", ".join(parts)


def _missing(routes: NodeRoutes, several_domains: bool, shares_domain: bool) -> Iterator[tuple[int, str]]:
    for s, row in enumerate(routes.peer):
        lost = [d for d, route in enumerate(row) if route is None]
        if lost:
            names = ", ".join(f"gpu{d}" for d in lost)
            yield s, f"{_INSIDE} to {names}: every link or path to them is missing"
    for g in range(len(routes.peer)):
        if shares_domain and (routes.up[g] is None or routes.down[g] is None):
            yield g, "no link to the NVSwitch of the domain, so no route to its other nodes"
        if several_domains and any(out[g] is None or into[g] is None for out, into in _both(routes)):
            yield g, "no route to a NIC with a cable, so none to ranks of other nodes"


def _both(routes: NodeRoutes) -> Iterator[tuple[tuple[object, ...], tuple[object, ...]]]:
    yield from zip(routes.egress, routes.ingress, strict=True)


def place(spec: ClusterSpec, missing: Mapping[int, frozenset[int]] | None = None) -> Placing:
    """Return where the nodes, ranks and links of a cluster lie.

    `missing` names the links (by their number in the node) that a node lacks; such a node is a kind of its own.
    """
    kinds = list(dict.fromkeys(id(group.node) for group in spec.groups))
    specs = [next(group.node for group in spec.groups if id(group.node) == kind) for kind in kinds]
    kind_of = np.repeat([kinds.index(id(g.node)) for g in spec.groups], [g.nodes for g in spec.groups])
    variants: dict[tuple[int, frozenset[int]], int] = {}
    for node, lost in (missing or {}).items():
        key = (int(kind_of[node]), lost)
        if key not in variants:
            variants[key] = len(specs)
            specs.append(_without(specs[key[0]], lost))
        kind_of[node] = variants[key]
    return _placed(tuple(specs), kind_of, spec.nodes_per_domain)


def _without(spec: NodeSpec, lost: frozenset[int]) -> NodeSpec:
    """The node with some links of bandwidth 0, which no route uses."""
    links = (replace(k, bandwidth=0.0, usable=0.0) if i in lost else k for i, k in enumerate(spec.links))
    return replace(spec, links=tuple(links))


def _placed(kinds: tuple[NodeSpec, ...], kind_of: IntArray, nodes_per_domain: int) -> Placing:
    gpus_of, links_of, nics_of = (_per_node(kinds, kind_of, count) for count in (_gpus, _links, _nics))
    nodes = np.arange(len(kind_of))
    node_of = np.repeat(nodes, gpus_of)
    first_rank = np.cumsum(gpus_of) - gpus_of
    domain_of_node = nodes // nodes_per_domain
    routes = tuple(compute_node_routes(kind) for kind in kinds)
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


def _per_node(kinds: tuple[NodeSpec, ...], kind_of: IntArray, count: Callable[[NodeSpec], int]) -> IntArray:
    return np.array([count(kind) for kind in kinds], dtype=np.int64)[kind_of]


def _gpus(kind: NodeSpec) -> int:
    return len(kind.gpus)


def _links(kind: NodeSpec) -> int:
    return len(kind.links)


def _nics(kind: NodeSpec) -> int:
    """NICs of a node, counted by the highest number, since they are known by it."""
    return max((int(name[3:]) + 1 for name in kind.devices if name.startswith("nic")), default=0)
