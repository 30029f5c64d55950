"""Groups that lie alike: the loads of one serve all, moved to other nodes by their first links.

Thousands of groups of a 2D layout differ only in which nodes they lie on. Where nodes are of one kind and no link
beyond the nodes is used, link i of node a becomes link i of node b.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.comms.lowering import Draft
from foreshard.simulator.comms.members import Members
from foreshard.topologies.cluster import Cluster

__all__ = ["Pairs", "Seat", "Template", "seat_of"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_PAIRS_UP_TO = 64  # members; larger groups are few and go through Cluster.loads


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Which links each ordered pair of members uses: pair[e] puts share[e] of its bytes on links[link[e]]."""

    links: IntArray
    pair: IntArray
    link: IntArray
    share: FloatArray

    def loads(self, matrix: FloatArray) -> FloatArray:
        """Bytes on `links` for traffic [members, members], [k]."""
        return np.bincount(self.link, self.share * matrix.ravel()[self.pair], len(self.links)).astype(np.float64)


@dataclass(eq=False)
class Template:
    """The first group seen of its kind, with what was worked out for it."""

    members: Members
    nodes: IntArray
    drafts: dict[object, Draft] = field(default_factory=dict)

    @cached_property
    def remote(self) -> NDArray[np.bool_]:
        """Whether two members lie in different NVLink domains, [members, members]."""
        domain = self.members.cluster.domain_of[self.members.ranks]
        different: NDArray[np.bool_] = domain[:, None] != domain[None, :]
        return different

    @cached_property
    def pairs(self) -> Pairs | None:
        """Links of all pairs of members; None for groups too large for it."""
        ranks, cluster = self.members.ranks.tolist(), self.members.cluster
        if len(ranks) > _PAIRS_UP_TO:
            return None
        entries = [
            (s * len(ranks) + d, link, share)
            for s, src in enumerate(ranks)
            for d, dst in enumerate(ranks)
            for path, share in cluster.paths(src, dst)
            for link in path
        ]
        pair, number, share = (
            (np.array(column) for column in zip(*entries, strict=True)) if entries else [np.zeros(0)] * 3
        )
        links, link = np.unique(number.astype(np.int64), return_inverse=True)
        return Pairs(links, pair.astype(np.int64), link, share.astype(np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class Seat:
    """One group: the template it is like, and the nodes it lies on in the template's order."""

    template: Template
    nodes: IntArray
    first_link: IntArray

    def moved(self, links: IntArray) -> IntArray:
        """The links of this group that correspond to those of the template."""
        here, there = self.template.nodes, self.nodes
        if len(here) == 1:
            return links + int(self.first_link[there[0]] - self.first_link[here[0]])
        if np.array_equal(here, there):
            return links
        node = np.searchsorted(self.first_link, links, side="right") - 1
        order = np.argsort(here)
        place = order[np.searchsorted(here, node, sorter=order)]
        moved: IntArray = links - self.first_link[node] + self.first_link[there[place]]
        return moved


class _Seats:
    """Templates of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        groups = cluster.spec.groups
        counts = [group.nodes for group in groups]
        links = np.repeat([len(group.node.links) for group in groups], counts)
        self.cluster = cluster
        self.kind = np.repeat([id(group.node) for group in groups], counts)
        self.first_link = np.cumsum(links) - links
        # A degraded link makes its node unlike the others, and links between leaf switches belong to no node.
        self.alike = not cluster.spec.degrade
        self.uplinks = len(cluster.link_usable) > int(links.sum())
        self.templates: dict[object, Template] = {}
        self.seats: dict[bytes, Seat] = {}

    def seat(self, ranks: IntArray) -> Seat:
        key = ranks.tobytes()
        if key not in self.seats:
            self.seats[key] = self._seat(ranks)
        return self.seats[key]

    def _seat(self, ranks: IntArray) -> Seat:
        nodes, first, place = np.unique(self.cluster.node_of[ranks], return_index=True, return_inverse=True)
        order = np.argsort(first)
        nodes, place = nodes[order], np.argsort(order)[place]
        _, domain = np.unique(self.cluster.domain_of[ranks], return_inverse=True)
        key: object = ranks.tobytes()
        if self.alike and not (self.uplinks and domain.any()):
            parts = (self.kind[nodes], place, self.cluster.local_rank[ranks], domain)
            key = tuple(part.tobytes() for part in parts)
        template = self.templates.get(key)
        if template is None:
            template = self.templates[key] = Template(Members(self.cluster, ranks), nodes)
        return Seat(template, nodes, self.first_link)


@lru_cache(maxsize=8)
def _seats(cluster: Cluster) -> _Seats:
    return _Seats(cluster)


def seat_of(cluster: Cluster, ranks: IntArray) -> Seat:
    """Return the seat of a group of ranks, in the order of its members."""
    return _seats(cluster).seat(ranks)
