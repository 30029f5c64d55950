"""Groups that lie alike: the loads of one serve all, moved to other nodes by their first links.

Thousands of groups of a 2D layout differ only in which nodes they lie on. Where nodes are of one kind and no link
beyond the nodes is used, link i of node a becomes link i of node b.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from foreshard.simulator.comms.bounds import Parts, parts_of
from foreshard.simulator.comms.lowering import Draft
from foreshard.simulator.comms.members import Members
from foreshard.simulator.job.layout import Groups
from foreshard.topologies.cluster import Cluster

__all__ = ["Pairs", "Seats", "Template", "seats_of", "template_of"]

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

    def loads(self, matrices: FloatArray) -> FloatArray:
        """Bytes on `links` for each traffic of [n, members, members], [n, k]."""
        flat = matrices.reshape(len(matrices), -1)
        spread = csr_array((self.share, (self.link, self.pair)), shape=(len(self.links), flat.shape[1]))
        return np.asarray((spread @ flat.T).T, dtype=np.float64)


@dataclass(eq=False)
class Template:
    """The first group seen of its kind, with what was worked out for it."""

    members: Members
    drafts: dict[object, Draft] = field(default_factory=dict)

    @cached_property
    def remote(self) -> NDArray[np.bool_]:
        """Whether two members lie in different NVLink domains, [members, members]."""
        domain = self.members.cluster.domain_of[self.members.ranks]
        different: NDArray[np.bool_] = domain[:, None] != domain[None, :]
        return different

    @cached_property
    def parts(self) -> tuple[Parts, ...]:
        """What bounds of its collectives are taken from."""
        return parts_of(self.members)

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
class Seats:
    """Groups that lie alike: their numbers `groups` [n], their `nodes` [n, nodes] in the order of their members.

    The first of all that ever lay so is the template's; `here` are its nodes.
    """

    template: Template
    groups: IntArray
    nodes: IntArray
    here: IntArray
    first_link: IntArray

    def moved(self, links: IntArray) -> IntArray:
        """The links of each group that correspond to the template's `links` [k], [n, k]."""
        if len(self.nodes) == 1 and np.array_equal(self.nodes[0], self.here):
            return links[None, :]  # perhaps beyond the nodes
        node = np.searchsorted(self.first_link, links, side="right") - 1
        order = np.argsort(self.here)
        place = order[np.searchsorted(self.here, node, sorter=order)]
        moved: IntArray = (links - self.first_link[node])[None, :] + self.first_link[self.nodes[:, place]]
        return moved


class _Seating:
    """Templates of one cluster, and the seats of the groups that were asked for."""

    def __init__(self, cluster: Cluster) -> None:
        spec = cluster.spec
        links = np.repeat([len(group.node.links) for group in spec.groups], [group.nodes for group in spec.groups])
        self.cluster = cluster
        self.first_link = np.cumsum(links) - links
        self.uplinks = len(cluster.link_usable) > int(links.sum())
        self.templates: dict[bytes, tuple[Template, IntArray]] = {}
        self.known: WeakKeyDictionary[Groups, tuple[Seats, ...]] = WeakKeyDictionary()

    def seats(self, groups: Groups) -> tuple[Seats, ...]:
        """The groups by template; worked out once."""
        if groups not in self.known:
            by_size: dict[int, list[int]] = defaultdict(list)
            for index, size in enumerate(groups.sizes.tolist()):
                by_size[size].append(index)
            found = (self._of_size(groups, np.array(numbers)) for numbers in by_size.values())
            self.known[groups] = tuple(seats for several in found for seats in several)
        return self.known[groups]

    def _of_size(self, groups: Groups, numbers: IntArray) -> list[Seats]:
        """The seats of groups of one size, given their numbers."""
        ranks = np.stack([groups.members[number] for number in numbers.tolist()])
        node = self.cluster.node_of[ranks]
        first = _first_equal(node)
        domain = _dense_rank(self.cluster.domain_of[ranks])
        rows = np.concatenate([self.cluster.alike[node], first, self.cluster.local_rank[ranks], domain], axis=1)
        # Links between leaf switches belong to no node: a group that uses them is like no other.
        beyond = np.asarray((domain > 0).any(axis=1) & self.uplinks)
        alike: dict[bytes, list[int]] = defaultdict(list)
        for row in range(len(numbers)):
            alike[(ranks[row] if beyond[row] else rows[row]).tobytes()].append(row)
        own = first == np.arange(first.shape[1])  # the first member in each node
        return [
            self._seats(key, numbers[same], ranks[same], node[same][:, own[same[0]]]) for key, same in alike.items()
        ]

    def _seats(self, key: bytes, numbers: IntArray, ranks: IntArray, nodes: IntArray) -> Seats:
        if key not in self.templates:
            self.templates[key] = (Template(Members(self.cluster, ranks[0])), nodes[0])
        template, here = self.templates[key]
        return Seats(template, numbers, nodes, here, self.first_link)


def _first_equal(values: IntArray) -> IntArray:
    """For each entry of a row the place of the first equal one in that row, [rows, n]."""
    order = np.argsort(values, axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=1)
    new = np.ones(values.shape, dtype=bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    begun = np.maximum.accumulate(np.where(new, np.arange(values.shape[1]), 0), axis=1)
    first = np.empty_like(order)
    np.put_along_axis(first, order, np.take_along_axis(order, begun, axis=1), axis=1)
    return first


def _dense_rank(values: IntArray) -> IntArray:
    """For each entry of a row how many different smaller ones the row has, [rows, n]."""
    order = np.argsort(values, axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=1)
    steps = np.zeros(values.shape, dtype=np.int64)
    steps[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    rank = np.empty_like(steps)
    np.put_along_axis(rank, order, np.cumsum(steps, axis=1), axis=1)
    return rank


@lru_cache(maxsize=8)
def _seating(cluster: Cluster) -> _Seating:
    return _Seating(cluster)


def seats_of(cluster: Cluster, groups: Groups) -> tuple[Seats, ...]:
    """Return all groups, those that lie alike together."""
    return _seating(cluster).seats(groups)


def template_of(cluster: Cluster, ranks: IntArray) -> Template:
    """Return the template of one group of ranks, in the order of its members."""
    (seats,) = seats_of(cluster, Groups([ranks]))
    return seats.template
